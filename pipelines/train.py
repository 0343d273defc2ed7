"""The job `veilmeans train`: one party's side of K-means, end to end. Safe to rerun: it resumes where it stopped.

prepare ─▶ [offline] ─▶ handshake ─▶ claim triples ─▶ [aggregate scale] ─▶ operands ─▶ iterations, each with a
checkpoint ─▶ [final assignment, outliers, inertia] ─▶ reveal
"""

import logging
import time
from functools import partial
from pathlib import Path

from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.pipelines.offline import make_missing_store
from veilmeans.pipelines.reporting.progress import RunProgress
from veilmeans.pipelines.session.execution import run_description, run_iterations
from veilmeans.pipelines.session.kmeans_from_config import iterations_per_pipeline
from veilmeans.pipelines.session.kmeans_run import CheckedRun, run_kmeans
from veilmeans.pipelines.session.resume import drop_messages, newest_checkpoint
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans.initial_centroids import initial_centroids_share, own_sum_of_squares
from veilmeans.transforms.kmeans.iteration import follow_last, mask_operands, write_first_centroids
from veilmeans.transforms.kmeans.party_state import (
    FINISHED,
    PartyJob,
    by_columns,
    checkpoints_of,
    finish_training,
    first_checkpoint,
)
from veilmeans.transforms.rounds.executor import BareExecutor, StageCosts, has_stopped, in_memory

log = logging.getLogger(__name__)


def run_train(config: JobConfig) -> Path:
    """Take part in a training; return the folder with the results.

    Where no dealer makes the triple store, the parties make it first, if there is none yet.
    """
    return run_kmeans(config, False, make_missing_store, _train)


def _begin(ready: CheckedRun, job: PartyJob, prepared: EncodedData) -> None:
    """Send the masked operands and write checkpoint 0, once per run."""
    config, context = ready.config, job.context.open()
    if newest_checkpoint(config, job) >= 0:
        return
    start = time.perf_counter()
    log.info("agreed with %s; running on %s", ", ".join(config.peers), config.beam.runner)
    operand = job.steps.operand
    masked = {} if operand is None else run_description(config, job, partial(mask_operands, operand))
    share = initial_centroids_share(ready.job, job.steps.layout, config.me, prepared)
    first = in_memory(*by_columns(job.steps, "mu", share).values())
    checkpoint = first_checkpoint(own_sum_of_squares(prepared))
    write_first_centroids(first, checkpoint, BareExecutor(job, context, StageCosts()))
    RunReport(config.run_folder).add(time.perf_counter() - start, masked)


def _train(exchange: Exchange, ready: CheckedRun, job: PartyJob, prepared: EncodedData, report: RunReport) -> int:
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
            stages = run_iterations(config, job, ready.store.manifest, range(done, last))
            drop_messages(exchange, config, before=done - 1)
            before, done = done, store.newest()
            if done > before:
                report.add_iterations(done, time.perf_counter() - begin, stages)
            else:
                report.add(time.perf_counter() - begin, stages)
            progress.report_done(done, bytes_sent(stages))
    _finish(config, job.after_last(done), report)
    return done


def _finish(config: JobConfig, last: PartyJob, report: RunReport) -> None:
    """Do what follows the last iteration, unless that was done before."""
    context = last.context.open()
    if not last.steps.ends_with_more or FINISHED in checkpoints_of(context).read(context.iteration):
        return
    begin = time.perf_counter()
    stages = run_description(config, last, partial(follow_last, last.steps))
    finish_training(last, context)
    report.add(time.perf_counter() - begin, stages)
