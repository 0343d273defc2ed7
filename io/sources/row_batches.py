"""The rows of a source in numbers, in batches: dense columns, and sparse ones of 0 and 1 from categories and lists."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilmeans.io.sources.column_encoding import HOT, ColumnEncoding, columns_of_kind
from veilmeans.io.sources.row_digest import RowDigest
from veilmeans.io.sources.source_files import Source
from veilmeans.io.sources.sparse_matrices import matrix_batches
from veilmeans.io.sources.tables import TableBatch, table_batches
from veilmeans.io.storage.encoded_shards import UNKNOWN
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import InputError

if TYPE_CHECKING:
    import scipy.sparse

Positions = tuple[NDArray[np.int64], NDArray[np.int64]]  # row, and column within the field, of each 1; ascending
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
_CATEGORIES = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows in numbers; `start`: how many rows of the file come before them.

    The columns `at` are in `dense` (rows × their number), all others in `sparse` (rows × d).
    """

    file: str
    start: int
    at: NDArray[np.intp]
    dense: Real
    sparse: "scipy.sparse.csr_array | None" = None
    ids: pa.Array | None = None
    labels: NDArray[np.uint8] | None = None

    def place(self, row: int, column: str) -> str:
        """Name the place of a value; rows count from 1."""
        return f"{self.file}, row {self.start + row + 1:,}, column {column!r}"


def row_batches(
    source: Source,
    fields: Sequence[ColumnEncoding],
    id_column: str | None,
    digest: RowDigest | None = None,
    label: str | None = None,
) -> Iterator[RowBatch]:
    """Read the rows of a source whose fields are known; `label`: its column of labels."""
    if fields[0].kind == "matrix":
        return _matrix_rows(source, fields[0], digest)
    batches = checked_batches(source, fields, id_column, digest, label)
    return (encode_table(batch, fields, id_column, label) for batch in batches)


def checked_batches(
    source: Source,
    fields: Sequence[ColumnEncoding],
    id_column: str | None,
    digest: RowDigest | None = None,
    label: str | None = None,
) -> Iterator[TableBatch]:
    """Read the rows of a table; the ids are checked, nothing else."""
    names, text = [field.name for field in fields], [field.name for field in fields if field.kind == "one_hot"]
    names += [] if label is None else [label]
    first: TableBatch | None = None
    for batch in table_batches(source, names, id_column, numbers=True, text=text, digest=digest):
        if id_column is not None:
            first = first or batch
            _check_ids(first, batch, id_column)
        yield batch


def encode_table(
    batch: TableBatch, fields: Sequence[ColumnEncoding], id_column: str | None, label: str | None = None
) -> RowBatch:
    """Encode a batch of a table; a field whose categories are not known yet gives no columns."""
    numbers = [field for field in fields if field.kind == "number"]
    at = np.flatnonzero(columns_of_kind(fields, "number"))
    ids = None if id_column is None else batch.rows.column(id_column)
    labels = None if label is None else read_labels(batch, label)
    values = _number_columns(batch, numbers), _hot_columns(batch, fields)
    return RowBatch(batch.file, batch.start, at, *values, ids, labels)


def read_labels(batch: TableBatch, name: str) -> NDArray[np.uint8]:
    """Read the labels of a batch: 0, 1, or UNKNOWN where there is none."""
    column = batch.rows.column(name)
    if not (pa.types.is_null(column.type) or any(is_number(column.type) for is_number in _NUMBERS)):
        what = f"{batch.file}, column {name!r} holds {column.type}"
        raise InputError(f"{what}, and a label (kmeans.label) must be 0 or 1")
    values: Real = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    bad = ~(np.isnan(values) | (values == 0) | (values == 1))
    if bad.any():
        place = batch.place(int(bad.argmax()), name)
        raise InputError(f"{place}: a label (kmeans.label) must be 0, 1, or nothing where it is unknown")
    return np.where(np.isnan(values), UNKNOWN, values).astype(np.uint8)


def count_categories(batch: TableBatch, field: ColumnEncoding) -> Counter[str]:
    """Count the values of a field in a batch."""
    counted = pc.value_counts(pc.drop_null(_text(batch, field)))
    return Counter(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))


def sort_categories(values: Sequence[str]) -> tuple[str, ...]:
    """Sort integers by their size, text by its letters."""
    try:
        return tuple(sorted(values, key=int))
    except ValueError:
        return tuple(sorted(values))


def _matrix_rows(source: Source, field: ColumnEncoding, digest: RowDigest | None) -> Iterator[RowBatch]:
    at = np.empty(0, np.intp)
    for batch in matrix_batches(source, field.width, field.base, field.chosen, digest):
        yield RowBatch(batch.file, batch.start, at, np.empty((batch.rows.shape[0], 0)), batch.rows)


