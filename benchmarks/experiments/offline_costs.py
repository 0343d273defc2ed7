"""Offline costs of parts of a job, without a dealer: bytes and OTs counted from shapes, as `plan` counts them.

Seconds are those of the plan on the paper's WAN: rounds, bytes, and the processor's time for the OTs. They are
computed, not measured.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.experiments.unvectorised import PROTOCOL, Products
from benchmarks.kmeans_runs import PARTIES, Shape, write_configurations
from veilmeans.io.exchange.link_shaping import WAN
from veilmeans.pipelines.planning.planned_bytes import plan_offline
from veilmeans.pipelines.session.kmeans_from_config import traced_job
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.offline.traced_job import JobStep, TracedJob
from veilmeans.transforms.rounds.executor import Over
from veilmeans.transforms.rounds.trace import trace

Costs = dict[str, float]


def by_phase(config: JobConfig) -> dict[str, Costs]:
    """The costs of S1, S2 and S3, each as if the store had nothing else."""

    def of(phase: str) -> Costs:
        return _costs(config, lambda step: step.phase == phase)

    return {phase: of(phase) for phase in ("S1", "S2", "S3")}


def of_distance(config: JobConfig) -> Costs:
    """The costs of the distance step's matrix triples."""
    by_ot = config.model_copy(update={"dealer": None, "triples": _by_ot(config)})
    return _costs(by_ot, lambda step: step.name in ("operand", "distance"))


def of_products(shape: Shape, products: Products) -> Costs:
    """The costs of a triple for each product."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as folder:
        write_configurations(Path(folder), replace(shape, provider="ot"))
        config = load_config(Path(folder) / PARTIES[0] / "config.yaml")
    values = dict.fromkeys(("x", "y"), ((products.count,), "uint64"))
    stages = {ShardShape(products.rows): tuple(trace(PROTOCOL, [values] * len(PARTIES)))}
    step = JobStep("distance", "X·μᵀ", "S1", Over.ROWS, "iteration", (), stages)
    return _planned(config, TracedJob((ShardShape(products.rows),), (), (step,)))


def _by_ot(config: JobConfig) -> object:
    return config.required_triples.model_copy(update={"provider": "ot"})


def _costs(config: JobConfig, wanted: Callable[[JobStep], bool]) -> Costs:
    job = traced_job(config)
    return _planned(config, replace(job, steps=tuple(step for step in job.steps if wanted(step))))


def _planned(config: JobConfig, job: TracedJob) -> Costs:
    plans = [plan_offline(config, job, party) for party in range(len(config.parties))]
    seconds = max(plan.seconds_on(WAN) + plan.computing for plan in plans)
    return {"offline_mb": sum(plan.bytes_sent for plan in plans) / 1e6, "offline_s": seconds}
