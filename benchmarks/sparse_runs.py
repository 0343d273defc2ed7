"""The paper's Q4 as real parties: the distance step with `he` and with `beaver`, by share of zeros, rows and columns.

Each run is one iteration, k = 4. Its distance step is the sum of the stages operand (`beaver`, once per run), encrypt
(`he`) and distance in the parties' reports: the slowest party's seconds, computing, delivering and waiting together,
and bytes in both directions. `beaver` sends and multiplies dense matrices, so one run counts for every share of zeros.

Ten iterations are counted from one: `beaver` sends its masked matrix once. (The paper's own masks it anew each time, so
its ten cost ten times as much as one.)

By zeros: 64 columns at each party. There a row of the masked matrix is 512 bytes, twice a ciphertext, so that traffic
matters little and the time on nonzeros shows; the runs by columns have fewer and more columns. Runs of two sizes give a
line, and the line gives 10^6 rows and more: those figures are marked as scaled. Tables of
powers are narrower for fewer rows, so scaled figures of `he` are rather too large. A WAN is measured at the smaller
size, and its additional time is scaled in proportion. If noise makes a line fall, nothing is scaled by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.chart import Panel
from benchmarks.figures import Figure
from benchmarks.kmeans_runs import Measured, Shape, measure
from veilmeans.io.exchange.link_shaping import LAN, WAN

Costs: TypeAlias = NDArray[np.float64]
"""Seconds and MB (rows), once per run and in each iteration (columns)."""
CLUSTERS, PAPER_ITERATIONS = 4, 10
COLUMNS = 64
"""Of each party, where zeros vary."""
MILLIONS = (1_000_000, 2_000_000, 5_000_000)
ENGINES = ("he", "beaver")
LINKS = {
    name: {"rate_mbps": link.rate / 125e3, "round_trip_ms": link.round_trip * 1e3}
    for name, link in (("LAN", LAN), ("WAN", WAN))
}
"""The paper's: 10 Gbit/s and 0.02 ms, 20 Mbit/s and 40 ms."""
_MESSAGE = 64 << 20
"""Bytes of a shard's masked matrix, at most."""


