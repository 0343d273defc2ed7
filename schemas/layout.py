"""Who owns which rows and columns: a block layout, cut into shards of rows; centroids are cut into shards of columns.

Vertical: all parties have the same rows, each its own columns. Horizontal: all have the same columns, each its own
rows; then a shard's rows belong to one party, and the others own no column of it. Every stage works on blocks, so it
is written once for both.
"""

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class ShardShape:
    """One shard: how many rows it has, and how many columns of them each party owns.

    `start` is the first column of a shard of columns, where it matters who owns them.
    """

    rows: int
    widths: tuple[int, ...] = ()
    start: int = 0

    def columns(self, party: int) -> slice:
        """Which of all d columns `party` owns here."""
        ends = (0, *accumulate(self.widths))
        return slice(ends[party], ends[party + 1])


@dataclass(frozen=True)
class RowShard:
    """A shard among all, as its owner numbers it: the `index`-th of `owner`'s own (vertical: of everyone's)."""

    owner: int | None
    index: int
    block: ShardShape


@dataclass(frozen=True)
class Layout:
    """`rows` and `features` of each party, in their order; vertical: as many rows for all, horizontal: columns."""

    vertical: bool
    rows: tuple[int, ...]
    features: tuple[int, ...]
    rows_per_shard: int

    @property
    def parties(self) -> int:
        return len(self.rows)

    @property
    def total_rows(self) -> int:
        """n."""
        return self.rows[0] if self.vertical else sum(self.rows)

    @property
    def total_features(self) -> int:
        """d."""
        return sum(self.features) if self.vertical else self.features[0]

    def own_columns(self, party: int) -> slice:
        """The columns of which a party has values."""
        if not self.vertical:
            return slice(0, self.total_features)
        return ShardShape(0, self.features).columns(party)

    def own_within(self, party: int, columns: slice) -> slice:
        """Which of some columns a party has values of; an empty slice where it has none of them."""
        own = self.own_columns(party)
        start = max(columns.start, own.start)
        return slice(start, max(start, min(columns.stop, own.stop)))

    def row_shards(self) -> list[RowShard]:
        """All shards; horizontally, the first party's come first."""
        if self.vertical:
            return [RowShard(None, i, ShardShape(n, self.features)) for i, n in enumerate(self._cut(self.rows[0]))]
        return [
            RowShard(owner, i, ShardShape(n, tuple(self.features[0] if p == owner else 0 for p in range(self.parties))))
            for owner, rows in enumerate(self.rows)
            for i, n in enumerate(self._cut(rows))
        ]

    def find_row(self, row: int) -> tuple[int | None, int]:
        """The owner of a row, counted over all parties' rows in their order, and its number there."""
        if self.vertical:
            return None, row
        for owner, rows in enumerate(self.rows):
            if row < rows:
                return owner, row
            row -= rows
        raise IndexError(f"there are only {self.total_rows:,} rows")

    def _cut(self, rows: int) -> list[int]:
        return shard_lengths(rows, self.rows_per_shard)


def shard_lengths(rows: int, rows_per_shard: int) -> list[int]:
    """The lengths of the shards of so many rows."""
    return [min(rows_per_shard, rows - start) for start in range(0, rows, rows_per_shard)]


VALUES_PER_COLUMN_SHARD = 262_144
"""A shard of columns has at most so many of the k × d values, or one column."""


def columns_per_shard(k: int) -> int:
    """How many columns of k centroids make a shard, whoever owns them."""
    return max(1, VALUES_PER_COLUMN_SHARD // k)


def column_slices(columns: int, size: int) -> list[slice]:
    """The shards of so many columns."""
    return [slice(start, min(start + size, columns)) for start in range(0, columns, size)]
