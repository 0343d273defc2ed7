"""Files of arrays that end with a tag: a damaged file is refused before it is used.

Behind the Arrow IPC stream stand 16 bytes: GMAC (AES-256-GCM of nothing, with the stream as associated data) under
HMAC-SHA256(key, name of the file). The nonce is 0: a key and a name stand for one content, which never changes. It is
several times as fast as HMAC, and a process checks a file once.
"""

import hmac
from pathlib import Path

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from veilmeans.io.storage.atomic_files import atomic_write
from veilmeans.schemas.arrays import write_stream

TAG_SIZE = 16
_MOST_REMEMBERED = 1 << 16
_checked: set[tuple[bytes, str, int, int, int]] = set()  # the files that this process has checked: key, path, state


class DamagedFileError(Exception):
    """A file is missing, or its tag does not fit it."""


def write_tagged(path: Path, key: bytes, name: str, batch: pa.RecordBatch) -> None:
    """Write a record batch atomically as an Arrow IPC stream, with its tag."""
    with atomic_write(path) as part:
        with pa.OSFile(str(part), "wb") as file:
            write_stream(batch, file)
        with pa.memory_map(str(part)) as source:
            tag = _tag(key, name, source.read_buffer())
        with part.open("ab") as end:
            end.write(tag)


def map_tagged(path: Path, key: bytes, name: str) -> pa.Buffer:
    """Map the stream of a file that `write_tagged` made, and check it; raise DamagedFileError."""
    try:
        state = path.stat()
        with pa.memory_map(str(path)) as source:
            content = source.read_buffer()
    except (OSError, pa.ArrowException):
        raise DamagedFileError from None
    stream = content.slice(0, max(0, content.size - TAG_SIZE))
    seen = (key, str(path), state.st_ino, state.st_mtime_ns, state.st_size)
    if seen not in _checked:
        if not hmac.compare_digest(content.slice(stream.size).to_pybytes(), _tag(key, name, stream)):
            raise DamagedFileError
        if len(_checked) >= _MOST_REMEMBERED:
            _checked.clear()
        _checked.add(seen)
    return stream


def _tag(key: bytes, name: str, stream: pa.Buffer) -> bytes:
    own = hmac.digest(key, b"veilmeans file " + name.encode(), "sha256")
    mac = Cipher(algorithms.AES(own), modes.GCM(bytes(12))).encryptor()
    mac.authenticate_additional_data(memoryview(stream).cast("B"))
    mac.finalize()
    return mac.tag
