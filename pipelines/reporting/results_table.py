"""The command `veilmeans results`: what a finished run opened to this party, as a table or as CSV. Nothing is sent."""

from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from veilmeans.io.files.atomic_files import atomic_write
from veilmeans.io.sources.aligned_rows import own_columns
from veilmeans.io.storage.result_files import read_result, unused_name
from veilmeans.pipelines.reporting.cluster_details import explanations_table, profiles_table
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.run_folder import RunFolder

_CLUSTERS, _COLUMNS, _OUTLIERS = 10, 20, 10  # how many clusters, columns and outliers are printed


def show_results(config: JobConfig, console: Console) -> dict[str, Any]:
    """Print how many rows each cluster has, its centroid in this party's columns, and the paths of the files.

    Return what the result says, and the number of this party's rows in each cluster.
    """
    folder, result = config.run_folder, read_result(config.run_folder)
    if not folder.result.exists():
        raise StorageError(f"run {config.run!r} has no results at {config.party} yet: run `veilmeans train` first")
    table = _table(config)
    console.print(table if table.row_count else f"nothing was opened to {config.party}: kmeans.reveal names others")
    for name in ("iterations", "inertia", "assignments", "scores", "outliers", "explanations", "profiles", "centroids"):
        if name in result:
            console.print(f"{name}: {result[name]}", soft_wrap=True, highlight=False)
    if result.get("withheld"):
        console.print(withheld_centroids(config, result["withheld"]), soft_wrap=True, highlight=False)
    if folder.outliers.exists():
        console.print(_outliers(folder))
    if folder.explanations.exists():
        console.print(explanations_table(folder))
    if folder.profiles.exists():
        console.print(profiles_table(folder))
    if not folder.assignments.exists():
        return result
    return {**result, "rows_in_clusters": count_rows(folder, config.required_kmeans.clusters).tolist()}


def withheld_centroids(config: JobConfig, clusters: object) -> str:
    """The sentence about clusters whose centroids `kmeans.reveal.minimum_size` keeps closed."""
    least, named = config.required_kmeans.reveal.minimum_size, str(clusters).strip("[]")
    return f"centroids of clusters {named}: withheld, fewer than {least:,} rows (or beside a cluster that has fewer)"


def _outliers(folder: RunFolder) -> Table:
    """A table of the first outliers, with what else was opened of them; those with the highest scores first."""
    found = pa.parquet.read_table(folder.outliers)
    if "score" in found.column_names:
        found = found.sort_by([("score", "descending")])
    table = Table(*found.column_names, title=f"{found.num_rows:,} outliers")
    for row in found.slice(0, _OUTLIERS).to_pylist():
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    if found.num_rows > _OUTLIERS:
        table.caption = f"… and {found.num_rows - _OUTLIERS:,} more"
    return table


def write_explanations_csv(config: JobConfig, file: Path) -> int:
    """Write the explanations of this party's outliers as a CSV file, as their clusters."""
    return _write_csv(config, config.run_folder.explanations, file, "explanations")


def write_profiles_csv(config: JobConfig, file: Path) -> int:
    """Write the profiles of clusters as a CSV file."""
    return _write_csv(config, config.run_folder.profiles, file, "profiles")


def write_outliers_csv(config: JobConfig, file: Path, with_columns: bool = False) -> int:
    """Write the outliers among this party's rows as a CSV file, as their clusters."""
    return _write_csv(config, config.run_folder.outliers, file, "outliers", with_columns)


def write_assignments_csv(config: JobConfig, file: Path, with_columns: bool = False) -> int:
    """Write the clusters of this party's rows as a CSV file for this user only; return how many texts were escaped.

    `with_columns`: all columns of this party's data stand beside them.
    """
    return _write_csv(config, config.run_folder.assignments, file, "assignments", with_columns)


