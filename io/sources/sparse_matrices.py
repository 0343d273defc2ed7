"""Sparse matrices, block by block in CSR form: scipy's .npz archives and svmlight text. Nothing is made dense.

A block has at most `BLOCK_CELLS` rows and, unless one row has more, nonzeros. Time is proportional to the nonzeros.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.io.sources import npz
from veilmeans.io.sources import source_files as data_files
from veilmeans.io.sources.source_files import kind_of, reading
from veilmeans.io.sources.svmlight import ParsedLines, read_lines
from veilmeans.schemas.errors import InputError


@dataclass(frozen=True)
class MatrixBlock:
    """Some rows of a matrix, and how many rows of that file come before them; indices ascend and differ."""

    file: str
    start: int
    rows: "scipy.sparse.csr_array"


def is_matrix(file: str) -> bool:
    """Whether a file holds a sparse matrix, and not a table."""
    with reading(file):
        return kind_of(file) == "svmlight" or (kind_of(file) == "npz" and npz.is_sparse(file))


def tells_width(file: str) -> bool:
    """Whether a file says how many columns there are: svmlight text does not."""
    return kind_of(file) != "svmlight"


def width_of(files: Sequence[str]) -> int:
    """How many columns the matrices of all files have."""
    widths = []
    for file in files:
        with reading(file):
            widths.append(npz.sparse_shape(file)[1])
        if widths[-1] != widths[0]:
            raise InputError(f"{files[0]} has {widths[0]:,} columns and {file} has {widths[-1]:,}: make them alike")
    return widths[0]


_RUN = re.compile(r"([0-9]+)(?:-([0-9]+))?")
ColumnRanges = Sequence[tuple[int, int]]
"""First and one past the last of each run of columns."""


def matrix_blocks(files: Sequence[str], width: int, base: int = 0, chosen: ColumnRanges = ()) -> Iterator[MatrixBlock]:
    """The rows of all files in order (… × `width`), of `chosen` columns or all; svmlight indices count from `base`."""
    for file in files:
        with reading(file):
            start = 0
            for rows in _text(file, width, base, chosen) if kind_of(file) == "svmlight" else _archived(file):
                yield MatrixBlock(file, start, _of_columns(_finite(file, start, rows), chosen))
                start += rows.shape[0]


def lowest_index(files: Sequence[str]) -> int:
    """Of all svmlight text; 1 where there is none."""
    found = [int(lines.indices.min()) for file in files for lines in read_lines(file) if len(lines.indices)]
    return min(found, default=1)


def parse_column_ranges(file: str, columns: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Numbers ("7") and runs ("0-61", both ends taken) of columns, in ascending order."""
    runs: list[tuple[int, int]] = []
    for text in columns:
        found = _RUN.fullmatch(text)
        if found is None:
            what = f"kmeans.columns must have numbers and runs of them (7, 0-61), not {text!r}"
            raise InputError(f"{file} has columns without names: {what}")
        runs.append((int(found[1]), int(found[2] or found[1]) + 1))
        before = runs[-2][1] if len(runs) > 1 else 0
        if not before <= runs[-1][0] < runs[-1][1] < 1 << 31:
            raise InputError(f"{file} has columns without names: kmeans.columns must ascend, and {text!r} does not")
    return tuple(runs)


def _of_columns(rows: "scipy.sparse.csr_array", chosen: ColumnRanges) -> "scipy.sparse.csr_array":
    if not chosen:
        return rows
    return scipy.sparse.hstack([rows[:, first:last] for first, last in chosen], format="csr")


def refuse_width(files: Sequence[str], width: int) -> None:
    """Name the first line of svmlight text with an index, counted from 0, that is not below `width`."""
    for _ in matrix_blocks(files, width):
        pass


def _archived(file: str) -> Iterator["scipy.sparse.csr_array"]:
    matrix = npz.load_sparse(file)
    for first, last in _cuts(matrix.indptr):
        inside = slice(int(matrix.indptr[first]), int(matrix.indptr[last]))
        indptr = matrix.indptr[first : last + 1] - matrix.indptr[first]
        values = matrix.data[inside].astype(np.float64)
        rows = _csr(values, matrix.indices[inside].astype(np.int32), indptr, matrix.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            rows.sum_duplicates()
        yield rows


def _cuts(indptr: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First and last row of each block."""
    first, rows = 0, len(indptr) - 1
    while first < rows:
        room = int(np.searchsorted(indptr, indptr[first] + data_files.BLOCK_CELLS, side="right")) - 1
        last = min(max(room, first + 1), first + data_files.BLOCK_CELLS, rows)
        yield first, last
        first = last


def _text(file: str, width: int, base: int, chosen: ColumnRanges) -> Iterator["scipy.sparse.csr_array"]:
    for found in read_lines(file):
        indices = found.indices - base
        if chosen:
            width = max(chosen[-1][1], int(indices.max(initial=0)) + 1)
        _check_width(file, found, indices, width)
        indptr = np.concatenate([[0], np.cumsum(found.counts)])
        yield _csr(found.values, indices.astype(np.int32), indptr, width)


def _check_width(file: str, found: ParsedLines, indices: NDArray[np.int64], width: int) -> None:
    beyond = (indices < 0) | (indices >= width)
    if beyond.any():
        row = int(np.searchsorted(np.cumsum(found.counts), int(beyond.argmax()), side="right"))
        line = int(found.lines[row])
        what = f"an index beyond the {width:,} columns that kmeans.features says"
        raise InputError(f"{file}, line {line:,}: {what}; correct one of them")


def _csr(
    values: NDArray[np.float64], indices: NDArray[np.int32], indptr: NDArray[np.int64], width: int
) -> "scipy.sparse.csr_array":
    return scipy.sparse.csr_array((values, indices, indptr.astype(np.int32)), shape=(len(indptr) - 1, width))


def _finite(file: str, start: int, rows: "scipy.sparse.csr_array") -> "scipy.sparse.csr_array":
    bad = ~np.isfinite(rows.data)
    if bad.any():
        at = int(bad.argmax())
        row = start + int(np.searchsorted(rows.indptr, at, side="right"))
        raise InputError(f"{file}, row {row:,}, column '{rows.indices[at]}': no finite number")
    return rows
