"""Chosen rows of a party's source with all its columns: as one new file in the agreed order, or beside a result.

For a file, rows are spread over buckets of consecutive places on disk, and each bucket is sorted on its own, so that
memory does not grow with the source. A CSV file stays one, with the text of its values as it is; all else becomes
Parquet.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from veilmeans.io.files.atomic_files import atomic_write, disk_errors, make_private_folder
from veilmeans.io.sources.source_files import Source, find_files, format_of
from veilmeans.io.sources.tables import table_batches, table_columns
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.errors import InputError

_CELLS = 1 << 22
_PLACE = "place"
_MOST_BUCKETS = 256


def aligned_ending(name: str) -> str:
    """The ending of the file with a source's aligned rows."""
    return ".csv" if format_of(find_files(name)[0]) == "CSV" else ".parquet"


def source_state(name: str) -> list[list[object]]:
    """Names, sizes and times of change of a source's local files: if they differ, the source has changed."""
    states: list[list[object]] = []
    for file in find_files(name):
        found = Path(file).stat() if "://" not in file else None
        states.append([file, found.st_size if found else None, found.st_mtime_ns if found else None])
    return states


def write_aligned_rows(name: str, places: Array, count: int, target: Path, folder: Path) -> None:
    """Write the `count` rows whose place (in `places`, by the row's number) is not −1, in order of their places."""
    source = Source(name, find_files(name))
    columns = table_columns(source.files[0])
    size = max(_CELLS // len(columns), -(-count // _MOST_BUCKETS))
    shutil.rmtree(folder, ignore_errors=True)
    make_private_folder(folder)
    with disk_errors(folder):
        buckets = _spread(source, columns, places, size, folder)
        _write(target, (_sorted(file, columns) for file in buckets))
    shutil.rmtree(folder, ignore_errors=True)


def _spread(source: Source, columns: list[str], places: Array, size: int, folder: Path) -> list[Path]:
    """Write chosen rows, with their places, to buckets of `size` places each."""
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    start = 0
    with ExitStack() as stack:
        for batch in table_batches(source, columns, text=columns):
            rows = batch.rows
            here = places[start : start + rows.num_rows]
            if len(here) < rows.num_rows:
                raise InputError(f"{source} was changed while its rows were aligned: choose a new align.name")
            start += rows.num_rows
            named = pa.record_batch([*rows.columns, pa.array(here)], [*map(str, range(len(columns))), _PLACE])
            for number in np.unique(here[here >= 0] // size).tolist():
                part = named.filter(pa.array(here // size == number))
                if number not in writers:
                    writers[number] = stack.enter_context(pa.ipc.new_stream(str(folder / str(number)), part.schema))
                writers[number].write_batch(part)
    if start != len(places):
        raise InputError(f"{source} was changed while its rows were aligned: choose a new align.name")
    return [folder / str(number) for number in sorted(writers)]


def _sorted(file: Path, columns: list[str]) -> pa.Table:
    """The rows of a bucket in order, with the source's names of columns."""
    with pa.ipc.open_stream(pa.memory_map(str(file))) as reader:
        table = reader.read_all()
    table = table.take(pa.array(np.argsort(table.column(_PLACE).to_numpy())))
    return table.drop_columns([_PLACE]).rename_columns(columns)


def _write(target: Path, tables: Iterator[pa.Table]) -> None:
    with atomic_write(target) as part, ExitStack() as stack:
        writer = None
        for table in tables:
            if writer is None:
                kind = pa.csv.CSVWriter if target.suffix == ".csv" else pa.parquet.ParquetWriter
                writer = stack.enter_context(kind(str(part), table.schema))
            writer.write_table(table)


def own_columns(name: str, id_column: str | None, ids: pa.ChunkedArray) -> pa.Table:
    """Return all columns of these rows of a source but the id, which stands first in a result; texts as they are.

    `ids` are in the order of the source's rows; without an id column they are the rows' numbers from 0.
    """
    source = Source(name, find_files(name))
    if format_of(source.files[0]) in ("npz", "svmlight"):
        raise InputError(f"{source.files[0]} has no columns with names: leave out --with-columns")
    columns = table_columns(source.files[0])
    wanted, found, start = _as_text(ids), [], 0
    for batch in table_batches(source, columns, text=columns):
        rows = batch.rows
        numbers = pa.array(np.arange(start, start + rows.num_rows))
        here = _as_text(numbers if id_column is None else rows.column(id_column))
        chosen = pc.is_in(here, value_set=wanted)
        kept = pa.table([here, *rows.columns], ["", *map(str, range(len(columns)))]).filter(chosen)
        found.append(kept)
        start += rows.num_rows
    table = pa.concat_tables(found, promote_options="permissive") if found else pa.table({"": wanted.slice(0, 0)})
    if not table.column("").combine_chunks().equals(wanted):
        raise InputError(f"{source} does not have the rows of the result, each once: it was changed since")
    others = [i for i, column in enumerate(columns) if column != id_column]
    return table.select([str(i) for i in others]).rename_columns([columns[i] for i in others])


def _as_text(ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Ids as text, whatever type a file has for them."""
    plain = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    plain = plain.dictionary_decode() if pa.types.is_dictionary(plain.type) else plain
    return plain.cast(pa.large_string())
