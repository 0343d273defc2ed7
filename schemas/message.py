"""A message's key, and its envelope: what the exchange stores, with size and SHA-256 before the payload.

The envelope's header has 64 bytes, so that a memory-mapped payload stays aligned as Arrow wants it:
magic (8) · payload size (8, big-endian) · SHA-256 of the payload (32) · zeros (16).
"""

import hashlib
import json
from dataclasses import dataclass

import pyarrow as pa

from veilmeans.schemas.address import NAME, Address
from veilmeans.schemas.errors import RefusedError

MAGIC = b"VEILMSG1"
HEADER_SIZE = 64


@dataclass(frozen=True)
class MessageKey:
    """One message: what it is about, who sends it, who may read it."""

    address: Address
    sender: str
    recipient: str

    def __str__(self) -> str:
        return f"{self.address} from {self.sender} to {self.recipient}"

    @property
    def path(self) -> str:
        """The message's place below an inbox or an outbox; `parse` has checked that it cannot leave it."""
        where = self.address
        return f"{where.run}/{where.iteration}/{where.stage}/{where.shard}.{self.sender}.{self.recipient}.msg"

    def to_json(self) -> str:
        where = self.address
        return json.dumps([where.run, where.iteration, where.stage, where.shard, self.sender, self.recipient])

    @classmethod
    def parse(cls, text: str | bytes) -> "MessageKey":
        """A key from `to_json`; anything else is refused, above all names that are paths."""
        try:
            run, iteration, stage, shard, sender, recipient = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            raise RefusedError("a message came with a key that is no key") from None
        names = (run, stage, sender, recipient)
        numbers = (iteration, shard)
        if not all(isinstance(name, str) and NAME.fullmatch(name) for name in names):
            raise RefusedError("a message came with a key whose names are not allowed")
        if not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
            raise RefusedError("a message came with a key whose numbers are not allowed")
        return cls(Address(run, iteration, stage, shard), sender, recipient)


@dataclass(frozen=True)
class Header:
    """Size and digest of a payload."""

    size: int
    digest: bytes

    @classmethod
    def of(cls, payload: pa.Buffer) -> "Header":
        return cls(payload.size, hashlib.sha256(payload).digest())

    def pack(self) -> bytes:
        return (MAGIC + self.size.to_bytes(8, "big") + self.digest).ljust(HEADER_SIZE, b"\0")

    @classmethod
    def unpack(cls, key: MessageKey, data: bytes) -> "Header":
        if len(data) < HEADER_SIZE or data[:8] != MAGIC:
            raise RefusedError(f"message {key} is truncated or no message at all: its envelope cannot be read")
        return cls(int.from_bytes(data[8:16], "big"), data[16:48])

    def check(self, key: MessageKey, payload: pa.Buffer) -> None:
        """End the run if the payload is not the one the sender enveloped."""
        if payload.size != self.size:
            raise RefusedError(f"message {key} is truncated: {payload.size:,} of {self.size:,} bytes arrived")
        if hashlib.sha256(payload).digest() != self.digest:
            raise RefusedError(f"message {key} was altered after {key.sender} made it: its SHA-256 differs")


def open_envelope(key: MessageKey, envelope: pa.Buffer) -> pa.Buffer:
    """The payload of an envelope, checked."""
    header = Header.unpack(key, envelope.slice(0, min(HEADER_SIZE, envelope.size)).to_pybytes())
    payload = envelope.slice(HEADER_SIZE)
    header.check(key, payload)
    return payload
