"""The statistics that one pass over a source collects: its rows, its fields with their categories, and all columns'.

Everything that is needed before the rows are encoded is collected in this pass: moments of each column, categories that
were not declared, the base of svmlight indices, digests of the rows and of the ids, and exact sums if they are asked
for. So a source is read once here, and once more to be encoded.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import ring
from veilmeans.crypto.wide_ring import add, to_integers, to_words
from veilmeans.io.sources.column_encoding import HOT, ColumnEncoding, Fields, columns_of_kind, encoded_names
from veilmeans.io.sources.row_batches import RowBatch, checked_batches, count_categories, encode_table, sort_categories
from veilmeans.io.sources.row_digest import RowDigest, text_bytes
from veilmeans.io.sources.source_files import Source
from veilmeans.io.sources.sparse_matrices import matrix_batches, refuse_width, select_columns, states_width
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import InputError

if TYPE_CHECKING:
    import scipy.sparse

ExactSums = Callable[[Real, Sequence[str]], ring.Ring]  # exact sums of named columns in Z_2^320; zeros add nothing


@dataclass(frozen=True)
class Moments:
    """Statistics of each column, without missing values; `squares`: the sum of squared distances to the mean."""

    rows: NDArray[np.int64]
    low: Real
    high: Real
    mean: Real
    squares: Real
    nonzeros: NDArray[np.int64]

    @classmethod
    def of(cls, values: Real) -> "Moments":
        """Compute the moments of dense rows; NaN counts as missing."""
        missing = np.isnan(values)
        if missing.any():
            return cls._of_incomplete(values, missing)
        mean = values.mean(axis=0)
        squares = np.square(values - mean).sum(axis=0)
        rows = np.full(len(mean), len(values))
        return cls(rows, values.min(axis=0), values.max(axis=0), mean, squares, np.count_nonzero(values, axis=0))

    @classmethod
    def _of_incomplete(cls, values: Real, missing: NDArray[np.bool_]) -> "Moments":
        rows = (~missing).sum(axis=0)
        low, high = np.where(missing, np.inf, values).min(axis=0), np.where(missing, -np.inf, values).max(axis=0)
        mean = np.where(missing, 0, values).sum(axis=0) / np.maximum(rows, 1)
        squares = np.where(missing, 0, np.square(values - mean)).sum(axis=0)
        return cls(rows, low, high, mean, squares, np.count_nonzero(~missing & (values != 0), axis=0))

    @classmethod
    def of_sparse(cls, rows: "scipy.sparse.csr_array") -> "Moments":
        """Compute the moments of sparse rows, in time proportional to the stored values."""
        (n, d), at, x = rows.shape, rows.indices, rows.data
        zeros = n - np.bincount(at, minlength=d)
        mean = np.bincount(at, x, minlength=d) / n
        low, high = np.where(zeros, 0, np.inf), np.where(zeros, 0, -np.inf)
        np.minimum.at(low, at, x)
        np.maximum.at(high, at, x)
        squares = np.bincount(at, np.square(x - mean[at]), minlength=d) + zeros * np.square(mean)
        return cls(np.full(d, n), low, high, mean, squares, np.bincount(at[x != 0], minlength=d))

    @classmethod
    def of_categories(cls, counts: Sequence[int], rows: int) -> "Moments":
        """Compute the moments of columns of 0 and 1, from how many ones there are in each."""
        n, ones = np.full(len(counts), rows), np.array(counts, np.int64)
        mean = np.asarray(ones / rows, np.float64)
        squares = mean * (1 - mean) * rows
        return cls(n, np.zeros(len(counts)), np.ones(len(counts)), mean, squares, ones)

    @classmethod
    def side_by_side(cls, several: Sequence["Moments"]) -> "Moments":
        """Join the moments of different columns."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*(vars(each).values() for each in several), strict=True)))

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both sets of rows."""
        rows = self.rows + other.rows
        weight = other.rows / np.maximum(rows, 1)
        difference = other.mean - self.mean
        return Moments(
            rows,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.mean + difference * weight,
            self.squares + other.squares + np.square(difference) * (self.rows * weight),
            self.nonzeros + other.nonzeros,
        )

    def put(self, at: NDArray[np.intp], other: "Moments") -> None:
        """Replace the moments of the columns `at`."""
        for name, values in vars(self).items():
            values[at] = getattr(other, name)

    def columns(self, chosen: slice) -> "Moments":
        """Return the moments of some columns."""
        return Moments(*(values[chosen] for values in vars(self).values()))

    def mean_and_deviation(self, rows: int) -> tuple[Real, Real]:
        """Compute mean and deviation over `rows` rows, with the mean for missing values.

        Those of a constant column are exact, whatever was lost in rounding.
        """
        constant = self.low == self.high
        deviation = np.sqrt(self.squares / rows)
        return np.where(constant, self.low, self.mean), np.where(constant & np.isfinite(deviation), 0, deviation)


@dataclass(frozen=True)
class ColumnStatistics:
    """The result of the pass: the fields as the data have them, the rows, their statistics and digests.

    `sums`: the exact sums of the fields that are numbers, with the mean for missing values; None if not asked for.
    """

    fields: Fields
    rows: int
    moments: Moments
    mean: Real
    deviation: Real
    content: str
    ids: str
    sums: ring.Ring | None = None


def collect_statistics(
    source: Source,
    fields: Fields,
    id_column: str | None,
    known: bool = False,
    exact_sums: ExactSums | None = None,
    label: str | None = None,
) -> ColumnStatistics:
    """Read the source once. `known`: the fields are those of earlier rows, so nothing about them is collected."""
    digest = RowDigest()
    with np.errstate(over="ignore", invalid="ignore"):
        if fields[0].kind != "matrix":
            read = _read_table(source, fields, id_column, digest, exact_sums, label)
        else:
            read = (_read_chosen if fields[0].chosen else _read_matrix)(source, fields[0], known, digest)
        mean, deviation = read.moments.mean_and_deviation(read.rows)
    _check(source, read.fields, read.moments.rows == 0, " has no value at all: leave it out of the columns")
    _check_names(source, read.fields)
    what = ": values are too large to be squared and summed; rescale them"
    _check(source, read.fields, ~np.isfinite(deviation), what)
    sums = None if read.sums is None or exact_sums is None else _with_missing(read, read.sums, mean, exact_sums)
    fields = _with_fill(read.fields, mean)
    return ColumnStatistics(fields, read.rows, read.moments, mean, deviation, digest.hexdigest(), read.ids, sums)


@dataclass(frozen=True)
class _Read:
    """The rows that were read: how many, the fields as they are now known, and the statistics."""

    fields: Fields
    rows: int
    moments: Moments
    ids: str = ""
    sums: ring.Ring | None = None


def _read_table(
    source: Source,
    fields: Fields,
    id_column: str | None,
    digest: RowDigest,
    exact_sums: ExactSums | None,
    label: str | None,
) -> _Read:
    """Read a table; categories that were not declared are collected, with their numbers."""
    undeclared = {field.name: field for field in fields if field.kind == "one_hot" and not field.values}
    counts: dict[str, Counter[str]] = {name: Counter() for name in undeclared}
    ids = hashlib.sha256()
    rows, moments, sums = 0, None, None
    for batch in checked_batches(source, fields, id_column, digest, label):
        encoded = encode_table(batch, fields, id_column, label)
        moments = _merge(moments, _moments_of(encoded, fields))
        rows += len(encoded.dense)
        if encoded.ids is not None:
            ids.update(text_bytes(encoded.ids))
        for name, field in undeclared.items():
            counts[name] += count_categories(batch, field)
        if exact_sums is not None:
            here = exact_sums(np.nan_to_num(encoded.dense), _number_names(fields))
            sums = here if sums is None else add(sums, here)
    moments = _require_rows(source, moments)
    if undeclared:
        fields, moments = _with_categories(source, fields, counts, rows, moments)
    return _Read(fields, rows, moments, "" if id_column is None else ids.hexdigest(), sums)


def _moments_of(batch: RowBatch, fields: Sequence[ColumnEncoding]) -> Moments:
    """Compute the moments of a batch; columns of 0 and 1 have the range [0, 1], even if one is constant."""
    if batch.sparse is None:
        return Moments.of(batch.dense)
    moments = Moments.of_sparse(batch.sparse)
    hot = columns_of_kind(fields, *HOT)
    moments.low[hot], moments.high[hot] = 0, 1
    if len(batch.at):
        moments.put(batch.at, Moments.of(batch.dense))
    return moments


def _with_categories(
    source: Source, fields: Sequence[ColumnEncoding], counts: Mapping[str, Counter[str]], rows: int, moments: Moments
) -> tuple[Fields, Moments]:
    """Insert the columns of categories that were collected."""
    columns, every, first = [], [], 0
    for field in fields:
        if field.name not in counts:
            every.append(field)
            columns.append(moments.columns(slice(first, first + field.width)))
            first += field.width
            continue
        counted = counts[field.name]
        if not counted:
            raise InputError(f"{source}, column {field.name!r} has no value at all: leave it out of the columns")
        values = sort_categories(tuple(counted))
        every.append(replace(field, values=values, width=len(values)))
        columns.append(Moments.of_categories([counted[value] for value in values], rows))
    return tuple(every), Moments.side_by_side(columns)


def _read_matrix(source: Source, field: ColumnEncoding, known: bool, digest: RowDigest) -> _Read:
    """Read all columns of a matrix.

    svmlight indices count from 1 if none is 0, which is known at the end: until then there is one column more.
    """
    more = 0 if known or states_width(source.files[0]) else 1
    moments: Moments | None = None
    rows, lowest, highest = 0, field.width, -1
    for batch in matrix_batches(source, field.width + more, field.base, digest=digest):
        if not batch.rows.shape[0]:
            continue
        moments = _merge(moments, Moments.of_sparse(batch.rows))
        rows += batch.rows.shape[0]
        lowest = min(lowest, int(batch.rows.indices.min(initial=lowest)))
        highest = max(highest, int(batch.rows.indices.max(initial=highest)))
    base = more if 0 < lowest <= highest else 0
    if highest - base >= field.width:
        refuse_width(source, field.width)
    chosen = _require_rows(source, moments).columns(slice(base, base + field.width))
    return _Read((replace(field, base=field.base + base),), rows, chosen)


def _read_chosen(source: Source, field: ColumnEncoding, known: bool, digest: RowDigest) -> _Read:
    """Read some columns of a matrix.

    svmlight indices count from 1 if none is 0, which is known at the end: until then there are statistics for both.
    """
    shifts = (0,) if known or states_width(source.files[0]) else (0, 1)
    ranges = {shift: [(first + shift, last + shift) for first, last in field.chosen] for shift in shifts}
    moments: dict[int, Moments] = {}
    rows, has_zero = 0, False
    for batch in matrix_batches(source, 0, field.base, [(0, field.chosen[-1][1] + max(shifts))], digest):
        if not batch.rows.shape[0]:
            continue
        for shift, chosen in ranges.items():
            here = Moments.of_sparse(select_columns(batch.rows, chosen))
            moments[shift] = _merge(moments.get(shift), here)
        rows += batch.rows.shape[0]
        has_zero = has_zero or bool((batch.rows.indices == 0).any())
    shift = 0 if has_zero else max(shifts)
    return _Read((replace(field, base=field.base + shift),), rows, _require_rows(source, moments.get(shift)))


def _merge(moments: Moments | None, here: Moments) -> Moments:
    return here if moments is None else moments.merge(here)


def _require_rows(source: Source, moments: Moments | None) -> Moments:
    if moments is None:
        raise InputError(f"{source} has no rows")
    return moments


def _with_fill(fields: Sequence[ColumnEncoding], mean: Real) -> Fields:
    """Set the mean for missing values, where it is asked for and not known."""
    first = np.cumsum([0, *(field.width for field in fields)])
    return tuple(
        replace(field, fill=float(mean[at]))
        if field.missing == "mean" and field.kind == "number" and field.fill is None
        else field
        for at, field in zip(first, fields, strict=False)
    )


def _with_missing(read: _Read, sums: ring.Ring, mean: Real, exact_sums: ExactSums) -> ring.Ring:
    """Add the mean to the exact sums, once for each missing value."""
    at = columns_of_kind(read.fields, "number")
    of_mean = exact_sums(mean[at][None], _number_names(read.fields))
    return add(sums, to_words(to_integers(of_mean) * (read.rows - read.moments.rows[at])))


def _number_names(fields: Sequence[ColumnEncoding]) -> list[str]:
    return [field.name for field in fields if field.kind == "number"]


def _check(source: Source, fields: Sequence[ColumnEncoding], bad: NDArray[np.bool_], what: str) -> None:
    if bad.any():
        name = encoded_names(fields)[int(bad.argmax())]
        raise InputError(f"{source}, column {name!r}{what}")


def _check_names(source: Source, fields: Sequence[ColumnEncoding]) -> None:
    names = encoded_names(fields)
    if columns_of_kind(fields, *HOT).any() and len(set(names)) < len(names):
        raise InputError(f"{source}: two columns would have one name after encoding; rename one of them")
