"""A party's side of a run, training or prediction, from what can be checked alone to the farewell."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.exchange.handshake import check_bindings, shake_hands
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.scan import Scan
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.io.storage.result_files import RESULT
from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.session.agreed_terms import check_ids, train_terms
from veilmeans.pipelines.session.joint_scaling import aggregate_scaling
from veilmeans.pipelines.session.kmeans_from_config import check_command, kmeans_steps, not_agreed, runs_in_one_call
from veilmeans.pipelines.session.own_data import check_integer_valued, encode_data, local_scaling, scan_data
from veilmeans.pipelines.session.result_opening import reveal_results
from veilmeans.pipelines.session.session import binding_of, exchange_farewells, farewell_received, open_session
from veilmeans.pipelines.session.trained_model import FinishedRun, TrainedModel, load_model
from veilmeans.pipelines.session.triple_claim import check_claim, claim_triples, open_store, store_engines
from veilmeans.schemas.config import JobConfig, kmeans_with_data
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.party_context import PartyContext


@dataclass(frozen=True)
class CheckedRun:
    """A party before the handshake: its data are read and its store is there. `model`: of a prediction."""

    config: JobConfig
    job: KMeansConfig
    kmeans: KMeansSteps
    scan: Scan
    scaling: Scaling | None
    store: TripleStore
    binding: str
    terms: dict[str, Terms]
    model: TrainedModel | None = None


RunPipelines = Callable[[Exchange, CheckedRun, PartyJob, EncodedData, RunReport], int]
"""All pipelines of a run from a party's seat; how many iterations it took."""


def run_kmeans(config: JobConfig, predicts: bool, play: RunPipelines) -> Path:
    """Take part in a run, from what can be checked alone to the farewell; the folder with the results.

    A party that has its results stays until its peers have theirs: they may have to hear from it again.
    """
    check_command(config, predicts)
    ready = check_run(config.online())
    config = ready.config
    if farewell_received(config):
        return config.run_folder
    check_claim(config, ready.store, ready.binding)
    with open_session(config) as exchange:
        _agree(exchange, ready)
        report = RunReport(config.run_folder)
        report.begin(config)
        job, prepared, scaling = _take_seat(exchange, ready)
        done = play(exchange, ready, job, prepared, report)
        _finish(exchange, ready, job, done, scaling)
        report.end()
    return config.run_folder


def _agree(exchange: Exchange, ready: CheckedRun) -> None:
    """The handshake with all peers, after which the run is bound."""
    config = ready.config
    check, timeout = partial(check_ids, config.party, ready.terms), config.exchange.timeout_s
    shake_hands(exchange, config.party, config.run, ready.terms, config.run_folder, timeout, check)


def _finish(exchange: Exchange, ready: CheckedRun, job: PartyJob, done: int, scaling: Scaling) -> None:
    """Keep what the run was, open what the policy names, and say farewell."""
    config, scan = ready.config, ready.scan
    ended = FinishedRun(config, job, done, scaling, scan.columns, scan.id, scan.encoding)
    ended.save()
    if not (config.run_folder / RESULT).exists():
        reveal_results(ended, ready.job.reveal)
    exchange_farewells(exchange, config, iteration=done + 1, patience=job.context.patience)


def check_run(config: JobConfig, folder: Path | None = None) -> CheckedRun:
    """All that can be checked alone: configuration, data, store, and that the run was not begun on other terms.

    `folder`: where data are prepared instead of our storage.
    """
    job, model = kmeans_with_data(config), load_model(config)
    kmeans_steps(config)  # a mistake in the configuration is told before one in the data
    scan = scan_data(config, folder)
    scaling = local_scaling(config, scan)
    if scaling is not None:
        check_integer_valued(config, encode_data(config, scan, scaling, folder))
    store = open_store(config, job.iterations)
    engines = store_engines(config, store)
    kmeans = kmeans_steps(config, engines)
    agreed = job.model_dump_json(exclude={**not_agreed(job), "reveal": True})
    binding = binding_of(config, bytes.fromhex(scan.digest), f"{agreed}{model.digest() if model else ''}")
    terms = train_terms(config, job, scan, engines, binding, model)
    check_bindings(config.run_folder, config.party, terms)
    return CheckedRun(config, job, kmeans, scan, scaling, store, binding, terms, model)


def _take_seat(exchange: Exchange, ready: CheckedRun) -> tuple[PartyJob, EncodedData, Scaling]:
    """Claim a part of the store; the job at this party's seat, its data as they are encoded, and their scale."""
    config, kmeans, scan = ready.config, ready.kmeans, ready.scan
    number = claim_triples(exchange, config, ready.store, ready.binding)
    context = PartyContext(config, ready.binding, store_number=number, patience=kmeans.engines.patience(kmeans.layout))
    scaling = ready.scaling or aggregate_scaling(config, context, scan, kmeans.layout.total_rows)
    prepared = encode_data(config, scan, scaling)
    check_integer_valued(config, prepared)
    return PartyJob(kmeans, context, prepared.folder, runs_in_one_call(config, kmeans)), prepared, scaling
