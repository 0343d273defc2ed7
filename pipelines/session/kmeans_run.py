"""One party's side of a training or a prediction, from the checks that it makes alone to the farewell."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from veilmeans.io.exchange.connections import attach_shared
from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.exchange.handshake import check_bound_terms, exchange_terms
from veilmeans.io.ledgers.forgetting import forget_iterations
from veilmeans.io.ledgers.opening_ledger import SCALE, OpeningLedger, data_digest
from veilmeans.io.messages.transcript import Transcript
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.scan import Scan
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.session.agreed_terms import check_ids, train_terms
from veilmeans.pipelines.session.joint_scaling import aggregate_scaling, opened_statistics
from veilmeans.pipelines.session.kmeans_from_config import check_command, kmeans_steps, runs_in_one_call
from veilmeans.pipelines.session.own_data import check_integer_valued, encode_data, local_scaling, scan_data
from veilmeans.pipelines.session.result_opening import opened_results, policy_digest, reveal_results
from veilmeans.pipelines.session.session import binding_of, exchange_farewells, farewell_received, open_session
from veilmeans.pipelines.session.trained_model import FinishedRun, TrainedModel, capacity_field, load_model
from veilmeans.pipelines.session.triple_claim import (
    announce_store,
    check_claim,
    claim_triples,
    end_making,
    is_made_first,
    open_store,
    store_engines,
)
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import bound_fields
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.auditing.echoes import compare_echoes
from veilmeans.transforms.auditing.signed_policies import keep_policies
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.party_context import PartyContext


@dataclass(frozen=True)
class CheckedData:
    """A party's data, scanned and checked. `model`: of a prediction."""

    scan: Scan
    scaling: Scaling | None
    model: TrainedModel | None


@dataclass(frozen=True)
class CheckedRun:
    """A run before its handshake: the data are scanned, the triple store is there. `model`: of a prediction."""

    config: JobConfig
    job: KMeansConfig
    steps: KMeansSteps
    scan: Scan
    scaling: Scaling | None
    store: TripleStore
    binding: str
    terms: dict[str, Terms]
    model: TrainedModel | None = None


MakeStore = Callable[[JobConfig], object]
RunPipelines = Callable[[Exchange, CheckedRun, PartyJob, EncodedData, RunReport], int]
"""Run all pipelines of a run; return the number of iterations."""


def run_kmeans(config: JobConfig, predicts: bool, make_store: MakeStore, run_pipelines: RunPipelines) -> Path:
    """Take part in a run; return the folder with its results.

    A party that has its results stays until its peers have theirs: they may have to hear from it again.
    """
    check_command(config, predicts)
    attach_shared(config)
    config = config.online()
    data = check_data(config)
    if is_made_first(config):
        make_store(config)
    ready = check_run(config, data)
    if farewell_received(config):
        forget_claimed(config, ready.store, ready.binding, [config])
        return config.run_folder.path
    check_claim(config, ready.store, ready.binding)
    check_openings(config, opened_data(ready), [config])
    with open_session(config) as exchange:
        agree(exchange, ready)
        report = RunReport(config.run_folder)
        report.begin(config)
        ended = run_claimed(exchange, ready, claim_part(exchange, ready), run_pipelines, report)
        extra = ended.job.context.extra_timeout_s
        transcript = Transcript(config.run_folder.transcript(), config.run)
        if exchange_farewells(exchange, config, ended.done + 1, extra, [transcript]):
            forget_claimed(config, ready.store, ready.binding, [config])
        report.end()
    return config.run_folder.path


def agree(exchange: Exchange, ready: CheckedRun) -> None:
    """Agree with the peers on the terms of a run, to which it is bound from then on."""
    config = ready.config
    announce_store(exchange, config, ready.store)
    timeout = config.exchange.timeout_s

    def check(heard: Mapping[str, Terms]) -> None:
        check_ids(config.party, ready.terms, heard)
        keep_policies(config, ready.job.command, "run", heard)

    exchange_terms(exchange, config.party, config.run, ready.terms, config.run_folder, timeout, check)
    end_making(exchange, config)


def claim_part(exchange: Exchange, ready: CheckedRun) -> int:
    """Claim a part of the triple store, the same at all parties; return its number."""
    return claim_triples(exchange, ready.config, ready.store, ready.binding)


