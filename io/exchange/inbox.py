"""A party's inbox on disk: put if absent, with a digest, complete or not at all.

Small messages of an iteration share a log file (`message_log`); a large one has a file of its own, which is written
beside its place and then renamed into it. An acknowledged message survives the death of any process: it is with the
operating system. It is not fsynced: after a power cut the parties resume from their checkpoints, which are, and send
the same bytes. Memory does not grow with the messages: readers map large files, and of small messages only some that
nobody has read yet are kept in memory beside the log.
"""

import hashlib
import shutil
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

import pyarrow as pa

from veilmeans.io.files.atomic_files import disk_errors, write_text
from veilmeans.io.messages import message_log
from veilmeans.io.messages.message_log import MessageLog
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import HEADER_SIZE, Header, MessageKey, iteration_in, open_envelope

_SMALL = 1 << 18  # bytes up to which a message goes to the log of its iteration
_DROPPED = ".dropped-"  # begins the names of folders that are being deleted; no run's name begins so
UNEXPECTED = 1_000  # messages of runs that this party has not begun that a peer may send
_UNREAD = 8 << 20  # bytes of unread small messages that are kept in memory


class MessageStore:
    """The messages below one folder. One process writes (the gateway); its threads may wait for arrivals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._arrived = threading.Condition()
        self.commit_lock = threading.Lock()  # held while a message is compared with a stored one and stored
        self._logs: dict[tuple[str, int], MessageLog] = {}  # by run and iteration
        self._unread = _UnreadPayloads(_UNREAD)
        self._refusals: dict[str, str | None] = {}  # run -> the sentence that ended it, as far as it was looked up
        self._begun: set[str] = set()  # runs whose messages this party has asked for
        self._unexpected: Counter[tuple[str, str]] = Counter()  # messages of other runs, by sender and run
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"the inbox folder {folder} cannot be made: {error.strerror}") from None
        for dropped in folder.glob(f"{_DROPPED}*"):  # a process was killed while it deleted them
            shutil.rmtree(dropped, ignore_errors=True)

    def admits(self, key: MessageKey) -> bool:
        """Return whether a message may be stored: of runs that this party has not begun, a peer may send a few."""
        if key.address.run in self._begun:
            return True
        with self.commit_lock:
            counted = [(sender, run) for sender, run in self._unexpected if run not in self._begun]
            admitted = sum(self._unexpected[each] for each in counted if each[0] == key.sender) < UNEXPECTED
            self._unexpected[key.sender, key.address.run] += admitted
            return admitted

    def receive(self, key: MessageKey, header: Header, replaceable: bool) -> "IncomingMessage":
        """Begin to receive a message in parts."""
        if header.size <= _SMALL and not replaceable:
            return SmallMessage(self, key, header)
        return LargeMessage(self, key, header, replaceable)

    def find(self, key: MessageKey) -> pa.Buffer | None:
        """Return the checked payload under `key`, or None while it has not arrived."""
        self._begun.add(key.address.run)
        refusal = self._refusal_of(key.address.run)
        if refusal is not None:
            raise RefusedError(refusal)
        payload = self._unread.take(key)
        if payload is not None:
            return payload
        log = self._log(key)
        if key in log:
            return log.read(key)
        path = self.folder / key.path
        if not path.exists():
            return None
        with pa.memory_map(str(path)) as source:
            return open_envelope(key, source.read_buffer())

    def wait(
        self, key: MessageKey, seconds: float, interrupted: Callable[[], bool] = lambda: False
    ) -> pa.Buffer | None:
        """Wait at most `seconds` for the message under `key`, then do as `find`; stop waiting if `interrupted`."""
        self._begun.add(key.address.run)
        with self._arrived:
            self._arrived.wait_for(lambda: self._may_find(key) or interrupted(), seconds)
        return self.find(key)

    def header(self, key: MessageKey) -> Header | None:
        """Return size and digest of the message under `key`; None if there is none, or one torn by a power cut."""
        log = self._log(key)
        try:
            if key in log:
                log.read(key)
                return log.header(key)
            with (self.folder / key.path).open("rb") as file:
                return Header.unpack(file.read(HEADER_SIZE), key)
        except (FileNotFoundError, RefusedError):
            return None

    def store(self, key: MessageKey, header: Header, payload: pa.Buffer) -> None:
        """Append a small message to its log; the caller holds `commit_lock`."""
        self._log(key).append(key, header, payload)
        header.remember(payload)
        self._unread.add(key, payload)

    def refuse(self, run: str, error: RefusedError) -> None:
        """End `run` here: every later `find` of one of its messages raises this error."""
        try:
            with self.commit_lock:
                write_text(self._refusal(run), error.sentence)
        finally:
            self._refusals[run] = error.sentence
            self.notify()

    def forget_refusal(self, run: str) -> None:
        """Forget an earlier refusal: the party begins or reruns the run."""
        self._begun.add(run)
        self._refusal(run).unlink(missing_ok=True)
        self._refusals.pop(run, None)

    def drop_messages(self, run: str, before: int | None) -> int:
        """Delete the messages of iterations below `before`, or of the whole run; return their number."""
        root = self.folder / run
        with self.commit_lock:  # nobody stores a message while folders lose their names
            folders = (
                [folder for folder in root.iterdir() if iteration_in(folder.name) is not None] if root.exists() else []
            )
            old = [folder for folder in folders if before is None or int(folder.name) < before]
            dropped = sum(self._count(run, folder) for folder in old)
            for folder in old:
                self._logs.pop((run, int(folder.name))).close()
            if before is None:
                old = [root] if root.exists() else []
                self._refusals.pop(run, None)
            nameless = [folder.rename(self.folder / f"{_DROPPED}{uuid4().hex}") for folder in old]
        self._unread.drop(run, before)
        for folder in nameless:
            shutil.rmtree(folder, ignore_errors=True)
        return dropped

    def notify(self) -> None:
        """Wake all threads that wait for a message."""
        with self._arrived:
            self._arrived.notify_all()

    def _may_find(self, key: MessageKey) -> bool:
        if key in self._unread or self._refusal_of(key.address.run) is not None or key in self._log(key):
            return True
        return (self.folder / key.path).exists()

    def _log(self, key: MessageKey) -> MessageLog:
        return self._log_of(key.address.run, key.address.iteration)

    def _log_of(self, run: str, iteration: int) -> MessageLog:
        log = self._logs.get((run, iteration))
        if log is None:
            new = MessageLog(self.folder / run / str(iteration) / message_log.NAME)
            log = self._logs.setdefault((run, iteration), new)
        return log

    def _count(self, run: str, folder: Path) -> int:
        return len(self._log_of(run, int(folder.name))) + sum(1 for _ in folder.rglob("*.msg"))

    def _refusal(self, run: str) -> Path:
        return self.folder / run / "REFUSED"

    def _refusal_of(self, run: str) -> str | None:
        if run not in self._refusals:
            file = self._refusal(run)
            self._refusals[run] = file.read_text() if file.exists() else None
        return self._refusals[run]


class _UnreadPayloads:
    """The last small messages that nobody has read: what is read soon after its arrival is read from memory."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._payloads: dict[MessageKey, pa.Buffer] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: MessageKey) -> bool:
        return key in self._payloads

    def add(self, key: MessageKey, payload: pa.Buffer) -> None:
        with self._lock:
            self._payloads[key] = payload
            self._size += payload.size
            while self._size > self._limit:
                oldest = next(iter(self._payloads))
                self._size -= self._payloads.pop(oldest).size

    def take(self, key: MessageKey) -> pa.Buffer | None:
        with self._lock:
            payload = self._payloads.pop(key, None)
            if payload is not None:
                self._size -= payload.size
            return payload

    def drop(self, run: str, before: int | None) -> None:
        for key in list(self._payloads):
            if key.address.run == run and (before is None or key.address.iteration < before):
                self.take(key)


