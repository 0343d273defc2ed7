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
import pyarrow.csv
import pyarrow.parquet

from veilmeans.crypto import ring
from veilmeans.io.files import disk_error
from veilmeans.schemas.errors import InputError


@dataclass(frozen=True)
class StagedInput:
    """Where the shards are, how many rows they have, and the digest of their content."""

    file: Path
    rows: int
    shards: int
    digest: bytes


def stage_columns(source: Path, columns: Sequence[str], bound: int, rows_per_shard: int, target: Path) -> StagedInput:
    """Read integer `columns` of a CSV or Parquet file, check them, write them in shards to `target`."""
    try:
        return _stage(source, columns, bound, rows_per_shard, target)
    except OSError as error:
        raise disk_error(target.parent, error) from None


def _stage(source: Path, columns: Sequence[str], bound: int, rows_per_shard: int, target: Path) -> StagedInput:
    schema = pa.schema([(name, pa.int64()) for name in columns])
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = target.with_suffix(".part")
    digest, rows, shards = hashlib.sha256(repr((tuple(columns), rows_per_shard)).encode()), 0, 0
    with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _regrouped(_checked(_blocks(source, columns), source, columns, bound), schema, rows_per_shard):
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


def _blocks(source: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    try:
        if source.suffix == ".parquet":
            yield from _parquet(source, columns)
        else:
            yield from _csv(source, columns)
    except FileNotFoundError:
        raise InputError(f"the data file {source} does not exist") from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"the data file {source} cannot be read: {str(error).splitlines()[0]}") from None


def _parquet(source: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    with pa.parquet.ParquetFile(source) as file:
        _require(source, columns, file.schema_arrow.names)
        for batch in file.iter_batches(columns=list(columns)):
            yield pa.Table.from_batches([batch]).select(list(columns))


def _csv(source: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    with pa.csv.open_csv(source) as reader:
        single = len(reader.schema.names) == 1
    # Where a row has one value, an empty line is a row without it; elsewhere it is no row at all.
    with pa.csv.open_csv(source, parse_options=pa.csv.ParseOptions(ignore_empty_lines=not single)) as reader:
        _require(source, columns, reader.schema.names)
        for batch in reader:
            yield pa.Table.from_batches([batch]).select(list(columns))


def _require(source: Path, columns: Sequence[str], found: list[str]) -> None:
    missing = [name for name in columns if name not in found]
    if missing:
        raise InputError(f"{source} has no column {missing[0]!r}; it has {', '.join(found)}")
    double = [name for name in columns if found.count(name) > 1]
    if double:
        raise InputError(f"{source} has more than one column {double[0]!r}")


def _checked(blocks: Iterator[pa.Table], source: Path, columns: Sequence[str], bound: int) -> Iterator[pa.Table]:
    rows = 0
    for block in blocks:
        for name in columns:
            _check_column(block.column(name), source, name, rows, bound)
        rows += block.num_rows
        yield block.cast(pa.schema([(name, pa.int64()) for name in columns]))


def _check_column(column: pa.ChunkedArray, source: Path, name: str, start: int, bound: int) -> None:
    if not pa.types.is_integer(column.type):
        raise InputError(f"{source}, column {name!r} holds {column.type}, and whole numbers are needed")
    bad = pc.fill_null(_beyond(column, bound), True)
    if pc.any(bad).as_py():
        index = pc.index(bad, True).as_py()
        what = "no value" if not column[index].is_valid else f"a value beyond the bound of {bound:,}"
        raise InputError(f"{source}, row {start + index + 1:,}, column {name!r}: {what}")


def _beyond(column: pa.ChunkedArray, bound: int) -> pa.ChunkedArray:
    if pa.types.is_unsigned_integer(column.type):
        return pc.greater(column, pa.scalar(bound, pa.uint64()))
    return pc.or_(pc.greater(column, bound), pc.less(column, -bound))


def _regrouped(blocks: Iterator[pa.Table], schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly `rows`; the last one may be shorter."""
    waiting = schema.empty_table()
    for block in blocks:
        waiting = pa.concat_tables([waiting, block])
        while waiting.num_rows >= rows:
            yield _one_batch(waiting.slice(0, rows))
            waiting = waiting.slice(rows)
    if waiting.num_rows:
        yield _one_batch(waiting)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]
