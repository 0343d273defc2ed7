"""A party's work as Beam pipelines: their runner, options and metrics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from veilmeans.io.storage.run_report import Stages
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.pipelines.session.retries import with_retries
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import recover_error
from veilmeans.transforms.kmeans.iteration_transforms import LloydIteration, PredictRows
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.offline.store_work import StoreWork
from veilmeans.transforms.offline.traced_job import StoreShard
from veilmeans.transforms.rounds.beam_executor import RunDescription
from veilmeans.transforms.rounds.beam_patches import CachedOptions, sample_often
from veilmeans.transforms.rounds.beam_serialisation import share_work
from veilmeans.transforms.rounds.executor import Describe
from veilmeans.transforms.rounds.stage_metrics import StageMetrics


def run_iterations(config: JobConfig, job: PartyJob, manifest: Manifest, iterations: Iterable[int]) -> Stages:
    """Run iterations in one pipeline."""

    def build(pipeline: beam.Pipeline) -> None:
        numbers = pipeline | beam.Create([min(iterations)])
        for iteration in iterations:
            numbers = numbers | LloydIteration(job.at_iteration(iteration), manifest)

    return counters(run_pipeline(config, build))


def run_prediction(config: JobConfig, job: PartyJob, manifest: Manifest) -> Stages:
    """Assign all rows in one pipeline."""
    return counters(run_pipeline(config, lambda p: p | beam.Create([0]) | "Predict" >> PredictRows(job, manifest)))


def run_description(config: JobConfig, job: PartyJob, describe: Describe) -> Stages:
    """Run a description in one pipeline."""
    run = RunDescription(job, describe, job.one_call)
    return counters(run_pipeline(config, lambda pipeline: pipeline | beam.Create([0]) | "Run" >> run))


def run_store_work(config: JobConfig, work: StoreWork, shards: Sequence[StoreShard]) -> Stages:
    """Work on the shards of a triple store in one pipeline."""
    each = OnStoreShard(work)
    build = lambda pipeline: pipeline | beam.Create(shards) | beam.Reshuffle() | "Shards" >> beam.ParDo(each)  # noqa: E731
    return counters(run_pipeline(config, build))


class OnStoreShard(beam.DoFn):
    """Work on a shard of a triple store as a DoFn."""

    def __init__(self, work: StoreWork) -> None:
        self.work = work

    def setup(self) -> None:
        self.work.setup()

    def process(self, shard: StoreShard) -> Iterator[int]:
        yield from self.work.process(shard)


def run_pipeline(config: JobConfig, build: Callable[[beam.Pipeline], object]) -> PipelineResult:
    """Build and run a pipeline on the configured runner, with retries."""
    return with_retries(config, partial(_run_once, config, build))


def _run_once(config: JobConfig, build: Callable[[beam.Pipeline], object]) -> PipelineResult:
    sample_often()
    # DirectRunner is pinned to Beam's in-process runner: by itself it would look for a Prism binary to download
    runner = "FnApiRunner" if config.beam.runner == "DirectRunner" else config.beam.runner
    pipeline = beam.Pipeline(runner=runner, options=_options(config))
    build(pipeline)
    if config.beam.runner != "DirectRunner":  # whose workers get no options
        share_work(pipeline)
    try:
        result = pipeline.run(test_runner_api=False)  # else Dataflow's client builds it anew, with display data
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
