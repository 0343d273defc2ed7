"""Named arrays as one Arrow record batch: the form in which states and messages are stored and sent.

A batch has one row; each column is one array as a `fixed_shape_tensor`, so that element type and shape travel with it
and arrays of different lengths stand side by side. Reading is zero-copy: the arrays are read-only views.
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
    """`arrays` as a record batch of one row."""
    return pa.record_batch([_tensor(array) for array in arrays.values()], names=list(arrays))


def from_batch(batch: pa.RecordBatch) -> dict[str, Array]:
    """The arrays in a record batch made by `to_batch`."""
    return {name: _array(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def to_stream(arrays: Arrays) -> pa.Buffer:
    """`arrays` as an Arrow IPC stream."""
    batch = to_batch(arrays)
    buffer = pa.allocate_buffer(stream_size(batch))
    write_stream(batch, pa.FixedSizeBufferWriter(buffer))
    return buffer


def write_stream(batch: pa.RecordBatch, sink: Any) -> None:
    """Write one batch as an Arrow IPC stream."""
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def stream_size(batch: pa.RecordBatch) -> int:
    """How many bytes the IPC stream of `batch` has: schema, batch, end mark."""
    return int(batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + 8)


@dataclass(frozen=True)
class ArraySpec:
    """What a message's size depends on: an array's name, element type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


Spec = tuple[ArraySpec, ...]
"""The arrays of a message, without their values."""


def spec_of(arrays: Arrays) -> Spec:
    return tuple(ArraySpec(name, array.dtype.str, array.shape) for name, array in arrays.items())


@lru_cache(maxsize=4096)
def payload_size(spec: Spec) -> int:
    """`to_stream(arrays).size`, without the arrays.

    The schema names shapes, so it is made; of the batch, only the length of the data depends on them, and a batch of
    at most one element in each array stands for it.
    """
    few = to_batch({each.name: np.zeros(min(1, prod(each.shape)), each.dtype) for each in spec})
    schema = pa.schema([pa.field(each.name, _kind(each)) for each in spec])
    missing = sum(_aligned(each.nbytes) - _aligned(min(each.nbytes, np.dtype(each.dtype).itemsize)) for each in spec)
    return int(schema.serialize().size + pa.ipc.get_record_batch_size(few) + missing + 8)


def _kind(spec: ArraySpec) -> pa.DataType:
    return pa.fixed_shape_tensor(_flat(np.zeros(0, spec.dtype)).type, spec.shape)


def _aligned(size: int) -> int:
    """Arrow's IPC pads each array's data to multiples of 8 bytes."""
    return -(-size // 8) * 8


def from_stream(source: Any) -> dict[str, Array]:
    """The arrays in an IPC stream (a buffer or a memory-mapped file)."""
    with pa.ipc.open_stream(source) as reader:
        return from_batch(reader.read_next_batch())


def nbytes(arrays: Arrays) -> int:
    """Bytes of payload, without Arrow's framing."""
    return sum(array.nbytes for array in arrays.values())


def _tensor(array: Array) -> pa.Array:
    flat = _flat(np.ascontiguousarray(array).reshape(-1))
    kind = pa.fixed_shape_tensor(flat.type, array.shape)
    storage = pa.FixedSizeListArray.from_buffers(kind.storage_type, 1, [None], children=[flat])
    return pa.ExtensionArray.from_storage(kind, storage)


def _flat(values: Array) -> pa.Array:
    """Numbers as Arrow's numbers; elements of the dtype `V<size>`, ciphertexts, as binary of that size."""
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
