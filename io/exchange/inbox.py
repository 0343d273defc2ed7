"""A party's inbox on disk: one file per message, put if absent, with a digest, atomically.

A message is written beside its place, then renamed into it: a reader sees all of it or nothing, and an acknowledged
message survives the death of any process. (It is not fsynced: after a power cut both parties resume from their
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

from veilmeans.io.storage.atomic_files import disk_errors, write_text
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import HEADER_SIZE, Header, MessageKey, open_envelope


class MessageStore:
    """The messages below one folder. One process writes (the gateway); its threads may wait for arrivals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._arrived = threading.Condition()
        self.commit_lock = threading.Lock()  # held while a message is compared with a stored one and renamed
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"the inbox folder {folder} cannot be made: {error.strerror}") from None

    def receive(self, key: MessageKey, header: Header, replaceable: bool) -> "IncomingMessage":
        """Begin to receive a message in parts."""
        return IncomingMessage(self, key, header, replaceable)

    def find(self, key: MessageKey) -> pa.Buffer | None:
        """Return the checked payload under `key`, or None while it has not arrived."""
        refusal = self._refusal(key.address.run)
        if refusal.exists():
            raise RefusedError(refusal.read_text())
        path = self.folder / key.path
        if not path.exists():
            return None
        with pa.memory_map(str(path)) as source:
            return open_envelope(key, source.read_buffer())

    def wait(self, key: MessageKey, seconds: float) -> pa.Buffer | None:
        """Wait at most `seconds` for the message under `key`, then do as `find`."""
        run, path = key.address.run, self.folder / key.path
        with self._arrived:
            self._arrived.wait_for(lambda: path.exists() or self._refusal(run).exists(), seconds)
        return self.find(key)

    def header(self, key: MessageKey) -> Header | None:
        """Return size and digest of the message under `key`; None if there is none, or one torn by a power cut."""
        try:
            with (self.folder / key.path).open("rb") as file:
                return Header.unpack(key, file.read(HEADER_SIZE))
        except (FileNotFoundError, RefusedError):
            return None

    def refuse(self, run: str, error: RefusedError) -> None:
        """End `run` here: every later `find` of one of its messages raises this error."""
        write_text(self._refusal(run), error.sentence)
        self.notify()

    def forget_refusal(self, run: str) -> None:
        """Forget an earlier refusal: the party reruns the run."""
        self._refusal(run).unlink(missing_ok=True)

    def drop_messages(self, run: str, before: int | None) -> int:
        """Delete the messages of iterations below `before`, or of the whole run; return their number."""
        root = self.folder / run
        folders = [folder for folder in root.iterdir() if folder.is_dir()] if root.exists() else []
        old = [folder for folder in folders if before is None or int(folder.name) < before]
        dropped = sum(1 for folder in old for _ in folder.rglob("*.msg"))
        for folder in old:
            shutil.rmtree(folder)
        if before is None and root.exists():
            shutil.rmtree(root)
        return dropped

    def notify(self) -> None:
        """Wake all threads that wait for a message."""
        with self._arrived:
            self._arrived.notify_all()

    def _refusal(self, run: str) -> Path:
        return self.folder / run / "REFUSED"


class IncomingMessage:
    """A message of which parts are still arriving: appended to a file beside its place, hashed as they come."""

    def __init__(self, inbox: MessageStore, key: MessageKey, header: Header, replaceable: bool) -> None:
        self._inbox, self._key, self._header, self._replaceable = inbox, key, header, replaceable
        self._path = inbox.folder / key.path
        self._part = self._path.with_name(f"{self._path.name}.{uuid4().hex}.part")
        self._hash = hashlib.sha256()
        self._size = 0
        with disk_errors(inbox.folder):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = self._part.open("wb")
            self._file.write(header.pack())

    def write(self, part: pa.Buffer) -> None:
        """Append one part."""
        self._size += part.size
        if self._size > self._header.size:
            raise RefusedError(f"message {self._key} is longer than the {self._header.size:,} bytes it announced")
        self._hash.update(part)
        with disk_errors(self._inbox.folder):
            self._file.write(part)

    def commit(self) -> None:
        """Check size and digest, then rename the file into its place; the same message again replaces itself."""
        with disk_errors(self._inbox.folder):
            self._file.close()
        if self._size != self._header.size:
            what = f"{self._size:,} of {self._header.size:,} bytes arrived"
            raise RefusedError(f"message {self._key} is truncated: {what}")
        if self._hash.digest() != self._header.digest:
            raise RefusedError(f"message {self._key} was altered on its way: its SHA-256 differs")
        with self._inbox.commit_lock, disk_errors(self._inbox.folder):
            stored = self._inbox.header(self._key)
            if stored is not None and stored != self._header and not self._replaceable:
                raise RefusedError(
                    f"{self._key.sender} sent two different messages as {self._key}: "
                    "its data, configuration or seed changed within one run; start a new run id"
                )
            self._part.replace(self._path)
        self._inbox.notify()

    @property
    def complete(self) -> bool:
        """True when as many bytes have arrived as were announced."""
        return self._size == self._header.size

    def abandon(self) -> None:
        """Delete the parts of a message that will not be stored."""
        with suppress(OSError):  # a full disk is full for the last buffered bytes, too
            self._file.close()
        self._part.unlink(missing_ok=True)
