"""One interface for the peer. `put` hands over and never waits for the peer's progress; `get` waits.

  put_all   store messages with their recipients, durably, before it returns; the same message again is ignored, a
            different one under the same key ends the run
  get       the message under a key, checked; waits until it is there or the time is up
  collect   drop the messages of iterations that every party has finished

Implementations: `gateway_exchange` (Arrow Flight, mutual TLS) and `file_exchange` (Beam filesystems). `shaper` slows
either of them to a given link.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from veilmeans.schemas.arrays import Array, Arrays, from_batch, to_stream
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import MessageKey

HANDSHAKE = "handshake"
"""The one stage whose messages may be replaced: until the parties agree, nothing secret has been sent."""


@dataclass(frozen=True)
class Outgoing:
    """A message and where it goes. The payload is an Arrow IPC stream."""

    key: MessageKey
    payload: pa.Buffer

    @classmethod
    def of(cls, key: MessageKey, arrays: Arrays) -> "Outgoing":
        return cls(key, to_stream(arrays))

    @property
    def replaceable(self) -> bool:
        return self.key.address.stage == HANDSHAKE


@runtime_checkable
class Exchange(Protocol):
    """How one party talks to the others."""

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        """Store all messages with their recipients; return when they are durable there."""

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        """The payload under `key`, waiting at most `timeout` seconds; a PeerError after that."""

    def collect(self, run: str, before: int | None = None) -> int:
        """Drop this run's messages of iterations below `before` (None: all of them); how many were dropped."""

    def forget_refusal(self, run: str) -> None:
        """Forget that an earlier attempt at `run` was ended by a refused message: the party starts it again."""

    def close(self) -> None:
        """Free connections. A closed exchange is not used again."""


def get_arrays(exchange: Exchange, key: MessageKey, timeout: float) -> dict[str, Array]:
    """The arrays in the message under `key`."""
    return read_arrays(key, exchange.get(key, timeout))


def read_arrays(key: MessageKey, payload: pa.Buffer) -> dict[str, Array]:
    """The arrays in a payload; one that is no such message ends the run."""
    try:
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)  # an array longer than its buffer would show this process's own memory
        return from_batch(batch)
    except (pa.ArrowException, OSError, StopIteration, AttributeError, ValueError) as error:
        raise RefusedError(f"message {key} holds no arrays: {type(error).__name__}") from None


def check_size(key: MessageKey, size: int, limit: int) -> None:
    """Refuse a message over the limit, at the sender's and at the recipient's."""
    if size > limit:
        raise RefusedError(
            f"message {key} has {size:,} bytes and the limit is {limit:,}: lower rows_per_shard, or raise "
            "exchange.max_message_mb at every party"
        )