@dataclass(frozen=True)
class Case:
    """One run; `columns`: of each party."""

    engine: str
    zeros: float
    columns: int
    rows: int
    link: str
    clusters: int = CLUSTERS

    @property
    def shape(self) -> Shape:
        shard = min(65_536, _MESSAGE // (8 * self.columns))
        beam = {"rounds": "stages", "rows_per_shard": shard}
        features, link = 2 * self.columns, LINKS[self.link]
        return Shape(self.rows, features, self.clusters, 1, beam, link, products=self.engine, zeros=self.zeros)

    @property
    def name(self) -> str:
        kind = self.engine if self.engine == "beaver" else f"{self.engine}, {self.zeros:.0%} zeros"
        return f"distance step, {kind}, {self.columns} columns each, {self.link}"


@dataclass
class Runs:
    """The runs that were measured, each case once."""

    console: Console
    _done: dict[Case, Costs] = field(default_factory=dict)

    def costs(self, engine: str, zeros: float, columns: int, rows: int, link: str) -> Costs:
        case = Case(engine, zeros if engine == "he" else 0.5, columns, rows, link)
        if case not in self._done:
            self._done[case] = step_costs(measure(case.shape))
            seconds, megabytes = self._done[case].sum(axis=1)
            self.console.print(f"{case.name}, {rows:,} rows: {seconds:.2f} s, {megabytes:.1f} MB")
        return self._done[case]


def step_costs(measured: Measured) -> Costs:
    """Costs of the distance step in the parties' reports."""
    return np.stack([_stage_costs(measured, ("operand",)), _stage_costs(measured, ("encrypt", "distance"))], axis=1)


def _stage_costs(measured: Measured, protocols: Sequence[str]) -> Costs:
    """Seconds of the slowest party, and MB of all."""
    times, sent = [], 0
    for report in measured.reports.values():
        members = [counts for stage, counts in report["stages"].items() if stage.split(".")[0] in protocols]
        spent = ("computed_us", "delivered_us", "waited_us")
        times.append(sum(counts.get(name, 0) for counts in members for name in spent))
        sent += sum(counts.get("bytes_sent", 0) for counts in members)
    return np.array([max(times) / 1e6, sent / 1e6])


@dataclass(frozen=True)
class ByZeros:
    """The distance step for one share of zeros, with one engine on one link; `sizes`: rows and costs on the LAN."""

    case: Case
    sizes: dict[int, Costs]
    added: Costs
    """What the link adds to the LAN's costs, for one row."""

    def at(self, rows: int) -> Costs:
        """Costs as measured, or on the line through the two largest sizes; NaN if that line falls."""
        if rows == min(self.sizes) or (rows in self.sizes and not _falls(self.added)):
            return self.sizes[rows] + self.added * rows
        (first, before), (second, after) = sorted(self.sizes.items())[-2:]
        slope = (after - before) / (second - first)
        if _falls(slope) or _falls(self.added):
            return np.full((2, 2), np.nan)
        return after + slope * (rows - second) + self.added * rows

    def figures(self) -> list[Figure]:
        """Figures of one iteration for all sizes, and of the paper's ten for a million rows."""
        result = []
        sizes = sorted({*self.sizes, *MILLIONS})
        for rows, iterations in (*((rows, 1) for rows in sizes), (MILLIONS[0], PAPER_ITERATIONS)):
            seconds, megabytes = total(self.at(rows), iterations).tolist()
            if isnan(seconds):
                continue
            name = f"{self.case.name}, {rows:,} rows, t = {iterations}{self.note(rows, iterations)}"
            result += [Figure(f"{name}: time", seconds, "s"), Figure(f"{name}: traffic", megabytes, "MB")]
        return result

    def note(self, rows: int, iterations: int = 1) -> str:
        """Note how a figure was computed."""
        measured = self.sizes if self.case.link == "LAN" else [min(self.sizes)]
        if rows not in measured:
            return f" (scaled from {max(measured):,} rows)"
        return "" if iterations == 1 else " (from one iteration)"


def total(costs: Costs, iterations: int) -> Costs:
    """Seconds and MB of a run of so many iterations."""
    return np.asarray(costs @ np.array([1, iterations]))


def _falls(change: Costs) -> bool:
    """Return whether more work took less time: the runs were too short, and their noise dominates."""
    return any(total(change, iterations)[0] < 0 for iterations in (1, PAPER_ITERATIONS))


def by_zeros(runs: Runs, shares: Sequence[float], sizes: Sequence[int]) -> list[ByZeros]:
    """Measure every share of zeros, engine and link."""
    result, least = [], min(sizes)
    for zeros in shares:
        for engine in ENGINES:
            lan = {rows: runs.costs(engine, zeros, COLUMNS, rows, "LAN") for rows in sizes}
            wan = (runs.costs(engine, zeros, COLUMNS, least, "WAN") - lan[least]) / least
            for link, added in (("LAN", np.zeros((2, 2))), ("WAN", wan)):
                result.append(ByZeros(Case(engine, zeros, COLUMNS, least, link), lan, added))
    return result


def zeros_table(measured: Sequence[ByZeros]) -> Table:
    sizes = sorted({*measured[0].sizes, *MILLIONS})
    title = f"distance step, {COLUMNS} columns each, k = {CLUSTERS}: one iteration, then {PAPER_ITERATIONS} in brackets"
    table = Table("zeros", "engine", "link", *(f"{rows:,} rows" for rows in sizes), title=f"{title}; * scaled")
    for each in measured:
        cells = []
        for rows in sizes:
            (first, sent), (later, sent_later) = (total(each.at(rows), t) for t in (1, PAPER_ITERATIONS))
            if isnan(first):
                cells.append("noise")
                continue
            star = "*" if each.note(rows) else ""
            cells.append(f"{first:,.1f} s, {sent:,.0f} MB{star}\n({later:,.0f} s, {sent_later:,.0f} MB)")
        table.add_row(f"{each.case.zeros:.0%}", each.case.engine, each.case.link, *cells)
    return table


def zeros_figures(measured: Sequence[ByZeros]) -> list[Figure]:
    """Figures of all runs, `beaver`'s once; and the ratio of both engines at a million rows."""
    ours = [each for each in measured if each.case.engine == "he"]
    theirs = {each.case.link: each for each in measured if each.case.engine == "beaver"}
    figures = [figure for each in (*ours, *theirs.values()) for figure in each.figures()]
    for each in ours:
        for iterations in (1, PAPER_ITERATIONS):
            rows = MILLIONS[0]
            ratio = total(theirs[each.case.link].at(rows), iterations) / total(each.at(rows), iterations)
            if np.isnan(ratio).any():
                continue
            name = f"{each.case.name}, {rows:,} rows, t = {iterations}{each.note(rows, iterations)}"
            figures.append(Figure(f"{name}: beaver's time to he's", float(ratio[0]), "×"))
            figures.append(Figure(f"{name}: beaver's traffic to he's", float(ratio[1]), "×"))
    return figures


@dataclass(frozen=True)
class ByColumns:
    """The distance step for one number of columns, as measured."""

    case: Case
    costs: Costs

    @property
    def per_row(self) -> Costs:
        """µs and bytes of one iteration."""
        return total(self.costs, 1) * 1e6 / self.case.rows


def by_columns(runs: Runs, shares: Sequence[float], widths: Sequence[int], rows: int) -> list[ByColumns]:
    """Measure every number of columns, share of zeros, engine and link."""
    cases = [
        Case(engine, zeros, columns, rows, link)
        for engine in ENGINES
        for zeros in (shares if engine == "he" else shares[:1])
        for link in LINKS
        for columns in widths
    ]
    return [ByColumns(case, runs.costs(case.engine, case.zeros, case.columns, case.rows, case.link)) for case in cases]


def columns_table(measured: Sequence[ByColumns]) -> Table:
    title = f"distance step, {measured[0].case.rows:,} rows, k = {CLUSTERS}, one iteration"
    table = Table("engine", "zeros", "link", "columns each", "s", "MB", "µs/row", "bytes/row", title=title)
    for each in measured:
        case = each.case
        zeros = f"{case.zeros:.0%}" if case.engine == "he" else "any"
        numbers = [f"{value:,.1f}" for value in (*total(each.costs, 1), *each.per_row)]
        table.add_row(case.engine, zeros, case.link, f"{case.columns:,}", *numbers)
    return table


def columns_figures(measured: Sequence[ByColumns]) -> list[Figure]:
    figures = []
    for each in measured:
        name, (time, traffic) = f"{each.case.name}, {each.case.rows:,} rows", each.per_row.tolist()
        figures += [Figure(f"{name}: time", time, "µs/row"), Figure(f"{name}: traffic", traffic, "bytes/row")]
    return figures


def panels(zeros: Sequence[ByZeros], columns: Sequence[ByColumns]) -> list[Panel]:
    """Both experiments of the paper's Q4: seconds on each link, and traffic."""
    rows, shares = MILLIONS[0], sorted({each.case.zeros for each in zeros})
    widths = sorted({each.case.columns for each in columns})
    title = f"distance step, {rows:,} rows (scaled)"
    return [
        Panel(f"{title}: s", "zeros", [f"{s:.0%}" for s in shares], _zeros_lines(zeros, rows, 0)),
        Panel(f"{title}: MB", "zeros", [f"{s:.0%}" for s in shares], _zeros_lines(zeros, rows, 1)),
        Panel("distance step: µs/row", "columns of each party", [str(w) for w in widths], _columns_lines(columns, 0)),
        Panel(
            "distance step: bytes/row", "columns of each party", [str(w) for w in widths], _columns_lines(columns, 1)
        ),
    ]


def _zeros_lines(measured: Sequence[ByZeros], rows: int, which: int) -> dict[str, Sequence[float]]:
    lines: dict[str, list[float]] = {}
    for each in sorted(measured, key=lambda each: each.case.zeros):
        lines.setdefault(f"{each.case.engine}, {each.case.link}", []).append(float(total(each.at(rows), 1)[which]))
    return dict(lines)


def _columns_lines(measured: Sequence[ByColumns], which: int) -> dict[str, Sequence[float]]:
    lines: dict[str, list[float]] = {}
    for each in measured:
        case = each.case
        zeros = f", {case.zeros:.0%} zeros" if case.engine == "he" else ""
        lines.setdefault(f"{case.engine}{zeros}, {case.link}", []).append(float(each.per_row[which]))
    return dict(lines)
