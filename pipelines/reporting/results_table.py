"""`veilmeans results`: what a finished run opened to this party, on its terminal or as CSV. Nothing is sent."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from rich.console import Console
from rich.table import Table

from veilmeans.io.storage.atomic_files import replaced_file
from veilmeans.io.storage.result_files import ASSIGNMENTS, CENTROIDS, RESULT, read_result
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError

_CLUSTERS, _COLUMNS = 10, 20
"""How many are shown."""


def show_results(config: JobConfig, console: Console) -> None:
    """Print how many rows each cluster has, its centroid in our columns, and where the files are."""
    folder, result = config.run_folder, read_result(config.run_folder)
    if not (folder / RESULT).exists():
        raise StorageError(f"run {config.run!r} has no results at {config.party} yet: run `veilmeans train` first")
    table = _table(config)
    console.print(table if table.row_count else f"nothing was opened to {config.party}: kmeans.reveal names others")
    for name in ("iterations", "inertia", "assignments", "centroids"):
        if name in result:
            console.print(f"{name}: {result[name]}", soft_wrap=True, highlight=False)


def write_assignments_csv(config: JobConfig, file: Path) -> None:
    """The clusters of our rows as a CSV file."""
    source = config.run_folder / ASSIGNMENTS
    if not source.exists():
        raise StorageError(
            f"run {config.run!r} has opened no assignments to {config.party}: has it been trained, and does "
            "kmeans.reveal.assignments name it?"
        )
    with replaced_file(file) as part:
        pa.csv.write_csv(pa.parquet.read_table(source), part)


def _table(config: JobConfig) -> Table:
    """One column for each cluster."""
    clusters = config.required_kmeans.clusters
    shown = min(clusters, _CLUSTERS)
    title = f"run {config.run!r}: what {config.party} has learned"
    table = Table("cluster", *map(str, range(shown)), title=title)
    if clusters > shown:
        table.caption = f"… and {clusters - shown:,} more clusters"
    for name, cells in (*_sizes(config.run_folder, shown), *_centroids(config.run_folder, shown)):
        table.add_row(name, *cells)
    return table


def _sizes(folder: Path, shown: int) -> list[tuple[str, list[str]]]:
    if not (folder / ASSIGNMENTS).exists():
        return []
    with pa.parquet.ParquetFile(folder / ASSIGNMENTS) as file:
        labels = file.read(file.schema_arrow.names[-1:]).column(0)
    return [("our rows in it", [f"{pc.sum(pc.equal(labels, i)).as_py() or 0:,}" for i in range(shown)])]


def _centroids(folder: Path, shown: int) -> list[tuple[str, list[str]]]:
    """The first columns' centroids, in original units."""
    if not (folder / CENTROIDS).exists():
        return []
    with pa.parquet.ParquetFile(folder / CENTROIDS) as file:
        names = file.schema_arrow.names[1:]
        found = file.read(names[:_COLUMNS]).slice(0, shown)
    lines = [(name, [f"{value:.4g}" for value in found.column(name).to_pylist()]) for name in found.column_names]
    more = len(names) - _COLUMNS
    return [*lines, *([(f"… and {more:,} more columns", [])] if more > 0 else [])]
