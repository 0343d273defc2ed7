"""The opened results of a run as files: assignments and centroids in Parquet, the rest in JSON."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from veilmeans.io.storage.atomic_files import replaced_file, write_json

ASSIGNMENTS = "assignments.parquet"
CENTROIDS = "centroids.parquet"
RESULT = "result.json"


def free_name(name: str, taken: Sequence[str]) -> str:
    """`name`, with as many underscores behind it as set it apart."""
    while name in taken:
        name += "_"
    return name


def write_assignments(folder: Path, name: str, shards: Iterable[tuple[pa.Array, NDArray[np.int32]]]) -> Path:
    """Row id and cluster of every row, shard by shard; `name` is the id's."""
    with replaced_file(folder / ASSIGNMENTS) as part:
        writer = None
        for ids, labels in shards:
            table = pa.table({name: ids, free_name("cluster", [name]): labels})
            writer = writer or pa.parquet.ParquetWriter(part, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
    return folder / ASSIGNMENTS


def write_centroids(folder: Path, columns: Sequence[str], centres: NDArray[np.float64]) -> Path:
    """One row for each cluster, one column for each feature, in original units."""
    numbers = np.arange(len(centres), dtype=np.int32)
    table = {free_name("cluster", columns): numbers, **dict(zip(columns, centres.T, strict=True))}
    with replaced_file(folder / CENTROIDS) as part:
        pa.parquet.write_table(pa.table(table), part)
    return folder / CENTROIDS


def read_result(folder: Path) -> dict[str, object]:
    """What was opened here so far."""
    try:
        content: dict[str, object] = json.loads((folder / RESULT).read_text())
    except FileNotFoundError:
        return {}
    return content


def write_result(folder: Path, content: dict[str, object]) -> None:
    """Add to what was opened before."""
    write_json(folder / RESULT, {**read_result(folder), **content})
