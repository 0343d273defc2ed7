"""Files of arrays that end with a tag: a damaged file is refused before it is used.

Behind the Arrow IPC stream stand 16 bytes: GMAC (AES-256-GCM of nothing, with the stream as associated data) under
HMAC-SHA256(key, name of the file). The nonce is 0: a key and a name stand for one content, which never changes. It is
several times as fast as HMAC, and a process checks a file once.
"""

import hmac
from pathlib import Path

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from veilmeans.io.files.party_files import LOCAL, files_at
from veilmeans.schemas.arrays import stream_size, write_stream

TAG_SIZE = 16
_MOST_REMEMBERED = 1 << 16
_Seen = tuple[bytes, str, int, int, int]
_checked: set[_Seen] = set()  # the files on this disk that this process has checked: key, path, state


class DamagedFileError(Exception):
    """A file is missing, or its tag does not fit it."""


def write_tagged(path: Path, key: bytes, name: str, batch: pa.RecordBatch) -> None:
    """Write a record batch as an Arrow IPC stream, with its tag."""
    stream = pa.allocate_buffer(stream_size(batch))
    write_stream(batch, pa.FixedSizeBufferWriter(stream))
    files_at(path).write(path, [stream, _tag(key, name, stream)])


def map_tagged(path: Path, key: bytes, name: str) -> pa.Buffer:
    """Map the stream of a file that `write_tagged` made, and check it; raise DamagedFileError."""
    files = files_at(path)
    try:
        state = path.stat() if files is LOCAL else None
        content = files.read(path)
    except (OSError, pa.ArrowException):
        raise DamagedFileError from None
    stream = content.slice(0, max(0, content.size - TAG_SIZE))
    seen = None if state is None else (key, str(path), state.st_ino, state.st_mtime_ns, state.st_size)
    if seen not in _checked:
        if not hmac.compare_digest(content.slice(stream.size).to_pybytes(), _tag(key, name, stream)):
            raise DamagedFileError
        if seen is not None:
            _remember(seen)
    return stream


def _remember(seen: _Seen) -> None:
    if len(_checked) >= _MOST_REMEMBERED:
        _checked.clear()
    _checked.add(seen)


def _tag(key: bytes, name: str, stream: pa.Buffer) -> bytes:
    own = hmac.digest(key, b"veilmeans file " + name.encode(), "sha256")
    mac = Cipher(algorithms.AES(own), modes.GCM(bytes(12))).encryptor()
    mac.authenticate_additional_data(memoryview(stream).cast("B"))
    mac.finalize()
    return mac.tag
