"""Named arrays as one Arrow record batch: the form in which states and messages are stored and sent.

A batch has one row; each column is one array as a `fixed_shape_tensor`, which includes its element type and shape, so
arrays may have different lengths. Reading is zero-copy: the arrays are read-only views.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Real = NDArray[np.float64]
Array = NDArray[Any]
Arrays = Mapping[str, Array]


def to_batch(arrays: Arrays) -> pa.RecordBatch:
    """Convert arrays to a record batch of one row."""
    return pa.record_batch([_tensor(array) for array in arrays.values()], names=list(arrays))


def from_batch(batch: pa.RecordBatch) -> dict[str, Array]:
    """Read the arrays of a record batch that `to_batch` made."""
    return {name: _array(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def to_stream(arrays: Arrays) -> pa.Buffer:
    """Serialise arrays as an Arrow IPC stream."""
    batch = to_batch(arrays)
    buffer = pa.allocate_buffer(stream_size(batch))
    write_stream(batch, pa.FixedSizeBufferWriter(buffer))
    return buffer


def write_stream(batch: pa.RecordBatch, sink: Any) -> None:
    """Write one batch as an Arrow IPC stream."""
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def stream_size(batch: pa.RecordBatch) -> int:
    """The size in bytes of the IPC stream of `batch`: schema, batch, end mark."""
    return int(batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + 8)


@dataclass(frozen=True)
class ArraySpec:
    """Name, element type and shape of an array: all that the size of a message depends on."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


Spec = tuple[ArraySpec, ...]
"""The arrays of a message, without their values."""


def spec_of(arrays: Arrays) -> Spec:
    """The specification of these arrays."""
    return tuple(ArraySpec(name, array.dtype.str, array.shape) for name, array in arrays.items())


@lru_cache(maxsize=4096)
def payload_size(spec: Spec) -> int:
    """Compute `to_stream(arrays).size` without the arrays.

    The schema contains the shapes, so it is built. In the batch only the length of the data depends on the shapes, so a
    batch with at most one element in each array is built, and the missing data are added.
    """
    few = to_batch({each.name: np.zeros(min(1, prod(each.shape)), each.dtype) for each in spec})
    kinds = [pa.fixed_shape_tensor(_flat(np.zeros(0, each.dtype)).type, each.shape) for each in spec]
    schema = pa.schema([pa.field(each.name, kind) for each, kind in zip(spec, kinds, strict=True)])
    missing = sum(_aligned(each.nbytes) - _aligned(min(each.nbytes, np.dtype(each.dtype).itemsize)) for each in spec)
    return int(schema.serialize().size + pa.ipc.get_record_batch_size(few) + missing + 8)


def _aligned(size: int) -> int:
    """Round up to a multiple of 8 bytes, as Arrow's IPC pads the data of each array."""
    return -(-size // 8) * 8


def from_stream(source: Any) -> dict[str, Array]:
    """Read the arrays of an IPC stream (a buffer or a memory-mapped file)."""
    with pa.ipc.open_stream(source) as reader:
        return from_batch(reader.read_next_batch())


def nbytes(arrays: Arrays) -> int:
    """The size of the elements in bytes, without Arrow's framing."""
    return sum(array.nbytes for array in arrays.values())


def _tensor(array: Array) -> pa.Array:
    flat = _flat(np.ascontiguousarray(array).reshape(-1))
    kind = pa.fixed_shape_tensor(flat.type, array.shape)
    storage = pa.FixedSizeListArray.from_buffers(kind.storage_type, 1, [None], children=[flat])
    return pa.ExtensionArray.from_storage(kind, storage)


def _flat(values: Array) -> pa.Array:
    """Convert numbers to Arrow's numbers, and elements of dtype `V<size>` (ciphertexts) to binary of that size."""
    if values.dtype.kind != "V":
        return pa.array(values)
    return pa.Array.from_buffers(pa.binary(values.itemsize), len(values), [None, pa.py_buffer(values)])


def _array(column: pa.Array) -> Array:
    shape = tuple(column.type.shape)
    flat = column.storage.flatten()
    if not pa.types.is_fixed_size_binary(flat.type):
        values: Array = flat.to_numpy(zero_copy_only=True)
        return values.reshape(shape)
    size = flat.type.byte_width
    return np.frombuffer(flat.buffers()[1], f"V{size}", len(flat), flat.offset * size).reshape(shape)
