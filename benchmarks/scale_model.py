"""The cost model for many rows, checked: d = 8, k = 5, 2 iterations, two parties and a dealer, on this machine.

The model: bytes and rounds are those of `veilmeans plan`; processor time, and what a party writes to disk, grow by a
constant for each row, measured here; peak memory should not grow. It is checked at 10^5 and 10^6 rows, and at 10^7 with
`--large` (some 20 GB of disk). All sizes are run as 2^21 rows and more are by default: rounds are stages, states
between them are on disk. 10^6 rows are run by the default settings, too. `--page FILE` writes docs/scale.md with what
was measured.
"""

import tempfile
from collections.abc import Mapping
from itertools import pairwise
from math import log10
from pathlib import Path

import yaml

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import Measured, Shape, measure, write_configurations
from benchmarks.scale_page import page
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_schema import JobPlan
from veilmeans.schemas.config import load_config

FEATURES, CLUSTERS, ITERATIONS = 8, 5, 2
BEAM = {"rounds": "stages", "state": "scratch"}
WIDE, ONES = 10**6, 10
"""The columns of wide data, and the ones of a row at each party."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--large", action="store_true", help="also 10^7 rows")
    arguments.add_argument("--page", type=Path, help="write the page docs/scale.md to this file")
    given = arguments.parse_args()
    sizes = [10**5, 10**6, *([10**7] if given.large else [])]
    runs = {rows: measure(Shape(rows, FEATURES, CLUSTERS, ITERATIONS, BEAM)) for rows in sizes}
    default = measure(Shape(10**6, FEATURES, CLUSTERS, ITERATIONS))
    figures = [figure for rows, run in runs.items() for figure in _measured(f"{_power(rows)} rows", rows, run)]
    figures += _measured(f"by default, {_power(10**6)} rows", 10**6, default)
    figures += _growth(runs) + _model(sizes[-1], runs[sizes[-1]]) + _wide()
    publish(figures, given.json)
    if given.page is not None:
        given.page.write_text(page(figures))


def _power(rows: int) -> str:
    return f"10^{round(log10(rows))}"


def _measured(name: str, rows: int, run: Measured) -> list[Figure]:
    """What a run took, beside the bytes of its plan."""
    planned = 2 * _sent(_plan(Shape(rows, FEATURES, CLUSTERS, ITERATIONS, BEAM))) / 1e6
    peaks = [Figure(f"{name}: peak memory, {process}", peak * 1024, "MiB") for process, peak in run.peaks.items()]
    return [
        Figure(f"{name}: time of offline", run.offline, "s"),
        Figure(f"{name}: time of train", run.online, "s"),
        Figure(f"{name}: time of the iterations", _iterations(run), "s"),
        Figure(f"{name}: processor time of all processes", sum(run.processor.values()), "s"),
        Figure(f"{name}: sent by both parties", run.online_mb, "MB"),
        Figure.at_most(f"{name}: difference from the plan", 100 * abs(run.online_mb / planned - 1), "%", 1),
        Figure(f"{name}: triple stores of both parties", run.offline_mb, "MB"),
        Figure(f"{name}: written to disk by a party", max(run.written.values()), "MB"),
        *peaks,
    ]


def _growth(runs: Mapping[int, Measured]) -> list[Figure]:
    """Exponents of time over rows, and the growth of memory, between neighbouring sizes."""
    figures, sizes = list[Figure](), list(runs)
    for fewer, more in pairwise(sizes):
        name, (small, large) = f"{_power(fewer)} to {_power(more)}", (runs[fewer], runs[more])
        steps = log10(more / fewer)
        for what, times in {
            "train": (small.online, large.online),
            "offline": (small.offline, large.offline),
            "the iterations": (_iterations(small), _iterations(large)),
            "all processors": (sum(small.processor.values()), sum(large.processor.values())),
        }.items():
            exponent = log10(times[1] / times[0]) / steps
            figures.append(Figure.at_most(f"{name}: exponent of the time of {what}", exponent, "", 1.05))
        for process, peak in large.peaks.items():
            grown = 100 * (peak / small.peaks[process] - 1)
            about = f"{name}: growth of peak memory, {process}", grown, "%"
            figures.append(Figure.at_most(*about, 10) if fewer >= 10**6 else Figure(*about))
    return figures


def _model(rows: int, run: Measured) -> list[Figure]:
    """The cost of more rows, by the constants of the largest run."""
    seconds = sum(run.processor.values()) / rows
    written = max(run.written.values()) * 1e6 / rows
    figures = [
        Figure("constant: processor time for each row, all processes", seconds * 1e6, "µs"),
        Figure("constant: written to disk by a party for each row", written, "B"),
        Figure("constant: largest peak memory of a process", max(run.peaks.values()) * 1024, "MiB"),
    ]
    for more in (10**7, 10**8, 10**9):
        name = f"model, {_power(more)} rows × {FEATURES} columns"
        figures += _planned(name, _plan(Shape(more, FEATURES, CLUSTERS, ITERATIONS, BEAM)))
        figures.append(Figure(f"{name}: core-hours of all processes", seconds * more / 3600, "h"))
        figures.append(Figure(f"{name}: written to disk by a party", written * more / 1e9, "GB"))
    return figures


def _wide() -> list[Figure]:
    """The planned cost of wide sparse data, with products by homomorphic encryption."""
    figures = list[Figure]()
    for rows in (10**7, 10**8):
        shape = Shape(rows, WIDE, CLUSTERS, ITERATIONS, BEAM, products="he", one_hot=ONES)
        figures += _planned(f"model, {_power(rows)} rows × {_power(WIDE)} columns", _plan(shape))
    return figures


def _planned(name: str, plan: JobPlan) -> list[Figure]:
    traffic, offline, gigabytes = plan.traffic(), plan.offline, 1e9
    if offline is None:
        raise ValueError("a plan without a triple store")
    wan = plan.links["wan"]
    return [
        Figure(f"{name}: sent by a party", _sent(plan) / gigabytes, "GB"),
        Figure(f"{name}: rounds", traffic.rounds, ""),
        Figure(f"{name}: triple store of a party", offline.bytes_stored / gigabytes, "GB"),
        Figure(f"{name}: row shards", plan.job["shards"], ""),
        Figure(f"{name}: WAN hours of train", plan.seconds(traffic)["wan"] / 3600, "h"),
        Figure(f"{name}: WAN hours of offline", offline.seconds_on(wan) / 3600, "h"),
    ]


def _plan(shape: Shape) -> JobPlan:
    """The plan of a run, before there are data; wide data have no inertia, which does not fit in 64 bits."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "payco" / "config.yaml"
        write_configurations(Path(name), shape)
        if shape.sparse:
            config = yaml.safe_load(file.read_text())
            config["kmeans"]["reveal"].pop("inertia", None)
            file.write_text(yaml.safe_dump(config))
        return plan_ahead(load_config(file).online())


def _sent(plan: JobPlan) -> int:
    return sum(plan.traffic().sent.values())


def _iterations(run: Measured) -> float:
    """Seconds of the iterations alone, at the slowest party."""
    return max(sum(float(each["seconds"]) for each in report["iterations"]) for report in run.reports.values())


if __name__ == "__main__":
    main()
