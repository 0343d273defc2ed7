"""Jobs for several systems: Lloyd's answer against another way to compute it, and figures with their targets."""

from typing import Any

import numpy as np
import pytest
from benchmarks.kmeans_runs import Measured
from benchmarks.peer_jobs import PeerJob
from benchmarks.peers import LARGE, OurRun, our_figures, ratio_figures
from benchmarks.spu.spu_runs import SpuMeasured
from benchmarks.wan import plan_figures

from veilmeans.pipelines.planning.plan_vs_run import PlanVsRun, StepComparison, StepTotals

SMALL = PeerJob(500, 3, 4, 5)


def test_lloyd_is_that_of_distances() -> None:
    x, mu = SMALL.data, SMALL.data[: SMALL.clusters]
    for _ in range(SMALL.iterations):
        labels = np.linalg.norm(x[:, None] - mu, axis=2).argmin(axis=1)
        mu = np.array([x[labels == cluster].mean(axis=0) for cluster in range(SMALL.clusters)])
    assert SMALL.deviation(mu) < 1e-12
    assert SMALL.deviation(mu + np.array([0, 0, 0.25])) == pytest.approx(0.25)


def test_rows_are_in_range_exact_in_single_precision_and_the_same_each_time() -> None:
    assert SMALL.data.min() >= 0
    assert SMALL.data.max() <= 1
    np.testing.assert_array_equal(SMALL.data, SMALL.data.astype(np.float32))
    np.testing.assert_array_equal(SMALL.data, PeerJob(500, 3, 4, 5).data)


def our_run(**changed: Any) -> OurRun:
    values = {"online": 2.0, "online_wall": 4.0, "offline": 5.0, "online_mb": 200.0, "offline_mb": 9.0, "peak_gib": 0.5}
    return OurRun(Measured(**{**values, **changed}, reports={}, peaks={}), 1e-6, 202.0)


def spu_run(seconds: float, megabytes: float) -> SpuMeasured:
    return SpuMeasured(1.0, 0.1, 0.1, seconds, megabytes, 0.3, seconds + 3, np.zeros((4, 3)))


@pytest.mark.parametrize(
    ("job", "seconds", "megabytes", "met"),
    [(SMALL, 6, 4_040, [True, True]), (SMALL, 5.9, 4_039, [False, False]), (LARGE, 35.9, 4_040, [False, True])],
)
def test_ratios_are_of_the_run_and_of_the_wire(job: PeerJob, seconds: float, megabytes: float, met: list[bool]) -> None:
    figures = list(ratio_figures(job, our_run(), spu_run(seconds, megabytes)))
    assert [figure.met for figure in figures if figure.target is not None] == met


def test_only_the_large_job_has_a_bound_on_its_bytes() -> None:
    def bounded(job: PeerJob) -> list[bool | None]:
        run = our_run(online_mb=211.0)
        return [figure.met for figure in our_figures(job, run) if "messages" in figure.name]

    assert (bounded(SMALL), bounded(LARGE)) == ([None], [False])


@pytest.mark.parametrize(
    ("rounds", "sent", "seconds", "met"),
    [(10, 100, 10.0, [True, True, True]), (11, 100, 12.5, [False, True, True]), (10, 99, 12.6, [True, False, False])],
)
def test_a_plan_is_compared_with_the_slower_party(rounds: int, sent: int, seconds: float, met: list[bool]) -> None:
    planned = StepTotals(10, 10, 100, 100, {"wan": 10.0})

    def party(rounds: int, sent: int, seconds: float) -> PlanVsRun:
        return PlanVsRun("p", "r", 1, seconds, (), StepComparison("all", planned, StepTotals(rounds, 10, sent, 100)))

    figures = plan_figures("plan", [party(10, 100, 9.0), party(rounds, sent, seconds)])
    assert [figure.met for figure in figures if figure.target is not None] == met
