"""The paper's Tables 1 and 2, row by row: n, k, d = 2, t = 10, two parties; and one more run.

Each row also has the paper's figures (C++, LAN, its own machine) and those of other systems on a machine like this one.
Traffic counts both directions, as the paper's tables do.
"""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import Measured, Shape, measure


@dataclass(frozen=True)
class Row:
    """A run, the figures of the paper and of other systems for it, and our targets."""

    shape: Shape
    paper: str
    others: str
    seconds: float | None = None
    megabytes: float | None = None
    gibibytes: float | None = None

    @property
    def name(self) -> str:
        shape = self.shape
        return f"n={shape.rows:,} d={shape.features} k={shape.clusters} t={shape.iterations}"


ROWS = (
    Row(
        Shape(10_000, 2, 2, 10),
        "20 s, 1,084 MB; offline 97 s, 3,660 MB",
        "SPU 5-7 s, 233 MB; CHEETAH 34 s, 361 MB; M-Kmeans 148 s, 2,377 MB",
        4,
        12,
    ),
    Row(Shape(10_000, 2, 5, 10), "56 s, 3,156 MB; offline 282 s, 12,900 MB", ""),
    Row(Shape(100_000, 2, 2, 10), "187 s, 14,147 MB; offline 911 s, 32,598 MB", ""),
    Row(
        Shape(100_000, 2, 5, 10),
        "544 s, 33,572 MB; offline 2,903 s, 131,243 MB",
        "SPU 156 s, 5,820 MB, 2.5 GiB",
        20,
        300,
        0.6,
    ),
    Row(Shape(10_000, 16, 4, 10), "-", "SPU 32-46 s, 1,004 MB", 6, 30),
)


def figures(row: Row, measured: Measured) -> list[Figure]:
    def figure(what: str, value: float, unit: str, target: float | None) -> Figure:
        name = f"{row.name}: {what}"
        return Figure(name, value, unit) if target is None else Figure.at_most(name, value, unit, target)

    return [
        figure("online time", measured.online, "s", row.seconds),
        figure("online traffic", measured.online_mb, "MB", row.megabytes),
        figure("peak memory of a party", measured.peak_gib, "GiB", row.gibibytes),
        figure("offline time", measured.offline, "s", None),
        figure("offline traffic", measured.offline_mb, "MB", None),
    ]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    table = Table("run", "ours, online", "ours, offline", "paper", "other systems")
    result: list[Figure] = []
    for row in ROWS:
        measured = measure(row.shape)
        result += figures(row, measured)
        online = f"{measured.online:.1f} s ({measured.online_wall:.1f} with start-up), {measured.online_mb:.1f} MB"
        table.add_row(
            row.name, online, f"{measured.offline:.1f} s, {measured.offline_mb:.0f} MB", row.paper, row.others
        )
    Console(width=180).print(table)
    publish(result, arguments.json)


if __name__ == "__main__":
    main()
