""".npz archives: a sparse matrix as `scipy.sparse.save_npz` writes it, or a table in a 2-dimensional array `X`.

The whole matrix is in memory once; it is returned in batches. Columns have the names "0", "1", …
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilmeans.io.sources.source_files import BatchLimits, open_file
from veilmeans.schemas.errors import InputError

Array = NDArray[Any]
_NUMBERS = "biuf"
_DAMAGES = ValueError, TypeError, AttributeError, LookupError, EOFError, NotImplementedError, BadZipFile, zlib.error


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix in CSR form as it is stored: indices in any order, equal ones are to be added."""

    indptr: Array
    indices: Array
    data: Array
    shape: tuple[int, int]


def is_sparse(file: str) -> bool:
    """Return whether the archive holds a sparse matrix, and not a table."""
    with _archive(file) as members:
        return "format" in members.files


def sparse_shape(file: str) -> tuple[int, int]:
    """Return the number of rows and columns of the matrix."""
    with _archive(file) as members:
        return _shape(file, members)


def load_sparse(file: str, limits: BatchLimits) -> StoredMatrix:
    """Load the matrix of the archive; every index is checked, the values are not."""
    with _archive(file) as members:
        kind, shape = members["format"].item(), _shape(file, members)
        kind = kind.decode(errors="replace") if isinstance(kind, bytes) else kind
        if kind == "coo":
            return _from_coordinates(file, members, shape)
        if kind not in ("csr", "csc"):
            raise InputError(f"{file} holds a sparse matrix in the format {kind!r}: save it as CSR")
        indptr, indices, data = (members[name] for name in ("indptr", "indices", "data"))
    if kind == "csr":
        _check_compressed(file, indptr, indices, data, shape, "row", "column", limits.cells)
        return StoredMatrix(indptr, indices, data, shape)
    _check_compressed(file, indptr, indices, data, shape[::-1], "column", "row", limits.cells)
    import scipy.sparse

    return _to_stored(scipy.sparse.csc_array((data, indices, indptr), shape=shape).tocsr())


def _from_coordinates(file: str, members: Any, shape: tuple[int, int]) -> StoredMatrix:
    row, column = (members[name] for name in ("row", "col")) if "row" in members.files else members["coords"]
    data = members["data"]
    _check_numbers(file, data)
    for name, indices, size in (("row", row, shape[0]), ("column", column, shape[1])):
        _check_integers(file, indices)
        if indices.shape != data.shape:
            raise _damaged(file)
        if indices.size and not (indices.min() >= 0 and indices.max() < size):
            raise InputError(f"{file} has an entry beyond its {size:,} {name}s: save the matrix again")
    import scipy.sparse

    return _to_stored(scipy.sparse.coo_array((data, (row, column)), shape=shape).tocsr())


def _to_stored(matrix: Any) -> StoredMatrix:
    return StoredMatrix(matrix.indptr, matrix.indices, matrix.data, matrix.shape)


def _shape(file: str, members: Any) -> tuple[int, int]:
    shape = members["shape"]
    _check_integers(file, shape)
    if shape.shape != (2,) or shape.min() < 0 or shape.max() >= 1 << 31:
        raise InputError(f"{file} holds no matrix with rows and columns below 2^31")
    return int(shape[0]), int(shape[1])


def _check_compressed(
    file: str, indptr: Array, indices: Array, data: Array, shape: tuple[int, int], outer: str, inner: str, batch: int
) -> None:
    """Check that `indptr` divides the arrays, and that each index is within the shape; `batch` indices at a time."""
    _check_integers(file, indptr)
    _check_integers(file, indices)
    _check_numbers(file, data)
    fits = len(indptr) == shape[0] + 1 and indptr[0] == 0 and len(indices) == len(data) >= indptr[-1]
    if not fits or (indptr[1:] < indptr[:-1]).any():
        raise _damaged(file)
    for first in range(0, len(indices), batch):
        some = indices[first : first + batch]
        outside = (some < 0) | (some >= shape[1])
        if outside.any():
            place = int(np.searchsorted(indptr, first + int(outside.argmax()), side="right"))
            what = f"an index beyond the {shape[1]:,} {inner}s of the matrix"
            raise InputError(f"{file}, {outer} {place:,}: {what}; save it again")


def _check_integers(file: str, array: Array) -> None:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise _damaged(file)


def _check_numbers(file: str, array: Array) -> None:
    if array.dtype.kind not in _NUMBERS or array.ndim != 1:
        raise InputError(f"{file} holds a matrix of {array.dtype}, and numbers are needed")


# A table
def table_schema(file: str) -> pa.Schema:
    """Return the schema of the table: a column for each column of the array."""
    with _archive(file) as members:
        if "X" not in members.files:
            raise InputError(f"{file} holds neither a sparse matrix (scipy.sparse.save_npz) nor an array X")
        with members.zip.open("X.npy") as stream:  # the header has shape and type; the values are not read
            first = np.lib.format.read_magic(stream) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
    if len(shape) != 2 or dtype.kind not in _NUMBERS:
        raise InputError(f"{file} holds an array X of {len(shape)} dimensions of {dtype}: two, of numbers, are needed")
    return pa.schema([(str(i), pa.from_numpy_dtype(dtype)) for i in range(shape[1])])


def table_batches(file: str, columns: Sequence[str], limits: BatchLimits) -> Iterator[pa.RecordBatch]:
    """Read columns of the array in batches."""
    with _archive(file) as members:
        table = members["X"]
    places = [int(name) for name in columns]
    size = max(1, limits.cells // max(1, len(places)))
    for first in range(0, len(table), size):
        rows = np.ascontiguousarray(table[first : first + size].T)
        yield pa.record_batch([pa.array(rows[place]) for place in places], list(columns))


# Archives
@contextmanager
def _archive(file: str) -> Iterator[Any]:
    """Open numpy's reader of an archive; its errors become InputErrors without the content of the file."""
    with open_file(file) as stream:
        try:
            with np.load(stream, allow_pickle=False) as members:
                if isinstance(members, np.ndarray):
                    raise _damaged(file)
                yield members
        except InputError:
            raise
        except MemoryError:
            raise InputError(f"the data file {file} does not fit into memory") from None
        except _DAMAGES:
            raise _damaged(file) from None


def _damaged(file: str) -> InputError:
    return InputError(
        f"the data file {file} cannot be read: it is damaged, or neither a sparse matrix (scipy.sparse.save_npz) nor "
        "an array X in an .npz archive"
    )
