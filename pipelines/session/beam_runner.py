"""Run a Beam pipeline for a party: its runner, its options, retries and metrics."""

from collections.abc import Callable

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult
from apache_beam.runners.worker.statesampler import StateSampler

from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.scratch import Scratch
from veilmeans.pipelines.session.session import log
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import VeilmeansError, recover_error
from veilmeans.transforms.rounds.stage_metrics import Tally


def run_pipeline(config: JobConfig, build: Callable[[beam.Pipeline], object]) -> PipelineResult:
    """Build and run a pipeline on the configured runner.

    A pipeline that fails for a reason of its own is run again: its rounds send the same bytes, so nothing is said
    twice. A refused message, an absent peer or a user's mistake ends it at once.
    """
    for left in reversed(range(config.engine.attempts)):
        try:
            return _run_once(config, build)
        except Exception as error:
            known = recover_error(error)
            if known is not None:
                raise known from None
            if not left:
                raise
            log.warning("the pipeline failed (%s); it is run again, %d attempts left", type(error).__name__, left)
            RunReport(config.run_folder).repeat()
    raise VeilmeansError("engine.attempts must be at least 1")


_SAMPLING_MS = 5
"""Beam's state sampler sleeps up to 200 ms, and a stage waits for its last sleep: a tenth of the time of a run."""


def sample_often() -> None:
    """For all pipelines of this process."""
    StateSampler.__init__.__defaults__ = (_SAMPLING_MS,)


def _run_once(config: JobConfig, build: Callable[[beam.Pipeline], object]) -> PipelineResult:
    sample_often()
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
