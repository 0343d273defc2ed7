"""The transcript of a run: a line for each message that a party sent or received, and hash chains over them.

  3/4711-….log        the lines that one process wrote in iteration 3: stage, shard, sender, recipient, broadcast, size,
                      SHA-256
  3/4711-….messages   the messages that it received then, if they are kept for audits (`audit.keep`)
  signed.payco.json   payco's statement: the last links of its chains, and its signature

Messages arrive in other orders at other runners, and a retry sends one twice. So a chain is over sets: the lines of an
iteration that two parties have in common are sorted, and with L_i for all of them together

  link_i = SHA-256(link_(i−1) · i · SHA-256(L_i))         link of the beginning = SHA-256(run · both parties' terms)

Both parties of a pair compute the same links, and compare them when they say farewell (`pipelines.session.session`).
"""

import hashlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from veilmeans.io.files.atomic_files import disk_errors, make_private_folder, parse_json
from veilmeans.io.messages.message_log import MessageLog
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import Header, MessageKey, iteration_in

_LINES, _MESSAGES = ".log", ".messages"
Link = tuple[int, str]
"""An iteration, and the link of a chain after it, in hexadecimal."""


@dataclass(frozen=True, order=True)
class Line:
    """One message. `broadcast`: the sender says the same to all parties."""

    stage: str
    shard: int
    sender: str
    recipient: str
    broadcast: bool
    size: int
    digest: str

    def encode(self) -> str:
        values = [self.stage, self.shard, self.sender, self.recipient, int(self.broadcast), self.size, self.digest]
        return json.dumps(values) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Line":
        stage, shard, sender, recipient, broadcast, size, digest = parse_json(text)
        return cls(str(stage), int(shard), str(sender), str(recipient), bool(broadcast), int(size), str(digest))

    def key(self, run: str, iteration: int) -> MessageKey:
        return MessageKey(Address(run, iteration, self.stage, self.shard), self.sender, self.recipient)


@dataclass
class TranscriptWriter:
    """Writes one process's part of a transcript. `keep`: received messages are kept, too."""

    folder: Path
    keep: bool = False
    _name: str = field(default_factory=lambda: f"{os.getpid()}-{uuid4().hex[:8]}")
    _files: dict[int, int] = field(default_factory=dict, repr=False)
    _kept: dict[int, MessageLog] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def record(self, messages: Iterable[tuple[MessageKey, Header]], broadcast: bool) -> None:
        """Append a line for each message; a process that dies has written whole lines, or a part of the last one."""
        lines: dict[int, str] = defaultdict(str)
        for key, header in messages:
            where = key.address
            digest = header.digest.hex()
            line = Line(where.stage, where.shard, key.sender, key.recipient, broadcast, header.size, digest)
            lines[where.iteration] += line.encode()
        with self._lock, disk_errors(self.folder):
            for iteration, text in lines.items():
                os.write(self._file(iteration), text.encode())

    def received(self, key: MessageKey, payload: pa.Buffer, broadcast: bool) -> None:
        """Append the line of a message from a peer, and keep the message if it shall be kept."""
        header = Header.known(payload)
        if self.keep:
            with disk_errors(self.folder):
                self._messages(key.address.iteration).append(key, header, payload)
        self.record([(key, header)], broadcast)

    def sync(self, iteration: int) -> None:
        """Return when the lines of an iteration, of all processes, survive a power cut."""
        sync_lines(self.folder, iteration)

    def _file(self, iteration: int) -> int:
        if iteration not in self._files:
            for old in [number for number in self._files if number < iteration - 1]:
                os.close(self._files.pop(old))
            make_private_folder(self.folder / str(iteration))
            path = self.folder / str(iteration) / f"{self._name}{_LINES}"
            self._files[iteration] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return self._files[iteration]

    def _messages(self, iteration: int) -> MessageLog:
        with self._lock:
            if iteration not in self._kept:
                for old in [number for number in self._kept if number < iteration - 1]:
                    self._kept.pop(old).close()
                self._kept[iteration] = MessageLog(self.folder / str(iteration) / f"{self._name}{_MESSAGES}")
            return self._kept[iteration]


@lru_cache(maxsize=8)
def transcript_writer(folder: Path, keep: bool, _process: int) -> TranscriptWriter:
    """The one writer of a process for a transcript."""
    return TranscriptWriter(folder, keep)