class IncomingMessage(ABC):
    """A message of which parts are still arriving; they are counted and hashed as they come."""

    def __init__(self, key: MessageKey, header: Header) -> None:
        self._key, self._header = key, header
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, part: pa.Buffer) -> None:
        """Append one part."""
        self._size += part.size
        if self._size > self._header.size:
            raise RefusedError(f"message {self._key} is longer than the {self._header.size:,} bytes it announced")
        self._hash.update(part)
        self._keep(part)

    def commit(self) -> None:
        """Check size and digest, then accept the message."""
        if self._size != self._header.size:
            what = f"{self._size:,} of {self._header.size:,} bytes arrived"
            raise RefusedError(f"message {self._key} is truncated: {what}")
        if self._hash.digest() != self._header.digest:
            raise RefusedError(f"message {self._key} was altered on its way: its SHA-256 differs")
        self._accept()

    @property
    def complete(self) -> bool:
        """True when as many bytes have arrived as were announced."""
        return self._size == self._header.size

    @abstractmethod
    def abandon(self) -> None:
        """Delete the parts of a message that will not be stored."""

    @abstractmethod
    def _keep(self, part: pa.Buffer) -> None:
        """Keep one part until the message is complete."""

    @abstractmethod
    def _accept(self) -> None:
        """Take over the complete message."""


