"""The job `veilmeans sums`: one party's side of secure column sums, end to end."""

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import apache_beam as beam
from rich.console import Group, RenderableType

from veilmeans.crypto import ring
from veilmeans.io.exchange.connections import check_listen_address, load_identity, load_peer_certificates
from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.exchange.handshake import check_bindings, shake_hands
from veilmeans.io.sources.inputs import StagedInput, stage_columns
from veilmeans.io.storage.atomic_files import write_json
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.pipelines.session.agreed_terms import agreed_terms
from veilmeans.pipelines.session.beam_runner import counters, run_pipeline
from veilmeans.pipelines.session.session import binding_of, exchange_farewells, farewell_received, open_session
from veilmeans.pipelines.session.triple_claim import check_claim, claim_triples, open_store
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, HandshakeError, InputError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.kmeans_config import SumsJob
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.kmeans.column_sums import OPENING, ColumnSums, product_protocol
from veilmeans.transforms.rounds.party_context import PartyContext
from veilmeans.transforms.rounds.trace import table

log = logging.getLogger(__name__)


def run_sums(config: JobConfig) -> Path:
    """Take part in a run; the file with the sums. Start it again after any mishap: it goes on.

    A party that has its sums stays until its peers have theirs: they may have to send to it again.
    """
    config = config.online()
    job = sums_job(config)
    result_file = config.run_folder / "sums.json"
    staged = stage_columns(
        job.data or Path(), job.columns, job.bound, config.engine.rows_per_shard, config.run_folder / "columns.arrow"
    )
    check_rows(config, job, staged.rows)
    store = open_store(config)
    binding = binding_of(config, staged.digest, job.model_dump_json(exclude={"data"}))
    terms = _terms(config, job, staged.rows, binding)
    check_bindings(config.run_folder, config.party, terms)
    if farewell_received(config):
        return result_file
    check_claim(config, store, binding)
    with open_session(config) as exchange:
        if not result_file.exists():
            _compute(exchange, config, job, staged, terms, store, binding, result_file)
        exchange_farewells(exchange, config, iteration=1)
    return result_file


def _compute(
    exchange: Exchange,
    config: JobConfig,
    job: SumsJob,
    staged: StagedInput,
    terms: Mapping[str, Terms],
    store: TripleStore,
    binding: str,
    result_file: Path,
) -> None:
    start = time.perf_counter()
    names = _agree(exchange, config, job, terms)
    context = PartyContext(config, binding, store_number=claim_triples(exchange, config, store, binding))
    left, right = (_position(names, column) for column in job.product)
    build = partial(
        _build, staged, context, store.manifest, (left, right), [*names, " · ".join(job.product)], result_file
    )
    log.info("agreed with %s; running on %s", ", ".join(config.peers), config.engine.runner)
    result = run_pipeline(config, build)
    report = {"seconds": time.perf_counter() - start, "stages": counters(result)}
    write_json(config.run_folder / "report.json", report)


def _terms(config: JobConfig, job: SumsJob, rows: int, binding: str) -> dict[str, Terms]:
    """What each peer is told."""
    agreed = {
        **agreed_terms(config),
        "triples.store": config.required_triples.store,
        "sums.product": list(job.product),
        "sums.bound": job.bound,
        "rows": rows,
    }
    return {peer: Terms(agreed, {"columns": list(job.columns)}, binding) for peer in config.peers}


def _agree(exchange: Exchange, config: JobConfig, job: SumsJob, terms: Mapping[str, Terms]) -> list[str]:
    """Shake hands; the names of all columns in the order of the shares."""

    def names(heard: Mapping[str, Terms]) -> list[str]:
        columns = {name: heard[name].announced["columns"] for name in config.parties if name != config.party}
        columns[config.party] = list(job.columns)
        return [f"{party}.{column}" for party in config.parties for column in columns[party]]

    def check(heard: Mapping[str, Terms]) -> None:
        for column in job.product:
            _position(names(heard), column)

    timeout = config.exchange.timeout_s
    return names(shake_hands(exchange, config.party, config.run, terms, config.run_folder, timeout, check))


def _build(
    staged: StagedInput,
    context: PartyContext,
    manifest: Manifest,
    product: tuple[int, int],
    names: list[str],
    result_file: Path,
    pipeline: beam.Pipeline,
) -> None:
    _ = (
        pipeline
        | "Shard numbers" >> beam.Create(list(range(staged.shards)))
        | "Spread shards" >> beam.Reshuffle()
        | "Column sums" >> ColumnSums(context, manifest, staged.file, *product)
        | "Write result" >> beam.Map(_write_sums, names, result_file)
    )


def _write_sums(sums: Shard, names: list[str], result_file: Path) -> None:
    values = ring.decode(sums.arrays["x"])
    write_json(result_file, {name: int(value) for name, value in zip(names, values, strict=True)})


def sums_job(config: JobConfig) -> SumsJob:
    """The job in a party's configuration, checked to be whole."""
    job = config.sums
    if job is None:
        raise ConfigError(f"the configuration of {config.party} has no job: add `sums:`")
    if config.party not in config.parties:
        raise ConfigError(f"{config.party} is the dealer of this run: start it with `veilmeans offline`")
    if job.data is None or not job.columns:
        raise ConfigError(f"the configuration of {config.party} needs sums.data and sums.columns")
    return job


def check_rows(config: JobConfig, job: SumsJob, rows: int) -> None:
    """Sums are computed mod 2^64: refuse what could wrap around; and other rows than the store is for."""
    if rows * job.bound**2 >= 2**63:
        raise ConfigError(
            f"sums.bound is {job.bound:,}, and {rows:,} products of such values may exceed 2^63: lower the bound"
        )
    planned = None if config.triples is None else config.triples.rows
    if planned is not None and rows != planned:
        raise InputError(f"the data of {config.party} have {rows:,} rows, and triples.rows is {planned:,}")


def _position(names: Sequence[str], column: str) -> int:
    if column not in names:
        raise HandshakeError(f"sums.product names {column!r}, and the parties have {', '.join(names)}")
    return names.index(column)


def plan_sums(config: JobConfig) -> RenderableType:
    """Check configuration, certificates and data; the rounds, and what each of them sends.

    The peers' columns are not known before the handshake: they are taken to be as many as ours.
    """
    config = config.online()
    job = sums_job(config)
    load_identity(config)
    load_peer_certificates(config)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "columns.arrow"
        staged = stage_columns(job.data or Path(), job.columns, job.bound, config.engine.rows_per_shard, target)
    check_rows(config, job, staged.rows)
    check_listen_address(config)
    columns, parties = len(job.columns), config.me.count
    sharded = {"x": ((staged.rows, columns), "uint64")}
    opened = {"x": ((columns * parties + 1,), "uint64")}
    heading = (
        f"{config.party} in run {config.run!r} with {', '.join(config.peers)}",
        f"{staged.rows:,} rows × {columns} columns",
        f"shards {staged.shards:,}, exchange by {config.exchange.kind}, on {config.engine.runner}",
    )
    return Group(
        *heading,
        table(product_protocol(0, 0), [sharded] * parties, config.me.index, staged.rows),
        table(OPENING, [opened] * parties, config.me.index, staged.rows),
    )
