"""The job `veilmeans train`: one party's side of K-means, end to end. Start it again after any mishap: it goes on.

prepare ─▶ handshake ─▶ claim triples ─▶ [aggregate scale] ─▶ operands ─▶ iterations, each with a checkpoint ─▶ reveal
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np

from veilmeans.crypto.sealing import Seal
from veilmeans.io.connect import load_identity, load_peer_certificates
from veilmeans.io.exchange import Exchange, get_arrays
from veilmeans.io.files import write_text
from veilmeans.io.handshake import check_bindings, shake_hands
from veilmeans.io.prepare import Prepared, Scaling, Scan
from veilmeans.io.triples import TripleStore
from veilmeans.pipelines.aggregate import aggregate_scaling
from veilmeans.pipelines.jobs import kmeans_of
from veilmeans.pipelines.party import agreed_terms, binding_of, counters, finished, run_pipeline, say_farewell, seated
from veilmeans.pipelines.prepare import LOCAL_FIELDS, encode_data, kmeans_job, local_scaling, runs_whole, scan_data
from veilmeans.pipelines.progress import TrainProgress
from veilmeans.pipelines.report import RunReport, sent
from veilmeans.pipelines.reveal import Finished, reveal_results
from veilmeans.pipelines.start import own_squares, start_share
from veilmeans.pipelines.triples import check_claim, claim_triples, open_store
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError, StorageError
from veilmeans.schemas.jobs import KMeansJob
from veilmeans.schemas.message import Key
from veilmeans.schemas.terms import Terms
from veilmeans.transforms.bare import Tallies, run_bare
from veilmeans.transforms.lloyd import CHECKPOINT, ExchangeOperands, Job, LloydIteration, kept, stopped
from veilmeans.transforms.seat import Seat, tell_all

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ready:
    """A party before the handshake: its data are read and its store is there."""

    config: JobConfig
    job: KMeansJob
    scan: Scan
    scaling: Scaling | None
    store: TripleStore
    binding: str
    terms: dict[str, Terms]


def run_train(config: JobConfig) -> Path:
    """Take part in a run; the folder with the results.

    A party that has its results stays until its peers have theirs: they may have to hear from it again.
    """
    ready = get_ready(config.online())
    config = ready.config
    if finished(config):
        return config.run_folder
    check_claim(config, ready.store, ready.binding)
    with seated(config) as exchange:
        shake_hands(
            exchange,
            config.party,
            config.run,
            ready.terms,
            config.run_folder,
            config.exchange.timeout_s,
            partial(_check_ids, ready),
        )
        job, scaling = _take_seat(exchange, ready)
        report = RunReport(config.run_folder)
        done = _iterate(exchange, ready, job, report)
        trained = Finished(config, job, done, scaling, ready.scan.columns, ready.scan.id)
        trained.save()
        reveal_results(trained, ready.job.reveal)
        say_farewell(exchange, config, iteration=done + 1)
    return config.run_folder


def get_ready(config: JobConfig) -> Ready:
    """All that can be checked alone: configuration, data, store, and that the run was not begun on other terms."""
    job = kmeans_job(config)
    kmeans_of(config)
    scan = scan_data(config)
    scaling = local_scaling(config, scan)
    if scaling is not None:
        encode_data(config, scan, scaling)
    store = open_store(config, job.max_iter)
    binding = binding_of(config, bytes.fromhex(scan.digest), job.model_dump_json(exclude=LOCAL_FIELDS | {"reveal"}))
    terms = _terms(config, job, scan, binding)
    check_bindings(config.run_folder, config.party, terms)
    return Ready(config, job, scan, scaling, store, binding, terms)


def _terms(config: JobConfig, job: KMeansJob, scan: Scan, binding: str) -> dict[str, Terms]:
    """What each peer is told: the job, and a digest of the rows' ids that only the two of us can compare."""
    fields = job.model_dump(mode="json", exclude=LOCAL_FIELDS)
    agreed = {
        **agreed_terms(config),
        "triples.store": config.needed_triples.store,
        "kmeans.id": "set" if job.id else "not set",
        **_flat("kmeans", fields),
    }
    if job.layout == "horizontal":
        agreed["kmeans.columns"] = list(scan.columns)
        agreed["kmeans.id"] = "each its own"
    else:
        agreed.pop("kmeans.normalise.ranges", None)
    compared = job.layout == "vertical" and job.id is not None
    announced = {peer: {"ids": digest} for peer, digest in _id_digests(config, scan).items()} if compared else {}
    return {peer: Terms(agreed, announced.get(peer, {}), binding) for peer in config.peers}


