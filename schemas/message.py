"""A message's key, and its envelope: a header with size and SHA-256, then the payload.

The header has 64 bytes, so that a memory-mapped payload is aligned as Arrow needs it:
magic (8) · payload size (8, big-endian) · SHA-256 of the payload (32) · zeros (16).
"""

import hashlib
import json
import re
import weakref
from dataclasses import dataclass

import pyarrow as pa

from veilmeans.schemas.address import NAME, Address
from veilmeans.schemas.errors import RefusedError

MAGIC = b"VEILMSG1"
HEADER_SIZE = 64


@dataclass(frozen=True)
class MessageKey:
    """The key of one message: its address, its sender, its recipient."""

    address: Address
    sender: str
    recipient: str

    def __str__(self) -> str:
        return f"{self.address} from {self.sender} to {self.recipient}"

    @property
    def path(self) -> str:
        """The message's path below an inbox or an outbox; `parse` has checked that it cannot point elsewhere."""
        where = self.address
        return f"{where.run}/{where.iteration}/{where.stage}/{where.shard}.{self.sender}.{self.recipient}.msg"

    def to_json(self) -> str:
        where = self.address
        return json.dumps([where.run, where.iteration, where.stage, where.shard, self.sender, self.recipient])

    @classmethod
    def parse(cls, text: str | bytes) -> "MessageKey":
        """Read a key that `to_json` made; refuse anything else, above all names that are paths."""
        try:
            run, iteration, stage, shard, sender, recipient = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            raise RefusedError("malformed message key: it is not a list of six values") from None
        if not all(isinstance(name, str) and NAME.fullmatch(name) for name in (run, stage, sender, recipient)):
            raise RefusedError("malformed message key: a name in it is not allowed")
        lowest = (iteration, -(2**62)), (shard, 0)  # the iterations of k-means++ are below 0
        if not all(type(number) is int and least <= number < 2**62 for number, least in lowest):
            raise RefusedError("malformed message key: a number in it is not allowed")
        return cls(Address(run, iteration, stage, shard), sender, recipient)


@dataclass(frozen=True)
class Header:
    """The size and the digest of a payload."""

    size: int
    digest: bytes

    @classmethod
    def of(cls, payload: pa.Buffer) -> "Header":
        return cls(payload.size, hashlib.sha256(payload).digest())

    @classmethod
    def known(cls, payload: pa.Buffer) -> "Header":
        """The header against which a payload was checked when it was received; of another payload a new one."""
        reference, header = _checked.get(id(payload), (None, None))
        return header if header is not None and reference is not None and reference() is payload else cls.of(payload)

    def remember(self, payload: pa.Buffer) -> None:
        """Remember that this is the header of a payload, for as long as the payload is in memory."""
        name = id(payload)
        _checked[name] = weakref.ref(payload, lambda _: _checked.pop(name, None)), self

    def pack(self) -> bytes:
        return (MAGIC + self.size.to_bytes(8, "big") + self.digest).ljust(HEADER_SIZE, b"\0")

    @classmethod
    def unpack(cls, data: bytes, key: MessageKey | None = None) -> "Header":
        if len(data) < HEADER_SIZE or data[:8] != MAGIC:
            raise RefusedError(f"message {key or ''} is truncated, or not a message: its envelope cannot be read")
        return cls(int.from_bytes(data[8:16], "big"), data[16:48])

    def check(self, key: MessageKey, payload: pa.Buffer) -> None:
        """Refuse a payload that differs from what the sender put into the envelope."""
        if payload.size != self.size:
            raise RefusedError(f"message {key} is truncated: {payload.size:,} of {self.size:,} bytes arrived")
        if hashlib.sha256(payload).digest() != self.digest:
            raise RefusedError(f"message {key} was altered after {key.sender} made it: its SHA-256 differs")
        self.remember(payload)


_checked: "dict[int, tuple[weakref.ref[pa.Buffer], Header]]" = {}  # by the identity of a payload


def open_envelope(key: MessageKey, envelope: pa.Buffer) -> pa.Buffer:
    """Read and check the payload of an envelope."""
    header = Header.unpack(envelope.slice(0, min(HEADER_SIZE, envelope.size)).to_pybytes(), key)
    payload = envelope.slice(HEADER_SIZE)
    header.check(key, payload)
    return payload


def iteration_in(folder: str) -> int | None:
    """Read the iteration from the name of a folder of messages; None if it is a stray folder's."""
    return int(folder) if re.fullmatch(r"-?[0-9]{1,19}", folder) else None
