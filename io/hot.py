"""Fields that become columns of 0 and 1: categories and lists of numbers, as the places of their ones."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilmeans.io.fields import Field
from veilmeans.io.sources import Block
from veilmeans.schemas.errors import InputError

Places = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Row and column, within the field, of each 1; ascending."""
_TEXT = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def ones(block: Block, field: Field) -> Places:
    """Where a field's ones are."""
    return _one_hot(block, field) if field.kind == "one_hot" else _multi_hot(block, field)


def categories(block: Block, field: Field) -> set[str]:
    """The values that a field has in a block."""
    found = pc.unique(_text(block, field)).to_pylist()
    return {value for value in found if value is not None}


def in_order(values: set[str]) -> tuple[str, ...]:
    """Whole numbers by their size, text by its letters."""
    try:
        return tuple(sorted(values, key=int))
    except ValueError:
        return tuple(sorted(values))


def _one_hot(block: Block, field: Field) -> Places:
    text = _text(block, field)
    codes = pc.index_in(text, value_set=pa.array(field.values, pa.large_string()))
    if field.unseen == "error":
        unseen = pc.and_(codes.is_null(), text.is_valid())
        if pc.any(unseen).as_py():
            place = block.place(pc.index(unseen, True).as_py(), field.name)
            raise InputError(f"{place}: none of its categories; add it to kmeans.categories, or set kmeans.unseen")
    valid = codes.is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(valid), pc.drop_null(codes).to_numpy(zero_copy_only=False).astype(np.int64)


def _text(block: Block, field: Field) -> pa.Array:
    """The values as text; null where there is none."""
    column = block.rows.column(field.name)
    if not any(holds(column.type) for holds in _TEXT):
        what = f"{block.file}, column {field.name!r} holds {column.type}"
        raise InputError(f"{what}, and categories must be text, whole numbers or truth values")
    text = column.cast(pa.large_string())
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.large_string()), text)
    _check_missing(block, field, text)
    return text


def _multi_hot(block: Block, field: Field) -> Places:
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


def _check_missing(block: Block, field: Field, column: pa.Array) -> None:
    if field.missing == "error" and column.null_count:
        place = block.place(pc.index(column.is_null(), True).as_py(), field.name)
        raise InputError(f"{place}: no value; fill it in, or let kmeans.missing (zero, mean) stand for it")
