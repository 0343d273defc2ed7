"""How fast this machine handles messages and shares, for the estimates of time: measured once, in a second, and kept.

A step of r rounds at one party, with b bytes sent, w words of masks, c bytes received and m messages takes about

  computed  = r·barrier + m·(message + gateway) + (b + c)·byte + b·local + w·word + products
  on a link = computed + r·round trip + (bytes of who sends most) / rate

(`Costs` has word and products), and a pipeline of Beam takes a moment to start. It knows nothing of other programs, of
disks that sync slowly, nor of a runner other than Beam's own: an estimate.
"""

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import apache_beam as beam
import numpy as np

from veilmeans.crypto.correlations import MatMul, Operand
from veilmeans.io.storage.atomic_files import write_json
from veilmeans.pipelines.planning.calibration import machine, seconds_of
from veilmeans.pipelines.session.beam_runner import CachedOptions, sample_often
from veilmeans.schemas.arrays import from_stream, to_stream
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.primitives.argmin_tree import ArgminTree, argmin
from veilmeans.transforms.rounds.trace import StageTrace, trace

_SMALL, _LARGE = 8, 1 << 20
"""Bytes of the messages that are measured."""
_ROWS, _CLUSTERS = 1 << 12, 4
_BARRIERS = 8
GATEWAY = 1.2e-3
"""What TLS, gRPC and waiting for each other take of a small message between two processes of one machine: not measured
here, because a plan opens no port."""
_TOUCHES = 1.5
"""How often a share of a triple is expanded: to send, and some of it again to receive."""


@dataclass(frozen=True)
class Pace:
    """Seconds: of a message, of a byte in it, of arithmetic for a byte sent, of a Beam stage, of a pipeline's start."""

    message: float
    byte: float
    local: float
    barrier: float
    pipeline: float

    def computed(self, counted: list[tuple[int, StageTrace]], party: int, word: float, staged: bool) -> float:
        """Of stages over shards, but for their products; `staged`: each is a Beam stage."""
        bytes_sent = bytes_moved = messages = words = 0
        for count, stage in counted:
            for message in stage.messages:
                if party in (message.sender, message.recipient):
                    bytes_moved += count * message.size
                    messages += count
                bytes_sent += count * message.size * (party == message.sender)
            words += count * _words(stage, party)
        rounds = len({stage.name for _, stage in counted}) if staged else 0
        moved = messages * (self.message + GATEWAY) + bytes_moved * self.byte + bytes_sent * self.local
        return rounds * self.barrier + moved + _TOUCHES * words * word


def _words(stage: StageTrace, party: int) -> int:
    """Words of 8 bytes that a party expands; those of matrices belong to their products."""
    size = 0
    for kind in (need.kind for need in stage.needs):
        if not isinstance(kind, MatMul | Operand):
            own = [part for part in kind.uniform_parts() if party in part.holders]
            own += [part for part in kind.determined_parts() if party in part.holders[:-1]]
            size += sum(prod(part.shape) * np.dtype(part.dtype).itemsize for part in own)
    return size // 8


def measure_pace(folder: Path, keep: bool = True) -> Pace:
    """The pace of this machine, from `folder` if it was measured before."""
    file = folder / "pace.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        if kept["machine"] == machine():
            return Pace(**{name: float(value) for name, value in kept["seconds"].items()})
    small, large = _message(_SMALL), _message(_LARGE)
    pace = Pace(small, max(0.0, large - small) / _LARGE, _local(), *_beam())
    if keep:
        write_json(file, {"machine": machine(), "seconds": asdict(pace)})
    return pace


def _message(size: int) -> float:
    """Made, hashed, stored, mapped, checked and read."""
    arrays = {"x": np.zeros(size // 8, np.uint64)}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "message"

        def work() -> None:
            payload = to_stream(arrays)
            hashlib.sha256(payload).digest()
            file.write_bytes(payload)
            stored = file.read_bytes()
            hashlib.sha256(stored).digest()
            from_stream(stored)

        return seconds_of(work, 1)


def _local() -> float:
    """Arithmetic of both parties in a comparison tree, for a byte that one of them sends."""
    protocol = argmin(ArgminTree(compare_bits=32), _CLUSTERS, 2)
    shapes = [{"d": ((_CLUSTERS, _ROWS), "uint64")}] * 2
    sent = sum(sum(stage.sent) for stage in trace(protocol, shapes))
    return seconds_of(lambda: trace(protocol, shapes), sent)


def _beam() -> tuple[float, float]:
    """One more stage with a barrier in a pipeline of Beam's own runner, and a pipeline with one."""
    sample_often()
    few, many = (min(_pipeline(stages) for _ in range(2)) for stages in (1, _BARRIERS))
    return max(0.0, many - few) / (_BARRIERS - 1), few


def _pipeline(stages: int) -> float:
    start = time.process_time()
    pipeline = beam.Pipeline(runner="FnApiRunner", options=CachedOptions([]))
    shards = pipeline | beam.Create([(0, Shard())])
    for number in range(stages):
        shards = shards | f"Send {number}" >> beam.Map(_pass_on) | f"Barrier {number}" >> beam.GroupByKey()
    pipeline.run().wait_until_finish()
    return time.process_time() - start


def _pass_on(element: tuple[int, object]) -> tuple[int, Shard]:
    return element[0], Shard()
