"""The opened results of a run as files: assignments, scores and centroids in Parquet, the rest in JSON."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from veilmeans.io.files.atomic_files import atomic_write, read_json, write_json
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.column_names import distinct_names
from veilmeans.schemas.run_folder import RunFolder


def unused_name(name: str, taken: Sequence[str]) -> str:
    """Append underscores to `name` until it is none of those that are taken."""
    while name in taken:
        name += "_"
    return name


Rows = Iterable[tuple[pa.Array, dict[str, NDArray[Any]]]]
"""The ids of some rows, and columns beside them, shard by shard."""


def write_rows(file: Path, name: str, shards: Rows) -> Path:
    """Write ids and what was opened of every row, shard by shard; `name` is the id column's."""
    with atomic_write(file) as part:
        writer = None
        for ids, columns in shards:
            table = pa.table({name: ids, **{unused_name(each, [name]): column for each, column in columns.items()}})
            writer = writer or pa.parquet.ParquetWriter(part, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
    return file


def write_centroids(folder: RunFolder, columns: Sequence[str], centroids: Real) -> Path:
    """Write the centroids in original units: one row for each cluster, one column for each feature; NaN: withheld."""
    numbers = np.arange(len(centroids), dtype=np.int32)
    columns = distinct_names(columns)  # "a"."b.c" and "a.b"."c" have one name
    table = {unused_name("cluster", columns): numbers, **dict(zip(columns, centroids.T, strict=True))}
    with atomic_write(folder.centroids) as part:
        pa.parquet.write_table(pa.table(table), part)
    return folder.centroids


def write_profiles(folder: RunFolder, lines: pa.Table) -> Path:
    """Write the profiles of the final clusters: a line for each cluster and column."""
    with atomic_write(folder.profiles) as part:
        pa.parquet.write_table(lines, part)
    return folder.profiles


def read_result(folder: RunFolder) -> dict[str, object]:
    """Read all that was opened to this party so far."""
    return read_json(folder.result) or {}


def write_result(folder: RunFolder, content: dict[str, object]) -> None:
    """Add to the opened results."""
    write_json(folder.result, {**read_result(folder), **content})
