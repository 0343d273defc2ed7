"""Run a Beam pipeline for a party: its runner, its options, retries and metrics."""

from collections.abc import Callable
from functools import partial

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult
from tenacity import RetryCallState, Retrying, retry_if_not_exception_type, stop_after_attempt

from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.scratch import Scratch
from veilmeans.pipelines.session.session import log
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import VeilmeansError, recover_error
from veilmeans.transforms.rounds.beam_patches import CachedOptions, sample_often
from veilmeans.transforms.rounds.stage_metrics import StageMetrics


def run_pipeline(config: JobConfig, build: Callable[[beam.Pipeline], object]) -> PipelineResult:
    """Build and run a pipeline on the configured runner.

    A pipeline that fails for a reason of its own is retried: its rounds send the same bytes, so no mask is used twice.
    A refused message, an absent peer or a user's mistake ends it at once.
    """
    retry = Retrying(
        stop=stop_after_attempt(config.beam.attempts),
        retry=retry_if_not_exception_type((VeilmeansError, KeyboardInterrupt)),
        before_sleep=partial(_note_retry, config),
        reraise=True,
    )
    return retry(_run_once, config, build)


def _note_retry(config: JobConfig, state: RetryCallState) -> None:
    failure = state.outcome.exception() if state.outcome is not None else None
    left = config.beam.attempts - state.attempt_number
    log.warning("the pipeline failed (%s); retrying, %d attempts left", type(failure).__name__, left)
    RunReport(config.run_folder).repeat()


def _run_once(config: JobConfig, build: Callable[[beam.Pipeline], object]) -> PipelineResult:
    sample_often()
    # DirectRunner is pinned to Beam's in-process runner: by itself it would look for a Prism binary to download
    runner = "FnApiRunner" if config.beam.runner == "DirectRunner" else config.beam.runner
    pipeline = beam.Pipeline(runner=runner, options=_options(config))
    build(pipeline)
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except Exception as error:
        raise recover_error(error) or error from None
    finally:
        Scratch(config.scratch_root).clear(config.run)
    return result


def counters(result: PipelineResult) -> dict[str, dict[str, int]]:
    """Messages, bytes and waiting time of each stage, from Beam's metrics (a stage's two halves are two steps)."""
    ours = StageMetrics().counts().keys()
    stages: dict[str, dict[str, int]] = {}
    for counter in result.metrics().query()["counters"]:
        name = counter.key.metric
        if name.name not in ours:
            continue  # the runner's own
        value = counter.committed if counter.committed is not None else counter.attempted
        counts = stages.setdefault(name.namespace, {})
        counts[name.name] = counts.get(name.name, 0) + int(value)
    return dict(sorted(stages.items()))


def _options(config: JobConfig) -> PipelineOptions:
    own = []
    if config.beam.runner == "DirectRunner" and config.beam.workers > 1:
        mode = "multi_processing" if config.beam.in_processes else "multi_threading"
        own = [f"--direct_num_workers={config.beam.workers}", f"--direct_running_mode={mode}"]
    return CachedOptions([*own, *config.beam.options])
