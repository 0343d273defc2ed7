""".npz archives: a sparse matrix as `scipy.sparse.save_npz` writes it, or a table in a 2-dimensional array `X`.

The matrix is in memory whole, once; what is made of it comes block by block. Columns have the names "0", "1", …
"""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.io.sources import source_files as data_files
from veilmeans.io.sources.source_files import open_file
from veilmeans.schemas.errors import InputError

Array = NDArray[Any]
_NUMBERS = "biuf"


@dataclass(frozen=True)
class Stored:
    """A matrix in CSR form as it is stored: indices in any order, equal ones to be added."""

    indptr: Array
    indices: Array
    data: Array
    shape: tuple[int, int]


def is_sparse(file: str) -> bool:
    """Whether the archive holds a sparse matrix, and not a table."""
    with _archive(file) as members:
        return "format" in members.files


def sparse_shape(file: str) -> tuple[int, int]:
    """Rows and columns of the matrix."""
    with _archive(file) as members:
        return _shape(file, members)


def load_sparse(file: str) -> Stored:
    """The matrix in the archive; every index is checked, the values are not."""
    with _archive(file) as members:
        kind, shape = members["format"].item(), _shape(file, members)
        kind = kind.decode(errors="replace") if isinstance(kind, bytes) else kind
        if kind == "coo":
            return _from_coordinates(file, members, shape)
        if kind not in ("csr", "csc"):
            raise InputError(f"{file} holds a sparse matrix in the format {kind!r}: save it as CSR")
        indptr, indices, data = (members[name] for name in ("indptr", "indices", "data"))
    if kind == "csr":
        _check_compressed(file, indptr, indices, data, shape, "row", "column")
        return Stored(indptr, indices, data, shape)
    _check_compressed(file, indptr, indices, data, shape[::-1], "column", "row")
    return _stored(scipy.sparse.csc_array((data, indices, indptr), shape=shape).tocsr())


def _from_coordinates(file: str, members: Any, shape: tuple[int, int]) -> Stored:
    row, column = (members[name] for name in ("row", "col")) if "row" in members.files else members["coords"]
    data = members["data"]
    _check_numbers(file, data)
    for name, indices, size in (("row", row, shape[0]), ("column", column, shape[1])):
        _check_whole(file, indices)
        if indices.shape != data.shape:
            raise _damaged(file)
        if indices.size and not (indices.min() >= 0 and indices.max() < size):
            raise InputError(f"{file} has an entry beyond its {size:,} {name}s: save the matrix again")
    return _stored(scipy.sparse.coo_array((data, (row, column)), shape=shape).tocsr())


def _stored(matrix: Any) -> Stored:
    return Stored(matrix.indptr, matrix.indices, matrix.data, matrix.shape)


def _shape(file: str, members: Any) -> tuple[int, int]:
    shape = members["shape"]
    _check_whole(file, shape)
    if shape.shape != (2,) or shape.min() < 0 or shape.max() >= 1 << 31:
        raise InputError(f"{file} holds no matrix with rows and columns below 2^31")
    return int(shape[0]), int(shape[1])


def _check_compressed(
    file: str, indptr: Array, indices: Array, data: Array, shape: tuple[int, int], outer: str, inner: str
) -> None:
    """That `indptr` leads through the arrays, and each index is within the shape."""
    _check_whole(file, indptr)
    _check_whole(file, indices)
    _check_numbers(file, data)
    if len(indptr) != shape[0] + 1 or indptr[0] != 0 or not len(indices) == len(data) >= indptr[-1]:
        raise _damaged(file)
    if (indptr[1:] < indptr[:-1]).any():
        raise _damaged(file)
    for first in range(0, len(indices), data_files.BLOCK_CELLS):
        part = indices[first : first + data_files.BLOCK_CELLS]
        beyond = (part < 0) | (part >= shape[1])
        if beyond.any():
            place = int(np.searchsorted(indptr, first + int(beyond.argmax()), side="right"))
            what = f"an index beyond the {shape[1]:,} {inner}s of the matrix"
            raise InputError(f"{file}, {outer} {place:,}: {what}; save it again")


def _check_whole(file: str, array: Array) -> None:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise _damaged(file)


def _check_numbers(file: str, array: Array) -> None:
    if array.dtype.kind not in _NUMBERS or array.ndim != 1:
        raise InputError(f"{file} holds a matrix of {array.dtype}, and numbers are needed")


# A table
def table_schema(file: str) -> pa.Schema:
    """A column for each of the array's."""
    shape, dtype = _header(file)
    if len(shape) != 2 or dtype.kind not in _NUMBERS:
        raise InputError(f"{file} holds an array X of {len(shape)} dimensions of {dtype}: two, of numbers, are needed")
    return pa.schema([(str(i), pa.from_numpy_dtype(dtype)) for i in range(shape[1])])


def table_batches(file: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The array's columns, some rows at a time."""
    with _archive(file) as members:
        table = members["X"]
    places = [int(name) for name in columns]
    size = max(1, data_files.BLOCK_CELLS // max(1, len(places)))
    for first in range(0, len(table), size):
        rows = np.ascontiguousarray(table[first : first + size].T)
        yield pa.record_batch([pa.array(rows[place]) for place in places], list(columns))


def _header(file: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of X, without its values."""
    with _archive(file) as members:
        if "X" not in members.files:
            raise InputError(f"{file} holds neither a sparse matrix (scipy.sparse.save_npz) nor an array X")
        with members.zip.open("X.npy") as stream:
            version = np.lib.format.read_magic(stream)
            first = version == (1, 0)
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
    return shape, dtype


# Archives
@contextmanager
def _archive(file: str) -> Iterator[Any]:
    """numpy's reader of an archive; what it finds wrong, in a sentence without what is in the file."""
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
        except (ValueError, TypeError, AttributeError, LookupError, EOFError, NotImplementedError):
            raise _damaged(file) from None
        except (zipfile.BadZipFile, zlib.error):
            raise _damaged(file) from None


def _damaged(file: str) -> InputError:
    return InputError(
        f"the data file {file} cannot be read: it is damaged, or neither a sparse matrix (scipy.sparse.save_npz) nor "
        "an array X in an .npz archive"
    )
