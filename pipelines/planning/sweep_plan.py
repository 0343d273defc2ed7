"""The plan of a sweep: that of each training, and one triple store for all of them. Nothing is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veilmeans.io.exchange.link_shaping import Link
from veilmeans.pipelines.planning.engine_selection import engines_by_own_costs
from veilmeans.pipelines.planning.job_plan import plan_ahead, stored_engines
from veilmeans.pipelines.planning.plan_schema import JobPlan, OfflinePlan, Traffic
from veilmeans.pipelines.planning.planned_bytes import plan_offline
from veilmeans.pipelines.session.kmeans_from_config import store_jobs
from veilmeans.schemas.config import JobConfig


@dataclass(frozen=True)
class SweepPlan:
    """The plan of a sweep at one party. `trainings`: by their number of clusters, each with the whole store's cost."""

    party: str
    run: str
    trainings: Mapping[int, JobPlan]
    offline: OfflinePlan | None

    @property
    def links(self) -> Mapping[str, Link]:
        return next(iter(self.trainings.values())).links

    def traffic(self) -> Traffic:
        """The traffic of all trainings, if each takes as many iterations as it may."""
        return sum((each.traffic() for each in self.trainings.values()), Traffic())

    def to_json(self) -> dict[str, Any]:
        parts = {str(k): {**each.to_json(), "offline": None} for k, each in self.trainings.items()}
        seconds = {name: self.traffic().seconds_on(link) for name, link in self.links.items()}
        return {
            "party": self.party,
            "run": self.run,
            "trainings": parts,
            "total": {"traffic": self.traffic().to_json(), "seconds": seconds},
            "offline": None if self.offline is None else self.offline.to_json(),
        }


def plan_sweep(config: JobConfig) -> SweepPlan:
    """Plan a sweep from the configuration alone, with the engines of the triple store if there is one."""
    config = config.online()
    trainings = {k: plan_ahead(part) for k, part in config.swept().items()}
    engines = stored_engines(config) or engines_by_own_costs(config)[0]
    offline = None
    if config.triples is not None:
        offline = plan_offline(config, store_jobs(config, engines), config.me.index)
    return SweepPlan(config.party, config.run, trainings, offline)
