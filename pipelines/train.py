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
from veilmeans.io.storage.encoded_shards import Prepared
from veilmeans.io.storage.run_report import RunReport, sent
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.pipelines.reporting.progress import TrainProgress
from veilmeans.pipelines.session.beam_runner import counters, run_pipeline
from veilmeans.pipelines.session.kmeans_from_config import (
    iterations_at_once,
)
from veilmeans.pipelines.session.kmeans_run import Ready, take_part
from veilmeans.pipelines.session.resume import collect, newest_checkpoint
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans.initial_centroids import own_squares, start_share
from veilmeans.transforms.kmeans.iteration import ExchangeOperands, LloydIteration, write_start
from veilmeans.transforms.kmeans.party_state import Job, kept, stopped
from veilmeans.transforms.rounds.executor import Tallies, counts_of

log = logging.getLogger(__name__)


def run_train(config: JobConfig) -> Path:
    """Take part in a training; the folder with the results."""
    return take_part(config, False, _train)


def _train(exchange: Exchange, ready: Ready, job: Job, prepared: Prepared, report: RunReport) -> int:
    _begin(ready, job, prepared)
    return _iterate(exchange, ready, job, report)


def _begin(ready: Ready, job: Job, prepared: Prepared) -> None:
    """Once per run: the masked operands, the first centroids and their norms, checkpoint 0."""
    config, seat = ready.config, job.seat.open()
    if newest_checkpoint(config, job) >= 0:
        return
    start = time.perf_counter()
    log.info("agreed with %s; running on %s", ", ".join(config.peers), config.engine.runner)
    masked = counters(run_pipeline(config, partial(_build_operands, job))) if job.kmeans.engines.masked else {}
    tallies: Tallies = {}
    share = start_share(ready.job, job.kmeans.layout, config.me, prepared)
    write_start(job, seat, share, own_squares(prepared), tallies)
    RunReport(config.run_folder).add(time.perf_counter() - start, {**masked, **counts_of(tallies)})


def _build_operands(job: Job, pipeline: beam.Pipeline) -> None:
    _ = pipeline | beam.Create([job.shards]) | "Operands" >> ExchangeOperands(job)


def _iterate(exchange: Exchange, ready: Ready, job: Job, report: RunReport) -> int:
    """Pipelines of iterations until the run has stopped; how many iterations it took."""
    config, limit = ready.config, ready.job.max_iter
    step = iterations_at_once(config, job.whole)
    store = kept(job.seat.open())
    done = store.newest()
    progress = TrainProgress(limit, len(job.shards))
    with progress.showing(done):
        while done < limit and not stopped(store.read(done)):
            begin = time.perf_counter()
            last = min(done + step, limit)
            stages = counters(run_pipeline(config, partial(_build_iterations, job, ready.store.manifest, done, last)))
            collect(exchange, config, before=done - 1)
            done = store.newest()
            seconds = time.perf_counter() - begin
            report.add_iterations(done, seconds, stages)
            progress.passed(done, sent(stages))
    return done


def _build_iterations(job: Job, manifest: Manifest, done: int, last: int, pipeline: beam.Pipeline) -> None:
    numbers = pipeline | beam.Create([done])
    for iteration in range(done, last):
        numbers = numbers | LloydIteration(replace(job, seat=replace(job.seat, iteration=iteration)), manifest)
