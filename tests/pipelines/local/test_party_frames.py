"""Data in memory as the parties' files: accepted types, splitting, and refused data."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.pipelines.local.party_frames import (
    PartyFrame,
    PartyFrames,
    check_columns,
    frame_from_array,
    frame_from_table,
    is_frame,
    split_frame,
)
from veilmeans.schemas.errors import InputError

TABLE = pa.table({"age": [31, 42, 53], "paid": [1.5, 2.5, 3.5], "card": ["visa", "amex", "visa"]})


class Streams:
    """A frame with the Arrow protocol only, such as one of polars."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Interchanges:
    """A frame with the data frame protocol only."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        return self.table.__dataframe__(nan_as_null, allow_copy)


FRAMES = [
    TABLE,
    TABLE.to_batches()[0],
    TABLE.to_pandas().set_index(pd.Index([7, 8, 9])),
    TABLE.to_pandas().astype({"card": "category"}),
    Streams(TABLE),
    Interchanges(TABLE),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_frames_of_all_kinds_become_one_table(frame: Any, tmp_path: Path) -> None:
    assert is_frame(frame)
    made = frame_from_table(frame, "X")
    assert (made.rows, made.columns, made.categories) == (3, tuple(TABLE.column_names), {"card": ("amex", "visa")})
    assert made.write(tmp_path) == "data.parquet"
    assert pa.parquet.read_table(tmp_path / "data.parquet").to_pylist() == TABLE.to_pylist()


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"a": [1.0, None]}, "X .*'a', row 1"),
        ({"a": [float("inf"), 1.0]}, "X .*'a', row 0"),
        ({"a": [1, 2], "b": ["x", ""]}, "X .*'b', row 1"),
        ({"a": pd.to_datetime(["2020-01-01", "2020-01-02"])}, "'a' holds timestamp"),
        ({"a": [1, "x"]}, "X cannot be read"),
        ({"a": [1j, 2j]}, "X cannot be read"),
        ({"a": []}, "X has 0 rows"),
    ],
)
def test_data_other_than_numbers_and_text_are_refused(columns: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        frame_from_table(pd.DataFrame(columns), "X")


def test_two_columns_of_the_same_name_are_refused() -> None:
    with pytest.raises(InputError, match="column 'a'"):
        frame_from_table(pa.table([[1], [2]], names=["a", "a"]), "X")


def test_sparse_matrices_stay_sparse_and_come_back(tmp_path: Path) -> None:
    values = np.array([[0, 2.0, 0], [1, 0, 0]])
    made = frame_from_array(scipy.sparse.coo_array(values))
    assert (made.sparse, made.nonzeros, made.columns) == (True, 1.0, ("0", "1", "2"))
    assert made.write(tmp_path) == "data.npz"
    np.testing.assert_array_equal(scipy.sparse.load_npz(tmp_path / "data.npz").toarray(), values)
    dense = made.as_sparse(sparse=False)
    assert not dense.sparse
    np.testing.assert_array_equal(dense.as_sparse(sparse=True).data.toarray(), values)


@given(st.integers(2, 4), st.integers(0, 5), st.booleans(), st.booleans())
def test_a_split_keeps_all_values_in_order(parties: int, more: int, vertical: bool, sparse: bool) -> None:
    size = parties + more
    values = np.arange(1, 3 * size + 1, dtype=float).reshape((3, size) if vertical else (size, 3))
    frame = frame_from_array(scipy.sparse.csr_array(values) if sparse else values)
    split = split_frame(frame, [f"p{i}" for i in range(parties)], vertical)
    found = [each.as_sparse(sparse=True).data.toarray() for each in split.by_party.values()]
    np.testing.assert_array_equal((np.hstack if vertical else np.vstack)(found), values)
    sizes = [each.shape[vertical] for each in found]
    assert max(sizes) - min(sizes) <= 1


def test_the_parties_data_must_match() -> None:
    two, three = frame_from_array(np.ones((2, 2))), frame_from_array(np.ones((3, 2)))
    with pytest.raises(InputError, match="a has 2 rows and b 3"):
        PartyFrames({"a": two, "b": three}, vertical=True)
    assert PartyFrames({"a": two, "b": three}, vertical=False).rows == {"a": 2, "b": 3}
    with pytest.raises(InputError, match="b has 1 columns"):
        PartyFrames({"a": two, "b": frame_from_array(np.ones((3, 1)))}, vertical=False)
    with pytest.raises(InputError, match="column 1 of b"):
        check_columns("b", ("0", "y"), ("0", "x"), "why")
    with pytest.raises(InputError, match="X has data of a"):
        PartyFrames({"a": two}, vertical=True)
    with pytest.raises(InputError, match="n_features=2"):
        split_frame(two, "abc", vertical=True)


def test_text_counts_as_its_one_hot_columns() -> None:
    first, second = PartyFrame(pa.table({"c": ["x", "y"]})), PartyFrame(pa.table({"c": ["z", "x"]}))
    vertical, horizontal = (PartyFrames({"a": first, "b": second}, way) for way in (True, False))
    assert (vertical.features, vertical.encoding("b")) == ({"a": 2, "b": 2}, {"one_hot": ["c"]})
    assert (horizontal.features, horizontal.encoding("b")) == (3, {"categories": {"c": ["x", "y", "z"]}})
    assert (vertical.columns, horizontal.columns) == (["a.c", "b.c"], ["c"])
