"""The tables of the paper's questions, from what was measured: rows of text, each number from the JSON or the paper."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.experiments.parts import Values
from benchmarks.sparse_runs import ByZeros, Case, Costs, total

ROWS_SCALED = (1_000_000, 2_000_000, 5_000_000)
PAPER_Q1 = {
    (10_000, 2): {"online_s": 0.33 * 60, "offline_s": 1.61 * 60, "online_mb": 1_084, "offline_mb": 3_660},
    (10_000, 5): {"online_s": 0.94 * 60, "offline_s": 4.70 * 60, "online_mb": 3_156, "offline_mb": 12_900},
    (100_000, 2): {"online_s": 3.12 * 60, "offline_s": 15.19 * 60, "online_mb": 14_147, "offline_mb": 32_598},
    (100_000, 5): {"online_s": 9.06 * 60, "offline_s": 48.39 * 60, "online_mb": 33_572, "offline_mb": 131_243},
}
"""The paper's Tables 1 and 2, which have minutes and MB."""
M_KMEANS = {
    (10_000, 2): (1.92 * 60, 5_118),
    (10_000, 5): (5.81 * 60, 18_632),
    (100_000, 2): (18.02 * 60, 47_342),
    (100_000, 5): (58.09 * 60, 192_192),
}
"""Seconds and MB of M-Kmeans in the same tables."""
PAPER_Q5 = {"together on shares": 0.86, "alone": 0.62}


@dataclass(frozen=True)
class TextTable:
    """A table with a heading for each column."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def number(value: float) -> str:
    """A number with three digits that count."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def parts_by(results: Values, *names: str) -> dict[tuple[Any, ...], Values]:
    """The values of a question's parts, by some of their settings."""
    return {tuple(part["settings"][name] for name in names): part["values"] for part in results["parts"].values()}


def q1_tables(results: Values) -> Iterator[TextTable]:
    """Times and traffic beside the paper's and SPU's."""
    found = parts_by(results, "rows", "clusters", "system")
    sizes = sorted({key[:2] for key in found})
    head = ["n", "k", "paper", "M-Kmeans, all", "ours", "paper ÷ ours", "SPU SEMI2K", "SPU CHEETAH", "SEMI2K ÷ ours"]
    for unit, place in (("s", 0), ("MB", 1)):
        name = f"online_{unit.lower()}"
        rows = []
        for n, k in sizes:
            ours, paper = found[n, k, "dealer"][name], PAPER_Q1.get((n, k), {}).get(name)
            spu = [found.get((n, k, system), {}).get(name) for system in ("SEMI2K", "CHEETAH")]
            others = M_KMEANS.get((n, k))
            cells = [paper, others[place] if others else None, ours, _ratio(paper, ours), *spu, _ratio(spu[0], ours)]
            rows.append([f"{n:,}", f"{k}", *map(_cell, cells)])
        yield TextTable(f"Online, {unit}", head, rows)
    offline = []
    for n, k in sizes:
        for unit in ("s", "mb"):
            made = [found.get((n, k, system), {}).get(f"offline_{unit}") for system in ("dealer", "ot", "iknp")]
            of_paper = PAPER_Q1.get((n, k), {}).get(f"offline_{unit}")
            cells = [of_paper, *made, _ratio(of_paper, made[1])]
            offline.append([f"{n:,}", f"{k}", {"s": "s", "mb": "MB"}[unit], *map(_cell, cells)])
    columns = ["n", "k", "", "paper (OT)", "ours, dealer", "ours, `ot`", "ours, `iknp`", "paper ÷ `ot`"]
    yield TextTable("Offline", columns, offline)


def q2_tables(results: Values) -> Iterator[TextTable]:
    """S1, S2, S3: online measured, offline counted."""
    for part in results["parts"].values():
        values, names = part["values"], ("online_s", "online_mb", "offline_s", "offline_mb")
        rows = [[step, *(number(values[step][name]) for name in names)] for step in ("S1", "S2", "S3")]
        rows.append(["all, measured", number(values["online_s"]), "", *(number(values[name]) for name in names[2:])])
        yield TextTable("By step", ["step", "online s", "online MB", "offline s", "offline MB"], rows)


def q3_tables(results: Values) -> Iterator[TextTable]:
    """Vectorised against one product for each value."""
    found = parts_by(results, "columns", "vectorised")
    names = ("online_s", "online_mb", "offline_s", "offline_mb")
    rows = []
    for columns in sorted({key[0] for key in found}):
        ours, plain = found[columns, True], found[columns, False]
        rows.append([f"{columns}", *(_gain(plain[name], ours[name]) for name in names)])
    yield TextTable("By value → vectorised", ["d", "online s", "online MB", "offline s", "offline MB"], rows)


