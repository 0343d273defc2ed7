"""The layout: shards cover every row once, in order, and each has the columns of its owners."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.kmeans_in_memory import horizontal, vertical
from veilmeans.schemas.layout import Layout, RowShard, ShardShape, column_slices, columns_per_shard, shard_lengths

counts = st.lists(st.integers(1, 40), min_size=2, max_size=4)
per_shard = st.integers(1, 50)


@given(st.integers(1, 200), per_shard)
def test_all_shards_but_the_last_are_full(rows: int, size: int) -> None:
    *full, last = shard_lengths(rows, size)
    assert sum(full) + last == rows
    assert set(full) <= {size}
    assert 1 <= last <= size


def test_the_last_shard_may_have_one_row() -> None:
    assert shard_lengths(7, 3) == [3, 3, 1]
    assert shard_lengths(1, 3) == [1]
    assert shard_lengths(0, 3) == []
    assert [place.shape.rows for place in vertical(7, (1, 1), 3).row_shards()] == [3, 3, 1]


def test_vertical_shards_belong_to_all_and_each_owns_its_columns() -> None:
    layout = vertical(5, (2, 1, 3), 4)
    assert layout.row_shards() == [
        RowShard(None, 0, ShardShape(4, (2, 1, 3)), 0),
        RowShard(None, 1, ShardShape(1, (2, 1, 3)), 1),
    ]
    assert (layout.parties, layout.total_rows, layout.total_features) == (3, 5, 6)
    assert [layout.own_columns(i) for i in range(3)] == [slice(0, 2), slice(2, 3), slice(3, 6)]


def test_horizontal_shards_belong_to_one_party_that_owns_all_columns() -> None:
    layout = horizontal((3, 2), 4, 2)
    assert layout.row_shards() == [
        RowShard(0, 0, ShardShape(2, (4, 0)), 0),
        RowShard(0, 1, ShardShape(1, (4, 0)), 1),
        RowShard(1, 0, ShardShape(2, (0, 4)), 2),
    ]
    assert (layout.parties, layout.total_rows, layout.total_features) == (2, 5, 4)
    assert [layout.own_columns(i) for i in range(2)] == [slice(0, 4), slice(0, 4)]


def cells(layout: Layout) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """The number of owners of each value of the n × d table."""
    table = np.zeros((layout.total_rows, layout.total_features), np.int64)
    first = 0
    for place in layout.row_shards():
        for party in range(layout.parties):
            table[first : first + place.shape.rows, place.shape.columns(party)] += 1
        first += place.shape.rows
    assert first == layout.total_rows
    return table


@given(st.booleans(), counts, st.integers(1, 9), per_shard)
def test_every_value_has_one_owner(upright: bool, parts: list[int], other: int, size: int) -> None:
    layout = vertical(other, parts, size) if upright else horizontal(parts, other, size)
    assert (cells(layout) == 1).all()


@given(counts, per_shard)
def test_a_row_is_found_at_its_owner(parts: list[int], size: int) -> None:
    layout = horizontal(parts, 2, size)
    expected = [(owner, row) for owner, rows in enumerate(parts) for row in range(rows)]
    assert [layout.find_row(row) for row in range(layout.total_rows)] == expected
    with pytest.raises(IndexError):
        layout.find_row(layout.total_rows)


def test_a_row_of_a_vertical_table_belongs_to_all() -> None:
    assert vertical(9, (1, 2), 4).find_row(8) == (None, 8)


@given(counts, per_shard)
def test_a_partys_shards_are_numbered_from_zero(parts: list[int], size: int) -> None:
    layout = horizontal(parts, 3, size)
    for owner, rows in enumerate(parts):
        own = [place for place in layout.row_shards() if place.owner == owner]
        assert [place.index for place in own] == list(range(len(own)))
        assert [place.shape.rows for place in own] == shard_lengths(rows, size)


def test_columns_of_a_shard_follow_each_other() -> None:
    shape = ShardShape(3, (0, 2, 0, 1))
    assert [shape.columns(i) for i in range(4)] == [slice(0, 0), slice(0, 2), slice(2, 2), slice(2, 3)]


@given(st.integers(1, 200), per_shard)
def test_column_shards_have_every_column_once(columns: int, size: int) -> None:
    shards = column_slices(columns, size)
    assert [column for each in shards for column in range(columns)[each]] == list(range(columns))
    assert [each.stop - each.start for each in shards] == shard_lengths(columns, size)


@pytest.mark.parametrize(("k", "columns"), [(1, 262_144), (4, 65_536), (5, 52_428), (262_144, 1), (300_000, 1)])
def test_a_column_shard_has_at_most_so_many_values_or_one_column(k: int, columns: int) -> None:
    assert columns_per_shard(k, 262_144) == columns
