"""K-means over the paper's WAN, 20 Mbit/s and 40 ms round trip, with `plan` beside it, and SPU over the same link.

The reference is a proxy between the parties (`benchmarks.link_proxy`), which slows whatever is sent, TLS and
acknowledgements included. The same job with `exchange.shape`, our own simulation of a link inside the parties, is
beside it. Times are of the online phase, as `benchmarks.peers` says; SPU is SEMI2K, its time is of the run alone, and
it has no target.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import PARTIES, Measured, finished_run, measure, opened_centroids
from benchmarks.link_proxy import SlowLink
from benchmarks.peer_jobs import OUR_TOLERANCE, SPU_TOLERANCE, PeerJob, deviation_figure
from benchmarks.spu.spu_runs import SEMI2K, measure_spu
from veilmeans.io.exchange.link_shaping import WAN
from veilmeans.pipelines.planning.plan_vs_run import PlanVsRun, compare_with_run
from veilmeans.schemas.config import load_config

SHAPE = {"rate_mbps": WAN.rate / 125e3, "round_trip_ms": WAN.round_trip * 1e3}
PLAN_WITHIN = 20
"""Percent of the measured time by which the plan's may differ from it."""


@dataclass(frozen=True)
class WanJob:
    """A job and its targets in seconds: of the online phase, and of one iteration."""

    job: PeerJob
    online: float
    iteration: float | None = None


JOBS = {
    "small": WanJob(PeerJob(1_000, 2, 4, 20), 12, 0.55),
    "large": WanJob(PeerJob(10_000, 2, 5, 10), 18),
}


def through_proxy(job: PeerJob) -> tuple[Measured, SlowLink, list[PlanVsRun], float]:
    """Run through the proxy: figures, the link, each party's plan beside its report, and the deviation from Lloyd."""
    link = SlowLink(WAN)
    with finished_run(job.shape, rows=job.data, proxy=link) as (folder, measured):
        compared = [_compared(folder / party / "config.yaml") for party in PARTIES]
        return measured, link, compared, job.deviation(opened_centroids(folder))


def _compared(config: Path) -> PlanVsRun:
    return compare_with_run(load_config(config))


def iteration_seconds(measured: Measured) -> float:
    """Seconds of an iteration, on average, at the slower party."""
    histories = [report["iterations"] for report in measured.reports.values()]
    return max(sum(float(each["seconds"]) for each in history) / int(history[-1]["done"]) for history in histories)


def our_figures(wan: WanJob) -> Iterator[Figure]:
    name = f"{wan.job.name}, ours"
    measured, link, compared, deviation = through_proxy(wan.job)
    yield Figure.at_most(f"{name}: online", measured.online, "s", wan.online)
    iteration = f"{name}: an iteration"
    if wan.iteration is None:
        yield Figure(iteration, iteration_seconds(measured), "s")
    else:
        yield Figure.at_most(iteration, iteration_seconds(measured), "s", wan.iteration)
    yield Figure(f"{name}: command", measured.online_wall, "s")
    yield Figure(f"{name}: traffic, messages", measured.online_mb, "MB")
    yield Figure(f"{name}: traffic, wire", link.bytes_carried / 1e6, "MB")
    yield deviation_figure(name, deviation, OUR_TOLERANCE)
    yield from plan_figures(f"{wan.job.name}, plan", compared)
    shaped = measure(replace(wan.job.shape, link=SHAPE))
    yield Figure(f"{name}: online, by exchange.shape", shaped.online, "s")
    yield Figure(f"{name}: an iteration, by exchange.shape", iteration_seconds(shaped), "s")


def plan_figures(name: str, compared: list[PlanVsRun]) -> Iterator[Figure]:
    """The plan's rounds, bytes and seconds on a WAN against the reports of both parties."""
    totals = [each.total for each in compared]
    rounds = max(abs(each.planned.rounds - each.measured.rounds) for each in totals)
    sent = max(abs(each.planned.bytes_sent - each.measured.bytes_sent) for each in totals)
    yield Figure(f"{name}: rounds", totals[0].planned.rounds, "")
    yield Figure.at_most(f"{name}: rounds that differ from the report's", rounds, "", 0)
    yield Figure.at_most(f"{name}: bytes that differ from the report's", sent, "", 0)
    slower = max(compared, key=lambda each: each.seconds)
    planned = slower.total.planned.seconds["wan"]
    yield Figure(f"{name}: online", planned, "s")
    difference = 100 * abs(planned - slower.seconds) / slower.seconds
    yield Figure.at_most(f"{name}: difference from the measured time", difference, "%", PLAN_WITHIN)


def spu_figures(job: PeerJob) -> Iterator[Figure]:
    name, link = f"{job.name}, SPU {SEMI2K}", SlowLink(WAN)
    measured = measure_spu(SEMI2K, job.data, job.clusters, job.iterations, link)
    yield Figure(f"{name}: run", measured.run_s, "s")
    yield Figure(f"{name}: traffic, wire", link.bytes_carried / 1e6, "MB")
    yield deviation_figure(name, job.deviation(measured.centroids), SPU_TOLERANCE)


def arguments() -> argparse.Namespace:
    line = parser(__doc__)
    line.formatter_class = argparse.RawDescriptionHelpFormatter
    line.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    line.add_argument("--skip-spu", action="store_true", help="only our own runs")
    return line.parse_args()


def main() -> None:
    options = arguments()
    figures: list[Figure] = []
    for name in options.jobs:
        wan = JOBS[name]
        print(wan.job.name, flush=True)
        figures += our_figures(wan)
        if not options.skip_spu:
            figures += spu_figures(wan.job)
    publish(figures, options.json)


if __name__ == "__main__":
    main()
