"""A party's columns, read once and staged as an Arrow IPC file with one record batch per shard.

Streams: no more than one block of the source is in memory. Every value is checked on the way, and a bad one is named
by file, row and column.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilmeans.crypto import ring
from veilmeans.io.sources.source_files import find_files
from veilmeans.io.sources.tables import TableBatch, table_batches
from veilmeans.io.storage.atomic_files import disk_error
from veilmeans.schemas.errors import InputError


@dataclass(frozen=True)
class StagedInput:
    """Where the shards are, how many rows they have, and the digest of their content."""

    file: Path
    rows: int
    shards: int
    digest: bytes


def stage_columns(source: Path, columns: Sequence[str], bound: int, rows_per_shard: int, target: Path) -> StagedInput:
    """Read integer `columns` of a file or a glob (see `tables`), check them, write them in shards to `target`."""
    try:
        return _stage(source, columns, bound, rows_per_shard, target)
    except OSError as error:
        raise disk_error(target.parent, error) from None


def _stage(source: Path, columns: Sequence[str], bound: int, rows_per_shard: int, target: Path) -> StagedInput:
    schema = pa.schema([(name, pa.int64()) for name in columns])
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = target.with_suffix(".part")
    found = table_batches(find_files(str(source)), columns)
    digest, rows, shards = hashlib.sha256(repr((tuple(columns), rows_per_shard)).encode()), 0, 0
    with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _regrouped(_checked(found, columns, bound), schema, rows_per_shard):
            writer.write_batch(batch)
            for column in batch.columns:
                digest.update(column.to_numpy())
            rows, shards = rows + batch.num_rows, shards + 1
    if rows == 0:
        raise InputError(f"{source} has no rows")
    part.replace(target)
    return StagedInput(target, rows, shards, digest.digest())


def read_shard(file: Path, shard: int) -> ring.Ring:
    """One shard of a staged file as a matrix of ring elements (rows × columns)."""
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        batch = reader.get_batch(shard)
        return ring.encode(np.stack([column.to_numpy() for column in batch.columns], axis=1))


def _checked(found: Iterator[TableBatch], columns: Sequence[str], bound: int) -> Iterator[pa.Table]:
    schema = pa.schema([(name, pa.int64()) for name in columns])
    for block in found:
        for name in columns:
            _check_column(block, name, bound)
        yield pa.Table.from_batches([block.rows]).cast(schema)


def _check_column(block: TableBatch, name: str, bound: int) -> None:
    column = block.rows.column(name)
    if not pa.types.is_integer(column.type):
        raise InputError(f"{block.file}, column {name!r} holds {column.type}, and whole numbers are needed")
    bad = pc.fill_null(_beyond(column, bound), True)
    if pc.any(bad).as_py():
        index = pc.index(bad, True).as_py()
        what = "no value" if not column[index].is_valid else f"a value beyond the bound of {bound:,}"
        raise InputError(f"{block.place(index, name)}: {what}")


def _beyond(column: pa.Array, bound: int) -> pa.Array:
    if pa.types.is_unsigned_integer(column.type):
        return pc.greater(column, pa.scalar(bound, pa.uint64()))
    return pc.or_(pc.greater(column, bound), pc.less(column, -bound))


def _regrouped(table_batches: Iterator[pa.Table], schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly `rows`; the last one may be shorter."""
    waiting = schema.empty_table()
    for block in table_batches:
        waiting = pa.concat_tables([waiting, block])
        while waiting.num_rows >= rows:
            yield _one_batch(waiting.slice(0, rows))
            waiting = waiting.slice(rows)
    if waiting.num_rows:
        yield _one_batch(waiting)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]