def open_transcript(folder: Path, keep: bool) -> TranscriptWriter:
    """This process's writer of the transcript below `folder`; one that was forked has its own."""
    return transcript_writer(folder, keep, os.getpid())


@dataclass(frozen=True)
class Transcript:
    """The transcript below a folder, as all processes have written it."""

    folder: Path
    run: str

    def iterations(self) -> list[int]:
        """The iterations in which messages were sent or received, ascending."""
        names = [folder.name for folder in self.folder.glob("*") if folder.is_dir()]
        return sorted(number for name in names if (number := iteration_in(name)) is not None)

    def lines(self, iteration: int) -> list[Line]:
        """The lines of an iteration, each once, sorted. Two that differ in one message are refused."""
        found: dict[tuple[str, int, str, str], Line] = {}
        for file in sorted((self.folder / str(iteration)).glob(f"*{_LINES}")):
            for line in _read_lines(file):
                name = (line.stage, line.shard, line.sender, line.recipient)
                if found.setdefault(name, line) != line:
                    raise RefusedError(
                        f"the transcript {self.folder} has two different messages {line.key(self.run, iteration)}: "
                        "data, configuration or seed changed within one run; start a new run id"
                    )
        return sorted(found.values())

    def links(self, me: str, peer: str, beginning: bytes) -> list[Link]:
        """The chain of the messages between two parties: a link for each iteration in which there were some."""
        link, links = hashlib.sha256(b"veilmeans transcript " + beginning).digest(), []
        for iteration in self.iterations():
            common = [line for line in self.lines(iteration) if {line.sender, line.recipient} == {me, peer}]
            if common:
                content = hashlib.sha256("".join(line.encode() for line in common).encode()).digest()
                link = hashlib.sha256(link + str(iteration).encode() + b" " + content).digest()
                links.append((iteration, link.hex()))
        return links

    def echoes(self, iteration: int, parties: Iterable[str]) -> dict[str, dict[str, str]]:
        """For each party: stage -> a digest of all that it has broadcast in this iteration, as it was heard here."""
        heard: dict[str, dict[str, set[str]]] = {party: defaultdict(set) for party in parties}
        for line in self.lines(iteration):
            if line.broadcast and line.sender in heard:
                heard[line.sender][line.stage].add(f"{line.shard} {line.size} {line.digest}\n")
        return {
            party: {stage: hashlib.sha256("".join(sorted(each)).encode()).hexdigest() for stage, each in said.items()}
            for party, said in heard.items()
        }

    def kept_messages(self, iteration: int) -> "KeptMessages":
        """The messages that were received in an iteration, if they were kept."""
        files = sorted((self.folder / str(iteration)).glob(f"*{_MESSAGES}"))
        return KeptMessages(tuple(MessageLog(file) for file in files))

    def sync(self, iteration: int) -> None:
        """Return when the lines of an iteration, of all processes, survive a power cut."""
        sync_lines(self.folder, iteration)


def sync_lines(folder: Path, iteration: int) -> None:
    """Sync all files of an iteration below a transcript's folder."""
    for file in (folder / str(iteration)).glob("*"):
        with disk_errors(folder):
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


@dataclass(frozen=True)
class KeptMessages:
    """Received messages of one iteration, in the logs of several processes."""

    logs: tuple[MessageLog, ...]

    def find(self, key: MessageKey) -> pa.Buffer | None:
        """Return the payload of a message; None if it was not kept. A damaged one is refused."""
        log = next((log for log in self.logs if key in log), None)
        return None if log is None else log.read(key)


def _read_lines(file: Path) -> Iterable[Line]:
    """Read the whole lines of a file; a killed process may have left a part of the last one."""
    try:
        text = file.read_text()
        return [Line.parse(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except (OSError, ValueError, TypeError):
        raise StorageError(f"{file} cannot be read: restore it from a backup") from None


def first_different_link(mine: Iterable[Link], theirs: Iterable[Link]) -> int | None:
    """The first iteration after which two chains differ; None if they do not."""
    here, there = dict(mine), dict(theirs)
    different = [i for i in {*here, *there} if here.get(i) != there.get(i)]
    return min(different, default=None)


def terms_digest(terms: Mapping[str, object]) -> str:
    """SHA-256 of the terms that a party sent at the handshake."""
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()
