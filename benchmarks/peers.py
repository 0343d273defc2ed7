"""K-means here and under SPU 0.9.5, in one run: same machine, same rows, same start, ten iterations, two processes.

The first time, SPU is installed into an environment of its own below `.cache/`. What is timed, the best of some runs:

  ours   "online": seconds of all rounds and pipelines from the handshake to the opened results, at the slower party,
         mutual TLS included; "command": the complete `veilmeans train`, from the start of Python on. The offline phase
         (with a dealer) is not in either.
  SPU    "run": the compiled program between two processes that are connected and have their shares already, no TLS.
         SEMI2K makes its triples on the way, in the first process, which could use them to learn the other's values:
         that is fast, not safe. CHEETAH is a two-party protocol without a dealer. "with compilation" adds the
         compilation from JAX; "command": everything, from the start of Python on.

Ratios are SPU's run over our online time; those of the commands are beside them, without and with our offline phase,
which SPU's run includes. Traffic is both ways: "messages", as our reports and `plan` count them, and
"wire", the payload of all TCP connections, for ours by one more run through a proxy that only counts (TLS and gRPC
included); ratios are of the wire. Results of both are compared with float64 Lloyd from the same start.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import Measured, finished_run, opened_centroids
from benchmarks.link_proxy import UNSHAPED, SlowLink
from benchmarks.peer_jobs import OUR_TOLERANCE, SPU_TOLERANCE, PeerJob, deviation_figure
from benchmarks.spu.spu_runs import CHEETAH, SEMI2K, SpuMeasured, measure_spu

ROWS = ((10_000, 2, 2), (10_000, 2, 5), (10_000, 16, 4), (100_000, 2, 2), (100_000, 2, 5))
ITERATIONS = 10
LARGE = PeerJob(100_000, 2, 5, ITERATIONS)
"""The row with targets of its own."""
FASTER, FASTER_AT_LARGE, LESS_TRAFFIC, MEGABYTES_AT_LARGE = 3, 18, 20, 210
MOST_ROWS_OF_CHEETAH = 10_000


@dataclass(frozen=True)
class OurRun:
    """Our best run of a job, its deviation from Lloyd, and the bytes on the wire."""

    best: Measured
    deviation: float
    wire_mb: float


def our_run(job: PeerJob, repeats: int) -> OurRun:
    """Run several times directly, for the time, and once through a proxy, for the bytes."""
    runs, deviations, proxy = [], [], SlowLink(UNSHAPED)
    for link in [None] * repeats + [proxy]:
        with finished_run(job.shape, rows=job.data, proxy=link) as (folder, measured):
            deviations.append(job.deviation(opened_centroids(folder)))
        if link is None:
            runs.append(measured)
    best = min(runs, key=lambda measured: measured.online)
    return OurRun(best, max(deviations), proxy.bytes_carried / 1e6)


def spu_run(job: PeerJob, protocol: str, repeats: int) -> SpuMeasured:
    runs = [measure_spu(protocol, job.data, job.clusters, job.iterations) for _ in range(repeats)]
    return min(runs, key=lambda measured: measured.run_s)


def our_figures(job: PeerJob, ours: OurRun) -> Iterator[Figure]:
    name, best = f"{job.name}, ours", ours.best
    yield Figure(f"{name}: online", best.online, "s")
    yield Figure(f"{name}: command", best.online_wall, "s")
    yield Figure(f"{name}: offline command", best.offline, "s")
    messages = f"{name}: traffic, messages"
    if job == LARGE:
        yield Figure.at_most(messages, best.online_mb, "MB", MEGABYTES_AT_LARGE)
    else:
        yield Figure(messages, best.online_mb, "MB")
    yield Figure(f"{name}: traffic, wire", ours.wire_mb, "MB")
    yield Figure(f"{name}: peak memory of a party", best.peak_gib, "GiB")
    yield deviation_figure(name, ours.deviation, OUR_TOLERANCE)


def spu_figures(job: PeerJob, protocol: str, measured: SpuMeasured) -> Iterator[Figure]:
    name = f"{job.name}, SPU {protocol}"
    yield Figure(f"{name}: run", measured.run_s, "s")
    yield Figure(f"{name}: run with compilation", measured.run_s + measured.compile_s, "s")
    yield Figure(f"{name}: command", measured.command_s, "s")
    yield Figure(f"{name}: traffic, wire", measured.traffic_mb, "MB")
    yield Figure(f"{name}: peak memory of a party", measured.peak_gib, "GiB")
    yield deviation_figure(name, job.deviation(measured.centroids), SPU_TOLERANCE)


def ratio_figures(job: PeerJob, ours: OurRun, semi2k: SpuMeasured) -> Iterator[Figure]:
    name, faster = f"{job.name}, SPU {SEMI2K} over ours", FASTER_AT_LARGE if job == LARGE else FASTER
    yield Figure.at_least(f"{name}: time", semi2k.run_s / ours.best.online, "times", faster)
    command, offline = ours.best.online_wall, ours.best.offline
    yield Figure(f"{name}: time of the commands", semi2k.command_s / command, "times")
    yield Figure(f"{name}: time of the commands, offline included", semi2k.command_s / (command + offline), "times")
    yield Figure.at_least(f"{name}: traffic", semi2k.traffic_mb / ours.wire_mb, "times", LESS_TRAFFIC)


def figures_of(job: PeerJob, repeats: int, with_cheetah: bool) -> Iterator[Figure]:
    """Run one job under all systems, one after the other."""
    ours, semi2k = our_run(job, repeats), spu_run(job, SEMI2K, repeats)
    yield from our_figures(job, ours)
    yield from spu_figures(job, SEMI2K, semi2k)
    yield from ratio_figures(job, ours, semi2k)
    if with_cheetah and job.rows <= MOST_ROWS_OF_CHEETAH:
        cheetah = spu_run(job, CHEETAH, repeats)
        yield from spu_figures(job, CHEETAH, cheetah)
        yield Figure(f"{job.name}, SPU {CHEETAH} over ours: time", cheetah.run_s / ours.best.online, "times")
        yield Figure(f"{job.name}, SPU {CHEETAH} over ours: traffic", cheetah.traffic_mb / ours.wire_mb, "times")


def arguments() -> argparse.Namespace:
    line = parser(__doc__)
    line.formatter_class = argparse.RawDescriptionHelpFormatter
    line.add_argument(
        "--rows", nargs="+", type=_sizes, default=ROWS, metavar="N,D,K", help="the table's rows to run, or others"
    )
    line.add_argument("--iterations", type=int, default=ITERATIONS)
    line.add_argument("--repeats", type=int, default=2, help="runs of each, of which the fastest counts")
    line.add_argument("--skip-cheetah", action="store_true", help="a run of it takes up to a minute")
    return line.parse_args()


def _sizes(text: str) -> tuple[int, int, int]:
    rows, features, clusters = map(int, text.split(","))
    return rows, features, clusters


def main() -> None:
    options = arguments()
    figures: list[Figure] = []
    for rows, features, clusters in options.rows:
        job = PeerJob(rows, features, clusters, options.iterations)
        print(job.name, flush=True)
        figures += figures_of(job, options.repeats, not options.skip_cheetah)
    publish(figures, options.json)


if __name__ == "__main__":
    main()
