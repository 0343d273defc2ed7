"""What a pass over a source finds: its rows, its fields with their categories, and the statistics of all columns."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.io.sources.column_encoding import HOT, ColumnEncoding, names_of, of_kind
from veilmeans.io.sources.row_batches import RowBatch, categories, id_bytes, in_order, row_batches, table_blocks
from veilmeans.io.sources.sparse_matrices import lowest_index, matrix_blocks, refuse_width, tells_width
from veilmeans.schemas.errors import InputError

Floats = NDArray[np.float64]


def _with_categories(
    source: str,
    files: Sequence[str],
    asked: tuple[ColumnEncoding, ...],
    id: str | None,  # noqa: A002
) -> tuple[ColumnEncoding, ...]:
    """Categories that nobody declared are found in a pass of their own."""
    unknown = {field.name: field for field in asked if field.kind == "one_hot" and not field.values}
    if not unknown:
        return asked
    found: dict[str, set[str]] = {name: set() for name in unknown}
    for block in table_blocks(files, asked, id):
        for name, field in unknown.items():
            found[name] |= categories(block, field)
    for name, values in found.items():
        if not values:
            raise InputError(f"{source}, column {name!r} has no value at all: leave it out of the columns")
    known = {name: in_order(values) for name, values in found.items()}
    return tuple(
        replace(field, values=known[field.name], width=len(known[field.name])) if field.name in known else field
        for field in asked
    )


def _filled(fields: Sequence[ColumnEncoding], mean: Floats) -> tuple[ColumnEncoding, ...]:
    """The mean stands for what is missing, where it is asked for and not known."""
    first = np.cumsum([0, *(field.width for field in fields)])
    return tuple(
        replace(field, fill=float(mean[at])) if field.missing == "mean" and _unfilled(field) else field
        for at, field in zip(first, fields, strict=False)
    )


def _unfilled(field: ColumnEncoding) -> bool:
    return field.kind == "number" and field.fill is None


def _check(
    source: str, fields: Sequence[ColumnEncoding], bad: NDArray[np.bool_], what: str, colon: bool = False
) -> None:
    if bad.any():
        name = names_of(fields)[int(bad.argmax())]
        raise InputError(f"{source}, column {name!r}{':' * colon} {what}")


def _check_names(source: str, fields: Sequence[ColumnEncoding]) -> None:
    names = names_of(fields)
    if of_kind(fields, *HOT).any() and len(set(names)) < len(names):
        raise InputError(f"{source}: two columns would have one name after encoding; rename one of them")


@dataclass(frozen=True)
class Moments:
    """Statistics of the values that there are, per column; `squares` sums the squared distances to the mean."""

    rows: NDArray[np.int64]
    low: Floats
    high: Floats
    mean: Floats
    squares: Floats
    nonzeros: NDArray[np.int64]

    @classmethod
    def of(cls, values: Floats) -> "Moments":
        """Of dense rows; what is not a number is not there."""
        absent = np.isnan(values)
        if absent.any():
            return cls._of_some(values, absent)
        mean = values.mean(axis=0)
        squares = np.square(values - mean).sum(axis=0)
        rows = np.full(len(mean), len(values))
        return cls(rows, values.min(axis=0), values.max(axis=0), mean, squares, np.count_nonzero(values, axis=0))

    @classmethod
    def _of_some(cls, values: Floats, absent: NDArray[np.bool_]) -> "Moments":
        rows = (~absent).sum(axis=0)
        low, high = np.where(absent, np.inf, values).min(axis=0), np.where(absent, -np.inf, values).max(axis=0)
        mean = np.where(absent, 0, values).sum(axis=0) / np.maximum(rows, 1)
        squares = np.where(absent, 0, np.square(values - mean)).sum(axis=0)
        return cls(rows, low, high, mean, squares, np.count_nonzero(~absent & (values != 0), axis=0))

    @classmethod
    def of_sparse(cls, rows: "scipy.sparse.csr_array") -> "Moments":
        """The same, where zeros are not stored; time is proportional to what is."""
        (n, d), at, x = rows.shape, rows.indices, rows.data
        zeros = n - np.bincount(at, minlength=d)
        mean = np.bincount(at, x, minlength=d) / n
        low, high = np.where(zeros, 0, np.inf), np.where(zeros, 0, -np.inf)
        np.minimum.at(low, at, x)
        np.maximum.at(high, at, x)
        squares = np.bincount(at, np.square(x - mean[at]), minlength=d) + zeros * np.square(mean)
        return cls(np.full(d, n), low, high, mean, squares, np.bincount(at[x != 0], minlength=d))

    def merge(self, other: "Moments") -> "Moments":
        rows = self.rows + other.rows
        share = other.rows / np.maximum(rows, 1)
        apart = other.mean - self.mean
        return Moments(
            rows,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.mean + apart * share,
            self.squares + other.squares + np.square(apart) * (self.rows * share),
            self.nonzeros + other.nonzeros,
        )

    def put(self, at: NDArray[np.intp], other: "Moments") -> None:
        """In the places `at`, those of another."""
        for name, values in vars(self).items():
            values[at] = getattr(other, name)

    def columns(self, chosen: slice) -> "Moments":
        """Those of some columns."""
        return Moments(
            self.rows[chosen],
            self.low[chosen],
            self.high[chosen],
            self.mean[chosen],
            self.squares[chosen],
            self.nonzeros[chosen],
        )

    def mean_and_deviation(self, rows: int) -> tuple[Floats, Floats]:
        """Of `rows` rows, where the mean stands for what is not there.

        Those of a constant column are exact, whatever was lost in rounding.
        """
        constant = self.low == self.high
        deviation = np.sqrt(self.squares / rows)
        return np.where(constant, self.low, self.mean), np.where(constant & np.isfinite(deviation), 0, deviation)


@dataclass(frozen=True)
class ColumnStatistics:
    """The fields as the data have them, how many rows there are, their statistics, and a digest of the ids."""

    fields: tuple[ColumnEncoding, ...]
    rows: int
    moments: Moments
    mean: Floats
    deviation: Floats
    ids: str


def column_statistics(
    source: str,
    files: Sequence[str],
    asked: tuple[ColumnEncoding, ...],
    id: str | None,  # noqa: A002
    known: bool = False,
) -> ColumnStatistics:
    """Read the source once, or twice if there are categories to be found. `known`: nothing about the fields is."""
    ids = hashlib.sha256()
    with np.errstate(over="ignore", invalid="ignore"):
        if asked[0].kind == "matrix":
            look = _find_chosen if asked[0].chosen else _find_matrix
            fields, rows, moments = look(source, files, asked[0], known)
        else:
            fields = _with_categories(source, files, asked, id)
            rows, moments = _find_table(source, files, fields, id, ids)
        mean, deviation = moments.mean_and_deviation(rows)
    _check(source, fields, moments.rows == 0, "has no value at all: leave it out of the columns")
    _check_names(source, fields)
    what = "values are too large to be squared and summed; rescale them"
    _check(source, fields, ~np.isfinite(deviation), what, colon=True)
    return ColumnStatistics(
        _filled(fields, mean), rows, moments, mean, deviation, "" if id is None else ids.hexdigest()
    )


def _find_table(
    source: str,
    files: Sequence[str],
    fields: tuple[ColumnEncoding, ...],
    id: str | None,  # noqa: A002
    ids: "hashlib._Hash",
) -> tuple[int, Moments]:
    rows = 0
    moments: Moments | None = None
    for cells in row_batches(files, fields, id):
        here = _moments(cells, fields)
        moments = here if moments is None else moments.merge(here)
        rows += len(cells.dense)
        if cells.ids is not None:
            ids.update(id_bytes(cells.ids))
    return rows, _require_rows(source, moments)


def _moments(cells: RowBatch, fields: Sequence[ColumnEncoding]) -> Moments:
    """Columns of 0 and 1 have the range [0, 1], whatever there is of them."""
    if cells.sparse is None:
        return Moments.of(cells.dense)
    moments = Moments.of_sparse(cells.sparse)
    hot = of_kind(fields, *HOT)
    moments.low[hot], moments.high[hot] = 0, 1
    if len(cells.at):
        moments.put(cells.at, Moments.of(cells.dense))
    return moments


def _find_matrix(
    source: str, files: Sequence[str], field: ColumnEncoding, known: bool
) -> tuple[tuple[ColumnEncoding, ...], int, Moments]:
    """svmlight indices count from 1 if none is 0, which is known at the end: until then there is a column more."""
    more = 0 if known or tells_width(files[0]) else 1
    moments: Moments | None = None
    rows, lowest, highest = 0, field.width, -1
    for block in matrix_blocks(files, field.width + more, field.base):
        if not block.rows.shape[0]:
            continue
        here = Moments.of_sparse(block.rows)
        moments = here if moments is None else moments.merge(here)
        rows += block.rows.shape[0]
        lowest = min(lowest, int(block.rows.indices.min(initial=lowest)))
        highest = max(highest, int(block.rows.indices.max(initial=highest)))
    base = more if 0 < lowest <= highest else 0
    if highest - base >= field.width:
        refuse_width(files, field.width)
    chosen = _require_rows(source, moments).columns(slice(base, base + field.width))
    return (replace(field, base=field.base + base),), rows, chosen


def _find_chosen(
    source: str, files: Sequence[str], field: ColumnEncoding, known: bool
) -> tuple[tuple[ColumnEncoding, ...], int, Moments]:
    """Only some columns of a matrix: where indices count from must be known before they can be chosen."""
    base = field.base if known or tells_width(files[0]) else min(1, lowest_index(files))
    moments: Moments | None = None
    rows = 0
    for block in matrix_blocks(files, field.width, base, field.chosen):
        if block.rows.shape[0]:
            here = Moments.of_sparse(block.rows)
            moments = here if moments is None else moments.merge(here)
            rows += block.rows.shape[0]
    return (replace(field, base=base),), rows, _require_rows(source, moments)


def _require_rows(source: str, moments: Moments | None) -> Moments:
    if moments is None:
        raise InputError(f"{source} has no rows")
    return moments
