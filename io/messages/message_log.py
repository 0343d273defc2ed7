"""The small messages of one iteration in one file: appended one after the other, found by an index in memory.

Record: header (64 bytes, `schemas.message`; the length of the key in bytes 48 to 52) · key (JSON) · payload. A message
is in the log when its last byte is written, which is before it is acknowledged: what a killed process leaves behind the
last complete record was never acknowledged, and the next record overwrites it. Of two records with one key the later
counts. One process writes; a message costs one system call, and the index a few hundred bytes of memory.
"""

import os
import threading
from pathlib import Path

import pyarrow as pa

from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import HEADER_SIZE, Header, MessageKey

NAME = "messages.log"
_KEY_LENGTH = slice(48, 52)


class MessageLog:
    """The log at `path`, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[MessageKey, tuple[int, Header]] = {}  # key -> where its payload begins, size and digest
        self._lock = threading.Lock()
        self._file: int | None = None
        self._end = 0
        self._trimmed = False  # whether nothing stands behind the last record
        if path.exists():
            self._scan()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self._places

    def keys(self) -> list[MessageKey]:
        """The keys of all messages, in the order of their first arrival."""
        return list(self._places)

    def header(self, key: MessageKey) -> Header | None:
        """Return size and digest of the message under `key`; None if there is none."""
        place = self._places.get(key)
        return None if place is None else place[1]

    def append(self, key: MessageKey, header: Header, payload: pa.Buffer) -> None:
        """Write a message behind the others; if it cannot be written, the log is as it was before."""
        name = key.to_json().encode()
        head = bytearray(header.pack())
        head[_KEY_LENGTH] = len(name).to_bytes(4, "big")
        record = b"".join((head, name, payload))
        with self._lock:
            self._write(record)
            self._places[key] = (self._end + len(record) - payload.size, header)
            self._end += len(record)

    def read(self, key: MessageKey) -> pa.Buffer:
        """Read the payload under `key` and check it."""
        start, header = self._places[key]
        with self._lock:
            payload = pa.py_buffer(os.pread(self._open(), header.size, start))
        header.check(key, payload)
        return payload

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._trimmed = False
        return self._file

    def _write(self, record: bytes) -> None:
        file, written = self._open(), 0
        if not self._trimmed:
            os.ftruncate(file, self._end)  # a killed process may have left a part of a record
            self._trimmed = True
        try:
            while written < len(record):
                written += os.pwrite(file, memoryview(record)[written:], self._end + written)
        except OSError:
            self._trimmed = False
            raise

    def _scan(self) -> None:
        """Find the complete records of an earlier process."""
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while (found := _read_head(file.read(HEADER_SIZE))) is not None:
                header, length = found
                start = self._end + HEADER_SIZE + length
                if start + header.size > size:
                    return
                try:
                    key = MessageKey.parse(file.read(length))
                except RefusedError:
                    return
                self._places[key] = (start, header)
                self._end = start + header.size
                file.seek(self._end)


def _read_head(head: bytes) -> tuple[Header, int] | None:
    """Return a record's header and the length of its key; None if no record begins here."""
    try:
        return Header.unpack(head), int.from_bytes(head[_KEY_LENGTH], "big")
    except RefusedError:
        return None
