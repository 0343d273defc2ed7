"""Encoded row shards on the party's own disk: rows as sparse ring elements, and beside them their ids.

They are plaintext: they never leave the party. A tag under a public key detects damage, not a forger: whoever may write
here might as well change the data.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.io.files.party_files import files_at, read_file_text, write_file_json
from veilmeans.io.files.tagged_files import DamagedFileError, map_tagged, write_tagged
from veilmeans.schemas.arrays import Array, Arrays, from_stream, to_batch
from veilmeans.schemas.column_names import from_ranges, ranges_of
from veilmeans.schemas.errors import InputError, StorageError
from veilmeans.schemas.run_folder import EncodedFolder, PreparedData

if TYPE_CHECKING:
    import scipy.sparse

UNKNOWN = 2  # the label of a row that has none
_PUBLIC = b"encoded shards"  # the key of the tags


@dataclass(frozen=True)
class EncodedData:
    """A folder of encoded row shards: its rows and columns, the nonzeros of each shard, and if all are integers."""

    folder: Path
    rows: int
    columns: Sequence[str]
    rows_per_shard: int
    nonzeros: tuple[int, ...]
    integer_valued: bool

    @property
    def shards(self) -> int:
        """The number of row shards."""
        return len(self.nonzeros)

    def save(self) -> None:
        """Write the manifest, which completes the folder."""
        content = {
            "rows": self.rows,
            "columns": ranges_of(self.columns),
            "rows_per_shard": self.rows_per_shard,
            "nonzeros": self.nonzeros,
            "integer_valued": self.integer_valued,
        }
        write_file_json(EncodedFolder(self.folder).manifest, content)


def load_encoded_data(folder: Path) -> EncodedData | None:
    """Read the manifest of a folder that `io.sources.encode` completed; None if it did not."""
    try:
        content = json.loads(read_file_text(EncodedFolder(folder).manifest))
    except (FileNotFoundError, NotADirectoryError):
        return None
    columns, nonzeros = from_ranges(content["columns"]), tuple(content["nonzeros"])
    return EncodedData(folder, content["rows"], columns, content["rows_per_shard"], nonzeros, content["integer_valued"])


def complete_folders(prepared: PreparedData) -> list[EncodedFolder]:
    """List all complete folders of encoded shards."""
    files = files_at(prepared.path)
    folders = [EncodedFolder(prepared.path / name) for name in files.names(prepared.path)]
    return [folder for folder in folders if files.exists(folder.manifest)]


def is_integer_valued(values: ring.Ring) -> bool:
    """Return whether all encoded values are integers: multiples of 2^f."""
    return not np.any(values & ring.DTYPE((1 << fixed.FRACTION_BITS) - 1))


def read_rows(folder: Path, shard: int) -> "scipy.sparse.csr_array":
    """Read one shard as a sparse matrix of ring elements, memory-mapped and read-only."""
    import scipy.sparse

    arrays = _read_shard(folder, shard)
    indptr = arrays["indptr"]
    if indptr[-1] < 1 << 31:  # scipy would widen the indices to the type of indptr
        indptr = indptr.astype(np.int32)
    return scipy.sparse.csr_array((arrays["values"], arrays["indices"], indptr), shape=tuple(arrays["shape"]))


def read_dense_rows(folder: Path, shard: int) -> ring.Ring:
    """Read one shard as a dense matrix of ring elements."""
    arrays = _read_shard(folder, shard)
    rows = np.zeros(tuple(arrays["shape"]), ring.DTYPE)
    rows[np.repeat(np.arange(len(rows)), np.diff(arrays["indptr"])), arrays["indices"]] = arrays["values"]
    return rows


def pad_rows(rows: ring.Ring, length: int) -> ring.Ring:
    """Fill a shard up with rows of zeros to this length."""
    if len(rows) == length:
        return rows
    return np.concatenate([rows, np.zeros((length - len(rows), *rows.shape[1:]), ring.DTYPE)])


def pad_sparse_rows(rows: "scipy.sparse.csr_array", length: int) -> "scipy.sparse.csr_array":
    """Fill a sparse shard up with empty rows to this length."""
    import scipy.sparse

    missing = length - rows.shape[0]
    if not missing:
        return rows
    indptr = np.concatenate([rows.indptr, np.full(missing, rows.indptr[-1], rows.indptr.dtype)])
    return scipy.sparse.csr_array((rows.data, rows.indices, indptr), shape=(length, rows.shape[1]))


def read_row(folder: Path, shard: int, number: int) -> ring.Ring:
    """Read one row of a shard as ring elements of all columns."""
    arrays = _read_shard(folder, shard)
    begin, end = arrays["indptr"][number : number + 2]
    row = np.zeros(arrays["shape"][1], ring.DTYPE)
    row[arrays["indices"][begin:end]] = arrays["values"][begin:end]
    return row


def read_values(folder: Path, shard: int) -> ring.Ring:
    """Read the ring elements of one shard that are not zero, row by row."""
    return _read_shard(folder, shard)["values"]


def read_row_squares(folder: Path, shard: int) -> ring.Ring:
    """Compute |x|² of each row of one shard, mod 2^64, with 2f fractional bits."""
    arrays = _read_shard(folder, shard)
    up_to = np.concatenate([np.zeros(1, ring.DTYPE), np.cumsum(arrays["values"] ** 2, dtype=ring.DTYPE)])
    squares: ring.Ring = up_to[arrays["indptr"][1:]] - up_to[arrays["indptr"][:-1]]
    return squares


def _read_shard(folder: Path, shard: int) -> dict[str, Array]:
    return from_stream(pa.BufferReader(_map(EncodedFolder(folder).rows(shard))))  # scipy copies views of a buffer


def _map(file: Path) -> pa.Buffer:
    try:
        return map_tagged(file, _PUBLIC, file.name)
    except DamagedFileError:
        raise StorageError(f"{file} is missing or damaged: remove {file.parent} and rerun; it is made again") from None


def write_rows(
    folder: Path, shard: int, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: ring.Ring, columns: int
) -> None:
    """Write one shard in CSR form."""
    shape = np.array([len(indptr) - 1, columns])
    arrays: Arrays = {"indptr": indptr, "indices": indices, "values": values, "shape": shape}
    file = EncodedFolder(folder).rows(shard)
    write_tagged(file, _PUBLIC, file.name, to_batch(arrays))


def read_ids(folder: Path, shard: int) -> pa.Array:
    """Read the ids of one shard's rows; without an id, the rows' numbers from 0."""
    file = EncodedFolder(folder).ids(shard)
    if files_at(file).exists(file):
        with pa.ipc.open_stream(_map(file)) as reader:
            return reader.read_next_batch().column(0)
    data = load_encoded_data(folder)
    if data is None:
        raise InputError(f"{folder} holds no encoded data")
    first = shard * data.rows_per_shard
    return pa.array(np.arange(first, min(first + data.rows_per_shard, data.rows)))


def read_labels(folder: Path, shard: int) -> NDArray[np.uint8] | None:
    """Read the labels of one shard's rows: 0, 1 or UNKNOWN; None if the source has none."""
    file = EncodedFolder(folder).labels(shard)
    return from_stream(pa.BufferReader(_map(file)))["label"] if files_at(file).exists(file) else None


def write_labels(folder: Path, shard: int, labels: NDArray[np.uint8]) -> None:
    """Write the labels of one shard's rows."""
    file = EncodedFolder(folder).labels(shard)
    write_tagged(file, _PUBLIC, file.name, to_batch({"label": labels}))


def write_ids(folder: Path, shard: int, ids: pa.Array) -> None:
    """Write the ids of one shard's rows."""
    file = EncodedFolder(folder).ids(shard)
    write_tagged(file, _PUBLIC, file.name, pa.record_batch([ids], ["id"]))
