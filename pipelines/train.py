"""The job `veilmeans train`: one party's side of K-means, end to end. Safe to rerun: it resumes where it stopped.

prepare ─▶ handshake ─▶ claim triples ─▶ [aggregate scale] ─▶ operands ─▶ iterations, each with a checkpoint ─▶ reveal
"""

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import apache_beam as beam

from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.pipelines.reporting.progress import RunProgress
from veilmeans.pipelines.session.beam_runner import counters, run_pipeline
from veilmeans.pipelines.session.kmeans_from_config import iterations_per_pipeline
from veilmeans.pipelines.session.kmeans_run import CheckedRun, run_kmeans
from veilmeans.pipelines.session.resume import drop_messages, newest_checkpoint
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans.initial_centroids import initial_centroids_share, own_sum_of_squares
from veilmeans.transforms.kmeans.iteration import LloydIteration, mask_operands, write_first_centroids
from veilmeans.transforms.kmeans.party_state import PartyJob, by_columns, checkpoints_of, first_checkpoint, has_stopped
from veilmeans.transforms.rounds.beam_executor import RunDescription
from veilmeans.transforms.rounds.executor import BareExecutor, StageCosts, Step, in_memory

log = logging.getLogger(__name__)


def run_train(config: JobConfig) -> Path:
    """Take part in a training; return the folder with the results."""
    return run_kmeans(config, False, _train)


def _begin(ready: CheckedRun, job: PartyJob, prepared: EncodedData) -> None:
    """Send the masked operands and write checkpoint 0, once per run."""
    config, context = ready.config, job.context.open()
    if newest_checkpoint(config, job) >= 0:
        return
    start = time.perf_counter()
    log.info("agreed with %s; running on %s", ", ".join(config.peers), config.beam.runner)
    operand, costs = job.steps.operand, StageCosts()
    masked = {} if operand is None else counters(run_pipeline(config, partial(_build_operands, job, operand)))
    share = initial_centroids_share(ready.job, job.steps.layout, config.me, prepared)
    first = in_memory(*by_columns(job.steps, "mu", share).values())
    checkpoint = first_checkpoint(own_sum_of_squares(prepared))
    write_first_centroids(job.steps, first, checkpoint, BareExecutor(job, context, costs))
    RunReport(config.run_folder).add(time.perf_counter() - start, {**masked, **costs.counts()})


def _build_operands(job: PartyJob, operand: Step, pipeline: beam.Pipeline) -> None:
    _ = pipeline | beam.Create([0]) | "Mask" >> RunDescription(job, partial(mask_operands, operand), job.one_call)


def _train(exchange: Exchange, ready: CheckedRun, job: PartyJob, prepared: EncodedData, report: RunReport) -> int:
    """Run pipelines of iterations until the run has stopped; return the number of iterations."""
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
            stages = counters(run_pipeline(config, partial(_build_iterations, job, ready.store.manifest, done, last)))
            drop_messages(exchange, config, before=done - 1)
            done = store.newest()
            report.add_iterations(done, time.perf_counter() - begin, stages)
            progress.report_done(done, bytes_sent(stages))
    return done


def _build_iterations(job: PartyJob, manifest: Manifest, done: int, last: int, pipeline: beam.Pipeline) -> None:
    numbers = pipeline | beam.Create([done])
    for iteration in range(done, last):
        numbers = numbers | LloydIteration(replace(job, context=replace(job.context, iteration=iteration)), manifest)
