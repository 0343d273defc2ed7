"""Named arrays as one Arrow record batch: the form in which states and messages are stored and sent.

A batch has one row; each column is one array as a `fixed_shape_tensor`, which includes its element type and shape, so
arrays may have different lengths. Reading is zero-copy: the arrays are read-only views.

All bytes of a small stream but the elements are a function of its specification, so they are made by Arrow once
(`_Layout`); later streams of the specification are put together and taken apart without it, to the same bytes.
"""

import struct
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
    if _has_layout(arrays):
        return _layout(_key_of(arrays)).join(arrays)
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


def from_stream(source: Any, validate: bool = False) -> dict[str, Array]:
    """Read the arrays of an IPC stream (a buffer or a memory-mapped file).

    `validate`: somebody else made it. An array longer than its buffer would expose this process's own memory, and
    compressed buffers could become thousands of times as large as the message.
    """
    layout = _known_layout(source) if isinstance(source, pa.Buffer) else None
    if layout is not None:
        return layout.split(source)
    if validate:
        _refuse_compression(source)
    with pa.ipc.open_stream(source) as reader:
        batch = reader.read_next_batch()
    if validate:
        batch.validate(full=True)
    arrays = from_batch(batch)
    if _has_layout(arrays):
        _layout(_key_of(arrays))  # known from now on
    return arrays


def _refuse_compression(stream: pa.Buffer) -> None:
    """Raise ValueError if a batch of an IPC stream says that its buffers are compressed; nothing is decompressed.

    The metadata of a message are a flatbuffer, of which Arrow gives no access to this field: Message.header (field 2)
    is a RecordBatch, which has `compression` (field 3) or not.
    """
    for message in pa.ipc.MessageReader.open_stream(stream):
        try:
            if message.type == "record batch":
                root = struct.unpack_from("<I", message.metadata)[0]
                header = _flatbuffer_field(message.metadata, root, 2)
                batch = header + struct.unpack_from("<I", message.metadata, header)[0]
                if _flatbuffer_field(message.metadata, batch, 3):
                    raise ValueError("compressed buffers")
        except struct.error:
            raise ValueError("malformed metadata") from None


def _flatbuffer_field(buffer: pa.Buffer, table: int, number: int) -> int:
    """Return where a field of a flatbuffer's table stands; 0 if the table does not have it."""
    fields = table - struct.unpack_from("<i", buffer, table)[0]
    size = struct.unpack_from("<H", buffer, fields)[0]
    offset = struct.unpack_from("<H", buffer, fields + 4 + 2 * number)[0] if size >= 6 + 2 * number else 0
    return table + int(offset) if offset else 0


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


# streams without Arrow
_SMALL = 1 << 20  # bytes of elements up to which a stream is put together from a known layout
_LAYOUTS = 4096  # layouts that a process remembers
_END = b"\xff\xff\xff\xff\0\0\0\0"
_LayoutKey = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]


@dataclass(frozen=True)
class _Layout:
    """The stream of one specification: `framing` (schema and batch metadata), the padded elements, an end mark."""

    framing: bytes
    arrays: _LayoutKey
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    paddings: tuple[bytes, ...]
    size: int

    def join(self, arrays: Arrays) -> pa.Buffer:
        """Put a stream together."""
        pieces: list[Any] = [self.framing]
        for array, padding in zip(arrays.values(), self.paddings, strict=True):
            pieces += (np.ascontiguousarray(array).data if array.size else b"", padding)
        return pa.py_buffer(b"".join((*pieces, _END)))

    def split(self, stream: pa.Buffer) -> dict[str, Array]:
        """Take a stream apart: read-only views of it."""
        content = np.frombuffer(stream, np.uint8)
        content.flags.writeable = False
        return {
            name: content[start:end].view(dtype).reshape(shape) if end > start else _empty(shape, dtype)
            for (name, dtype, shape), start, end in zip(self.arrays, self.starts, self.ends, strict=True)
        }


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    array = np.empty(shape, dtype)
    array.flags.writeable = False
    return array


_by_framing: dict[bytes, _Layout] = {}  # only layouts of our own making: a peer's framing is compared with them


def _has_layout(arrays: Arrays) -> bool:
    """True for small arrays of whole bytes (Arrow packs booleans into bits)."""
    return nbytes(arrays) <= _SMALL and all(array.dtype.kind in "uifV" for array in arrays.values())


def _key_of(arrays: Arrays) -> _LayoutKey:
    return tuple((name, array.dtype, array.shape) for name, array in arrays.items())


@lru_cache(maxsize=_LAYOUTS)
def _layout(key: _LayoutKey) -> _Layout:
    """Let Arrow write a stream of zeros, and learn the layout from it."""
    sink = pa.BufferOutputStream()
    write_stream(to_batch({name: np.zeros(shape, dtype) for name, dtype, shape in key}), sink)
    stream = sink.getvalue().to_pybytes()
    sizes = [prod(shape) * dtype.itemsize for _, dtype, shape in key]
    start = len(stream) - len(_END) - sum(map(_aligned, sizes))
    framing, starts = stream[:start], []
    for size in sizes:
        starts.append(start)
        start += _aligned(size)
    ends = tuple(begin + size for begin, size in zip(starts, sizes, strict=True))
    paddings = tuple(bytes(_aligned(size) - size) for size in sizes)
    layout = _Layout(framing, key, tuple(starts), ends, paddings, len(stream))
    if len(_by_framing) >= _LAYOUTS:
        _by_framing.clear()
    _by_framing[framing] = layout
    return layout


def _known_layout(stream: pa.Buffer) -> _Layout | None:
    """Return the layout whose framing this stream begins with, if it has that size and its end mark, too."""
    content = memoryview(stream).cast("B")
    schema = _message_end(content, 0)
    batch = _message_end(content, schema)
    layout = _by_framing.get(bytes(content[:batch])) if 0 < batch <= _LONGEST_FRAMING else None
    if layout is None or len(content) != layout.size or content[-len(_END) :] != _END:
        return None
    return layout


_LONGEST_FRAMING = 1 << 16


def _message_end(content: memoryview, start: int) -> int:
    """Return the end of the metadata of the IPC message at `start`; 0 if there are none."""
    head = content[start : start + 8]
    if len(head) < 8 or head[:4] != _END[:4] or (start == 0 and len(content) < 16):
        return 0
    return start + 8 + int.from_bytes(head[4:], "little")
