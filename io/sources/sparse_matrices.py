"""Sparse matrices in batches of CSR rows: scipy's .npz archives and svmlight text. Nothing is made dense.

A batch has at most as many rows and, unless one row has more, nonzeros as the source's limits allow. Time is
proportional to the nonzeros.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from veilmeans.io.sources import npz
from veilmeans.io.sources.row_digest import RowDigest
from veilmeans.io.sources.source_files import Source, file_errors, format_of
from veilmeans.io.sources.svmlight import ParsedLines, read_lines
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import InputError

if TYPE_CHECKING:
    import scipy.sparse

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
ColumnRanges = Sequence[tuple[int, int]]  # first and one past the last of each range of columns


@dataclass(frozen=True)
class MatrixBatch:
    """Consecutive rows of a file; `start`: how many rows of that file come before them. Indices ascend and differ."""

    file: str
    start: int
    rows: "scipy.sparse.csr_array"


def is_matrix(file: str) -> bool:
    """Return whether a file holds a sparse matrix, and not a table."""
    with file_errors(file):
        return format_of(file) == "svmlight" or (format_of(file) == "npz" and npz.is_sparse(file))


def states_width(file: str) -> bool:
    """Return whether a file states how many columns it has: svmlight text does not."""
    return format_of(file) != "svmlight"


def matrix_width(files: Sequence[str]) -> int:
    """Return the number of columns of the matrices in all files."""
    widths = []
    for file in files:
        with file_errors(file):
            widths.append(npz.sparse_shape(file)[1])
        if widths[-1] != widths[0]:
            raise InputError(f"{files[0]} has {widths[0]:,} columns and {file} has {widths[-1]:,}: make them equal")
    return widths[0]


def matrix_batches(
    source: Source, width: int, base: int = 0, chosen: ColumnRanges = (), digest: RowDigest | None = None
) -> Iterator[MatrixBatch]:
    """Read the rows of all files in order (… × `width`), with the `chosen` columns or all.

    svmlight indices count from `base`. All rows are added to `digest`, with all columns and the indices of the file.
    """
    for file in source.files:
        with file_errors(file):
            start = 0
            is_text = format_of(file) == "svmlight"
            for rows in _svmlight_rows(source, file, width, base, chosen) if is_text else _npz_rows(source, file):
                if digest is not None:
                    digest.add_matrix(np.diff(rows.indptr), rows.indices + (base if is_text else 0), rows.data)
                yield MatrixBatch(file, start, select_columns(_check_finite(file, start, rows), chosen))
                start += rows.shape[0]


def parse_column_ranges(file: str, columns: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Parse numbers ("7") and ranges ("0-61", both ends included) of columns, in ascending order."""
    ranges: list[tuple[int, int]] = []
    for text in columns:
        match = _RANGE.fullmatch(text)
        if match is None:
            what = f"kmeans.columns must have numbers and ranges of them (7, 0-61), not {text!r}"
            raise InputError(f"{file} has columns without names: {what}")
        ranges.append((int(match[1]), int(match[2] or match[1]) + 1))
        before = ranges[-2][1] if len(ranges) > 1 else 0
        if not before <= ranges[-1][0] < ranges[-1][1] < 1 << 31:
            raise InputError(f"{file} has columns without names: kmeans.columns must ascend, and {text!r} does not")
    return tuple(ranges)


def select_columns(rows: "scipy.sparse.csr_array", chosen: ColumnRanges) -> "scipy.sparse.csr_array":
    """Select columns of a matrix; all of them if none is chosen."""
    if not chosen:
        return rows
    import scipy.sparse

    return scipy.sparse.hstack([rows[:, first:last] for first, last in chosen], format="csr")


def refuse_width(source: Source, width: int) -> None:
    """Raise the error of the first line of svmlight text with an index, counted from 0, that is not below `width`."""
    for _ in matrix_batches(source, width):
        pass


def _npz_rows(source: Source, file: str) -> Iterator["scipy.sparse.csr_array"]:
    matrix = npz.load_sparse(file, source.limits)
    for first, last in _batch_bounds(matrix.indptr, source.limits.cells):
        span = slice(int(matrix.indptr[first]), int(matrix.indptr[last]))
        indptr = matrix.indptr[first : last + 1] - matrix.indptr[first]
        values = matrix.data[span].astype(np.float64)
        rows = _csr(values, matrix.indices[span].astype(np.int32), indptr, matrix.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            rows.sum_duplicates()
        yield rows


def _batch_bounds(indptr: NDArray[np.int64], cells: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and one past the last of each batch."""
    first, rows = 0, len(indptr) - 1
    while first < rows:
        fitting = int(np.searchsorted(indptr, indptr[first] + cells, side="right")) - 1
        last = min(max(fitting, first + 1), first + cells, rows)
        yield first, last
        first = last


def _svmlight_rows(
    source: Source, file: str, width: int, base: int, chosen: ColumnRanges
) -> Iterator["scipy.sparse.csr_array"]:
    for lines in read_lines(file, source.limits):
        indices = lines.indices - base
        if chosen:
            width = max(chosen[-1][1], int(indices.max(initial=0)) + 1)
        _check_width(file, lines, indices, width)
        indptr = np.concatenate([[0], np.cumsum(lines.counts)])
        yield _csr(lines.values, indices.astype(np.int32), indptr, width)


def _check_width(file: str, lines: ParsedLines, indices: NDArray[np.int64], width: int) -> None:
    outside = (indices < 0) | (indices >= width)
    if outside.any():
        row = int(np.searchsorted(np.cumsum(lines.counts), int(outside.argmax()), side="right"))
        what = f"an index beyond the {width:,} columns of kmeans.features"
        raise InputError(f"{file}, line {int(lines.lines[row]):,}: {what}; correct one of them")


def _csr(values: Real, indices: NDArray[np.int32], indptr: NDArray[np.int64], width: int) -> "scipy.sparse.csr_array":
    import scipy.sparse

    return scipy.sparse.csr_array((values, indices, indptr.astype(np.int32)), shape=(len(indptr) - 1, width))


def _check_finite(file: str, start: int, rows: "scipy.sparse.csr_array") -> "scipy.sparse.csr_array":
    bad = ~np.isfinite(rows.data)
    if bad.any():
        position = int(bad.argmax())
        row = start + int(np.searchsorted(rows.indptr, position, side="right"))
        raise InputError(f"{file}, row {row:,}, column '{rows.indices[position]}': no finite number")
    return rows
