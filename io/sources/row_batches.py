"""Fields that become columns of 0 and 1: categories and lists of numbers, as the places of their ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.io.sources.column_encoding import HOT, ColumnEncoding, of_kind
from veilmeans.io.sources.sparse_matrices import matrix_blocks
from veilmeans.io.sources.tables import TableBatch, table_batches
from veilmeans.schemas.errors import InputError

Places = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Row and column, within the field, of each 1; ascending."""
_TEXT = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def ones(block: TableBatch, field: ColumnEncoding) -> Places:
    """Where a field's ones are."""
    return _one_hot(block, field) if field.kind == "one_hot" else _multi_hot(block, field)


def categories(block: TableBatch, field: ColumnEncoding) -> set[str]:
    """The values that a field has in a block."""
    found = pc.unique(_text(block, field)).to_pylist()
    return {value for value in found if value is not None}


def in_order(values: set[str]) -> tuple[str, ...]:
    """Whole numbers by their size, text by its letters."""
    try:
        return tuple(sorted(values, key=int))
    except ValueError:
        return tuple(sorted(values))


def _one_hot(block: TableBatch, field: ColumnEncoding) -> Places:
    text = _text(block, field)
    codes = pc.index_in(text, value_set=pa.array(field.values, pa.large_string()))
    if field.unseen == "error":
        unseen = pc.and_(codes.is_null(), text.is_valid())
        if pc.any(unseen).as_py():
            place = block.place(pc.index(unseen, True).as_py(), field.name)
            raise InputError(f"{place}: none of its categories; add it to kmeans.categories, or set kmeans.unseen")
    valid = codes.is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(valid), pc.drop_null(codes).to_numpy(zero_copy_only=False).astype(np.int64)


def _text(block: TableBatch, field: ColumnEncoding) -> pa.Array:
    """The values as text; null where there is none."""
    column = block.rows.column(field.name)
    if not any(holds(column.type) for holds in _TEXT):
        what = f"{block.file}, column {field.name!r} holds {column.type}"
        raise InputError(f"{what}, and categories must be text, whole numbers or truth values")
    text = column.cast(pa.large_string())
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.large_string()), text)
    _check_missing(block, field, text)
    return text


def _multi_hot(block: TableBatch, field: ColumnEncoding) -> Places:
    column = block.rows.column(field.name)
    kind = column.type
    if not (any(holds(kind) for holds in _LISTS) and pa.types.is_integer(kind.value_type)):
        what = f"{block.file}, column {field.name!r} holds {kind}"
        raise InputError(f"{what}, and lists of whole numbers are needed")
    _check_missing(block, field, column)
    rows, found = pc.list_parent_indices(column).to_numpy(), pc.list_flatten(column)
    inside = pc.and_(pc.greater_equal(found, 0), pc.less(found, field.width))
    bad = ~pc.fill_null(inside, False).to_numpy(zero_copy_only=False)
    if bad.any():
        place = block.place(int(rows[bad.argmax()]), field.name)
        raise InputError(f"{place}: its numbers must be from 0 to {field.width - 1:,}, see kmeans.multi_hot")
    places = np.unique(rows * field.width + found.to_numpy().astype(np.int64))
    return places // field.width, places % field.width


def _check_missing(block: TableBatch, field: ColumnEncoding, column: pa.Array) -> None:
    if field.missing == "error" and column.null_count:
        place = block.place(pc.index(column.is_null(), True).as_py(), field.name)
        raise InputError(f"{place}: no value; fill it in, or let kmeans.missing (zero, mean) stand for it")


Floats = NDArray[np.float64]
_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)


@dataclass(frozen=True)
class RowBatch:
    """Some rows in numbers: the columns `at` in `dense` (rows × their number), all others in `sparse` (rows × d)."""

    file: str
    start: int
    at: NDArray[np.intp]
    dense: Floats
    sparse: "scipy.sparse.csr_array | None" = None
    ids: pa.Array | None = None

    def place(self, row: int, column: str) -> str:
        """Where a value is; rows count from 1."""
        return f"{self.file}, row {self.start + row + 1:,}, column {column!r}"


def row_batches(files: Sequence[str], fields: Sequence[ColumnEncoding], id: str | None) -> Iterator[RowBatch]:  # noqa: A002
    """The rows of a source whose fields are known."""
    if fields[0].kind == "matrix":
        return _matrix_cells(files, fields[0])
    return _table_cells(files, fields, id)


