"""Tables read block by block from Parquet, CSV or Arrow IPC files, or a numpy array in an .npz archive.

A source is one file or a glob of several with the same columns. No more than one block is in memory. A block knows its
file and its place in it, so that an error can name file, row and column; it never shows a value.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from veilmeans.io.sources import npz
from veilmeans.io.sources import source_files as data_files
from veilmeans.io.sources.source_files import READ_BYTES, kind_of, open_file, open_text, reading
from veilmeans.schemas.errors import InputError

_RAGGED = re.compile(r"CSV parse error: (?:Row #(\d+): )?(Expected \d+ columns, got \d+)")
_UNPARSED = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+)")


@dataclass(frozen=True)
class TableBatch:
    """Some rows of a file, and how many rows of that file come before them."""

    file: str
    start: int
    rows: pa.RecordBatch

    def place(self, index: int, column: str) -> str:
        """Where a value is; rows count from 1."""
        return f"{self.file}, row {self.start + index + 1:,}, column {column!r}"


def columns_of(file: str) -> list[str]:
    """The names of a file's columns, in order."""
    with reading(file):
        return list(_schema(file).names)


def types_of(file: str) -> dict[str, str]:
    """The type of each column; of a CSV file, what the first block seems to hold."""
    with reading(file):
        schema = _schema(file)
        return {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}


def table_batches(
    files: Sequence[str],
    columns: Sequence[str],
    id: str | None = None,  # noqa: A002
    numbers: bool = False,
    text: Sequence[str] = (),
) -> Iterator[TableBatch]:
    """The rows of all files in order: `columns`, and the id if there is one.

    A CSV file has no types: Arrow infers them from the first block, but an id and `text` are text. With
    `numbers`, what looks whole or empty there is read as float64, so that a fraction may follow later.
    """
    wanted = [*columns, *([] if id is None else [id])]
    names: list[str] | None = None
    for file in files:
        with reading(file):
            schema = _schema(file)
            names = schema.names if names is None else names
            _require_same(files[0], names, file, schema.names)
            _require(file, wanted, schema.names)
            words = [*text, *([] if id is None else [id])]
            yield from _placed(file, _batches(file, schema, wanted, words, numbers), len(wanted))


