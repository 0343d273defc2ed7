"""A party's inbox on disk: put-if-absent with digest, atomic, one file per message.

A message is written beside its place, then renamed into it: a reader sees all of it or nothing, and an acknowledged
message survives the death of any process. (It is not fsynced: after a power cut both parties run again from their
checkpoints and send the same bytes.) Memory does not grow with the messages: readers map the files.
"""

import hashlib
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

import pyarrow as pa

from veilmeans.io.storage.atomic_files import disk_error, write_text
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import HEADER_SIZE, Header, MessageKey, open_envelope


class MessageStore:
    """Messages below one folder. One process writes (the gateway); its threads may wait for arrivals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._arrived = threading.Condition()
        self.placing = threading.Lock()
        """Held while a message is compared with what is there and put in its place."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"the spool folder {folder} cannot be made: {error.strerror}") from None

    def receive(self, key: MessageKey, header: Header, replaceable: bool) -> "Incoming":
        """Begin to take in a message in parts."""
        return Incoming(self, key, header, replaceable)

    def find(self, key: MessageKey) -> pa.Buffer | None:
        """The checked payload under `key`, or None while it has not come."""
        refusal = self._refusal(key.address.run)
        if refusal.exists():
            raise RefusedError(refusal.read_text())
        path = self.folder / key.path
        if not path.exists():
            return None
        with pa.memory_map(str(path)) as source:
            return open_envelope(key, source.read_buffer())

    def wait(self, key: MessageKey, seconds: float) -> pa.Buffer | None:
        """As `find`, waiting for the message at most `seconds`."""
        run, path = key.address.run, self.folder / key.path
        with self._arrived:
            self._arrived.wait_for(lambda: path.exists() or self._refusal(run).exists(), seconds)
        return self.find(key)

    def header(self, key: MessageKey) -> Header | None:
        """Size and digest of the message under `key`; None if there is none, or one torn by a power cut."""
        try:
            with (self.folder / key.path).open("rb") as file:
                return Header.unpack(key, file.read(HEADER_SIZE))
        except (FileNotFoundError, RefusedError):
            return None

    def refuse(self, run: str, error: RefusedError) -> None:
        """End `run` here: every later `find` of it says why."""
        write_text(self._refusal(run), error.sentence)
        self.announce()

    def forget_refusal(self, run: str) -> None:
        """Forget an earlier refusal: the party has started the run again."""
        self._refusal(run).unlink(missing_ok=True)

    def collect(self, run: str, before: int | None) -> int:
        """Drop messages of iterations below `before`, or the whole run."""
        root = self.folder / run
        folders = [d for d in root.iterdir() if d.is_dir()] if root.exists() else []
        old = [d for d in folders if before is None or int(d.name) < before]
        dropped = sum(1 for d in old for _ in d.rglob("*.msg"))
        for folder in old:
            shutil.rmtree(folder)
        if before is None and root.exists():
            shutil.rmtree(root)
        return dropped

    def announce(self) -> None:
        with self._arrived:
            self._arrived.notify_all()

    def _refusal(self, run: str) -> Path:
        return self.folder / run / "REFUSED"


class Incoming:
    """One message on its way in: parts are appended to a file beside its place, hashed as they come."""

    def __init__(self, spool: MessageStore, key: MessageKey, header: Header, replaceable: bool) -> None:
        self._spool, self._key, self._header, self._replaceable = spool, key, header, replaceable
        self._path = spool.folder / key.path
        self._part = self._path.with_name(f"{self._path.name}.{uuid4().hex}.part")
        self._hash = hashlib.sha256()
        self._size = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = self._part.open("wb")
            self._file.write(header.pack())
        except OSError as error:
            raise disk_error(spool.folder, error) from None

    def write(self, part: pa.Buffer) -> None:
        self._size += part.size
        if self._size > self._header.size:
            raise RefusedError(f"message {self._key} is longer than the {self._header.size:,} bytes it announced")
        self._hash.update(part)
        try:
            self._file.write(part)
        except OSError as error:
            raise disk_error(self._spool.folder, error) from None

    def commit(self) -> None:
        """Check the whole, then rename it into place; the same message again takes its own place."""
        try:
            self._file.close()
        except OSError as error:
            raise disk_error(self._spool.folder, error) from None
        if self._size != self._header.size:
            raise RefusedError(
                f"message {self._key} is truncated: {self._size:,} of {self._header.size:,} bytes arrived"
            )
        if self._hash.digest() != self._header.digest:
            raise RefusedError(f"message {self._key} was altered on its way: its SHA-256 differs")
        with self._spool.placing:
            self._place()
        self._spool.announce()

    @property
    def complete(self) -> bool:
        return self._size == self._header.size

    def abandon(self) -> None:
        """Drop what came of a message that will not be kept."""
        with suppress(OSError):  # a full disk is full for the last buffered bytes, too
            self._file.close()
        self._part.unlink(missing_ok=True)

    def _place(self) -> None:
        known = self._spool.header(self._key)
        if known is not None and known != self._header and not self._replaceable:
            raise RefusedError(
                f"{self._key.sender} sent two different messages as {self._key}: "
                "its data, configuration or seed changed within one run; start a new run id"
            )
        try:
            self._part.replace(self._path)
        except OSError as error:
            raise disk_error(self._spool.folder, error) from None
