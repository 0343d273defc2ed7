"""Tables read in batches from Parquet, CSV or Arrow IPC files, or from a numpy array in an .npz archive.

A source is one file or a glob of several with the same columns. Only one batch is in memory at a time. A batch knows
its file and its first row, so that an error can name file, row and column; an error never shows a value.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from veilmeans.io.sources import npz
from veilmeans.io.sources.row_digest import RowDigest
from veilmeans.io.sources.source_files import (
    DEFAULT_LIMITS,
    READ_BYTES,
    BatchLimits,
    Source,
    file_errors,
    format_of,
    open_file,
    open_text,
)
from veilmeans.schemas.errors import InputError

_WRONG_WIDTH = re.compile(r"CSV parse error: (?:Row #(\d+): )?(Expected \d+ columns, got \d+)")
_UNPARSED = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+)")


@dataclass(frozen=True)
class TableBatch:
    """Consecutive rows of a file; `start`: how many rows of that file come before them."""

    file: str
    start: int
    rows: pa.RecordBatch

    def place(self, index: int, column: str) -> str:
        """Name the place of a value; rows count from 1."""
        return f"{self.file}, row {self.start + index + 1:,}, column {column!r}"


def table_columns(file: str, limits: BatchLimits = DEFAULT_LIMITS) -> list[str]:
    """Return the names of a file's columns, in order."""
    with file_errors(file):
        return list(_schema(file, limits).names)


def table_types(file: str) -> dict[str, str]:
    """Return the type of each column; for a CSV file, the one that Arrow infers from the first batch."""
    with file_errors(file):
        schema = _schema(file, DEFAULT_LIMITS)
        return {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}