def _table_cells(files: Sequence[str], fields: Sequence[ColumnEncoding], id: str | None) -> Iterator[RowBatch]:  # noqa: A002
    plain = [field for field in fields if field.kind == "number"]
    at = np.flatnonzero(of_kind(fields, "number"))
    for block in table_blocks(files, fields, id):
        sparse = _ones(block, fields) if len(plain) < len(fields) else None
        ids = None if id is None else block.rows.column(id)
        yield RowBatch(block.file, block.start, at, numbers(block, plain), sparse, ids)


def table_blocks(files: Sequence[str], fields: Sequence[ColumnEncoding], id: str | None) -> Iterator[TableBatch]:  # noqa: A002
    """The blocks of a table, with the ids checked and nothing else."""
    names, text = [field.name for field in fields], [field.name for field in fields if field.kind == "one_hot"]
    return typed_ids(table_batches(files, names, id, numbers=True, text=text), id)


def _ones(block: TableBatch, fields: Sequence[ColumnEncoding]) -> "scipy.sparse.csr_array":
    """The columns of 0 and 1 among all (rows × d)."""
    rows, columns, first = [], [], 0
    for field in fields:
        if field.kind in HOT:
            row, column = ones(block, field)
            rows.append(row)
            columns.append(column + first)
        first += field.width
    places = np.concatenate(rows), np.concatenate(columns)
    return scipy.sparse.csr_array((np.ones(len(places[0])), places), shape=(block.rows.num_rows, first))


def _matrix_cells(files: Sequence[str], field: ColumnEncoding) -> Iterator[RowBatch]:
    at = np.empty(0, np.intp)
    for block in matrix_blocks(files, field.width, field.base, field.chosen):
        yield RowBatch(block.file, block.start, at, np.empty((block.rows.shape[0], 0)), block.rows)


def numbers(block: TableBatch, fields: Sequence[ColumnEncoding]) -> Floats:
    """Rows × fields, each value checked."""
    values = np.empty((len(fields), block.rows.num_rows))
    for i, field in enumerate(fields):
        values[i] = _column(block, field)
    return values.T


def _column(block: TableBatch, field: ColumnEncoding) -> Floats:
    column, name = block.rows.column(field.name), field.name
    kind = column.type
    if not any(holds(kind) for holds in _NUMERIC):
        what = f"{block.file}, column {name!r} holds {kind}, and numbers are needed"
        raise InputError(f"{what}: correct it, or leave it out of the columns; `veilmeans inspect` tells how")
    if column.null_count and field.missing == "error":
        place = block.place(pc.index(column.is_null(), True).as_py(), name)
        raise InputError(f"{place}: no value; fill it in, or let kmeans.missing (zero, mean) stand for it")
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    bad = np.isinf(values) if field.missing != "error" else ~np.isfinite(values)
    if bad.any():
        raise InputError(f"{block.place(int(bad.argmax()), name)}: no finite number")
    return values if field.fill is None else np.where(np.isnan(values), field.fill, values)


def typed_ids(found: Iterator[TableBatch], id: str | None) -> Iterator[TableBatch]:  # noqa: A002
    """The blocks, with ids of one type in all files and none missing."""
    first: TableBatch | None = None
    for block in found:
        if id is not None:
            first = first or block
            _check_ids(first, block, id)
        yield block


def _check_ids(first: TableBatch, block: TableBatch, name: str) -> None:
    ids, kind = block.rows.column(name), first.rows.column(name).type
    if not (pa.types.is_integer(ids.type) or _is_text(ids.type)):
        raise InputError(f"{block.file}, column {name!r} holds {ids.type}, and an id must be a whole number or text")
    if ids.type != kind:
        raise InputError(f"the id {name!r} is {kind} in {first.file} and {ids.type} in {block.file}: give it one type")
    missing = pc.fill_null(pc.equal(ids, ""), True) if _is_text(ids.type) else ids.is_null()
    if pc.any(missing).as_py():
        raise InputError(f"{block.place(pc.index(missing, True).as_py(), name)}: no id")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def id_bytes(ids: pa.Array) -> bytes:
    """Each id as text in UTF-8, after its length in eight bytes: 7 and "7" are alike, and no two lists are."""
    text = ids.cast(pa.large_string()).cast(pa.large_binary())
    lengths = pc.binary_length(text).to_numpy().astype("<i8")
    eight = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(lengths), [None, pa.py_buffer(lengths)])
    joined = pc.binary_join_element_wise(eight.cast(pa.large_binary()), text, pa.scalar(b"", pa.large_binary()))
    return bytes(joined.buffers()[2][: pc.sum(pc.binary_length(joined)).as_py()])
