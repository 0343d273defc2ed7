"""A search of a shared place: what planted rows, keys, seeds and shares would look like there, in many encodings."""

import base64
import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.leak_search import Evidence, Secrets, leaks, related_forms
from veilmeans.crypto import fixed_point as fixed
from veilmeans.schemas.arrays import Array, Real

_LONGEST = 1 << 26  # bytes that a compressed object may have when it is opened
_ARROW_STARTS = re.compile(rb"\xff\xff\xff\xff....\x10\x00", re.DOTALL)


# what is looked for
def planted_secrets(
    values: Real, scaled: Real, shares: Sequence[Array] = (), keys: Sequence[bytes] = (), texts: Sequence[str] = ()
) -> Secrets:
    """What must not be found of rows and of a party's secrets.

    `values`: the rows as in the data file, `scaled`: the same as they are encoded. `keys`: also their parts.
    """
    reals = np.concatenate([values.reshape(-1), scaled.reshape(-1)])
    words = [
        *related_forms(fixed.encode(scaled)),
        *map(_words, shares),
        *(_words(np.frombuffer(key, np.uint8)) for key in keys),
    ]
    forms = [form for each in reals.tolist() for form in _forms_of_number(each)]
    forms += [form for encoded in related_forms(fixed.encode(scaled)) for form in _pairs(encoded, scaled.shape)]
    forms += [form for key in keys for form in _forms_of_key(key)]
    return Secrets(np.unique(np.concatenate(words)), reals, [], [*forms, *(text.encode() for text in texts)])


def _words(share: Array) -> Array:
    """A share's bytes as words of eight bytes; a rest is left out."""
    data = np.ascontiguousarray(share).tobytes()
    return np.frombuffer(data[: len(data) // 8 * 8], np.uint64)


def _pairs(encoded: Array, shape: tuple[int, ...]) -> Iterator[bytes]:
    """Neighbours in rows and in columns: one ring element of a value could be there by chance."""
    table = encoded.reshape(shape)
    for lines in (table, table.T):
        for pair in zip(lines[:, :-1].reshape(-1), lines[:, 1:].reshape(-1), strict=True):
            data = np.array(pair).tobytes()
            if len([byte for byte in data if byte not in (0, 255)]) >= 5:
                yield data


def _forms_of_number(value: float) -> Iterator[bytes]:
    """A number as text and as bytes, where `Secrets` does not have them anyway."""
    if abs(value) in (0.0, 1.0):
        return
    for text in {repr(value), f"{value:.9g}", f"{value:.6f}"}:
        if len(text.strip("-0.")) >= 7:
            yield text.encode()
    yield np.array(value, ">f8").tobytes()


def _forms_of_key(key: bytes) -> Iterator[bytes]:
    """A key as bytes, in hexadecimal and in base64 at each of its three offsets."""
    yield from (key[:16], key[-16:], key.hex().encode()[:32], key.hex().upper().encode()[:32])
    for offset in range(3):
        yield base64.b64encode(key[offset:])[:20]
        yield base64.urlsafe_b64encode(key[offset:])[:20]


# where it is looked for
def search(objects: Mapping[str, bytes], secrets: Secrets) -> list[str]:
    """List where secrets occur in objects, in what they contain if they are opened, or in their names."""
    arrays: list[tuple[str, Array]] = []
    files = [("names.txt", "\n".join(objects).encode())]
    for name, content in objects.items():
        for where, data in _contents(f"{name}.txt", content):
            files.append((where, data))
            arrays += [(f"{where}: {column}", array) for column, array in _arrays(data)]
    return leaks(Evidence(arrays, files), secrets)


def _contents(where: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """An object as it is, and what it becomes if something in it is decompressed."""
    yield where, data
    for kind, (magic, unpack) in _PACKED.items():
        for found in list(re.finditer(re.escape(magic), data))[:100]:
            with suppress(Exception):
                unpacked = unpack(data[found.start() :])
                if unpacked:
                    yield f"{where} ({kind} at {found.start()}).txt", unpacked


def _stream(decompressor: Callable[[], object]) -> Callable[[bytes], bytes]:
    return lambda data: decompressor().decompress(data)  # type: ignore[attr-defined,no-any-return]


def _by_arrow(codec: str) -> Callable[[bytes], bytes]:
    def unpack(data: bytes) -> bytes:
        with pa.input_stream(pa.BufferReader(data), compression=codec) as source:
            parts = []
            with suppress(OSError, pa.ArrowException):
                while part := source.read(1 << 16):
                    parts.append(part)
                    if sum(map(len, parts)) > _LONGEST:
                        break
            return b"".join(parts)

    return unpack


_PACKED: Mapping[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "zstd": (b"\x28\xb5\x2f\xfd", _by_arrow("zstd")),
    "lz4": (b"\x04\x22\x4d\x18", _by_arrow("lz4")),
    "gzip": (gzip.compress(b"")[:3], _stream(lambda: zlib.decompressobj(31))),
    "zlib": (b"\x78\x9c", _stream(zlib.decompressobj)),
    "bz2": (b"BZh", _stream(bz2.BZ2Decompressor)),
    "xz": (b"\xfd7zXZ", _stream(lzma.LZMADecompressor)),
}


def _arrays(data: bytes) -> Iterator[tuple[str, Array]]:
    """All columns of the Parquet and Arrow files in some bytes, compressed or not."""
    if b"PAR1" in data:
        with suppress(pa.ArrowException, OSError):
            yield from _columns(pq.read_table(pa.BufferReader(data[data.index(b"PAR1") :])))
    if b"ARROW1" in data:
        with suppress(pa.ArrowException, OSError):
            yield from _columns(pa.ipc.open_file(pa.BufferReader(data[data.index(b"ARROW1") :])).read_all())
    for start in list(_ARROW_STARTS.finditer(data))[:20]:
        with suppress(pa.ArrowException, OSError):
            yield from _columns(pa.ipc.open_stream(pa.BufferReader(data[start.start() :])).read_all())


def _columns(table: pa.Table) -> Iterator[tuple[str, Array]]:
    for name in table.column_names:
        column = table[name].combine_chunks()
        with suppress(pa.ArrowException, ValueError):
            yield name, np.asarray(column.to_numpy(zero_copy_only=False))
        for buffer in column.buffers() if isinstance(column, pa.Array) else ():
            if buffer is not None:
                yield f"{name} (bytes)", np.frombuffer(buffer, np.uint8)
