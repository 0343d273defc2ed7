"""What a run will do and cost: `veilmeans plan` from the configuration, `train --dry-run` from data and store, too.

Nothing is sent. Before there is a store, `auto` goes by the costs of this machine; those of the slowest party decide
when it is made, and from then on the plan goes by the store.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from veilmeans.io.exchange.connections import check_listen_address, load_identity, load_peer_certificates
from veilmeans.io.exchange.link_shaping import LAN, WAN
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.planning.engine_costs import Costs, Link
from veilmeans.pipelines.planning.engine_selection import EngineSelection, engine_choices, own_costs, select_all_engines
from veilmeans.pipelines.planning.pace import Pace, measure_pace
from veilmeans.pipelines.planning.plan_schema import JobPlan, Offline, Opened, Seconds, StepPlan
from veilmeans.pipelines.planning.planned_bytes import (
    Counted,
    busiest,
    disk_of,
    offline_of,
    steps_with_stages,
    traffic_of,
)
from veilmeans.pipelines.session.joint_scaling import aggregate_work, opened_statistics
from veilmeans.pipelines.session.kmeans_from_config import (
    iterations_per_pipeline,
    kmeans_steps,
    runs_in_one_call,
    store_iterations,
)
from veilmeans.pipelines.session.kmeans_run import check_run
from veilmeans.pipelines.session.session import farewell_received
from veilmeans.pipelines.session.triple_claim import check_claim, store_engines
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.kmeans.steps import KMeansSteps, Step
from veilmeans.transforms.offline.requirements import Over
from veilmeans.transforms.products.engine_parameters import ChosenEngines

_AT_ONCE = 1e18
"""Bytes per second of a link that takes no time."""


def plan_train(config: JobConfig) -> JobPlan:
    """The plan after checking configuration, certificates, data and store. Nothing is written."""
    config = config.online()
    load_identity(config)
    load_peer_certificates(config)
    with tempfile.TemporaryDirectory() as folder:
        ready = check_run(config, Path(folder))
    if not farewell_received(config):
        check_claim(config, ready.store, ready.binding)
        check_listen_address(config)
    return make_plan(config, store_engines(config, ready.store), keep=False)


def plan_ahead(config: JobConfig, keep: bool = True) -> JobPlan:
    """The plan from the configuration alone; by the engines of the store, where there is one."""
    config = config.online()
    if config.party not in config.parties:
        raise ConfigError(
            f"{config.party} is the dealer of this run and has no part in it: `veilmeans offline --dry-run` shows "
            "what it deals"
        )
    return make_plan(config, _stored_engines(config), keep)


def _stored_engines(config: JobConfig) -> ChosenEngines | None:
    """Those of the store, if there is one, and it could be for this job."""
    if config.triples is None:
        return None
    try:
        found = TripleStore.open(config.store_folder).manifest.engines
    except (StorageError, ConfigError):
        return None
    asked = [config.required_kmeans.engines_of(party) for party in config.parties]
    wanted = [(each.distance, each.update) for each in asked]
    return found if len(found) == len(wanted) and all(map(_allowed, wanted, found)) else None


def _allowed(wanted: tuple[str, ...], found: tuple[str, ...]) -> bool:
    """Whether an owner's engines are those that are asked for."""
    return len(found) == len(wanted) and all(
        each in ("auto", engine) for each, engine in zip(wanted, found, strict=True)
    )


def make_plan(config: JobConfig, settled: ChosenEngines | None, keep: bool) -> JobPlan:
    """`settled`: the engines, where they are. `keep`: what is measured of this machine is kept in its storage."""
    job = config.required_kmeans
    kmeans_steps(config)  # a mistake in the configuration is told before anything is measured
    costs, pace = own_costs(config, keep), measure_pace(config.storage, keep)
    found = select_all_engines(config, [costs])
    chosen = settled or tuple((each.distance, each.update) for each in found.values())
    kmeans = kmeans_steps(config, chosen)
    timed = _Timing(config, kmeans, chosen, costs, pace)
    steps = tuple(timed.step_plan(step, counted) for step, counted in steps_with_stages(config, kmeans))
    offline = _offline(config, kmeans)
    return JobPlan(
        config.party,
        config.run,
        tuple(config.peers),
        _shape(config, kmeans),
        {name: _link_json(each) for name, each in timed.links.items()},
        steps,
        offline,
        disk_of(config, kmeans, offline, steps),
        engine_choices(config, found, chosen, settled is not None),
        _opened(job, config.parties),
    )