def _flat(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Nested fields under dotted names."""
    result: dict[str, Any] = {}
    for name, value in fields.items():
        nested = isinstance(value, dict) and name in ("init", "normalise", "reveal")
        result |= _flat(f"{prefix}.{name}", value) if nested else {f"{prefix}.{name}": value}
    return result


def _id_digests(config: JobConfig, scan: Scan) -> dict[str, str]:
    """A digest of the ids in their order, keyed for each peer: nobody else can tell whether ids are equal."""
    identity = load_identity(config)
    return {
        peer: Seal(identity, certificate).digest(f"ids {config.run} {scan.ids}".encode()).hex()
        for peer, certificate in load_peer_certificates(config).items()
    }


def _check_ids(ready: Ready, heard: Mapping[str, Terms]) -> None:
    for peer, terms in heard.items():
        if terms.announced.get("ids") != ready.terms[peer].announced.get("ids"):
            raise HandshakeError(
                f"the ids of the rows of {ready.config.party} and {peer}, or their order, differ: "
                "sort both by the same ids, then start both again"
            )


def _take_seat(exchange: Exchange, ready: Ready) -> tuple[Job, Scaling]:
    config, scan = ready.config, ready.scan
    seat = Seat(config, ready.binding, store_number=claim_triples(exchange, config, ready.store, ready.binding))
    kmeans = kmeans_of(config)
    scaling = ready.scaling or aggregate_scaling(config, seat, scan, kmeans.layout.total_rows)
    prepared = encode_data(config, scan, scaling)
    job = Job(kmeans, seat, prepared.folder, ready.store.manifest, runs_whole(config, kmeans))
    _begin(ready, job, prepared)
    return job, scaling


def _begin(ready: Ready, job: Job, prepared: Prepared) -> None:
    """Once per run: the masked operands, the first centroids and their norms, checkpoint 0."""
    config, seat = ready.config, job.seat.open()
    store = kept(seat)
    if store.newest() >= 0:
        return
    start = time.perf_counter()
    log.info("agreed with %s; running on %s", ", ".join(config.peers), config.engine.runner)
    result = run_pipeline(config, partial(_build_operands, job))
    tallies: Tallies = {}
    share = start_share(ready.job, job.kmeans.layout, config.me, prepared)
    first = run_bare(job.kmeans.norms, seat, {0: {"mu": share}}, tallies)[0]
    store.write(0, {**first, "x2": own_squares(prepared), "stop": np.zeros(1, np.uint8)})
    stages = {**counters(result), **{stage: tally.counts() for stage, tally in tallies.items()}}
    RunReport(config.run_folder).add(time.perf_counter() - start, stages)


def _build_operands(job: Job, pipeline: beam.Pipeline) -> None:
    _ = pipeline | beam.Create([job.shards]) | "Operands" >> ExchangeOperands(job)


def _iterate(exchange: Exchange, ready: Ready, job: Job, report: RunReport) -> int:
    """Pipelines of iterations until the run has stopped; how many iterations it took."""
    config, limit, step = ready.config, ready.job.max_iter, ready.job.iterations_per_pipeline
    store = kept(job.seat.open())
    done = _resume(config, job, store.newest())
    progress = TrainProgress(limit, len(job.shards))
    with progress.showing(done):
        while done < limit and not stopped(store.read(done)):
            begin = time.perf_counter()
            last = min(done + step, limit)
            stages = counters(run_pipeline(config, partial(_build_iterations, job, done, last)))
            _collect(exchange, config, before=done)
            done = store.newest()
            seconds = time.perf_counter() - begin
            report.add_iterations(done, seconds, stages)
            progress.finished_iteration(done, seconds, sent(stages))
    return done


def _build_iterations(job: Job, done: int, last: int, pipeline: beam.Pipeline) -> None:
    numbers = pipeline | beam.Create([done])
    for iteration in range(done, last):
        numbers = numbers | LloydIteration(replace(job, seat=replace(job.seat, iteration=iteration)))


def _resume(config: JobConfig, job: Job, newest: int) -> int:
    """Where to go on: at the newest checkpoint, if the messages after it are still there."""
    mark = _collected(config)
    needed = int(mark.read_text()) if mark.exists() else 0
    if newest < needed:
        raise StorageError(
            f"run {config.run!r} has been at iteration {needed}, and its newest checkpoint in {config.run_folder} is "
            f"of iteration {newest}: restore the missing one from a backup, or start a new run id"
        )
    if newest:
        log.info("going on after iteration %d", newest)
        tell_all(replace(job.seat, iteration=newest - 1).open(), CHECKPOINT)
    return newest


def _collect(exchange: Exchange, config: JobConfig, before: int) -> None:
    """Drop the messages of iterations whose checkpoints all parties have."""
    if before == 0:
        return
    where = Address(config.run, before - 1, CHECKPOINT, 0)
    for peer in config.peers:
        get_arrays(exchange, Key(where, peer, config.party), config.exchange.timeout_s)
    write_text(_collected(config), str(before))
    exchange.collect(config.run, before=before)


def _collected(config: JobConfig) -> Path:
    return config.run_folder / "collected"
