"""The job `veilmeans train`: one party's side of K-means, end to end. Start it again after any mishap: it goes on.

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
from veilmeans.pipelines.reporting.progress import TrainProgress
from veilmeans.pipelines.session.beam_runner import counters, run_pipeline
from veilmeans.pipelines.session.kmeans_from_config import (
    iterations_per_pipeline,
)
from veilmeans.pipelines.session.kmeans_run import CheckedRun, run_kmeans
from veilmeans.pipelines.session.resume import drop_messages, newest_checkpoint
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans.initial_centroids import first_centroids_share, own_squares
from veilmeans.transforms.kmeans.iteration import ExchangeOperands, LloydIteration, write_start
from veilmeans.transforms.kmeans.party_state import PartyJob, checkpoints_of, has_stopped
from veilmeans.transforms.rounds.executor import Tallies, counts_of

log = logging.getLogger(__name__)


def run_train(config: JobConfig) -> Path:
    """Take part in a training; the folder with the results."""
    return run_kmeans(config, False, _train)


def _train(exchange: Exchange, ready: CheckedRun, job: PartyJob, prepared: EncodedData, report: RunReport) -> int:
    _begin(ready, job, prepared)
    return _iterate(exchange, ready, job, report)


def _begin(ready: CheckedRun, job: PartyJob, prepared: EncodedData) -> None:
    """Once per run: the masked operands, the first centroids and their norms, checkpoint 0."""
    config, context = ready.config, job.context.open()
    if newest_checkpoint(config, job) >= 0:
        return
    start = time.perf_counter()
    log.info("agreed with %s; running on %s", ", ".join(config.peers), config.engine.runner)
    masked = counters(run_pipeline(config, partial(_build_operands, job))) if job.kmeans.engines.masked else {}
    tallies: Tallies = {}
    share = first_centroids_share(ready.job, job.kmeans.layout, config.me, prepared)
    write_start(job, context, share, own_squares(prepared), tallies)
    RunReport(config.run_folder).add(time.perf_counter() - start, {**masked, **counts_of(tallies)})


def _build_operands(job: PartyJob, pipeline: beam.Pipeline) -> None:
    _ = pipeline | beam.Create([job.shards]) | "Operands" >> ExchangeOperands(job)


def _iterate(exchange: Exchange, ready: CheckedRun, job: PartyJob, report: RunReport) -> int:
    """Pipelines of iterations until the run has stopped; how many iterations it took."""
    config, limit = ready.config, ready.job.max_iter
    step = iterations_per_pipeline(config, job.whole)
    store = checkpoints_of(job.context.open())
    done = store.newest()
    progress = TrainProgress(limit, len(job.shards))
    with progress.showing(done):
        while done < limit and not has_stopped(store.read(done)):
            begin = time.perf_counter()
            last = min(done + step, limit)
            stages = counters(run_pipeline(config, partial(_build_iterations, job, ready.store.manifest, done, last)))
            drop_messages(exchange, config, before=done - 1)
            done = store.newest()
            seconds = time.perf_counter() - begin
            report.add_iterations(done, seconds, stages)
            progress.passed(done, bytes_sent(stages))
    return done


def _build_iterations(job: PartyJob, manifest: Manifest, done: int, last: int, pipeline: beam.Pipeline) -> None:
    numbers = pipeline | beam.Create([done])
    for iteration in range(done, last):
        numbers = numbers | LloydIteration(replace(job, context=replace(job.context, iteration=iteration)), manifest)