def links_of(config: JobConfig) -> dict[str, Link]:
    """LAN and WAN as the shaper has them, and the configured link, if there is one."""
    links = {"lan": LAN, "wan": WAN}
    known = {name: Link(each.rate / 8, each.round_trip) for name, each in links.items()}
    shape = config.exchange.shape
    return known if shape is None else {**known, "configured": Link.shaped(shape)}


def _link_json(link: Link) -> dict[str, float]:
    return {"rate_mbps": link.rate / 125e3, "round_trip_ms": link.round_trip * 1e3}


class _Timing:
    """How long steps take."""

    def __init__(self, config: JobConfig, kmeans: KMeansSteps, chosen: ChosenEngines, costs: Costs, pace: Pace) -> None:
        self.config, self.costs, self.pace = config, costs, pace
        self.kmeans, self.links = kmeans, links_of(config)
        alone = select_all_engines(config, [replace(costs, rate=_AT_ONCE, round_trip=0.0)])
        self.products = _product_seconds(alone, chosen, store_iterations(config))

    def step_plan(self, step: Step, counted: Counted) -> StepPlan:
        times = self.config.required_kmeans.iterations if step.when == "iteration" else 1
        each = traffic_of(self.config, counted)
        computed = self.pace.computed(counted, self.config.me.index, self.costs.word, self._staged(step))
        computed += self.products.get(step.name, 0.0) + self._pipelines(step) * self.pace.pipeline
        most = busiest(counted)
        links = {n: computed + each.rounds * link.round_trip + most / link.rate for n, link in self.links.items()}
        return StepPlan(step, times, each, Seconds(computed, links))

    def _pipelines(self, step: Step) -> float:
        """How many pipelines begin with this step, each time that it is done; a prediction is one."""
        if step.name == "reveal-assignments" or (step.name == "operand" and not self.kmeans.predicts):
            return 1.0
        if step.name != "distance":
            return 0.0
        whole = runs_in_one_call(self.config, self.kmeans)
        return 1.0 if self.kmeans.predicts else 1 / iterations_per_pipeline(self.config, whole)

    def _staged(self, step: Step) -> bool:
        """Whether each round is a Beam stage; work on one element is one call, and so are columns in one shard."""
        if runs_in_one_call(self.config, self.kmeans) or step.over is Over.ONE or step.name == "norms":
            return False
        return step.over is Over.ROWS or step.name == "encrypt" or len(self.kmeans.column_shards) > 1


def _product_seconds(alone: Mapping[str, EngineSelection], chosen: ChosenEngines, iterations: int) -> dict[str, float]:
    """What all owners' cross products take to compute; each party works on its own and on those of its peers."""
    parties = len(alone)
    found = dict.fromkeys(("operand", "distance", "update"), 0.0)
    for choice, (distance, update) in zip(alone.values(), chosen, strict=True):
        share = (parties - 1) / parties
        found["distance"] += share * choice.estimates["distance"][distance].seconds
        found["update"] += share * choice.estimates["update"][update].seconds
        if "beaver" in (distance, update):
            found["operand"] += share * iterations * choice.estimates["operand"]["beaver"].seconds
    return found


def _offline(config: JobConfig, kmeans: KMeansSteps) -> Offline | None:
    if config.triples is None:
        return None
    plan = kmeans.plan(aggregate_work(config.required_kmeans, kmeans.layout))
    return offline_of(config, plan, config.me.index)


def _shape(config: JobConfig, kmeans: KMeansSteps) -> dict[str, Any]:
    job, layout, tree = config.required_kmeans, kmeans.layout, kmeans.tree
    return {
        "layout": job.layout,
        "rows": layout.total_rows,
        "columns": layout.total_features,
        "clusters": kmeans.k,
        "model": job.predict.model if job.predict else None,
        "max_iter": job.iterations,
        "tol": job.tol if job.predict is None else 0.0,
        "shards": len(layout.row_shards()),
        "column_shards": len(kmeans.column_shards),
        "runner": config.engine.runner,
        "rounds": "whole" if runs_in_one_call(config, kmeans) else "stages",
        "compare_bits": tree.compare_bits,
        "compared_bits": tree.compare_bits - tree.drop,
    }


def _opened(job: KMeansConfig, parties: tuple[str, ...]) -> tuple[Opened, ...]:
    """What will be opened, and to whom."""
    opened = []
    if job.aggregates:
        opened.append(Opened(f"{opened_statistics(job)} of each column", parties, "before"))
    if job.tol and job.predict is None:
        opened.append(Opened(f"one bit, whether the centroids moved by less than {job.tol:g}", parties, "iteration"))
    reveal = job.reveal.model_dump(include={"assignments", "centroids", "inertia"})
    return (*opened, *(Opened(what, tuple(who), "end") for what, who in reveal.items() if who))
