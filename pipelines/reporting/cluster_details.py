"""Opened explanations of outliers and profiles of clusters, for the command `results` and the report."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet
from rich.table import Table

from veilmeans.schemas.run_folder import RunFolder

_OUTLIERS, _PARTS = 10, 3  # how many outliers are printed, and columns that explain each


def explanations_table(folder: RunFolder) -> Table:
    """A table of the first outliers with the columns that add most to their scores, and what others add."""
    lines = pa.parquet.read_table(folder.explanations)
    name, part = lines.column_names[0], "share" if "share" in lines.column_names else "contribution"
    rows: dict[tuple[object, int], list[str]] = {}
    for line in lines.to_pylist():
        row = line[name], line["cluster"]
        if row not in rows and len(rows) == _OUTLIERS:
            break
        parts = rows.setdefault(row, [])
        if len(parts) < _PARTS or line["column"].startswith("("):
            parts.append(f"{line['column']} {_shown(line[part], part)}")
    unit = "as shares of them" if part == "share" else "in normalised units"
    table = Table(name, "cluster", "columns", title=f"what columns add to the outliers' scores, {unit}")
    for (row_id, cluster), parts in rows.items():
        table.add_row(f"{row_id}", f"{cluster}", ", ".join(parts))
    return table


def _shown(value: float, kind: str) -> str:
    return f"{value:.0%}" if kind == "share" else f"{value:.4g}"


def mean_contributions(folder: RunFolder) -> list[tuple[str, float]]:
    """The mean part of the outliers' scores by columns, the largest first."""
    lines = pa.parquet.read_table(folder.explanations)
    outliers = max(1, len(lines.column(0).unique()))
    summed = lines.group_by("column").aggregate([("contribution", "sum")]).to_pylist()
    parts = [(each["column"], each["contribution_sum"] / outliers) for each in summed]
    return sorted(parts, key=lambda each: -each[1])


def profiles_table(folder: RunFolder) -> Table:
    """A table of the clusters: rows, rate of the label, and the columns that differ most from all rows."""
    title = "profiles of clusters; columns: mean ± spread (of all rows)"
    table = Table("cluster", "rows", "rate", "columns", title=title)
    for line in profile_lines(folder):
        table.add_row(*line)
    return table


def profile_lines(folder: RunFolder) -> list[tuple[str, ...]]:
    """Number, size, rate of the label, and the columns that differ most from all rows, of each cluster."""
    clusters: dict[int, list[dict[str, Any]]] = {}
    for line in pa.parquet.read_table(folder.profiles).to_pylist():
        clusters.setdefault(line["cluster"], []).append(line)
    result: list[tuple[str, ...]] = []
    for number, lines in clusters.items():
        rate = next((_rate(line) for line in lines if line["label"]), "")
        columns = [line for line in lines if not line["label"] and line["mean"] is not None]
        shown = [_profile(line) for line in sorted(columns, key=_difference, reverse=True)[:_PARTS]]
        size = "withheld" if lines[0]["size"] is None else f"{lines[0]['size']:,}"
        result.append((f"{number}", size, rate, "; ".join(shown)))
    return result


def _rate(line: dict[str, Any]) -> str:
    if line["hidden"]:
        return "too few rows"
    return "unknown" if line["mean"] is None else f"{line['mean']:.1%} of {line['known']:,}"


def _difference(line: dict[str, Any]) -> float:
    """The distance of a cluster's mean from that of all rows, in their spreads."""
    return float(abs(line["mean"] - line["mean_of_all"]) / line["spread_of_all"]) if line["spread_of_all"] else 0.0


def _profile(line: dict[str, Any]) -> str:
    of_all = f"{line['mean_of_all']:.4g} ± {line['spread_of_all']:.3g}"
    return f"{line['column']} {line['mean']:.4g} ± {line['spread']:.3g} ({of_all})"
