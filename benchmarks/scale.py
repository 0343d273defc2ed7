"""A million rows: n = 10^6, d = 16, k = 5, 3 iterations, two parties, on this machine.

Growth of time with n (the exponent between 10^5 and 10^6, per iteration), the share of Beam (a stage for each round
against one call for all rounds), and seconds and bytes of each stage.
"""

from collections import defaultdict
from math import log10
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import Measured, Shape, measure

FEATURES, CLUSTERS, ITERATIONS = 16, 5, 3


def main() -> None:
    arguments = parser(__doc__).parse_args()
    tenth = measure(_shape(100_000, "stages"))
    million = measure(_shape(1_000_000, "stages"))
    one_call = measure(_shape(1_000_000, "one_call"))
    Console(width=140).print(stage_table(million))
    name = f"n=10^6 d={FEATURES} k={CLUSTERS} t={ITERATIONS}"
    figures = [
        Figure(f"{name}: online time", million.online, "s"),
        Figure(f"{name}: online traffic", million.online_mb, "MB"),
        Figure(f"{name}: offline time", million.offline, "s"),
        Figure(f"{name}: offline traffic", million.offline_mb, "MB"),
        Figure(f"{name}: peak memory of a party", million.peak_gib, "GiB"),
        Figure(f"{name}: online time with one call for all rounds", one_call.online, "s"),
        Figure.at_most(
            "Beam's share of the online time",
            100 * (1 - _iteration_seconds(one_call) / _iteration_seconds(million)),
            "%",
            15,
        ),
        Figure.at_most(
            "exponent of time, 10^5 to 10^6", log10(_iteration_seconds(million) / _iteration_seconds(tenth)), "", 1.05
        ),
    ]
    publish(figures, arguments.json)


def _shape(rows: int, rounds: str) -> Shape:
    return Shape(rows, FEATURES, CLUSTERS, ITERATIONS, {"rounds": rounds})


def _iteration_seconds(measured: Measured) -> float:
    """Seconds of the iterations alone, at the slowest party."""
    return max(sum(float(each["seconds"]) for each in report["iterations"]) for report in measured.reports.values())


def stage_table(measured: Measured) -> Table:
    """Each protocol's bytes and seconds at one party, all iterations together."""
    table = Table(
        "protocol", "rounds", "messages", "MB sent", "s computed", "s delivered", "s waited", title="at payco"
    )
    stages: dict[str, dict[str, int]] = measured.reports["payco"]["stages"]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for stage, counts in stages.items():
        groups[stage.split(".")[0]].append(counts)
    for protocol, members in groups.items():
        messages, sent, *times = (
            sum(counts.get(field, 0) for counts in members)
            for field in ("messages", "bytes_sent", "computed_us", "delivered_us", "waited_us")
        )
        seconds = [f"{spent / 1e6:.2f}" for spent in times]
        table.add_row(protocol, f"{len(members)}", f"{messages:,}", f"{sent / 1e6:,.1f}", *seconds)
    return table


if __name__ == "__main__":
    main()
