"""Triples without a dealer: two parties make them, then train with them; both commands from start to end, mutual TLS.

  a  n = 10^4, d = 2, k = 5      b  n = 10^5, d = 2, k = 5      c  n = 10^4, d = 16, k = 4      ten iterations each

Seconds are of the commands at the slower party, from the start of Python on; bytes are the messages of both parties, as
`plan` and the reports count them. Results are compared with float64 Lloyd. A small run before compiles what numba
keeps. Beside them the paper's offline phase (C++, LAN, its own machine), random OTs on one core (`benchmarks.ot`), and
with --large the peak memory of a party at n = 10^6.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import PARTIES, Measured, Shape, finished_run, measure, opened_centroids
from benchmarks.ot import iknp_figures, silent_figures
from benchmarks.peer_jobs import OUR_TOLERANCE, PeerJob, deviation_figure
from veilmeans.crypto.ot.blocks import make_delta

WARM_UP = Shape(1_000, 2, 5, 1, provider="ot")
LARGE = Shape(1_000_000, 2, 5, 2, provider="ot")
PEAK_AT_LARGE = 0.7


@dataclass(frozen=True)
class OfflineJob:
    """A job, the targets for its offline phase and for both phases (s, MB), and the paper's figures of the former."""

    job: PeerJob
    offline: tuple[float, float]
    both: tuple[float, float]
    paper: tuple[float, float] | None
    providers: tuple[str, ...] = ("ot",)


JOBS = {
    "a": OfflineJob(PeerJob(10_000, 2, 5, 10), (10, 45), (15, 70), (282, 12_900), ("ot", "iknp")),
    "b": OfflineJob(PeerJob(100_000, 2, 5, 10), (60, 220), (90, 480), (2_903, 131_243)),
    "c": OfflineJob(PeerJob(10_000, 16, 4, 10), (12, 50), (17, 75), None),
}


def job_figures(name: str, job: OfflineJob, provider: str, measured: Measured, deviation: float) -> Iterator[Figure]:
    """The figures of one run; only `ot` has targets."""
    title = f"{name} ({job.job.name}), {provider}"
    values = {
        "offline": (measured.offline, measured.offline_sent_mb, job.offline),
        "offline and online": (
            measured.offline + measured.online_wall,
            measured.offline_sent_mb + measured.online_mb,
            job.both,
        ),
    }
    for what, (seconds, megabytes, targets) in values.items():
        for value, unit, target in ((seconds, "s", targets[0]), (megabytes, "MB", targets[1])):
            figure = f"{title}: {what}"
            yield Figure.at_most(figure, value, unit, target) if provider == "ot" else Figure(figure, value, unit)
    processor = max(measured.processor[f"offline, {party}"] for party in PARTIES)
    yield Figure(f"{title}: processor of a party, offline", processor, "s")
    yield Figure(f"{title}: store of both parties", measured.offline_mb, "MB")
    yield Figure(f"{title}: peak memory of a party, offline", offline_peak(measured), "GiB")
    yield deviation_figure(title, deviation, OUR_TOLERANCE)


def offline_peak(measured: Measured) -> float:
    """The peak memory of a party's offline process, in GiB."""
    return max(measured.peaks[f"offline, {party}"] for party in PARTIES)


def paper_figures(name: str, job: OfflineJob) -> Iterator[Figure]:
    for value, unit in zip(job.paper or (), ("s", "MB"), strict=False):
        yield Figure(f"{name} ({job.job.name}), the paper: offline", value, unit)


def run_job(name: str, job: OfflineJob, provider: str) -> Iterator[Figure]:
    shape = replace(job.job.shape, provider=provider)
    with finished_run(shape, rows=job.job.data) as (folder, measured):
        deviation = job.job.deviation(opened_centroids(folder))
    yield from job_figures(name, job, provider, measured, deviation)


def ot_figures() -> list[Figure]:
    """Random OTs on one core."""
    delta = make_delta(os.urandom(32))
    silent, rate = silent_figures(delta)
    return [silent[0], iknp_figures(delta, rate)[0]]


def large_figure() -> Figure:
    name = f"n={LARGE.rows:,} d={LARGE.features} k={LARGE.clusters} t={LARGE.iterations}, ot"
    return Figure.at_most(
        f"{name}: peak memory of a party, offline", offline_peak(measure(LARGE)), "GiB", PEAK_AT_LARGE
    )


def arguments() -> argparse.Namespace:
    line = parser(__doc__)
    line.formatter_class = argparse.RawDescriptionHelpFormatter
    line.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    line.add_argument("--large", action="store_true", help="n = 10^6, too: some minutes and gigabytes of disk")
    return line.parse_args()


def main() -> None:
    options = arguments()
    measure(WARM_UP)
    figures = ot_figures()
    for name in options.jobs:
        job = JOBS[name]
        for provider in job.providers:
            print(f"{name}: {job.job.name}, {provider}", flush=True)
            figures += run_job(name, job, provider)
        figures += paper_figures(name, job)
    if options.large:
        figures.append(large_figure())
    publish(figures, options.json)


if __name__ == "__main__":
    main()
