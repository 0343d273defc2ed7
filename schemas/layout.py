"""The layout of the data: which party owns which rows and columns, in row shards; centroids are in column shards.

Vertical: all parties have the same rows, each its own columns. Horizontal: all have the same columns, each its own
rows; then the rows of a shard belong to one party, and the others own no column of it. Every stage works on shards, so
it is written once for both layouts.

A triple store may be made for more rows than a run has, its capacity. The shards have the store's shapes then: those
without a row are left out, and the last one of an owner is filled up with rows of weight 0, its padding.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate


@dataclass(frozen=True)
class ShardShape:
    """The shape of one shard: its number of rows, and how many of the columns each party owns.

    `start` is the first column of a column shard, where ownership matters.
    """

    rows: int
    widths: tuple[int, ...] = ()
    start: int = 0

    def columns(self, party: int) -> slice:
        """The columns that `party` owns, of all d."""
        ends = (0, *accumulate(self.widths))
        return slice(ends[party], ends[party + 1])


@dataclass(frozen=True)
class RowShard:
    """One row shard: the `index`-th of its owner; in the vertical layout all parties own it (`owner` is None).

    `number`: its number among all shards of the triple store. `padding`: so many of its last rows are padding.
    """

    owner: int | None
    index: int
    shape: ShardShape
    number: int
    padding: int = 0

    @property
    def rows(self) -> int:
        """The rows that are data."""
        return self.shape.rows - self.padding


@dataclass(frozen=True)
class Layout:
    """The number of rows and of columns of each party, in the parties' order.

    Vertical: all parties have the same number of rows. Horizontal: all have the same number of columns. `capacity`: the
    rows of each party that the triple store was made for, at least as many; empty: the rows themselves.
    """

    vertical: bool
    rows: tuple[int, ...]
    features: tuple[int, ...]
    rows_per_shard: int
    capacity: tuple[int, ...] = ()

    def at_capacity(self) -> "Layout":
        """The layout of the largest run that the triple store serves."""
        return replace(self, rows=self.capacity or self.rows, capacity=())

    def with_padding(self) -> "Layout":
        """The layout in which padding counts as rows: its shards have the same shapes, and numbers without gaps."""
        size = self.rows_per_shard
        filled = zip(self.rows, self.capacity or self.rows, strict=True)
        return replace(self, rows=tuple(min(most, -(-rows // size) * size) for rows, most in filled), capacity=())

    @property
    def parties(self) -> int:
        """M, the number of parties."""
        return len(self.rows)

    @property
    def total_rows(self) -> int:
        """n, the number of rows of all parties together."""
        return self.rows[0] if self.vertical else sum(self.rows)

    @property
    def total_features(self) -> int:
        """d, the number of columns of all parties together."""
        return sum(self.features) if self.vertical else self.features[0]

    def own_columns(self, party: int) -> slice:
        """The columns of which a party has the values."""
        if not self.vertical:
            return slice(0, self.total_features)
        return ShardShape(0, self.features).columns(party)

    def own_columns_within(self, party: int, columns: slice) -> slice:
        """The columns within `columns` of which a party has the values; an empty slice if there are none."""
        own = self.own_columns(party)
        start = max(columns.start, own.start)
        return slice(start, max(start, min(columns.stop, own.stop)))

    def row_shards(self) -> list[RowShard]:
        """All row shards that have rows; in the horizontal layout ordered by party."""
        owners: tuple[int | None, ...] = (None,) if self.vertical else tuple(range(self.parties))
        shards, number = list[RowShard](), 0
        for owner, rows, capacity in zip(owners, self.rows, self.capacity or self.rows, strict=False):
            for index, length in enumerate(shard_lengths(capacity, self.rows_per_shard)):
                filled = min(length, rows - index * self.rows_per_shard)
                if filled > 0:
                    shape = ShardShape(length, self._widths(owner))
                    shards.append(RowShard(owner, index, shape, number, length - filled))
                number += 1
        return shards

    def row_shard(self, number: int) -> RowShard:
        """The row shard of a number."""
        return _by_number(self)[number]

    def row_shard_numbers(self) -> list[int]:
        """The numbers of all row shards that have rows, ascending."""
        return [shard.number for shard in self.row_shards()]

    def _widths(self, owner: int | None) -> tuple[int, ...]:
        """Count each party's columns of a row of this owner's."""
        if owner is None:
            return self.features
        return tuple(self.features[0] if party == owner else 0 for party in range(self.parties))

    def find_row(self, row: int) -> tuple[int | None, int]:
        """Find the owner of a row, counted over all parties' rows in their order, and its number at the owner."""
        if self.vertical:
            return None, row
        for owner, rows in enumerate(self.rows):
            if row < rows:
                return owner, row
            row -= rows
        raise IndexError(f"there are only {self.total_rows:,} rows")


@lru_cache(maxsize=8)
def _by_number(layout: Layout) -> dict[int, RowShard]:
    return {shard.number: shard for shard in layout.row_shards()}


def shard_lengths(rows: int, rows_per_shard: int) -> list[int]:
    """The lengths of the row shards of so many rows."""
    return [min(rows_per_shard, rows - start) for start in range(0, rows, rows_per_shard)]


def columns_per_shard(k: int, values_per_shard: int) -> int:
    """Count the columns of a column shard: at most `values_per_shard` of the k × d values, and at least one column."""
    return max(1, values_per_shard // k)


def column_slices(columns: int, size: int) -> list[slice]:
    """The column shards of so many columns."""
    return [slice(start, min(start + size, columns)) for start in range(0, columns, size)]
