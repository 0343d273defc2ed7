"""A digest of a source's rows as they are read: two passes over the same rows have the same digest.

It depends on the values that are read, and not on files, batches, or columns that nobody uses. Each kind of values of
each column has a SHA-256 of its own, so that batches of any size give the same digest.
"""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


class RowDigest:
    """The digest of all rows that were added."""

    def __init__(self) -> None:
        self._hashes: dict[str, hashlib._Hash] = {}

    def add_table(self, rows: pa.RecordBatch) -> None:
        """Add rows of a table."""
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            self._add_column(name, column)

    def add_matrix(self, counts: NDArray[np.int64], indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add rows of a sparse matrix: how many values each row has, their columns, and the values."""
        self._update("counts", counts.astype("<i8", copy=False))
        self._update("indices", indices.astype("<i8", copy=False))
        self._update("values", values.astype("<f8", copy=False))

    def hexdigest(self) -> str:
        """Return the digest of all rows so far."""
        each = {name: hashed.hexdigest() for name, hashed in sorted(self._hashes.items())}
        return hashlib.sha256(json.dumps(each).encode()).hexdigest()

    def _add_column(self, name: str, column: pa.Array) -> None:
        kind = column.type
        self._update(f"{name} valid", column.is_valid().to_numpy(zero_copy_only=False))
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            self._update(f"{name} lengths", pc.list_value_length(column).fill_null(0).to_numpy().astype("<i8"))
            self._add_column(f"{name} elements", pc.list_flatten(column))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self._update(f"{name} text", text_bytes(column.fill_null("")))
        elif pa.types.is_integer(kind):
            self._update(f"{name} integers", column.fill_null(0).to_numpy())
        elif pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
            self._update(f"{name} numbers", column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))

    def _update(self, name: str, content: NDArray[np.generic] | bytes) -> None:
        data = content if isinstance(content, bytes) else np.ascontiguousarray(content).data
        self._hashes.setdefault(name, hashlib.sha256()).update(data)


def text_bytes(text: pa.Array) -> bytes:
    """Join values as text in UTF-8, each after its length in eight bytes: 7 and "7" are equal, and no two lists are."""
    encoded = text.cast(pa.large_string()).cast(pa.large_binary())
    lengths = pc.binary_length(encoded).to_numpy().astype("<i8")
    prefixes = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(lengths), [None, pa.py_buffer(lengths)])
    joined = pc.binary_join_element_wise(prefixes.cast(pa.large_binary()), encoded, pa.scalar(b"", pa.large_binary()))
    return bytes(joined.buffers()[2][: pc.sum(pc.binary_length(joined)).as_py()])
