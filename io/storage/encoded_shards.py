"""A folder of encoded shards on the party's own disk: rows as sparse ring elements, and beside them their ids.

Shards are plaintext: they never leave the party.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.io.storage.atomic_files import read_json, replaced_file, write_arrays, write_json
from veilmeans.schemas.arrays import Arrays, from_stream, write_stream
from veilmeans.schemas.column_names import from_ranges, ranges_of
from veilmeans.schemas.errors import InputError


@dataclass(frozen=True)
class EncodedData:
    """A folder of shards: how many rows and columns, the nonzeros of each shard, and whether all are whole numbers."""

    folder: Path
    rows: int
    columns: Sequence[str]
    rows_per_shard: int
    nonzeros: tuple[int, ...]
    whole: bool

    @property
    def shards(self) -> int:
        return len(self.nonzeros)

    def save(self) -> None:
        """Write the manifest, which completes the folder."""
        content = {
            "rows": self.rows,
            "columns": ranges_of(self.columns),
            "rows_per_shard": self.rows_per_shard,
            "nonzeros": self.nonzeros,
            "whole": self.whole,
        }
        write_json(_manifest(self.folder), content)


def load_encoded_data(folder: Path) -> EncodedData | None:
    """What is in a folder that `io.sources.tables.encode` completed, or None."""
    found = read_json(_manifest(folder))
    if found is None:
        return None
    nonzeros = tuple(found["nonzeros"])
    whole = found["whole"] if "whole" in found else _all_whole(folder, len(nonzeros))
    return EncodedData(folder, found["rows"], from_ranges(found["columns"]), found["rows_per_shard"], nonzeros, whole)


def is_integer_valued(values: ring.Ring) -> bool:
    """Whether all encoded values are whole numbers: multiples of 2^f."""
    return not np.any(values & ring.DTYPE((1 << fixed.FRACTION_BITS) - 1))


def _all_whole(folder: Path, shards: int) -> bool:
    """For a manifest that does not tell."""
    return all(is_integer_valued(read_rows(folder, shard).data) for shard in range(shards))


def read_rows(folder: Path, shard: int) -> "scipy.sparse.csr_array":
    """One shard as a sparse matrix of ring elements, memory-mapped and read-only."""
    with pa.memory_map(str(_rows_file(folder, shard))) as source:
        arrays = from_stream(source)
    indptr = arrays["indptr"]
    if indptr[-1] < 1 << 31:  # scipy would widen the indices to the type of indptr
        indptr = indptr.astype(np.int32)
    return scipy.sparse.csr_array((arrays["values"], arrays["indices"], indptr), shape=tuple(arrays["shape"]))


def write_rows(
    folder: Path, shard: int, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: ring.Ring, columns: int
) -> None:
    """What `read_rows` reads."""
    shape = np.array([len(indptr) - 1, columns])
    arrays: Arrays = {"indptr": indptr, "indices": indices, "values": values, "shape": shape}
    write_arrays(_rows_file(folder, shard), arrays)


def read_ids(folder: Path, shard: int) -> pa.Array:
    """The ids of one shard's rows; without an id, the rows' numbers from 0."""
    file = _ids_file(folder, shard)
    if file.exists():
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
            return reader.read_next_batch().column(0)
    found: Any = read_json(_manifest(folder))
    if found is None:
        raise InputError(f"{folder} holds no prepared data")
    first, size = shard * found["rows_per_shard"], found["rows_per_shard"]
    return pa.array(np.arange(first, min(first + size, found["rows"])))


def write_ids(folder: Path, shard: int, ids: pa.Array) -> None:
    """What `read_ids` reads."""
    with replaced_file(_ids_file(folder, shard)) as part, pa.OSFile(str(part), "wb") as file:
        write_stream(pa.record_batch([ids], ["id"]), file)


def _rows_file(folder: Path, shard: int) -> Path:
    return folder / f"{shard:06d}.rows.arrow"


def _ids_file(folder: Path, shard: int) -> Path:
    return folder / f"{shard:06d}.ids.arrow"


def _manifest(folder: Path) -> Path:
    return folder / "manifest.json"