def _write_csv(config: JobConfig, source: Path, file: Path, what: str, with_columns: bool = False) -> int:
    if not source.exists():
        todo = f"train it, with {config.party} in kmeans.reveal.{what}"
        raise StorageError(f"run {config.run!r} has opened no {what} to {config.party}: {todo}")
    table = pa.parquet.read_table(source)
    table, escaped = _escape_formulas(_beside_own_columns(config, table) if with_columns else table)
    with atomic_write(file) as part:
        pa.csv.write_csv(table, part)
    return escaped


def _beside_own_columns(config: JobConfig, table: pa.Table) -> pa.Table:
    """A result, and after it the columns of this party's data of the same rows."""
    job = config.kmeans_with_data
    own = own_columns(job.data or "", job.id, table.column(0))
    for name, column in zip(own.column_names, own.columns, strict=True):
        table = table.append_column(unused_name(name, table.column_names), column)
    return table


def _escape_formulas(table: pa.Table) -> tuple[pa.Table, int]:
    """Put ' before texts that a spreadsheet would take for a formula; a text that is a number stays as it is."""
    count = 0
    for place, name in enumerate(table.column_names):
        texts = table.column(place)
        texts = pc.dictionary_decode(texts) if pa.types.is_dictionary(texts.type) else texts
        if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
            number = pc.match_substring_regex(texts, r"^[+-][0-9]+([.][0-9]+)?$")
            formulas = pc.and_not(pc.match_substring_regex(texts, r"^[=+@\t\r-]"), number)
            escaped = pc.if_else(formulas, pc.replace_substring_regex(texts, "^", "'", max_replacements=1), texts)
            table = table.set_column(place, name, escaped)
            count += pc.sum(formulas).as_py() or 0
    return table, count


def _table(config: JobConfig) -> Table:
    """A table with one column for each cluster."""
    clusters = config.required_kmeans.clusters
    shown = min(clusters, _CLUSTERS)
    title = f"run {config.run!r}: results of {config.party}"
    table = Table("cluster", *map(str, range(shown)), title=title)
    if clusters > shown:
        table.caption = f"… and {clusters - shown:,} more clusters"
    if config.run_folder.assignments.exists():
        table.add_row("our rows in it", *(f"{count:,}" for count in count_rows(config.run_folder, clusters)[:shown]))
    for name, cells in _centroid_lines(config.run_folder, shown):
        table.add_row(name, *cells)
    return table


def count_rows(folder: RunFolder, clusters: int) -> NDArray[np.int64]:
    """Count the rows of each cluster in the opened assignments."""
    counts = np.zeros(clusters, np.int64)
    with pa.parquet.ParquetFile(folder.assignments) as file:
        for batch in file.iter_batches(columns=file.schema_arrow.names[-1:]):
            counts += np.bincount(batch.column(0).to_numpy(), minlength=clusters)
    return counts


def count_scores(folder: RunFolder, bins: int = 12) -> tuple[list[int], list[float]]:
    """Count the opened scores in bins of equal width: how many in each, and the bins' ends; none if none are open."""
    if not folder.scores.exists():
        return [], []
    scores = pa.parquet.read_table(folder.scores).column(1).to_numpy()
    counts, edges = np.histogram(scores, bins, range=(0.0, max(float(scores.max(initial=0.0)), 1e-9)))
    return counts.tolist(), edges.tolist()


def _centroid_lines(folder: RunFolder, shown: int) -> list[tuple[str, list[str]]]:
    """The first columns' centroids, in original units."""
    if not folder.centroids.exists():
        return []
    with pa.parquet.ParquetFile(folder.centroids) as file:
        names = file.schema_arrow.names[1:]
        values = file.read(names[:_COLUMNS]).slice(0, shown)
    lines = [(name, [_cell(value) for value in values.column(name).to_pylist()]) for name in values.column_names]
    more = len(names) - _COLUMNS
    return [*lines, *([(f"… and {more:,} more columns", [])] if more > 0 else [])]


def _cell(value: float) -> str:
    return "withheld" if isnan(value) else f"{value:.4g}"
