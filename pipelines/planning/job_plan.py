"""The plan of a run: `veilmeans plan` makes it from the configuration, `train --dry-run` checks data and store, too.

Nothing is sent. Before there is a triple store, `auto` is decided by the costs of this machine; when the store is made,
the slowest party's costs decide, and from then on the plan uses the engines of the store.
"""

import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from veilmeans.io.exchange.connections import attach_shared, check_listen_address, load_identity, load_peer_certificates
from veilmeans.io.exchange.link_shaping import LAN, WAN, Link
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.planning.engine_selection import engines_by_own_costs, explain_engines
from veilmeans.pipelines.planning.plan_schema import JobPlan, OfflinePlan, PlannedOpening
from veilmeans.pipelines.planning.planned_bytes import plan_disk, plan_offline, plan_steps, planned_job
from veilmeans.pipelines.session.joint_scaling import opened_statistics
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, runs_in_one_call
from veilmeans.pipelines.session.kmeans_run import check_data, check_run
from veilmeans.pipelines.session.session import farewell_received
from veilmeans.pipelines.session.triple_claim import check_claim, is_made_first, is_missing, store_engines
from veilmeans.schemas.config import JobConfig, LinkConfig
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.kmeans_config import REVEALED, KMeansConfig
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.traced_job import JobStep, TracedJob
from veilmeans.transforms.products.engine_parameters import ChosenEngines


def plan_train(config: JobConfig) -> JobPlan:
    """Check configuration, certificates, data and triple store, and plan the run. Nothing is written."""
    config = config.online()
    load_identity(config)
    load_peer_certificates(config)
    with tempfile.TemporaryDirectory() as folder:
        data = check_data(config, Path(folder))
    if is_made_first(config):
        check_listen_address(config)
        return _make_plan(config, None)
    ready = check_run(config, data)
    if not farewell_received(config):
        check_claim(config, ready.store, ready.binding)
        check_listen_address(config)
    return _make_plan(config, store_engines(config, ready.store))


def plan_ahead(config: JobConfig) -> JobPlan:
    """Plan a run from the configuration alone, with the engines of the triple store if there is one."""
    config = config.online()
    if config.party not in config.parties:
        raise ConfigError(f"{config.party} is the dealer: `veilmeans offline --dry-run` shows what it deals")
    return _make_plan(config, stored_engines(config))


def stored_engines(config: JobConfig) -> ChosenEngines | None:
    """The engines of the triple store, if there is one and its engines are those that the configuration requests."""
    if config.triples is None:
        return None
    attach_shared(config)
    try:
        stored = TripleStore.open(config.store_folder).manifest.engines
    except (StorageError, ConfigError):
        return None
    requested = [config.required_kmeans.engines_of(party) for party in config.parties]
    wanted = [engine for each in requested for engine in (each.distance, each.update)]
    made_for = list(chain.from_iterable(stored))
    fits = len(made_for) == len(wanted) and all(
        each in ("auto", made) for each, made in zip(wanted, made_for, strict=True)
    )
    return stored if fits else None


def _make_plan(config: JobConfig, stored: ChosenEngines | None) -> JobPlan:
    """Make the plan with the triple store's engines, or with those that this machine's costs select."""
    job = config.required_kmeans
    kmeans_steps(config)  # fail on a mistake in the configuration before anything is measured
    engines, selections = (stored, {}) if stored is not None else engines_by_own_costs(config)
    kmeans = kmeans_steps(config, engines)
    traced = planned_job(config, kmeans)
    steps = plan_steps(config, traced, job.iterations)
    offline = None if config.triples is None else _plan_store(config, engines, traced)
    links = {"lan": LAN, "wan": WAN}
    configured = config.exchange.shape or config.link
    if configured != LinkConfig():
        links["configured"] = Link.from_config(configured)
    disk = plan_disk(config, kmeans, offline, steps)
    selected = explain_engines(config, engines, selections, stored is not None)
    openings = _openings(job, config.parties, traced.steps)
    about = config.party, config.run, tuple(config.peers), _job_json(config, kmeans)
    return JobPlan(*about, links, steps, offline, disk, selected, openings)


def _plan_store(config: JobConfig, engines: ChosenEngines, traced: TracedJob) -> OfflinePlan:
    """Plan the triple store, which may be for more rows than the run has."""
    largest = config.at_capacity()
    of_store = traced if largest is config else planned_job(largest, kmeans_steps(largest, engines))
    return plan_offline(config, of_store, config.me.index)


def _job_json(config: JobConfig, kmeans: KMeansSteps) -> dict[str, Any]:
    job, layout, assignment = config.required_kmeans, kmeans.layout, kmeans.assignment
    return {
        "layout": job.layout,
        "rows": layout.total_rows,
        "padding": sum(row_shard.padding for row_shard in layout.row_shards()),
        "columns": layout.total_features,
        "clusters": kmeans.k,
        "model": job.predict.model if job.predict else None,
        "starts": kmeans.starts,
        "seeds": job.seeds,
        "max_iter": job.iterations,
        "tol": job.tol if job.predict is None else 0.0,
        "shards": len(layout.row_shards()),
        "column_shards": len(kmeans.column_shards),
        "runner": config.beam.runner,
        "rounds": "one_call" if runs_in_one_call(config, kmeans) else "stages",
        "compare_bits": assignment.compare_bits,
        "compared_bits": assignment.width,
        "assignment": assignment.method,
        "radices": list(assignment.radices),
        "makes_store": config.triples.store if config.triples is not None and is_missing(config) else None,
    }


def _openings(job: KMeansConfig, parties: tuple[str, ...], steps: Sequence[JobStep]) -> tuple[PlannedOpening, ...]:
    """List the openings of the run: what its steps open to all, and what the policy names."""
    known = {name: f"{opened_statistics(job)} of each column" for name in ("extremes", "moments")}
    known["stop"] = f"one bit, whether the centroids moved by less than {job.tol:g}"
    opened = [
        PlannedOpening(
            known.get(step.name, "; ".join(step.opens)),
            parties,
            "before" if step.when in ("once", "seed") else "iteration",
        )
        for step in steps
        if step.opens and step.when != "end"
    ]
    reveal = job.reveal.model_dump(include=set(REVEALED))
    least, small = job.reveal.minimum_size, ("centroids", "explanations", "profiles")
    limit = dict.fromkeys(small, f" (of clusters with fewer than {least:,} rows only which they are)") if least else {}
    return (
        *opened,
        *(PlannedOpening(f"{what}{limit.get(what, '')}", tuple(who), "end") for what, who in reveal.items() if who),
    )
