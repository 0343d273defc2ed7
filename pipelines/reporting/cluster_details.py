"""Opened explanations of outliers, for the command `results` and the report."""

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
