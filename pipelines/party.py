"""What every job of a party does around its pipeline: take the seat, shake hands, run, say farewell."""

import hmac
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult
from apache_beam.runners.worker.statesampler import StateSampler

from veilmeans.crypto import prg
from veilmeans.io.connect import embedded_gateway, open_exchange
from veilmeans.io.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.files import disk_error
from veilmeans.io.keys import read_secret
from veilmeans.io.scratch import Scratch
from veilmeans.pipelines.report import RunReport
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError, VeilmeansError, recall
from veilmeans.schemas.message import Key
from veilmeans.schemas.terms import PROTOCOL_VERSION
from veilmeans.transforms.seat import Tally

log = logging.getLogger(__name__)

FAREWELL = "farewell"


@contextmanager
def seated(config: JobConfig) -> Iterator[Exchange]:
    """The party's gateway is open and its exchange connected."""
    try:
        config.run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise disk_error(config.run_folder, error) from None
    with embedded_gateway(config):
        exchange = open_exchange(config)
        exchange.forgive(config.run)
        yield exchange


def binding_of(config: JobConfig, digest: bytes, job: str) -> str:
    """A keyed digest of data and job: equal if they are equal, and telling nothing to who lacks the seed."""
    key = prg.derive(read_secret(config.seed), "binding")
    return hmac.digest(key, digest + job.encode(), "sha256").hex()


def run_pipeline(config: JobConfig, build: Callable[[beam.Pipeline], object]) -> PipelineResult:
    """Build and run a pipeline on the configured runner.

    A pipeline that fails for a reason of its own is run again: its rounds send the same bytes, so nothing is said
    twice. A refused message, an absent peer or a user's mistake ends it at once.
    """
    for left in reversed(range(config.engine.attempts)):
        try:
            return _run_once(config, build)
        except Exception as error:
            known = recall(error)
            if known is not None:
                raise known from None
            if not left:
                raise
            log.warning("the pipeline failed (%s); it is run again, %d attempts left", type(error).__name__, left)
            RunReport(config.run_folder).repeat()
    raise VeilmeansError("engine.attempts must be at least 1")


_SAMPLING_MS = 5
"""Beam's state sampler sleeps up to 200 ms, and a stage waits for its last sleep: a tenth of the time of a run."""


def _run_once(config: JobConfig, build: Callable[[beam.Pipeline], object]) -> PipelineResult:
    StateSampler.__init__.__defaults__ = (_SAMPLING_MS,)
    pipeline = beam.Pipeline(runner=_runner(config), options=_options(config))
    build(pipeline)
    try:
        result = pipeline.run()
        result.wait_until_finish()
    finally:
        Scratch(config.scratch_root).clear(config.run)
    return result


def counters(result: PipelineResult) -> dict[str, dict[str, int]]:
    """Messages, bytes and waiting time of each stage, from Beam's metrics (a stage's two halves are two steps)."""
    ours = Tally().counts().keys()
    stages: dict[str, dict[str, int]] = {}
    for counter in result.metrics().query()["counters"]:
        name = counter.key.metric
        if name.name not in ours:
            continue  # the runner's own
        value = counter.committed if counter.committed is not None else counter.attempted
        counts = stages.setdefault(name.namespace, {})
        counts[name.name] = counts.get(name.name, 0) + int(value)
    return dict(sorted(stages.items()))


def say_farewell(exchange: Exchange, config: JobConfig, iteration: int, patience: float = 0.0) -> bool:
    """Tell the peers that we have what we need, wait until they have, drop the run's messages; whether all have.

    A party must not close its gateway while a peer may still have to send again. `patience`: for how many seconds
    longer than configured it may be busy.
    """
    where = Address(config.run, iteration, FAREWELL, 0)
    nothing = {"done": np.ones(1, np.uint8)}
    for peer in config.peers:
        with suppress(PeerError):  # a peer that heard us before may be gone; then its own farewell is here
            exchange.put_all([Outgoing.of(Key(where, config.party, peer), nothing)])
    try:
        for peer in config.peers:
            get_arrays(exchange, Key(where, peer, config.party), config.exchange.timeout_s + patience)
    except PeerError as error:
        log.warning("our result is complete, but a peer has not said farewell: %s", error.sentence)
        return False
    _farewell_mark(config).touch()
    exchange.collect(config.run, before=iteration)
    return True


def finished(config: JobConfig) -> bool:
    """Whether every member of the run has said farewell: nobody needs us any more."""
    done = _farewell_mark(config).exists()
    if done:
        log.info("run %s is finished already", config.run)
    return done


def _farewell_mark(config: JobConfig) -> Path:
    return config.run_folder / "farewell"


def agreed_terms(config: JobConfig) -> Mapping[str, Any]:
    """What every member of a run, the dealer included, must have alike."""
    return {
        "protocol version": PROTOCOL_VERSION,
        "parties": list(config.parties),
        "dealer": config.dealer,
        "engine.rows_per_shard": config.engine.rows_per_shard,
    }


def _runner(config: JobConfig) -> str:
    """DirectRunner is pinned to Beam's in-process runner: by itself it would look for a Prism binary to download."""
    return "FnApiRunner" if config.engine.runner == "DirectRunner" else config.engine.runner


def _options(config: JobConfig) -> PipelineOptions:
    own = []
    if config.engine.runner == "DirectRunner" and config.engine.workers > 1:
        mode = "multi_processing" if config.engine.in_processes else "multi_threading"
        own = [f"--direct_num_workers={config.engine.workers}", f"--direct_running_mode={mode}"]
    return CachedOptions([*own, *config.engine.options])


class CachedOptions(PipelineOptions):
    """Beam asks for views of the options some twenty times a stage, and parses the flags each time anew.

    Views share their values, so keeping them changes nothing but the time: 18 ms become 5 per round of a protocol.
    """

    def view_as(self, cls: type[PipelineOptions]) -> PipelineOptions:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]