class StoredMessage(IncomingMessage):
    """A message for the inbox; the same message again changes nothing."""

    _replaceable = False

    def __init__(self, inbox: MessageStore, key: MessageKey, header: Header) -> None:
        super().__init__(key, header)
        self._inbox = inbox

    def _accept(self) -> None:
        with self._inbox.commit_lock, disk_errors(self._inbox.folder):
            stored = self._inbox.header(self._key)
            if stored is not None and stored != self._header and not self._replaceable:
                raise RefusedError(
                    f"{self._key.sender} sent two different messages as {self._key}: "
                    "its data, configuration or seed changed within one run; start a new run id"
                )
            self._store(stored)
        self._inbox.notify()

    @abstractmethod
    def _store(self, stored: Header | None) -> None:
        """Store the complete message."""


class SmallMessage(StoredMessage):
    """A message for the log, in memory until it is complete."""

    def __init__(self, inbox: MessageStore, key: MessageKey, header: Header) -> None:
        super().__init__(inbox, key, header)
        self._parts: list[bytes] = []

    def abandon(self) -> None:
        self._parts.clear()

    def _keep(self, part: pa.Buffer) -> None:
        self._parts.append(part.to_pybytes())

    def _store(self, stored: Header | None) -> None:
        if stored is None:
            whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._inbox.store(self._key, self._header, pa.py_buffer(whole))


class LargeMessage(StoredMessage):
    """A message with a file of its own, beside its place until it is complete."""

    def __init__(self, inbox: MessageStore, key: MessageKey, header: Header, replaceable: bool) -> None:
        super().__init__(inbox, key, header)
        self._replaceable = replaceable
        self._path = inbox.folder / key.path
        self._part = self._path.with_name(f"{self._path.name}.{uuid4().hex}.part")
        with inbox.commit_lock, disk_errors(inbox.folder):  # nobody drops the folder in between
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._part.touch(mode=0o600)
            self._file: IO[bytes] = self._part.open("wb")
            self._file.write(header.pack())

    def commit(self) -> None:
        with disk_errors(self._inbox.folder):
            self._file.close()
        super().commit()

    def abandon(self) -> None:
        with suppress(OSError):  # a full disk is full for the last buffered bytes, too
            self._file.close()
        self._part.unlink(missing_ok=True)

    def _keep(self, part: pa.Buffer) -> None:
        with disk_errors(self._inbox.folder):
            self._file.write(part)

    def _store(self, _stored: Header | None) -> None:
        with suppress(FileNotFoundError):  # its iteration was dropped while it arrived: nobody needs it
            self._part.replace(self._path)
