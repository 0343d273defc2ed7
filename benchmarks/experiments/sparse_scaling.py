"""Q4's points: seconds and MB of ten iterations, as measured, or scaled from runs of fewer rows.

A run is one iteration. Its costs are those that come once in a run and those of each iteration, so ten iterations are
counted from one. A number of rows that was not run is on the line through the two largest runs; where noise makes
that line fall, it is in proportion to the largest run.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.experiments.parts import Values
from benchmarks.sparse_runs import PAPER_ITERATIONS, Costs, total

ROWS_WANTED = (1_000_000, 2_000_000, 5_000_000)
BY_COLUMNS_ZEROS = 0.2
BY_ZEROS_COLUMNS, WIDE_COLUMNS, WIDE_ZEROS = 64, 4_096, 0.99
"""Columns are of each party."""


@dataclass(frozen=True)
class Point:
    """A point of a figure; `scaled`: its rows were not run."""

    seconds: float
    megabytes: float
    scaled: bool


Line = dict[int, Point]
"""Points by columns, or by rows."""
DENSE, ANEW = "dense", "dense, X masked in each iteration"
"""Our dense engine, and what it would cost if it sent X anew in each iteration, as the paper's does (computed)."""


def q4_by_columns(results: Values) -> dict[str, Line]:
    """Engine -> columns of each party -> the costs of 10^6 rows with 20 % zeros."""
    found: dict[str, Line] = {"sparse": {}, DENSE: {}, ANEW: {}}
    for (engine, zeros, columns), sizes in sorted(_runs(results).items()):
        if zeros == BY_COLUMNS_ZEROS:
            for name, costs in _kinds(engine, sizes).items():
                found[name][columns] = _point(costs, ROWS_WANTED[0])
    return found


def q4_by_zeros(results: Values) -> tuple[dict[str, Line], dict[float, Line]]:
    """The dense engine's costs by rows, whatever the zeros, and the sparse one's by share of zeros and rows."""
    dense: dict[str, Line] = {}
    sparse: dict[float, Line] = {}
    for (engine, zeros, columns), sizes in sorted(_runs(results).items()):
        if columns != BY_ZEROS_COLUMNS:
            continue
        for name, costs in _kinds(engine, sizes).items():
            line = {rows: _point(costs, rows) for rows in ROWS_WANTED}
            if engine == "beaver":
                dense[name] = line
            elif zeros != BY_COLUMNS_ZEROS:
                sparse[zeros] = line
    return dense, sparse


def q4_wide(results: Values) -> dict[str, Point]:
    """Engine -> the costs of 10^6 rows of the widest matrices."""
    runs = _runs(results)
    widest = max(columns for _, _, columns in runs)
    found: dict[str, Point] = {}
    for (engine, _, columns), sizes in sorted(runs.items()):
        if columns == widest:
            found |= {name: _point(costs, ROWS_WANTED[0]) for name, costs in _kinds(engine, sizes).items()}
    return found


def _kinds(engine: str, sizes: dict[int, Costs]) -> dict[str, dict[int, Costs]]:
    """The costs of an engine's runs; the dense one's also as if what it sends once came in each iteration."""
    if engine == "he":
        return {"sparse": sizes}
    return {DENSE: sizes, ANEW: {n: np.stack([np.zeros(2), costs.sum(axis=1)], axis=1) for n, costs in sizes.items()}}


def _runs(results: Values) -> dict[tuple[str, float, int], dict[int, Costs]]:
    """Engine, zeros and columns -> rows -> costs."""
    found: dict[tuple[str, float, int], dict[int, Costs]] = {}
    for part in results["parts"].values():
        case: dict[str, Any] = part["settings"]
        key = case["engine"], case["zeros"], case["columns"]
        found.setdefault(key, {})[case["rows"]] = _costs(part["values"])
    return found


def _costs(values: Values) -> Costs:
    return np.array([[values[f"once_{unit}"], values[f"each_{unit}"]] for unit in ("s", "mb")])


def _point(sizes: dict[int, Costs], rows: int) -> Point:
    costs, scaled = scaled_costs(sizes, rows)
    seconds, megabytes = total(costs, PAPER_ITERATIONS).tolist()
    return Point(seconds, megabytes, scaled)


def scaled_costs(sizes: dict[int, Costs], rows: int) -> tuple[Costs, bool]:
    """The costs of so many rows, and whether they are scaled."""
    if rows in sizes:
        return sizes[rows], False
    most = max(sizes)
    in_proportion = sizes[most] * (rows / most)
    if len(sizes) == 1:
        return in_proportion, True
    before = sorted(sizes)[-2]
    slope = (sizes[most] - sizes[before]) / (most - before)
    rising = bool(np.all(total(slope, PAPER_ITERATIONS) > 0))
    return (sizes[most] + slope * (rows - most) if rising else in_proportion), True
