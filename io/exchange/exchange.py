"""The interface through which a party sends messages to its peers and reads theirs.

  put_all         store messages at their recipients, durably, before it returns. The same message again is ignored; a
                  different one under the same key ends the run. Never waits for the peer's progress
  get             wait for the message under a key, check it and return its payload
  drop_messages   delete the messages of iterations that every party has finished

Implementations: `flight_exchange` (Arrow Flight, mutual TLS) and `file_exchange` (Beam filesystems). `link_shaping`
slows either of them to a given link.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from veilmeans.schemas.arrays import Array, Arrays, from_batch, to_stream
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import MessageKey

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

    @property
    def replaceable(self) -> bool:
        """True if a later message may replace this one."""
        return self.key.address.stage == HANDSHAKE


@runtime_checkable
class Exchange(Protocol):
    """One party's way to send messages to all its peers and to read theirs."""

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        """Store all messages at their recipients; return when they are durable there."""

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        """Wait at most `timeout` seconds for the message under `key` and return its payload; then a PeerError."""

    def drop_messages(self, run: str, before: int | None = None) -> int:
        """Delete this run's messages of iterations below `before` (None: all of them); return their number."""

    def forget_refusal(self, run: str) -> None:
        """Forget that an earlier attempt at `run` was ended by a refused message: the party reruns it."""

    def close(self) -> None:
        """Close all connections. A closed exchange is not used again."""


def get_arrays(exchange: Exchange, key: MessageKey, timeout: float) -> dict[str, Array]:
    """Wait for the message under `key` and return its arrays."""
    return read_arrays(key, exchange.get(key, timeout))


def read_arrays(key: MessageKey, payload: pa.Buffer) -> dict[str, Array]:
    """Read the arrays of a payload; a payload that holds none ends the run."""
    try:
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)  # an array longer than its buffer would expose this process's own memory
        return from_batch(batch)
    except (pa.ArrowException, OSError, StopIteration, AttributeError, ValueError) as error:
        raise RefusedError(f"message {key} holds no arrays: {type(error).__name__}") from None


def check_size(key: MessageKey, size: int, limit: int) -> None:
    """Refuse a message over the limit, at the sender and at the recipient."""
    if size > limit:
        raise RefusedError(
            f"message {key} has {size:,} bytes and the limit is {limit:,}: lower beam.rows_per_shard, or raise "
            "exchange.max_message_mb at every party"
        )