def table_batches(
    source: Source,
    columns: Sequence[str],
    id_column: str | None = None,
    numbers: bool = False,
    text: Sequence[str] = (),
    digest: RowDigest | None = None,
) -> Iterator[TableBatch]:
    """Read the rows of all files in order: `columns`, and the id if there is one. All rows are added to `digest`.

    A CSV file has no types: Arrow infers them from the first batch, but an id and `text` are text. With
    `numbers`, integers and empty values there are read as float64, so that a fraction may follow later.
    """
    names = [*columns, *([] if id_column is None else [id_column])]
    first: list[str] | None = None
    for file in source.files:
        with file_errors(file):
            schema = _schema(file, source.limits)
            first = schema.names if first is None else first
            _require_same_columns(source.files[0], first, file, schema.names)
            _require_columns(file, names, schema.names)
            text_columns = [*text, *([] if id_column is None else [id_column])]
            batches = _file_batches(file, schema, names, text_columns, numbers, source.limits)
            for batch in _table_batches(file, batches, max(1, source.limits.cells // len(names))):
                if digest is not None:
                    digest.add_table(batch.rows)
                yield batch


def _table_batches(file: str, batches: Iterator[pa.RecordBatch], size: int) -> Iterator[TableBatch]:
    """Split batches into some of at most `size` rows, in plain types."""
    start = 0
    for batch in batches:
        for offset in range(0, batch.num_rows, size):
            rows = batch.slice(offset, size)
            columns = [_plain_type(column) for column in rows.columns]
            yield TableBatch(file, start, pa.record_batch(columns, rows.schema.names))
            start += rows.num_rows


def _plain_type(column: pa.Array) -> pa.Array:
    """Replace a dictionary or views, for which Arrow has few functions, by plain values."""
    values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


def _require_same_columns(first: str, names: list[str], file: str, others: list[str]) -> None:
    different = sorted(set(names) ^ set(others))
    if different:
        raise InputError(f"{first} and {file} do not have the same columns: only one of them has {different[0]!r}")


def _require_columns(file: str, columns: Sequence[str], names: list[str]) -> None:
    counts = Counter(names)
    missing = [name for name in columns if name not in counts]
    if missing:
        raise InputError(f"{file} has no column {missing[0]!r}; it has {', '.join(names)}")
    repeated = [name for name in columns if counts[name] > 1]
    if repeated:
        raise InputError(f"{file} has more than one column {repeated[0]!r}")


# Formats
def _schema(file: str, limits: BatchLimits) -> pa.Schema:
    kind = format_of(file)
    if kind == "CSV":
        return _csv_schema(file, limits)
    if kind == "npz":
        return npz.table_schema(file)
    if kind == "Parquet":
        with open_file(file) as stream, pa.parquet.ParquetFile(stream) as reader:
            return reader.schema_arrow
    if kind == "IPC":
        with _ipc_reader(file) as reader:
            return reader.schema
    raise InputError(f"{file} is no table: its columns have no names")


def _file_batches(
    file: str, schema: pa.Schema, columns: list[str], text: Sequence[str], numbers: bool, limits: BatchLimits
) -> Iterator[pa.RecordBatch]:
    """Read columns of one file, in the given order."""
    kind = format_of(file)
    if kind == "CSV":
        return _csv(file, schema, columns, _csv_types(schema, columns, text, numbers), limits)
    if kind == "npz":
        return npz.table_batches(file, columns, limits)
    return _parquet(file, columns, limits) if kind == "Parquet" else _ipc(file, columns)


def _parquet(file: str, columns: list[str], limits: BatchLimits) -> Iterator[pa.RecordBatch]:
    """Read Parquet without Arrow's pre-buffer, which would keep all that was read in memory."""
    size = max(1, min(1 << 16, limits.cells // len(columns)))
    with open_file(file) as stream, pa.parquet.ParquetFile(stream, buffer_size=READ_BYTES, pre_buffer=False) as reader:
        for batch in reader.iter_batches(size, columns=columns):
            yield batch.select(columns)


@contextmanager
def _ipc_reader(file: str) -> Iterator[Any]:
    """Open a reader of the IPC file or the IPC stream format, which differ in the first bytes."""
    with open_file(file, mapped=True) as stream:
        is_file_format = stream.read(6) == b"ARROW1"
        stream.seek(0)
        with pa.ipc.open_file(stream) if is_file_format else pa.ipc.open_stream(stream) as reader:
            yield reader


def _ipc(file: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Open all columns and select some: to open only some would copy all of them out of the memory map."""
    with _ipc_reader(file) as reader:
        is_stream = isinstance(reader, pa.ipc.RecordBatchStreamReader)
        batches = reader if is_stream else map(reader.get_batch, range(reader.num_record_batches))
        yield from (batch.select(columns) for batch in batches)


def _csv_reader(text: pa.NativeFile, limits: BatchLimits, one_column: bool = False, convert: Any = None) -> Any:
    """Open a CSV reader with one thread: only then Arrow names the row that it cannot read."""
    read = pa.csv.ReadOptions(use_threads=False, block_size=limits.text_bytes)
    # In a table of one column an empty line is a row without a value; elsewhere it is no row at all.
    parse = pa.csv.ParseOptions(ignore_empty_lines=not one_column)
    return pa.csv.open_csv(text, read, parse, convert)


def _csv_schema(file: str, limits: BatchLimits) -> pa.Schema:
    """Read the names, and infer the types of the first batch. Only this batch is read; Arrow would read ahead."""
    with open_text(file) as text:
        head = text.read(limits.text_bytes)
    lines, end, _ = head.rpartition(b"\n") if len(head) == limits.text_bytes else (head, b"", b"")
    with _csv_errors(file, []), _csv_reader(pa.BufferReader(lines + end or head), limits) as reader:
        return reader.schema


def _csv_types(schema: pa.Schema, columns: list[str], text: Sequence[str], numbers: bool) -> dict[str, pa.DataType]:
    kinds = {name: schema.field(name).type for name in columns}
    integers = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_null(kind)]
    floats = dict.fromkeys(integers, pa.float64()) if numbers else {}
    return kinds | floats | dict.fromkeys(text, pa.string())


def _csv(
    file: str, schema: pa.Schema, columns: list[str], types: dict[str, pa.DataType], limits: BatchLimits
) -> Iterator[pa.RecordBatch]:
    convert = pa.csv.ConvertOptions(include_columns=columns, column_types=types)
    one_column = len(schema.names) == 1
    with _csv_errors(file, schema.names), open_text(file) as raw, _csv_reader(raw, limits, one_column, convert) as rows:
        yield from rows


@contextmanager
def _csv_errors(file: str, names: list[str]) -> Iterator[None]:
    """Turn Arrow's errors into InputErrors that name row and column, without their content."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if match := _WRONG_WIDTH.match(str(error)):
            raise InputError(f"{file}{_row(match[1])}: {match[2].lower()}; correct the row") from None
        if match := _UNPARSED.match(str(error)):
            place = f"{file}{_row(match[2])}, column {names[int(match[1])]!r}"
            what = f"cannot be read as {match[3]}, the type of the first rows"
            raise InputError(f"{place}: {what}; correct it, or give the data as Parquet, which has types") from None
        raise


def _row(number: str | None) -> str:
    """Name a row by Arrow's number, which counts the header as row 1."""
    return "" if number is None else f", row {int(number) - 1:,}"