def run_claimed(
    exchange: Exchange, ready: CheckedRun, number: int, run_pipelines: RunPipelines, report: RunReport
) -> FinishedRun:
    """Run with the store's correlations under `number`, save the finished run, and open what the policy names."""
    config, scan = ready.config, ready.scan
    job, prepared, scaling = _begin(ready, number)
    done = run_pipelines(exchange, ready, job, prepared, report)
    ended = FinishedRun(config, job, done, scaling, scan.columns, scan.id, scan.encoding, opened_data(ready))
    ended.save()
    compare_echoes(exchange, config, before=done + 1)
    if not config.run_folder.result.exists():
        reveal_results(ended, ready.job.reveal)
    return ended


def forget_claimed(config: JobConfig, store: TripleStore, binding: str, parts: Iterable[JobConfig]) -> None:
    """Forget what no later command needs of an ended run, or of the trainings of a sweep, which are its `parts`."""
    claim, configs = store.find_claim(config.run, binding), list(parts)
    if claim is None or config.audit.keep:
        return
    for number, part in enumerate(configs, claim.number * len(configs)):
        store.forget(number)
        ended = FinishedRun.load(part)
        forget_iterations(part.run_folder, ended.done, ended.kept_at)


def check_data(config: JobConfig, folder: Path | None = None) -> CheckedData:
    """Check configuration and data. `folder`: the folder for encoded data, instead of the configured storage."""
    attach_shared(config)
    model = load_model(config)
    kmeans_steps(config)  # fails on a mistake in the configuration before one in the data
    scan = scan_data(config, model)
    scaling = local_scaling(config, scan, model)
    if scaling is not None:
        check_integer_valued(config, encode_data(config, scan, scaling, folder))
    return CheckedData(scan, scaling, model)


def check_run(config: JobConfig, data: CheckedData | None = None) -> CheckedRun:
    """Check all that a party can check alone: data (unless they are checked), store, the terms of an earlier start."""
    data = data or check_data(config)
    job, scan, model = config.kmeans_with_data, data.scan, data.model
    store = open_store(config, job.iterations)
    engines = store_engines(config, store)
    steps = kmeans_steps(config, engines)
    binding = committed_binding(config, scan, model)
    terms = train_terms(config, scan, engines, binding, model)
    check_bound_terms(config.run_folder, config.party, terms)
    return CheckedRun(config, job, steps, scan, data.scaling, store, binding, terms, model)


def with_clusters(ready: CheckedRun, config: JobConfig) -> CheckedRun:
    """A training of a sweep: `config` is the sweep's with one of its numbers of clusters."""
    steps = kmeans_steps(config, store_engines(config, ready.store))
    binding = committed_binding(config, ready.scan, None)
    return replace(ready, config=config, job=config.kmeans_with_data, steps=steps, binding=binding)


def committed_binding(config: JobConfig, scan: Scan, model: TrainedModel | None) -> str:
    job = config.kmeans_with_data
    bound = json.dumps({**bound_fields(job, job.command), **capacity_field(config)}, sort_keys=True)
    return binding_of(config, bytes.fromhex(scan.digest), f"{bound}{model.digest() if model else ''}")


def opened_data(ready: CheckedRun) -> tuple[str, ...]:
    """The digests of all data on which a run's results depend: its own, and those of its model."""
    own = data_digest(ready.config, ready.scan.content)
    return (own, *(ready.model.data if ready.model else ()))


def check_openings(config: JobConfig, data: Iterable[str], runs: Iterable[JobConfig]) -> None:
    """Refuse a run, before it starts, whose results may not be opened any more."""
    job = config.kmeans_with_data
    names = [*([SCALE] if job.aggregates else []), *([policy_digest(job.reveal)] if opened_results(job.reveal) else [])]
    pairs = [(run.run, name) for run in runs for name in names]
    for digest in data:
        OpeningLedger.of(config, digest).check(pairs, config.openings.limit)


def _begin(ready: CheckedRun, number: int) -> tuple[PartyJob, EncodedData, Scaling]:
    """Encode the data; return the job, the encoded data and their scaling."""
    config, steps, scan = ready.config, ready.steps, ready.scan
    extra = steps.engines.extra_timeout_s(steps.layout)
    context = PartyContext(config, ready.binding, store_number=number, extra_timeout_s=extra)
    if ready.scaling is None:
        ledger = OpeningLedger.of(config, data_digest(config, scan.content))
        ledger.check([(config.run, SCALE)], config.openings.limit)
        ledger.record(config.run, SCALE, ready.job.command, {opened_statistics(ready.job): config.parties})
    scaling = ready.scaling or aggregate_scaling(config, context, scan, steps.layout.total_rows)
    prepared = encode_data(config, scan, scaling)
    check_integer_valued(config, prepared)
    return PartyJob(steps, context, prepared.folder, runs_in_one_call(config, steps)), prepared, scaling
