"""A wide one-hot table: 10^6 rows and 100,000 columns, ten ones in a row at each of two parties, with `he`.

Time of the offline phase and of the run, seconds and bytes of each stage, peak memory of every process; and the bytes
that `beaver` would send: a party's masked matrix, 8 bytes for each value, then in each iteration its share of the
centroids of the peer's columns and of k − 1 columns of assignments.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.figures import Figure
from benchmarks.kmeans_runs import PARTIES, Measured, Shape, measure
from benchmarks.scale import stage_table

ONES, CLUSTERS, ITERATIONS = 10, 4, 2
_ROUNDS = ("operand", "encrypt", "cross", "unmask")
"""Rounds of distance and update in which the engines differ."""


@dataclass(frozen=True)
class Wide:
    """Size of the table; `folder`: the disk for data and triple stores."""

    rows: int
    columns: int
    folder: Path | None

    @property
    def shape(self) -> Shape:
        return Shape(self.rows, self.columns, CLUSTERS, ITERATIONS, products="he", one_hot=ONES)

    @property
    def beaver_mb(self) -> float:
        """Bytes that both parties would send for distances and updates with `beaver`."""
        once = self.rows * self.columns
        each = CLUSTERS * self.columns + len(PARTIES) * self.rows * (CLUSTERS - 1)
        return 8 * (once + ITERATIONS * each) / 1e6


def wide_figures(wide: Wide, console: Console) -> list[Figure]:
    measured = measure(wide.shape, wide.folder)
    console.print(stage_table(measured))
    name = f"n={wide.rows:,} d={wide.columns:,} one-hot, k={CLUSTERS} t={ITERATIONS}"
    return [
        Figure(f"{name}: offline time", measured.offline, "s"),
        Figure(f"{name}: stores", measured.offline_mb, "MB"),
        Figure(f"{name}: online time", measured.online, "s"),
        Figure(f"{name}: online time with start-up and reading", measured.online_wall, "s"),
        Figure(f"{name}: online traffic", measured.online_mb, "MB"),
        Figure(f"{name}: traffic of products", _products_mb(measured), "MB"),
        Figure(f"{name}: the same with beaver, computed", wide.beaver_mb, "MB"),
        *(Figure(f"{name}: peak memory, {process}", peak, "GiB") for process, peak in measured.peaks.items()),
    ]


def _products_mb(measured: Measured) -> float:
    """Bytes sent for products by all parties."""
    stages = [item for report in measured.reports.values() for item in report["stages"].items()]
    sent = [counts.get("bytes_sent", 0) for stage, counts in stages if stage.split(".")[-1] in _ROUNDS]
    return float(sum(sent)) / 1e6
