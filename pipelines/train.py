"""The job `veilmeans train`: one party's side of K-means, end to end. Start it again after any mishap: it goes on.

prepare ─▶ handshake ─▶ claim triples ─▶ [aggregate scale] ─▶ operands ─▶ iterations, each with a checkpoint ─▶ reveal
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import apache_beam as beam

from veilmeans.io.exchange import Exchange
from veilmeans.io.handshake import check_bindings, shake_hands
from veilmeans.io.prepared import Prepared
from veilmeans.io.results import RESULT
from veilmeans.io.scaling import Scaling
from veilmeans.io.scan import Scan
from veilmeans.io.triples import Manifest, TripleStore
from veilmeans.pipelines.aggregate import aggregate_scaling
from veilmeans.pipelines.agreement import check_ids, train_terms
from veilmeans.pipelines.jobs import kmeans_of
from veilmeans.pipelines.model import Model, load_model
from veilmeans.pipelines.party import binding_of, counters, finished, run_pipeline, say_farewell, seated
from veilmeans.pipelines.prepare import (
    check_command,
    check_whole,
    encode_data,
    iterations_at_once,
    kmeans_job,
    local_scaling,
    not_agreed,
    runs_whole,
    scan_data,
)
from veilmeans.pipelines.progress import TrainProgress
from veilmeans.pipelines.report import RunReport, sent
from veilmeans.pipelines.resume import collect, newest_checkpoint
from veilmeans.pipelines.reveal import Finished, reveal_results
from veilmeans.pipelines.start import own_squares, start_share
from veilmeans.pipelines.triples import check_claim, claim_triples, open_store, settled_engines
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.jobs import KMeansJob
from veilmeans.schemas.terms import Terms
from veilmeans.transforms.at_once import write_start
from veilmeans.transforms.bare import Tallies, counts_of
from veilmeans.transforms.job import Job, kept, stopped
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.lloyd import ExchangeOperands, LloydIteration
from veilmeans.transforms.seat import Seat

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ready:
    """A party before the handshake: its data are read and its store is there. `model`: of a prediction."""

    config: JobConfig
    job: KMeansJob
    kmeans: KMeans
    scan: Scan
    scaling: Scaling | None
    store: TripleStore
    binding: str
    terms: dict[str, Terms]
    model: Model | None = None


Play = Callable[[Exchange, Ready, Job, Prepared, RunReport], int]
"""All pipelines of a run from a party's seat; how many iterations it took."""


def run_train(config: JobConfig) -> Path:
    """Take part in a training; the folder with the results."""
    return take_part(config, False, _train)


def take_part(config: JobConfig, predicts: bool, play: Play) -> Path:
    """Take part in a run, from what can be checked alone to the farewell; the folder with the results.

    A party that has its results stays until its peers have theirs: they may have to hear from it again.
    """
    check_command(config, predicts)
    ready = get_ready(config.online())
    config = ready.config
    if finished(config):
        return config.run_folder
    check_claim(config, ready.store, ready.binding)
    with seated(config) as exchange:
        _agree(exchange, ready)
        report = RunReport(config.run_folder)
        report.begin(config)
        job, prepared, scaling = _take_seat(exchange, ready)
        done = play(exchange, ready, job, prepared, report)
        _finish(exchange, ready, job, done, scaling)
        report.end()
    return config.run_folder


def _train(exchange: Exchange, ready: Ready, job: Job, prepared: Prepared, report: RunReport) -> int:
    _begin(ready, job, prepared)
    return _iterate(exchange, ready, job, report)


def _agree(exchange: Exchange, ready: Ready) -> None:
    """The handshake with all peers, after which the run is bound."""
    config = ready.config
    check, timeout = partial(check_ids, config.party, ready.terms), config.exchange.timeout_s
    shake_hands(exchange, config.party, config.run, ready.terms, config.run_folder, timeout, check)


def _finish(exchange: Exchange, ready: Ready, job: Job, done: int, scaling: Scaling) -> None:
    """Keep what the run was, open what the policy names, and say farewell."""
    config, scan = ready.config, ready.scan
    ended = Finished(config, job, done, scaling, scan.columns, scan.id, scan.encoding)
    ended.save()
    if not (config.run_folder / RESULT).exists():
        reveal_results(ended, ready.job.reveal)
    say_farewell(exchange, config, iteration=done + 1, patience=job.seat.patience)


def get_ready(config: JobConfig, folder: Path | None = None) -> Ready:
    """All that can be checked alone: configuration, data, store, and that the run was not begun on other terms.

    `folder`: where data are prepared instead of our storage.
    """
    job, model = kmeans_job(config), load_model(config)
    kmeans_of(config)  # a mistake in the configuration is told before one in the data
    scan = scan_data(config, folder)
    scaling = local_scaling(config, scan)
    if scaling is not None:
        check_whole(config, encode_data(config, scan, scaling, folder))
    store = open_store(config, job.iterations)
    engines = settled_engines(config, store)
    kmeans = kmeans_of(config, engines)
    agreed = job.model_dump_json(exclude={**not_agreed(job), "reveal": True})
    binding = binding_of(config, bytes.fromhex(scan.digest), f"{agreed}{model.digest() if model else ''}")
    terms = train_terms(config, job, scan, engines, binding, model)
    check_bindings(config.run_folder, config.party, terms)
    return Ready(config, job, kmeans, scan, scaling, store, binding, terms, model)


def _take_seat(exchange: Exchange, ready: Ready) -> tuple[Job, Prepared, Scaling]:
    """Claim a part of the store; the job at this party's seat, its data as they are encoded, and their scale."""
    config, kmeans, scan = ready.config, ready.kmeans, ready.scan
    number = claim_triples(exchange, config, ready.store, ready.binding)
    seat = Seat(config, ready.binding, store_number=number, patience=kmeans.engines.patience(kmeans.layout))
    scaling = ready.scaling or aggregate_scaling(config, seat, scan, kmeans.layout.total_rows)
    prepared = encode_data(config, scan, scaling)
    check_whole(config, prepared)
    return Job(kmeans, seat, prepared.folder, runs_whole(config, kmeans)), prepared, scaling


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
