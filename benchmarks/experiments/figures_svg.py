"""The figures of the paper's questions as SVG files, by matplotlib. The same JSON makes the same files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks.experiments.parts import Values, load_results
from benchmarks.experiments.tables import ROWS_SCALED, parts_by, q4_by_columns, q4_by_zeros, q5_tables

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "veilmeans"
mpl.rcParams["svg.fonttype"] = "none"
from matplotlib import pyplot as plt  # noqa: E402


def draw_all(folder: Path) -> list[Path]:
    """Draw the figures of all questions that have one and were measured."""
    drawn = []
    for question, draw in FIGURES.items():
        results = load_results(folder, question)
        if results["parts"]:
            figure = draw(results)
            file = folder / f"{question}.svg"
            figure.savefig(file, metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)
            drawn.append(file)
    return drawn


def _two(left: str, right: str, size: tuple[float, float] = (9, 3.2)) -> tuple[Any, Any]:
    figure, axes = plt.subplots(1, 2, figsize=size, layout="constrained")
    for each, title in zip(axes, (left, right), strict=True):
        each.set_ylabel(title)
        each.grid(visible=True, axis="y", alpha=0.3)
    return figure, axes


def _q2(results: Values) -> Any:
    """Bars of S1, S2, S3: seconds and MB, online and offline."""
    figure, axes = _two("s", "MB")
    values, steps, places = next(iter(results["parts"].values()))["values"], ("S1", "S2", "S3"), np.arange(3)
    for axis, unit in zip(axes, ("s", "mb"), strict=True):
        for shift, phase in ((-0.2, "online"), (0.2, "offline")):
            axis.bar(places + shift, [values[step][f"{phase}_{unit}"] for step in steps], 0.4, label=phase)
        axis.set_xticks(places, steps)
        axis.set_yscale("log")
    axes[0].legend()
    return figure


def _q3(results: Values) -> Any:
    """Seconds by columns, online and offline."""
    figure, axes = _two("online s", "offline s")
    found = parts_by(results, "columns", "vectorised")
    columns = sorted({key[0] for key in found})
    for axis, phase in zip(axes, ("online_s", "offline_s"), strict=True):
        for vectorised, label in ((True, "vectorised"), (False, "one product for each value")):
            axis.plot(columns, [found[d, vectorised][phase] for d in columns], marker="o", label=label)
        axis.set_xticks(columns)
        axis.set_xlabel("d")
        axis.set_yscale("log")
    axes[0].legend()
    return figure


def _q4(results: Values) -> Any:
    """Seconds by columns, and by rows for each share of zeros."""
    figure, axes = _two("s, 10^6 rows (scaled)", "s (scaled)")
    for engine, by_columns in q4_by_columns(results).items():
        axes[0].plot(list(by_columns), [each[0] for each in by_columns.values()], marker="o", label=engine)
        axes[0].set_xscale("log", base=2)
        axes[0].set_xticks(list(by_columns), [f"{columns}" for columns in by_columns])
    axes[0].set(xlabel="columns of each party", yscale="log")
    for (engine, zeros), by_rows in q4_by_zeros(results).items():
        label = engine if engine == "beaver" else f"{engine}, {zeros:.0%} zeros"
        axes[1].plot(ROWS_SCALED, [by_rows[n][0] for n in ROWS_SCALED], marker="o", label=label)
    axes[1].set(xlabel="n", yscale="log")
    for axis in axes:
        axis.legend(fontsize=8)
    return figure


def _q5(results: Values) -> Any:
    """Bars of mean Jaccard coefficients, as in the table."""
    figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
    (table,) = q5_tables(results)
    for number, row in enumerate(table.rows):
        cells = [row[2], row[3], *row[4].split(" and ")]
        names = ["on shares", "in plaintext", "first alone", "second alone"]
        for place, (name, cell) in enumerate(zip(names, cells, strict=True)):
            mean, spread = (float(part) for part in cell.split(" ± "))
            colour = f"C{place}"
            label = name if number == 0 else None
            axis.bar(number + 0.2 * (place - 1.5), mean, 0.2, yerr=spread, color=colour, label=label)
    axis.set_xticks(range(len(table.rows)), [row[0] for row in table.rows])
    axis.set_ylabel("Jaccard coefficient")
    axis.legend(fontsize=8)
    return figure


FIGURES: dict[str, Callable[[Values], Any]] = {"q2": _q2, "q3": _q3, "q4": _q4, "q5": _q5}
