"""The exchange through files on any Beam filesystem: one outbox per party, with a folder for each recipient.

For engines whose workers take no connections. A message is sealed for its recipient (`crypto.pairwise_encryption`), so
the storage sees nothing and can change nothing unseen. It is written beside its place and renamed; the reader polls.
"""

import time
from collections.abc import Mapping, Sequence
from uuid import uuid4

import pyarrow as pa
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from veilmeans.crypto.pairwise_encryption import Seal, SealError
from veilmeans.io.exchange.exchange import Outgoing, check_size
from veilmeans.schemas.errors import PeerError, RefusedError, StorageError
from veilmeans.schemas.message import HEADER_SIZE, Header, MessageKey, open_envelope

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.25
_SEAL_SIZE = 12 + 16
"""What sealing adds to a message: nonce and tag."""
_BINARY = {"mime_type": "application/octet-stream", "compression_type": CompressionTypes.UNCOMPRESSED}


class FileExchange:
    """A party's own `outbox`, and where it finds each peer's."""

    def __init__(self, outbox: str, peer_outboxes: Mapping[str, str], seals: Mapping[str, Seal], limit: int) -> None:
        self._outbox, self._peer_outboxes, self._seals, self._limit = outbox, dict(peer_outboxes), dict(seals), limit
        self._folders: set[str] = set()

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self._put(message)

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        path = self._path(self._peer_outboxes[key.sender], key)
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while not FileSystems.exists(path):
            if time.monotonic() >= deadline:
                raise PeerError(
                    f"no message {key.address} came from {key.sender} within {timeout:g} s: is its pipeline running, "
                    f"and is its outbox {self._peer_outboxes[key.sender]}?"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return self._unsealed(key, self._fetch(key, path))

    def collect(self, run: str, before: int | None = None) -> int:
        found = [
            entry.path
            for recipient in self._seals
            for match in FileSystems.match([f"{self._outbox}/{recipient}/{run}/**"])
            for entry in match.metadata_list
        ]
        old = [path for path in found if before is None or _iteration(path) < before]
        if old:
            FileSystems.delete(old)
        return len(old)

    def forget_refusal(self, run: str) -> None:
        """Nothing is remembered: a bad file is refused each time it is read."""

    def close(self) -> None:
        """Nothing is held open."""

    def _put(self, message: Outgoing) -> None:
        key = message.key
        check_size(key, message.payload.size, self._limit)
        plain = Header.of(message.payload).pack() + message.payload.to_pybytes()
        sealed = self._seals[key.recipient].seal(plain, key.to_json().encode())
        path = self._path(self._outbox, key)
        try:
            if FileSystems.exists(path) and not message.replaceable:
                self._compare(key, sealed, path)
            else:
                self._write(path, sealed)
        except (OSError, BeamIOError) as error:
            raise StorageError(f"the outbox {self._outbox} cannot be written: {error}") from None

    def _compare(self, key: MessageKey, sealed: bytes, path: str) -> None:
        if _read(path) != sealed:
            raise RefusedError(
                f"the outbox holds a different message {key}: data, configuration or seed changed within one run; "
                "start a new run id"
            )

    def _write(self, path: str, sealed: bytes) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            if "://" not in folder and not FileSystems.exists(folder):
                _make_folder(folder)
            self._folders.add(folder)
        part = f"{path}.{uuid4().hex}.part"
        with FileSystems.create(part, **_BINARY) as file:
            file.write(sealed)
        FileSystems.rename([part], [path])

    def _fetch(self, key: MessageKey, path: str) -> bytes:
        """The sealed bytes, unless there are more of them than a message may have: those are not even read."""
        try:
            size = FileSystems.get_filesystem(path).size(path)
            check_size(key, size - HEADER_SIZE - _SEAL_SIZE, self._limit)
            return _read(path)
        except (OSError, BeamIOError) as error:
            raise StorageError(f"message {key} cannot be read from the outbox of {key.sender}: {error}") from None

    def _unsealed(self, key: MessageKey, sealed: bytes) -> pa.Buffer:
        try:
            plain = self._seals[key.sender].open(sealed, key.to_json().encode())
        except SealError:
            raise RefusedError(
                f"message {key} is truncated, altered or not made by {key.sender}: its seal does not fit"
            ) from None
        return open_envelope(key, pa.py_buffer(plain))

    @staticmethod
    def _path(outbox: str, key: MessageKey) -> str:
        return f"{outbox}/{key.recipient}/{key.path}"


def _make_folder(folder: str) -> None:
    try:
        FileSystems.mkdirs(folder)
    except (OSError, BeamIOError):
        if not FileSystems.exists(folder):
            raise


def _read(path: str) -> bytes:
    with FileSystems.open(path, **_BINARY) as file:
        data: bytes = file.read()
    return data


def _iteration(path: str) -> int:
    """Of a path that ends in run/iteration/stage/file; a run or a stage may be called like anything."""
    return int(path.replace("\\", "/").split("/")[-3])
