"""The digest of a source's rows: the same for any batches, another for any other rows."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.io.sources.row_digest import RowDigest

COLUMNS: dict[str, list[Any]] = {
    "integers": [1, None, 2**62 + 1, 0],
    "numbers": [0.5, None, math.nan, -1.0],
    "text": ["ab", None, "", "c"],
    "truth": [True, None, False, True],
    "lists": [[1, 2], None, [], [3]],
}


def digest(table: pa.Table, cuts: tuple[int, ...] = ()) -> str:
    """Return the digest of a table that is added in batches."""
    result = RowDigest()
    ends = [0, *cuts, table.num_rows]
    for first, last in pairwise(ends):
        for batch in table.slice(first, last - first).combine_chunks().to_batches():
            result.add_table(batch)
    return result.hexdigest()


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("cuts", [(1,), (2,), (1, 2, 3)], ids=str)
def test_batches_of_any_size_have_the_same_digest(name: str, cuts: tuple[int, ...]) -> None:
    table = pa.table({name: COLUMNS[name]})
    assert digest(table, cuts) == digest(table)


@pytest.mark.parametrize("name", COLUMNS)
def test_another_value_another_order_and_one_row_more_have_another_digest(name: str) -> None:
    values = COLUMNS[name]
    others = [[values[3], *values[1:]], values[::-1], [*values, values[0]], [values[0], values[3], *values[2:]]]
    digests = {digest(pa.table({name: each})) for each in [values, *(each for each in others if each != values)]}
    assert len(digests) == 1 + sum(each != values for each in others)


def test_values_may_not_move_from_one_text_or_list_to_the_next() -> None:
    assert digest(pa.table({"a": ["ab", "c"]})) != digest(pa.table({"a": ["a", "bc"]}))
    assert digest(pa.table({"a": [[1, 2], [3]]})) != digest(pa.table({"a": [[1], [2, 3]]}))
    assert digest(pa.table({"a": [1], "b": [2]})) != digest(pa.table({"a": [2], "b": [1]}))


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=4, max_size=4), min_size=1, max_size=6))
def test_a_matrix_has_the_same_digest_in_batches_of_any_size(rows: list[list[float]]) -> None:
    matrix = np.array(rows)

    def of(*parts: Any) -> str:
        result = RowDigest()
        for part in parts:
            row, column = np.nonzero(part)
            result.add_matrix(np.bincount(row, minlength=len(part)), column, part[row, column])
        return result.hexdigest()

    assert of(matrix) == of(*np.array_split(matrix, 2)) == of(*matrix[:, None])
    assert of(matrix) != of(matrix + 1)
    assert of(matrix) != of(np.vstack([matrix, np.zeros(4)]))
