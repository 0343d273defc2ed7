"""The tables of the paper's questions, from what was measured: rows of text, each number from the JSON or the paper."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.experiments.paper_numbers import M_KMEANS, PAPER_Q1
from benchmarks.experiments.parts import Values
from benchmarks.experiments.sparse_scaling import (
    ANEW,
    BY_ZEROS_COLUMNS,
    DENSE,
    ROWS_WANTED,
    WIDE_COLUMNS,
    WIDE_ZEROS,
    Point,
    q4_by_columns,
    q4_by_zeros,
    q4_wide,
)

STEPS = ("S1", "S2", "S3")


@dataclass(frozen=True)
class TextTable:
    """A table with a heading for each column."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Cell:
    """A number of a table, and whether it was scaled from a measured one; no value: not run, or not in the paper."""

    value: float | None = None
    scaled: bool = False

    def __str__(self) -> str:
        return "–" if self.value is None else f"{number(self.value)}{'*' * self.scaled}"


def number(value: float) -> str:
    """A number with three digits that count."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def ratio(theirs: float | None, ours: float | None) -> float | None:
    """Their number over ours, where both are there."""
    return None if theirs is None or not ours else theirs / ours


def parts_by(results: Values, *names: str) -> dict[tuple[Any, ...], Values]:
    """The values of a question's parts, by some of their settings."""
    return {tuple(part["settings"][name] for name in names): part["values"] for part in results["parts"].values()}


Job = tuple[int, int, int]
"""Rows, columns, clusters."""


@dataclass(frozen=True)
class Q1:
    """What was measured of Q1, by job and system."""

    found: Mapping[tuple[Any, ...], Values]

    @classmethod
    def of(cls, results: Values) -> "Q1":
        return cls(parts_by(results, "rows", "features", "clusters", "system"))

    @property
    def jobs(self) -> list[Job]:
        """The paper's jobs, then others."""
        return sorted({key[:3] for key in self.found}, key=lambda job: (job[1], job))

    def value(self, job: Job, system: str, name: str) -> float | None:
        return self.found.get((*job, system), {}).get(name)

    def both_phases(self, job: Job, system: str, unit: str) -> float | None:
        """Offline and online together."""
        found = [self.value(job, system, f"{phase}_{unit}") for phase in ("offline", "online")]
        return None if None in found else sum(each for each in found if each is not None)

    def cheetah(self, job: Job, name: str) -> Cell:
        """As measured, or in proportion from the most rows that were run."""
        measured = self.value(job, "CHEETAH", name)
        if measured is not None:
            return Cell(measured)
        rows = [key[0] for key in self.found if key[1:] == (*job[1:], "CHEETAH") and key[0] < job[0]]
        if not rows:
            return Cell()
        return Cell(self.found[max(rows), *job[1:], "CHEETAH"][name] * job[0] / max(rows), scaled=True)


def of_paper(job: Job, name: str) -> float | None:
    """A number of the paper's Tables 1 and 2, all of which are for d = 2."""
    return PAPER_Q1.get((job[0], job[2]), {}).get(name) if job[1] == 2 else None


def of_m_kmeans(job: Job, unit: str) -> float | None:
    return M_KMEANS.get((job[0], job[2]), {}).get(unit) if job[1] == 2 else None


def q1_tables(results: Values) -> Iterator[TextTable]:
    """Times and traffic beside the paper's and SPU's."""
    q1 = Q1.of(results)
    for unit, title in (("s", "s"), ("mb", "MB")):
        yield _online(q1, unit, title)
    for unit, title in (("s", "s"), ("mb", "MB")):
        yield _offline(q1, unit, title)
    for unit, title in (("s", "s"), ("mb", "MB")):
        yield _both_phases(q1, unit, title)
    yield _other_numbers(q1)


