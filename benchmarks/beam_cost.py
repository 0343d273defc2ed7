"""Cost of Beam: seconds and bytes per round, the Beam executor against the bare one, on DirectRunner.

One party and a fake peer that deals messages from memory, so that neither the network nor the peer is measured. A round
masks one column, sends it and adds what comes back; the state is 16,384 rows × 5 uint64 per shard. Seconds per round
are those of ROUNDS more rounds, divided by ROUNDS: what every pipeline costs once is left out, what every stage costs
(construction included) is in.
"""

import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import apache_beam as beam
import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, parser, publish
from veilmeans.crypto import ring
from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.io.storage.scratch import Scratch
from veilmeans.schemas.arrays import Arrays, to_stream
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.party import Party
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.beam_patches import CachedOptions
from veilmeans.transforms.rounds.beam_rounds import RunProtocol
from veilmeans.transforms.rounds.executor import run_rounds
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent

ROWS, COLUMNS, ROUNDS = 16_384, 5, 10
FIXED_MS, MS_PER_MB = 10.0, 1.5
RUN = "bench"


class FakePeer:
    """A peer that takes every message and answers each with the same one."""

    payload = to_stream({"m": np.ones(ROWS, ring.DTYPE)})

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        """Drop the messages."""

    def flush(self) -> None:
        """Everything has arrived."""

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        del key, timeout
        return self.payload

    def drop_messages(self, run: str, before: int | None = None) -> int:
        del run, before
        return 0

    def forget_refusal(self, run: str) -> None:
        """Nothing was refused."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class BenchContext(PartyContext):
    """The context of a party with the fake peer."""

    root: str = "value"

    def open(self, exchange: Exchange | None = None) -> OpenPartyContext:
        party = Party(0, ("here", "there"))
        return OpenPartyContext(party, RUN, 0, exchange or FakePeer(), bytes(32), None, Scratch(self.root), 1.0)


def _send(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del party
    return Sent(state, {"m": state["x"][:, 0] + randomness.uniform("mask", (len(state["x"]),))})


def _receive(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del party, randomness
    return {"x": state["x"] + inbox.messages[1]["m"][:, None]}


def protocol(rounds: int) -> Protocol:
    return Protocol("bench", (Round("add", _send, _receive, sends="x + r"),) * rounds)


def _state(shard: int) -> dict[str, ring.Ring]:
    return {"x": np.full((ROWS, COLUMNS), shard, ring.DTYPE)}


def _element(shard: int) -> tuple[int, Shard]:
    return shard, Shard(arrays=dict(_state(shard)))


def run_bare_rounds(shards: int, rounds: int) -> None:
    run_rounds(protocol(rounds), _context("value").open(), {i: _state(i) for i in range(shards)})


def run_beam_rounds(shards: int, root: str, rounds: int, workers: int = 1) -> None:
    build(shards, root, rounds, workers).run().wait_until_finish()
    Scratch(root).clear(RUN)


def build(shards: int, root: str, rounds: int, workers: int = 1) -> beam.Pipeline:
    flags = [f"--direct_num_workers={workers}", "--direct_running_mode=multi_threading"] if workers > 1 else []
    pipeline = beam.Pipeline("FnApiRunner", options=CachedOptions(flags))
    _ = (
        pipeline
        | beam.Create(range(shards))
        | beam.Map(_element).with_output_types(tuple[int, Shard])
        | RunProtocol(protocol(rounds), _context(root))
        | beam.Map(_drop)
    )
    return pipeline


def _drop(element: tuple[int, Shard]) -> None:
    del element


def _context(root: str) -> BenchContext:
    return BenchContext(config=None, binding="", root=root)  # type: ignore[arg-type]


def per_round(run: Callable[[int], object], repeats: int = 3) -> float:
    """Milliseconds of one more round; the best of a few repetitions."""
    best = float("inf")
    run(1)
    for _ in range(repeats):
        gc.collect()
        short, long = _timed(run, 1), _timed(run, 1 + ROUNDS)
        best = min(best, (long - short) / ROUNDS * 1e3)
    return best


def _timed(run: Callable[[int], object], rounds: int) -> float:
    start = time.perf_counter()
    run(rounds)
    return time.perf_counter() - start


@contextmanager
def scratch_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="veilmeans-bench-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def measure(shards: int) -> list[Figure]:
    """Measure the bare and the Beam executor, with states in memory, in scratch files, and sent by value."""
    megabytes = shards * ROWS * COLUMNS * 8 / 1e6
    label = f"{shards} shards, {megabytes:,.0f} MB of state"
    target = FIXED_MS + MS_PER_MB * megabytes
    bare = per_round(partial(run_bare_rounds, shards))
    figures = [
        Figure(f"{label}: bare", bare, "ms/round"),
        Figure(f"{label}: sent", shards * ROWS * 8 / 1e6, "MB/round"),
    ]
    with scratch_folder() as folder:
        for name, root in (("memory", "memory/bench"), ("scratch", folder), ("value", "value")):
            cost = per_round(partial(run_beam_rounds, shards, root))
            figures.append(Figure(f"{label}: beam, state in {name}", cost, "ms/round"))
            own = Figure.at_most(f"{label}: Beam's own cost, state in {name}", cost - bare, "ms/round", target)
            figures.append(own)
    two = per_round(partial(run_beam_rounds, shards, "memory/bench", workers=2))
    return [*figures, Figure(f"{label}: beam, state in memory, 2 workers", two, "ms/round")]


def construction() -> Figure:
    """The part of a round's cost that no data cause: building the stage and handing it to the runner."""
    cost = per_round(lambda rounds: build(1, "value", rounds).to_runner_api())
    return Figure("building one round's stage", cost, "ms/round")


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--shards", type=int, nargs="*", default=[16, 256])
    arguments = command.parse_args()
    figures = [construction()]
    for shards in arguments.shards:
        figures += measure(shards)
    publish(figures, arguments.json)


if __name__ == "__main__":
    from benchmarks import beam_cost

    beam_cost.main()
