"""The figures of the paper's questions as SVG files, by matplotlib. The same JSON makes the same files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks.experiments.paper_numbers import PAPER_Q5
from benchmarks.experiments.parts import Values, load_results
from benchmarks.experiments.sparse_scaling import (
    ANEW,
    BY_ZEROS_COLUMNS,
    DENSE,
    ROWS_WANTED,
    Point,
    q4_by_columns,
    q4_by_zeros,
)
from benchmarks.experiments.tables import Q1, STEPS, Cell, of_m_kmeans, of_paper, parts_by, percent, q5_coefficients

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "veilmeans"
mpl.rcParams["svg.fonttype"] = "none"
from matplotlib import pyplot as plt  # noqa: E402


def draw_all(folder: Path) -> list[Path]:
    """Draw the figures of all questions that were measured."""
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


def _two(upper: str, lower: str) -> tuple[Any, Any]:
    """Two panels above each other, so that a telephone shows them in a size that can be read."""
    figure, axes = plt.subplots(2, 1, figsize=(6, 6.6), layout="constrained")
    for each, title in zip(axes, (upper, lower), strict=True):
        each.set_ylabel(title)
        each.grid(visible=True, axis="y", alpha=0.3)
    return figure, axes


def _q1(results: Values) -> Any:
    """The paper's tables as points: each job, time and traffic; hollow points are scaled."""
    figure, axes = _two("running time, s", "communication, MB")
    q1 = Q1.of(results)
    names = [f"n={n:,}\nd={d}, k={k}" for n, d, k in q1.jobs]
    for axis, unit in zip(axes, ("s", "mb"), strict=True):
        online = f"online_{unit}"
        series: dict[str, list[Cell]] = {
            "paper, online": [Cell(of_paper(job, online)) for job in q1.jobs],
            "paper, offline": [Cell(of_paper(job, f"offline_{unit}")) for job in q1.jobs],
            "M-Kmeans": [Cell(of_m_kmeans(job, unit)) for job in q1.jobs],
            "SPU SEMI2K": [Cell(q1.value(job, "SEMI2K", online)) for job in q1.jobs],
            "SPU CHEETAH": [q1.cheetah(job, online) for job in q1.jobs],
            "ours, online": [Cell(q1.value(job, "dealer", online)) for job in q1.jobs],
            "ours, both phases, ot": [Cell(q1.both_phases(job, "ot", unit)) for job in q1.jobs],
        }
        for number, (name, cells) in enumerate(series.items()):
            marker = "s" if name.startswith("ours") else "x" if name.startswith(("paper", "M-")) else "o"
            _points(axis, cells, f"C{number}", marker, name)
        axis.set_xticks(range(len(names)), names, fontsize=7)
        axis.set_yscale("log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _points(axis: Any, cells: list[Cell], colour: str, marker: str, name: str) -> None:
    """Points of one system at its places; scaled ones are hollow."""
    for scaled in (False, True):
        places = [i for i, cell in enumerate(cells) if cell.value is not None and cell.scaled == scaled]
        heights = [cells[i].value for i in places]
        face = "none" if scaled else colour
        style = {"linestyle": "none", "marker": marker, "color": colour, "markerfacecolor": face}
        axis.plot(places, heights, label=None if scaled else name, **style)


def _q2(results: Values) -> Any:
    """Bars of S1, S2, S3: seconds and MB, online and offline."""
    figure, axes = _two("running time, s", "communication, MB")
    values, places = parts_by(results, "provider")["ot",], np.arange(len(STEPS))
    for axis, unit in zip(axes, ("s", "mb"), strict=True):
        for shift, phase in ((-0.2, "online"), (0.2, "offline")):
            axis.bar(places + shift, [values[step][f"{phase}_{unit}"] for step in STEPS], 0.4, label=phase)
        axis.set_xticks(places, STEPS)
        axis.set_yscale("log")
    axes[0].legend()
    return figure


def _q3(results: Values) -> Any:
    """Seconds by columns, online and offline."""
    figure, axes = _two("online, s", "offline, s")
    found = parts_by(results, "columns", "vectorised")
    columns = sorted({key[0] for key in found})
    for axis, phase in zip(axes, ("online_s", "offline_s"), strict=True):
        for vectorised, label in ((True, "vectorised"), (False, "one product for each value")):
            axis.plot(columns, [found[d, vectorised][phase] for d in columns], marker="o", label=label)
        axis.set_xticks(columns)
        axis.set_xlabel("feature dimension d")
        axis.set_ylim(bottom=0)
    axes[0].legend()
    return figure


def _q4(results: Values) -> Any:
    """Seconds by columns, and by rows for each share of zeros; hollow points are scaled."""
    figure, axes = _two(f"s, n = {ROWS_WANTED[0]:,}", f"s, d = {2 * BY_ZEROS_COLUMNS}")
    by_columns, (dense, sparse) = q4_by_columns(results), q4_by_zeros(results)
    colours = {"sparse": "C0", DENSE: "C1", ANEW: "C2"}
    for name, line in by_columns.items():
        _line(axes[0], {2 * columns: point for columns, point in line.items()}, colours[name], name)
    widths = [2 * columns for columns in by_columns["sparse"]]
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(widths, [f"{d}" for d in widths])
    axes[0].set(xlabel="feature dimension d", yscale="log")
    for name, line in dense.items():
        _line(axes[1], line, colours[name], name)
    for place, (zeros, line) in enumerate(sparse.items()):
        _line(axes[1], line, f"C{place + 3}", f"sparse, {percent(zeros)} zeros")
    axes[1].set_xticks(ROWS_WANTED, [f"{n // 1_000_000}·10⁶" for n in ROWS_WANTED])
    axes[1].set(xlabel="sample size n", yscale="log")
    for axis in axes:
        axis.legend(fontsize=7)
    return figure


def _line(axis: Any, points: dict[int, Point], colour: str, label: str) -> None:
    """A line with filled points where something was run and hollow ones where it is scaled."""
    axis.plot(list(points), [point.seconds for point in points.values()], color=colour, label=label)
    for place, point in points.items():
        face = "white" if point.scaled else colour
        axis.plot([place], [point.seconds], marker="o", color=colour, markerfacecolor=face)


def _q5(results: Values) -> Any:
    """Bars of mean Jaccard coefficients and their deviations, and the paper's coefficients as lines."""
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    found = q5_coefficients(results)
    names = ["on shares", "in plaintext", "first alone", "second alone"]
    for number, each in enumerate(found.values()):
        bars = [each.shares, each.plaintext, *each.alone.values()]
        for place, (name, values) in enumerate(zip(names, bars, strict=True)):
            where, label = number + 0.2 * (place - 1.5), name if number == 0 else None
            axis.bar(where, np.mean(values), 0.2, yerr=np.std(values), color=f"C{place}", label=label)
    for style, (name, value) in zip(("-", ":", "--"), PAPER_Q5.items(), strict=True):
        axis.axhline(value, color="black", linewidth=0.8, linestyle=style, label=f"paper, {name}")
    axis.set_xticks(range(len(found)), list(found))
    axis.set_ylabel("Jaccard coefficient")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


FIGURES: dict[str, Callable[[Values], Any]] = {"q1": _q1, "q2": _q2, "q3": _q3, "q4": _q4, "q5": _q5}