def _online(q1: Q1, unit: str, title: str) -> TextTable:
    name = f"online_{unit}"
    head = ["n", "d", "k", "paper", "ours", "paper ÷ ours", "SPU SEMI2K", "SEMI2K ÷ ours", "rounds of ours"]
    rows = []
    for job in q1.jobs:
        ours, paper, semi2k = q1.value(job, "dealer", name), of_paper(job, name), q1.value(job, "SEMI2K", name)
        cells = [paper, ours, ratio(paper, ours), semi2k, ratio(semi2k, ours)]
        rows.append([*_job(job), *_cells(cells), f"{q1.found[*job, 'dealer']['rounds']:,}"])
    return TextTable(f"Online, {title}", head, rows)


def _offline(q1: Q1, unit: str, title: str) -> TextTable:
    name = f"offline_{unit}"
    head = ["n", "d", "k", "paper (OT)", "ours, dealer", "ours, `ot`", "ours, `iknp`", "paper ÷ `ot`"]
    rows = []
    for job in q1.jobs:
        dealer, ot, iknp = (q1.value(job, system, name) for system in ("dealer", "ot", "iknp"))
        paper = of_paper(job, name)
        rows.append([*_job(job), *_cells([paper, dealer, ot, iknp, ratio(paper, ot)])])
    return TextTable(f"Offline, {title}", head, rows)


def _both_phases(q1: Q1, unit: str, title: str) -> TextTable:
    others = ["M-Kmeans", "paper", "SPU CHEETAH"]
    head = ["n", "d", "k", *others, "ours, `ot`", *(f"{each} ÷ ours" for each in others)]
    rows = []
    for job in q1.jobs:
        paper = [of_paper(job, f"{phase}_{unit}") for phase in ("offline", "online")]
        paper_sum = None if None in paper else sum(each for each in paper if each is not None)
        cheetah, ours = q1.cheetah(job, f"online_{unit}"), q1.both_phases(job, "ot", unit)
        theirs = [Cell(of_m_kmeans(job, unit)), Cell(paper_sum), cheetah]
        ratios = [Cell(ratio(each.value, ours), each.scaled) for each in theirs]
        rows.append([*_job(job), *map(str, theirs), str(Cell(ours)), *map(str, ratios)])
    return TextTable(f"Without a dealer, offline and online together, {title}", head, rows)


def _other_numbers(q1: Q1) -> TextTable:
    head = ["n", "d", "k", "peak GiB, ours", "peak GiB, SEMI2K", "deviation, ours", "deviation, SEMI2K"]
    rows = [
        [
            *_job(job),
            *_cells([q1.value(job, system, "peak_gib") for system in ("dealer", "SEMI2K")]),
            *(_deviation(q1.value(job, system, "deviation")) for system in ("dealer", "SEMI2K")),
        ]
        for job in q1.jobs
    ]
    return TextTable("Memory of a party, and the largest deviation from float64 Lloyd in a coordinate", head, rows)


def q2_tables(results: Values) -> Iterator[TextTable]:
    """S1, S2, S3: online and offline."""
    found = {key[0]: values for key, values in parts_by(results, "provider").items()}
    for provider, values in sorted(found.items(), reverse=True):
        names = ("online_s", "online_mb", "offline_s", "offline_mb")
        rows = [[step, *_cells([values[step].get(name) for name in names])] for step in STEPS]
        rows.append(["all, measured", *_cells([values[name] for name in names])])
        maker = "with a dealer" if provider == "dealer" else f"without a dealer (`{provider}`)"
        title = f"By step, {maker}: {values['rounds']:,} rounds, {number(values['iteration_s'])} s an iteration"
        yield TextTable(title, ["step", "online s", "online MB", "offline s", "offline MB"], rows)


def q3_tables(results: Values) -> Iterator[TextTable]:
    """Vectorised against one product for each value."""
    found = parts_by(results, "columns", "vectorised")
    for phase in ("online", "offline"):
        rows = []
        for columns in sorted({key[0] for key in found}):
            ours, plain = found[columns, True], found[columns, False]
            cells = []
            for unit in ("s", "mb"):
                before, after = plain[f"{phase}_{unit}"], ours[f"{phase}_{unit}"]
                cells += [before, after, ratio(before, after)]
            rows.append([f"{columns}", *_cells(cells)])
        units = [f"{unit}, {how}" for unit in ("s", "MB") for how in ("by value", "vectorised", "ratio")]
        yield TextTable(phase.capitalize(), ["d", *units], rows)