def _placed(file: str, batches: Iterator[pa.RecordBatch], columns: int) -> Iterator[TableBatch]:
    """The batches as blocks of a bounded size, in plain types."""
    start, size = 0, max(1, data_files.BLOCK_CELLS // columns)
    for batch in batches:
        for offset in range(0, batch.num_rows, size):
            rows = batch.slice(offset, size)
            yield TableBatch(
                file, start, pa.record_batch([_plain(column) for column in rows.columns], rows.schema.names)
            )
            start += rows.num_rows


def _plain(column: pa.Array) -> pa.Array:
    """Without a dictionary or views, for which Arrow has few functions."""
    values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


def _require_same(first: str, names: list[str], file: str, found: list[str]) -> None:
    different = sorted(set(names) ^ set(found))
    if different:
        raise InputError(f"{first} and {file} do not have the same columns: only one of them has {different[0]!r}")


def _require(source: str, columns: Sequence[str], found: list[str]) -> None:
    counts = Counter(found)
    missing = [name for name in columns if name not in counts]
    if missing:
        raise InputError(f"{source} has no column {missing[0]!r}; it has {', '.join(found)}")
    double = [name for name in columns if counts[name] > 1]
    if double:
        raise InputError(f"{source} has more than one column {double[0]!r}")


# Formats
def _schema(file: str) -> pa.Schema:
    reader: dict[str, Callable[[str], pa.Schema]] = {
        "Parquet": _parquet_schema, "CSV": _csv_schema, "IPC": _ipc_schema, "npz": npz.table_schema
    }  # fmt: skip
    kind = kind_of(file)
    if kind not in reader:
        raise InputError(f"{file} is no table: its columns have no names")
    return reader[kind](file)


def _batches(
    file: str, schema: pa.Schema, columns: list[str], text: Sequence[str], numbers: bool
) -> Iterator[pa.RecordBatch]:
    """The columns of one file, in the order asked for."""
    kind = kind_of(file)
    if kind == "CSV":
        return _csv(file, schema, columns, _csv_types(schema, columns, text, numbers))
    if kind == "npz":
        return npz.table_batches(file, columns)
    return _parquet(file, columns) if kind == "Parquet" else _ipc(file, columns)


def _parquet_schema(file: str) -> pa.Schema:
    with open_file(file) as stream, pa.parquet.ParquetFile(stream) as reader:
        return reader.schema_arrow


def _parquet(file: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Without Arrow's pre-buffer, which would keep all that was read in memory."""
    size = max(1, min(1 << 16, data_files.BLOCK_CELLS // len(columns)))
    with open_file(file) as stream, pa.parquet.ParquetFile(stream, buffer_size=READ_BYTES, pre_buffer=False) as reader:
        for batch in reader.iter_batches(size, columns=columns):
            yield batch.select(columns)


@contextmanager
def _ipc_reader(file: str) -> Iterator[Any]:
    """A reader of the file or the stream format, which the first bytes tell."""
    with open_file(file, mapped=True) as stream:
        whole = stream.read(6) == b"ARROW1"
        stream.seek(0)
        with pa.ipc.open_file(stream) if whole else pa.ipc.open_stream(stream) as reader:
            yield reader


def _ipc_schema(file: str) -> pa.Schema:
    with _ipc_reader(file) as reader:
        return reader.schema


def _ipc(file: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """All fields are opened and some selected: to open only some would copy whole batches out of the memory map."""
    with _ipc_reader(file) as reader:
        stream = isinstance(reader, pa.ipc.RecordBatchStreamReader)
        found = reader if stream else map(reader.get_batch, range(reader.num_record_batches))
        yield from (batch.select(columns) for batch in found)


@contextmanager
def _csv_reader(file: str, single: bool = False, convert: Any = None) -> Iterator[Any]:
    """One thread: only then Arrow tells the row of what it cannot read."""
    read = pa.csv.ReadOptions(use_threads=False, block_size=data_files.BLOCK_BYTES)
    # Where a row has one value, an empty line is a row without it; elsewhere it is no row at all.
    parse = pa.csv.ParseOptions(ignore_empty_lines=not single)
    with open_text(file) as text, pa.csv.open_csv(text, read, parse, convert) as reader:
        yield reader


def _csv_schema(file: str) -> pa.Schema:
    """The names, and the types of the first block."""
    with _csv_told(file, []), _csv_reader(file) as reader:
        return reader.schema


def _csv_types(schema: pa.Schema, columns: list[str], text: Sequence[str], numbers: bool) -> dict[str, pa.DataType]:
    kinds = {name: schema.field(name).type for name in columns}
    whole = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_null(kind)]
    wider = dict.fromkeys(whole, pa.float64()) if numbers else {}
    return kinds | wider | dict.fromkeys(text, pa.string())


def _csv(file: str, schema: pa.Schema, columns: list[str], types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    convert = pa.csv.ConvertOptions(include_columns=columns, column_types=types)
    with _csv_told(file, schema.names), _csv_reader(file, len(schema.names) == 1, convert) as reader:
        yield from reader


@contextmanager
def _csv_told(file: str, names: list[str]) -> Iterator[None]:
    """Rows that Arrow cannot read, without their content."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if found := _RAGGED.match(str(error)):
            raise InputError(f"{file}{_row(found[1])}: {found[2].lower()}; correct the row") from None
        if found := _UNPARSED.match(str(error)):
            place = f"{file}{_row(found[2])}, column {names[int(found[1])]!r}"
            what = f"cannot be read as {found[3]}, the type of the first rows"
            raise InputError(f"{place}: {what}; correct it, or give the data as Parquet, which has types") from None
        raise


def _row(number: str | None) -> str:
    """Arrow counts the header as row 1."""
    return "" if number is None else f", row {int(number) - 1:,}"