def costs_of(values: Mapping[str, float]) -> Costs:
    return np.array([[values[f"once_{unit}"], values[f"each_{unit}"]] for unit in ("s", "mb")])


def q4_by_columns(results: Values) -> dict[str, dict[int, tuple[float, float]]]:
    """Engine -> columns -> s and MB of ten iterations of 10^6 rows over a WAN, scaled from fewer rows."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for part in results["parts"].values():
        case = part["settings"]
        if case["link"] == "WAN" and case["zeros"] == 0.2:
            costs = total(costs_of(part["values"]), 10) * (ROWS_SCALED[0] / case["rows"])
            found.setdefault(case["engine"], {})[case["columns"]] = float(costs[0]), float(costs[1])
    return found


def q4_by_zeros(results: Values) -> dict[tuple[str, float], dict[int, tuple[float, float]]]:
    """Engine and share of zeros -> rows -> s and MB of ten iterations over a WAN, scaled from two sizes."""
    runs: dict[tuple[str, float], dict[str, dict[int, Costs]]] = {}
    for part in results["parts"].values():
        case = part["settings"]
        if case["zeros"] != 0.2:
            by_link = runs.setdefault((case["engine"], case["zeros"]), {"LAN": {}, "WAN": {}})
            by_link[case["link"]][case["rows"]] = costs_of(part["values"])
    found = {}
    for (engine, zeros), by_link in sorted(runs.items()):
        least = min(by_link["LAN"])
        added = (by_link["WAN"][least] - by_link["LAN"][least]) / least
        line = ByZeros(Case(engine, zeros, 64, least, "WAN", 2), by_link["LAN"], np.maximum(added, 0))
        costs = {rows: total(line.at(rows), 10) for rows in ROWS_SCALED}
        found[engine, zeros] = {rows: (float(each[0]), float(each[1])) for rows, each in costs.items()}
    return found


def q4_tables(results: Values) -> Iterator[TextTable]:
    """By columns and by zeros; all numbers are scaled from fewer rows."""
    by_columns = q4_by_columns(results)
    rows = [
        [f"{columns}", *(_both(by_columns[engine].get(columns)) for engine in ("he", "beaver"))]
        for columns in sorted({c for each in by_columns.values() for c in each})
    ]
    yield TextTable("(a) 10^6 rows*, 20 % zeros", ["columns of each party", "sparse (`he`)", "dense (`beaver`)"], rows)
    zeros = [
        ["any" if engine == "beaver" else f"{share:.0%}", engine, *(_both(each[n]) for n in ROWS_SCALED)]
        for (engine, share), each in q4_by_zeros(results).items()
    ]
    head = ["zeros", "engine", *(f"n = {n:,}*" for n in ROWS_SCALED)]
    yield TextTable("(b) 64 columns of each party", head, zeros)


def q5_tables(results: Values) -> Iterator[TextTable]:
    """Mean and deviation over all seeds."""
    by_data: dict[str, list[Values]] = {}
    for part in results["parts"].values():
        by_data.setdefault(part["settings"]["data"], []).append(part["values"])
    names = "together on shares", "together in plaintext", "shares and plaintext"
    rows = []
    for data, found in by_data.items():
        alone = [name for name in found[0] if name not in names]
        cells = [_mean([each[name] for each in found]) for name in (*names[:2], *alone, names[2])]
        rows.append([data, f"{len(found)}", *cells[:2], " and ".join(cells[2:-1]), cells[-1]])
    head = ["data", "runs", "together, on shares", "together, plaintext", "each alone", "shares against plaintext"]
    yield TextTable("Jaccard coefficients", head, rows)


TABLES = {"q1": q1_tables, "q2": q2_tables, "q3": q3_tables, "q4": q4_tables, "q5": q5_tables}


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return None if theirs is None or not ours else theirs / ours


def _gain(before: float, after: float) -> str:
    return f"{number(before)} → {number(after)} ({number(before / after)}×)"


def _cell(value: float | None) -> str:
    return "–" if value is None else number(value)


def _both(costs: tuple[float, float] | None) -> str:
    if costs is None or np.isnan(costs).any():
        return "–"
    return f"{number(costs[0])} s, {number(costs[1])} MB"


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values):.2f}"