# Numbers.
def _number_columns(batch: TableBatch, fields: Sequence[ColumnEncoding]) -> Real:
    """Return the fields that are numbers (rows × fields), each value checked."""
    values = np.empty((len(fields), batch.rows.num_rows))
    for i, field in enumerate(fields):
        values[i] = _number_column(batch, field)
    return values.T


def _number_column(batch: TableBatch, field: ColumnEncoding) -> Real:
    column, name = batch.rows.column(field.name), field.name
    kind = column.type
    if not any(is_number(kind) for is_number in _NUMBERS):
        what = f"{batch.file}, column {name!r} holds {kind}, and numbers are needed"
        raise InputError(f"{what}: correct it, or leave it out of the columns; see `veilmeans inspect`")
    _check_missing(batch, field, column)
    values: Real = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    bad = np.isinf(values) if field.missing != "error" else ~np.isfinite(values)
    if bad.any():
        raise InputError(f"{batch.place(int(bad.argmax()), name)}: no finite number")
    return values if field.fill is None else np.where(np.isnan(values), field.fill, values)


# Columns of 0 and 1.
def _hot_columns(batch: TableBatch, fields: Sequence[ColumnEncoding]) -> "scipy.sparse.csr_array | None":
    """Return the columns of 0 and 1 among all columns (rows × d); None if there are none."""
    rows, columns, first = [], [], 0
    for field in fields:
        if field.kind in HOT and field.width:
            row, column = _one_hot(batch, field) if field.kind == "one_hot" else _multi_hot(batch, field)
            rows.append(row)
            columns.append(column + first)
        first += field.width
    if not rows:
        return None
    import scipy.sparse

    positions = np.concatenate(rows), np.concatenate(columns)
    return scipy.sparse.csr_array((np.ones(len(positions[0])), positions), shape=(batch.rows.num_rows, first))


def _one_hot(batch: TableBatch, field: ColumnEncoding) -> Positions:
    text = _text(batch, field)
    codes = pc.index_in(text, value_set=pa.array(field.values, pa.large_string()))
    if field.unseen == "error":
        unseen = pc.and_(codes.is_null(), text.is_valid())
        if pc.any(unseen).as_py():
            place = batch.place(pc.index(unseen, True).as_py(), field.name)
            raise InputError(f"{place}: none of its categories; add it to kmeans.categories, or set kmeans.unseen")
    valid = codes.is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(valid), pc.drop_null(codes).to_numpy(zero_copy_only=False).astype(np.int64)


def _text(batch: TableBatch, field: ColumnEncoding) -> pa.Array:
    """Return the values of a field as text; null where one is missing."""
    column = batch.rows.column(field.name)
    if not any(is_category(column.type) for is_category in _CATEGORIES):
        what = f"{batch.file}, column {field.name!r} holds {column.type}"
        raise InputError(f"{what}, and categories must be text, integers or truth values")
    text = column.cast(pa.large_string())
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.large_string()), text)
    _check_missing(batch, field, text)
    return text


def _multi_hot(batch: TableBatch, field: ColumnEncoding) -> Positions:
    column = batch.rows.column(field.name)
    kind = column.type
    if not (any(is_list(kind) for is_list in _LISTS) and pa.types.is_integer(kind.value_type)):
        raise InputError(f"{batch.file}, column {field.name!r} holds {kind}, and lists of integers are needed")
    _check_missing(batch, field, column)
    rows, numbers = pc.list_parent_indices(column).to_numpy(), pc.list_flatten(column)
    inside = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, field.width))
    bad = ~pc.fill_null(inside, False).to_numpy(zero_copy_only=False)
    if bad.any():
        place = batch.place(int(rows[bad.argmax()]), field.name)
        raise InputError(f"{place}: its numbers must be from 0 to {field.width - 1:,}, see kmeans.multi_hot")
    positions = np.unique(rows * field.width + numbers.to_numpy().astype(np.int64))
    return positions // field.width, positions % field.width


# Checks.
def _check_missing(batch: TableBatch, field: ColumnEncoding, column: pa.Array) -> None:
    if field.missing == "error" and column.null_count:
        place = batch.place(pc.index(column.is_null(), True).as_py(), field.name)
        raise InputError(f"{place}: no value; fill it in, or set kmeans.missing to zero or mean")


def _check_ids(first: TableBatch, batch: TableBatch, name: str) -> None:
    """Check that ids have one type in all files and that none is missing."""
    ids, kind = batch.rows.column(name), first.rows.column(name).type
    if not (pa.types.is_integer(ids.type) or _is_text(ids.type)):
        raise InputError(f"{batch.file}, column {name!r} holds {ids.type}, and an id must be an integer or text")
    if ids.type != kind:
        raise InputError(f"the id {name!r} is {kind} in {first.file} and {ids.type} in {batch.file}: give it one type")
    missing = pc.fill_null(pc.equal(ids, ""), True) if _is_text(ids.type) else ids.is_null()
    if pc.any(missing).as_py():
        raise InputError(f"{batch.place(pc.index(missing, True).as_py(), name)}: no id")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
