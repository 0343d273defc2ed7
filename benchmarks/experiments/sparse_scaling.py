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
BY_ZEROS_COLUMNS = 64
"""Of each party."""


@dataclass(frozen=True)
class Point:
    """A point of a figure; `scaled`: its rows were not run."""

    seconds: float
    megabytes: float
    scaled: bool


def q4_by_columns(results: Values) -> dict[str, dict[int, Point]]:
    """Engine -> columns of each party -> the costs of 10^6 rows with 20 % zeros."""
    found: dict[str, dict[int, Point]] = {}
    for (engine, zeros, columns), sizes in _runs(results).items():
        if zeros == BY_COLUMNS_ZEROS:
            found.setdefault(engine, {})[columns] = _point(sizes, ROWS_WANTED[0])
    return found


def q4_by_zeros(results: Values) -> dict[float | None, dict[int, Point]]:
    """Share of zeros -> rows -> costs of the sparse engine; None: the dense engine, to which zeros do not matter."""
    found: dict[float | None, dict[int, Point]] = {}
    for (engine, zeros, columns), sizes in sorted(_runs(results).items()):
        if columns == BY_ZEROS_COLUMNS and (engine == "beaver" or zeros != BY_COLUMNS_ZEROS):
            found[zeros if engine == "he" else None] = {rows: _point(sizes, rows) for rows in ROWS_WANTED}
    return found


def dense_masked_anew(results: Values) -> dict[int, Point]:
    """The dense engine's costs by columns as if it sent X anew in each iteration, as the paper's does: computed."""
    found = {}
    for (engine, zeros, columns), sizes in _runs(results).items():
        if engine == "beaver" and zeros == BY_COLUMNS_ZEROS:
            anew = {rows: np.stack([np.zeros(2), costs.sum(axis=1)], axis=1) for rows, costs in sizes.items()}
            found[columns] = _point(anew, ROWS_WANTED[0])
    return found


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
    rising = total(slope, PAPER_ITERATIONS)[0] > 0
    return (sizes[most] + slope * (rows - most) if rising else in_proportion), True