def q4_tables(results: Values) -> Iterator[TextTable]:
    """By columns, by zeros and rows, and for wide matrices; ten iterations."""
    by_columns = q4_by_columns(results)
    rows = [
        [f"{2 * columns:,}", *_beside(sparse, by_columns[DENSE][columns], by_columns[ANEW][columns])]
        for columns, sparse in by_columns["sparse"].items()
    ]
    head = ["sparse (`he`)", "dense (`beaver`)", "dense ÷ sparse, s", f"{ANEW}†", "that ÷ sparse, s"]
    yield TextTable(f"(a) n = {ROWS_WANTED[0]:,}, 20 % zeros", ["d", *head], rows)
    dense, sparse_lines = q4_by_zeros(results)
    rows = [
        [f"{percent(zeros)}", f"{n:,}", *_beside(line[n], dense[DENSE][n], dense[ANEW][n])]
        for zeros, line in sparse_lines.items()
        for n in ROWS_WANTED
    ]
    yield TextTable(f"(b) d = {2 * BY_ZEROS_COLUMNS}", ["zeros", "n", *head], rows)
    wide = q4_wide(results)
    rows = [[f"{2 * WIDE_COLUMNS:,}", *_beside(wide["sparse"], wide[DENSE], wide[ANEW])]]
    yield TextTable(f"Wider than the paper's: n = {ROWS_WANTED[0]:,}, {percent(WIDE_ZEROS)} zeros", ["d", *head], rows)


def _beside(sparse: Point, dense: Point, anew: Point) -> list[str]:
    gains = [Cell(ratio(each.seconds, sparse.seconds), sparse.scaled or each.scaled) for each in (dense, anew)]
    return [_point(sparse), _point(dense), str(gains[0]), _point(anew), str(gains[1])]


@dataclass(frozen=True)
class Coefficients:
    """Jaccard coefficients of all runs on one data set; `alone`: of each party."""

    runs: int
    shares: Sequence[float]
    plaintext: Sequence[float]
    alone: Mapping[str, Sequence[float]]
    agreement: Sequence[float]


def q5_coefficients(results: Values) -> dict[str, Coefficients]:
    """Data set -> coefficients."""
    by_data: dict[str, list[Values]] = {}
    for part in results["parts"].values():
        by_data.setdefault(part["settings"]["data"], []).append(part["values"])
    names = "together on shares", "together in plaintext", "shares and plaintext"
    found = {}
    for data, runs in by_data.items():
        columns = {name: [each[name] for each in runs] for name in runs[0]}
        shares, plaintext, agreement = (columns.pop(name) for name in names)
        found[data] = Coefficients(len(runs), shares, plaintext, columns, agreement)
    return found


def q5_tables(results: Values) -> Iterator[TextTable]:
    """Mean and deviation over all seeds."""
    rows = [
        [
            data,
            f"{each.runs}",
            _mean(each.shares),
            _mean(each.plaintext),
            " and ".join(_mean(alone) for alone in each.alone.values()),
            _mean(each.agreement),
        ]
        for data, each in q5_coefficients(results).items()
    ]
    head = ["data", "runs", "together, on shares", "together, plaintext", "each alone", "shares against plaintext"]
    yield TextTable("Jaccard coefficients, mean ± deviation", head, rows)


TABLES = {"q1": q1_tables, "q2": q2_tables, "q3": q3_tables, "q4": q4_tables, "q5": q5_tables}


def _job(job: Job) -> list[str]:
    return [f"{value:,}" for value in job]


def _cells(values: Sequence[float | None]) -> list[str]:
    return [str(Cell(value)) for value in values]


def _deviation(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def _point(point: Point) -> str:
    star = "*" * point.scaled
    return f"{number(point.seconds)} s{star}, {number(point.megabytes)} MB{star}"


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values):.2f}"
