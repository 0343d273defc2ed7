"""The interface through which a party sends messages to its peers and reads theirs.

  put_all         send messages to their recipients. The same message again is ignored; a different one under the same
                  key ends the run. Never waits for the peer's progress, and for its acknowledgement only where nobody
                  could make the message again: in a worker beside the process that runs the job
  flush           return when all recipients have acknowledged what was put: before a checkpoint, or anything else from
                  which a rerun would resume, counts; before a farewell; before messages are dropped
                  (not after it: who has said farewell needs nothing more)
  get             wait for the message under a key, check it and return its payload
  drop_messages   delete the messages of iterations that every party has finished

Implementations: `flight_exchange` (Arrow Flight, mutual TLS) and `file_exchange` (Beam filesystems). `link_shaping`
slows either of them to a given link.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import not_
from typing import Protocol, runtime_checkable

import pyarrow as pa
from tenacity import Retrying, retry_if_result, stop_after_delay
from tenacity.wait import wait_base

from veilmeans.schemas.arrays import Array, Arrays, from_stream, to_stream
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import Header, MessageKey

_NOT_OURS = (AttributeError, ValueError, TypeError, NotImplementedError)  # raised by Arrow for streams of other kinds
HANDSHAKE = "handshake"  # the only stage whose messages may be replaced: nothing secret was sent before it ends


@dataclass(frozen=True)
class Outgoing:
    """A message to be sent: its key and its payload, an Arrow IPC stream."""

    key: MessageKey
    payload: pa.Buffer

    @classmethod
    def of(cls, key: MessageKey, arrays: Arrays) -> "Outgoing":
        """Make a message of named arrays."""
        return cls(key, to_stream(arrays))

    @cached_property
    def header(self) -> Header:
        """Size and digest of the payload, computed once."""
        return Header.of(self.payload)

    @property
    def replaceable(self) -> bool:
        """True if a later message may replace this one."""
        return self.key.address.stage == HANDSHAKE


@runtime_checkable
class Exchange(Protocol):
    """One party's way to send messages to all its peers and to read theirs."""

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        """Send all messages; a refusal that comes later is raised by the next call of any method."""

    def flush(self) -> None:
        """Return when everything that was put survives the death of any process, the recipients' too."""

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        """Wait at most `timeout` seconds for the message under `key` and return its payload; then a PeerError."""

    def drop_messages(self, run: str, before: int | None = None) -> int:
        """Delete this run's messages of iterations below `before` (None: all of them); return their number."""

    def forget_refusal(self, run: str) -> None:
        """Forget that an earlier attempt at `run` was ended by a refused message: the party reruns it."""

    def close(self) -> None:
        """Close all connections. A closed exchange is not used again."""


def deliver_now(exchange: Exchange, messages: Sequence[Outgoing]) -> None:
    """Send messages and wait until they are acknowledged: for a step that a rerun would leave out."""
    exchange.put_all(messages)
    exchange.flush()


def get_arrays(exchange: Exchange, key: MessageKey, timeout: float) -> dict[str, Array]:
    """Wait for the message under `key` and return its arrays."""
    return read_arrays(key, exchange.get(key, timeout))


def read_arrays(key: MessageKey, payload: pa.Buffer) -> dict[str, Array]:
    """Read the arrays of a payload; a payload that holds none ends the run."""
    try:
        return from_stream(payload, validate=True)
    except (pa.ArrowException, OSError, StopIteration, *_NOT_OURS) as error:
        raise RefusedError(f"message {key} holds no arrays: {type(error).__name__}") from None


def missing(key: MessageKey) -> str:
    """Ask why a message may be missing; that of a handshake, because its sender does something else."""
    if key.address.stage == HANDSHAKE:
        return "has its command begun, or is it busy with another run"
    return "is its pipeline running"


def check_size(key: MessageKey, size: int, limit: int) -> None:
    """Refuse a message over the limit, at the sender and at the recipient."""
    if size > limit:
        raise RefusedError(
            f"message {key} has {size:,} bytes and the limit is {limit:,}: lower beam.rows_per_shard, or raise "
            "exchange.max_message_mb at every party"
        )


def poll(condition: Callable[[], bool], seconds: float, pause: wait_base) -> bool:
    """Return whether a condition that nobody announces holds within `seconds`; `pause` gives the pauses between."""
    polling = Retrying(
        retry=retry_if_result(not_), wait=pause, stop=stop_after_delay(seconds), retry_error_callback=lambda _: False
    )
    return polling(condition)
