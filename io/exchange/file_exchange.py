"""The exchange through files on any Beam filesystem: one outbox per party, with a folder for each recipient.

For runners whose workers accept no connections. A message is encrypted for its recipient
(`crypto.pairwise_encryption`): the storage cannot read it, and every change is noticed. It is written beside its place
and renamed; the reader polls.
"""

import errno
import math
import os
import stat
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO
from uuid import uuid4

import pyarrow as pa
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from tenacity import wait_exponential

from veilmeans.crypto.pairwise_encryption import DecryptionError, PairwiseCipher
from veilmeans.io.exchange.exchange import Outgoing, check_size, missing, poll
from veilmeans.schemas.errors import PeerError, RefusedError, StorageError
from veilmeans.schemas.message import HEADER_SIZE, MessageKey, iteration_in, open_envelope

_POLLING = wait_exponential(multiplier=0.001, exp_base=1.5, max=0.25)
_ENCRYPTION_SIZE = 12 + 16  # bytes that encryption adds to a message: nonce and tag
_BINARY = {"mime_type": "application/octet-stream", "compression_type": CompressionTypes.UNCOMPRESSED}


class FileExchange:
    """An exchange through outboxes: the party's own, and those of its peers, from which it reads."""

    def __init__(
        self, outbox: str, peer_outboxes: Mapping[str, str], ciphers: Mapping[str, PairwiseCipher], limit: int
    ) -> None:
        self._outbox, self._peer_outboxes, self._ciphers = outbox, dict(peer_outboxes), ciphers
        self._limit = limit
        self._folders: set[str] = set()

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self._put(message)

    def flush(self) -> None:
        """Do nothing: a message is in the outbox, for good, when its put returns."""

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        path = self._path(self._peer_outboxes[key.sender], key)
        if not poll(partial(self._has_come, key, path), timeout, _POLLING):
            raise PeerError(
                f"no message {key.address} came from {key.sender} within {timeout:g} s: {missing(key)}, "
                f"and is its outbox {self._peer_outboxes[key.sender]}?"
            )
        return self._decrypt(key, self._read_limited(key, path))

    def drop_messages(self, run: str, before: int | None = None) -> int:
        paths = [
            entry.path
            for recipient in self._ciphers
            for match in FileSystems.match([f"{self._outbox}/{recipient}/{run}/**"])
            for entry in match.metadata_list
        ]
        old = [path for path in paths if before is None or _iteration_of(path) < before]
        if old:
            FileSystems.delete(old)
        return len(old)

    def forget_refusal(self, run: str) -> None:
        """Do nothing: no refusal is remembered, a bad file is refused each time it is read."""

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _has_come(self, key: MessageKey, path: str) -> bool:
        """Return whether a file is there; an error as soon as its sender's certificate is not pinned or not valid."""
        return self._ciphers[key.sender] is not None and bool(FileSystems.exists(path))

    def _put(self, message: Outgoing) -> None:
        key = message.key
        check_size(key, message.payload.size, self._limit)
        plain = message.header.pack() + message.payload.to_pybytes()
        encrypted = self._ciphers[key.recipient].encrypt(plain, key.to_json().encode())
        path = self._path(self._outbox, key)
        try:
            if message.replaceable or not FileSystems.exists(path):
                self._write(path, encrypted)
            elif _read(path, len(encrypted) + 1) != encrypted:
                raise RefusedError(
                    f"the outbox holds a different message {key}: data, configuration or seed changed within one run; "
                    "start a new run id"
                )
        except (OSError, BeamIOError) as error:
            raise StorageError(f"the outbox {self._outbox} cannot be written: {error}") from None

    def _write(self, path: str, encrypted: bytes) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            if "://" not in folder and not FileSystems.exists(folder):
                _make_folder(folder)
            self._folders.add(folder)
        part = f"{path}.{uuid4().hex}.part"
        with FileSystems.create(part, **_BINARY) as file:
            file.write(encrypted)
        FileSystems.rename([part], [path])

    def _read_limited(self, key: MessageKey, path: str) -> bytes:
        """Read the encrypted message, unless it is larger than a message may be."""
        try:
            size = FileSystems.get_filesystem(path).size(path)
            check_size(key, size - HEADER_SIZE - _ENCRYPTION_SIZE, self._limit)
            return _read(path, size)
        except (OSError, BeamIOError) as error:
            raise StorageError(f"message {key} cannot be read from the outbox of {key.sender}: {error}") from None

    def _decrypt(self, key: MessageKey, encrypted: bytes) -> pa.Buffer:
        try:
            plain = self._ciphers[key.sender].decrypt(encrypted, key.to_json().encode())
        except DecryptionError:
            what = f"is truncated, altered or not made by {key.sender}: it cannot be decrypted"
            raise RefusedError(f"message {key} {what}") from None
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


def _read(path: str, most: int) -> bytes:
    """Read a file, at most its first `most` bytes."""
    with FileSystems.open(path, **_BINARY) if "://" in path else _open_regular(path) as file:
        data: bytes = file.read(most)
    return data


def _open_regular(path: str) -> IO[bytes]:
    """Open a regular file: a peer may have put a pipe, or a link to a device, in its place, and neither ever ends."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file


def _iteration_of(path: str) -> float:
    """Read the iteration from a path that ends in run/iteration/stage/file; of a stray file it is never over."""
    iteration = iteration_in(path.replace("\\", "/").split("/")[-3])
    return math.inf if iteration is None else iteration
