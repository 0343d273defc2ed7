"""The place of a party's work: this process where it is one call, else pipelines on the configured runner.

A job of few rows is one element (`beam.rounds`). On DirectRunner a pipeline of one element is a function call; it runs
without Beam, whose import takes longer than a small run; rounds, messages, retries and metrics are the same.
"""

from collections.abc import Callable, Sequence
from functools import partial

from veilmeans.io.storage.run_report import Stages
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.pipelines.session.kmeans_from_config import runs_in_one_call
from veilmeans.pipelines.session.retries import with_retries
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans import iteration
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.store_work import StoreWork, work_in_order
from veilmeans.transforms.offline.traced_job import StoreShard
from veilmeans.transforms.rounds.executor import BareExecutor, CountStage, Describe, StageCosts


def run_iterations(config: JobConfig, job: PartyJob, manifest: Manifest, iterations: Sequence[int]) -> Stages:
    """Run iterations until the last of them, or until the run has stopped; return the costs of their stages."""
    if job.one_call and _is_direct(config):
        return _run_here(config, partial(iteration.run_iterations, job, manifest, iterations))
    from veilmeans.pipelines.session import beam_runner

    return beam_runner.run_iterations(config, job, manifest, iterations)


def run_prediction(config: JobConfig, job: PartyJob, manifest: Manifest) -> Stages:
    """Assign all rows of a prediction; return the costs of its stages."""
    if job.one_call and _is_direct(config):
        return _run_here(config, partial(iteration.run_prediction, job, manifest))
    from veilmeans.pipelines.session import beam_runner

    return beam_runner.run_prediction(config, job, manifest)


def run_description(config: JobConfig, job: PartyJob, describe: Describe) -> Stages:
    """Run a description of a part of a job; return the costs of its stages."""
    if job.one_call and _is_direct(config):
        return _run_here(config, lambda count: describe(BareExecutor(job, job.context.open(), count)))
    from veilmeans.pipelines.session import beam_runner

    return beam_runner.run_description(config, job, describe)


def run_on_one_element(job: PartyJob, describe: Describe) -> tuple[Arrays, Stages]:
    """Run a description over one element in this process; return its last state, and the costs of its stages."""
    costs = StageCosts()
    state: Arrays = describe(BareExecutor(job, job.context.open(), costs))[0]
    return state, costs.counts()


def run_store_work(config: JobConfig, steps: KMeansSteps, work: StoreWork, shards: Sequence[StoreShard]) -> Stages:
    """Work on shards of a triple store; return the costs of the stages that will use them."""
    return run_shard_work(config, work, shards, runs_in_one_call(config, steps))


def run_shard_work(config: JobConfig, work: StoreWork, shards: Sequence[StoreShard], one_call: bool) -> Stages:
    """Work on shards of anything, in this process if they are few; return the costs of its stages."""
    if one_call and _is_direct(config) and config.beam.workers == 1:
        return _run_here(config, partial(work_in_order, work, shards))
    from veilmeans.pipelines.session import beam_runner

    return beam_runner.run_store_work(config, work, shards)


def _is_direct(config: JobConfig) -> bool:
    return config.beam.runner == "DirectRunner"


def _run_here(config: JobConfig, work: Callable[[CountStage], object]) -> Stages:
    """Do work in this process, with retries; count the attempt that succeeds."""

    def attempt() -> Stages:
        costs = StageCosts()
        work(costs)
        stages = sorted(costs.counts().items())
        return {stage: {name: count for name, count in counts.items() if count} for stage, counts in stages}

    return with_retries(config, attempt)
