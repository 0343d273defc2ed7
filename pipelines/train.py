"""The job `veilmeans train`: one party's side of K-means, end to end. Safe to rerun: it resumes where it stopped.

[align] ─▶ prepare ─▶ [offline] ─▶ handshake ─▶ claim triples ─▶ [aggregate scale] ─▶ operands ─▶ [k-means++]
─▶ iterations, each with a checkpoint ─▶ [best start, final assignment, outliers, inertia] ─▶ reveal
"""

import logging
import time
from functools import partial
from pathlib import Path

from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.pipelines.align import align_missing
from veilmeans.pipelines.offline import make_missing_store
from veilmeans.pipelines.reporting.progress import RunProgress
from veilmeans.pipelines.session.execution import run_description, run_iterations
from veilmeans.pipelines.session.kmeans_from_config import iterations_per_pipeline
from veilmeans.pipelines.session.kmeans_run import CheckedRun, run_kmeans
from veilmeans.pipelines.session.resume import drop_messages, newest_checkpoint
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.auditing.echoes import compare_echoes
from veilmeans.transforms.kmeans.initial_centroids import initial_centroids_share, own_sum_of_squares
from veilmeans.transforms.kmeans.iteration import (
    choose_centroid,
    choose_start,
    follow_last,
    mask_operands,
    write_first_centroids,
    write_first_seeds,
)
from veilmeans.transforms.kmeans.party_state import (
    FINISHED,
    PartyJob,
    by_columns,
    checkpoints_of,
    finish_training,
    first_checkpoint,
)
from veilmeans.transforms.kmeans.seed_state import ALL_SEEDS, drop_seeds
from veilmeans.transforms.rounds.executor import BareExecutor, StageCosts, has_stopped, in_memory

log = logging.getLogger(__name__)


def run_train(config: JobConfig) -> Path:
    """Take part in a training; return the folder with the results.

    First, if it was not done before, the parties align their rows, where `align` asks for it, and make the triple
    store, where no dealer does.
    """
    return run_kmeans(align_missing(config), False, make_missing_store, train_iterations)


def _begin(ready: CheckedRun, job: PartyJob, prepared: EncodedData) -> None:
    """Send the masked operands and write checkpoint 0, once per run."""
    config, context = ready.config, job.context.open()
    if newest_checkpoint(config, job) >= 0:
        return
    start = time.perf_counter()
    log.info("agreed with %s; running on %s", ", ".join(config.peers), config.beam.runner)
    operand = job.steps.operand
    report, here = RunReport(config.run_folder), BareExecutor(job, context, StageCosts())
    masked = {} if operand is None else run_description(config, job, partial(mask_operands, operand))
    share = initial_centroids_share(ready.job, job.steps.layout, config.me, prepared)
    first = in_memory(*by_columns(job.steps, "mu", share).values())
    report.add(time.perf_counter() - start, masked)
    if job.steps.seeding is not None:
        write_first_seeds(first, here)
        first = ALL_SEEDS
        for iteration in range(-job.steps.seeding.times, 0):
            start = time.perf_counter()
            describe = partial(choose_centroid, job.steps.seeding)
            report.add(time.perf_counter() - start, run_description(config, job.at_iteration(iteration), describe))
    write_first_centroids(first, first_checkpoint(own_sum_of_squares(prepared)), here)
    drop_seeds(context)


def train_iterations(
    exchange: Exchange, ready: CheckedRun, job: PartyJob, prepared: EncodedData, report: RunReport
) -> int:
    """Run iterations, some at a time, until the run has stopped; return the number of iterations."""
    _begin(ready, job, prepared)
    config, limit = ready.config, ready.job.max_iter
    step = iterations_per_pipeline(config, job.one_call)
    store = checkpoints_of(job.context.open())
    done = store.newest()
    progress = RunProgress(limit, len(job.row_shards))
    with progress.watching(done):
        while done < limit and not has_stopped(store.read(done)):
            begin = time.perf_counter()
            last = min(done + step, limit)
            compare_echoes(exchange, config, before=done)
            stages = run_iterations(config, job, ready.store.manifest, range(done, last))
            drop_messages(exchange, config, before=done - 1)
            before, done = done, store.newest()
            if done > before:
                report.add_iterations(done, time.perf_counter() - begin, stages)
            else:
                report.add(time.perf_counter() - begin, stages)
            progress.report_done(done, bytes_sent(stages))
    _finish(config, job, done, report)
    return done


def _finish(config: JobConfig, job: PartyJob, done: int, report: RunReport) -> None:
    """Do what follows the last iteration, unless that was done before."""
    last = job.after_last(done)
    context = last.context.open()
    if not last.steps.ends_with_more or FINISHED in checkpoints_of(context).read(context.iteration):
        return
    begin, stages = time.perf_counter(), dict[str, dict[str, int]]()
    if job.steps.starts > 1:
        stages |= run_description(config, job.choosing_start(done), partial(choose_start, job.steps))
    stages |= run_description(config, last, partial(follow_last, last.steps))
    finish_training(last, context)
    report.add(time.perf_counter() - begin, stages)
