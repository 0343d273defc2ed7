"""A slower link simulated on one machine: a rate and a round-trip delay around any exchange.

Each party shapes what it sends, so both directions are shaped. Messages queue for the link's rate, then take half a
round trip to arrive; acknowledgements, for which only `flush` waits, take the other half. A put returns when all but
the last `_BUFFER` bytes have left. The link's clock is a small file with a lock, so that all worker processes of a
party share one link.
"""

import fcntl
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import pyarrow as pa

from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.schemas.config import LinkConfig, LinkShape
from veilmeans.schemas.errors import PeerError, VeilmeansError
from veilmeans.schemas.message import MessageKey


@dataclass(frozen=True)
class Link:
    """The link between two parties: rate in bytes per second, round trip in seconds."""

    rate: float
    round_trip: float

    @classmethod
    def from_config(cls, link: LinkShape | LinkConfig) -> "Link":
        """The link that a configuration describes."""
        return cls(link.rate_mbps * 125e3, link.round_trip_ms / 1e3)


LAN = Link(rate=1250e6, round_trip=0.02e-3)
WAN = Link(rate=2.5e6, round_trip=40e-3)
ASSUMED_LINK = Link.from_config(LinkConfig())  # where a configuration describes none


_BUFFER = 1 << 20  # bytes that a sender's socket takes before they have left


class ShapedExchange:
    """The exchange `inner`, slowed to `link`. `clock` is a file that the party's workers share.

    `late`: a put does not wait for the acknowledgements. A thread hands each message to `inner` when it arrives.
    """

    def __init__(self, inner: Exchange, link: Link, clock: Path, late: bool = True) -> None:
        self._inner, self._link, self._clock, self._late = inner, link, clock, late
        clock.parent.mkdir(parents=True, exist_ok=True)
        clock.touch()
        self._on_the_way: Queue[tuple[float, Sequence[Outgoing]]] = Queue()
        self._last_arrival = 0.0
        self._error: VeilmeansError | None = None
        self._courier: threading.Thread | None = None

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        self._check()
        if not messages:
            return
        left = self._reserve(sum(message.payload.size for message in messages))
        self._last_arrival = left + self._link.round_trip / 2
        self._on_the_way.put((self._last_arrival, messages))
        if self._courier is None:
            self._courier = threading.Thread(target=self._carry, name="link", daemon=True)
            self._courier.start()
        _sleep_until(left - _BUFFER / self._link.rate)
        if not self._late:
            self.flush()

    def flush(self) -> None:
        self._on_the_way.join()
        _sleep_until(self._last_arrival + self._link.round_trip / 2)
        self._check()
        self._inner.flush()

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        try:
            return self._inner.get(key, timeout)
        except PeerError:
            self._check()
            raise

    def _carry(self) -> None:
        while True:
            arrival, messages = self._on_the_way.get()
            try:
                _sleep_until(arrival)
                self._inner.put_all(messages)
            except VeilmeansError as error:
                self._error = error
            finally:
                self._on_the_way.task_done()

    def _check(self) -> None:
        """Raise the error that a message on its way has met, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def drop_messages(self, run: str, before: int | None = None) -> int:
        return self._inner.drop_messages(run, before)

    def forget_refusal(self, run: str) -> None:
        self._inner.forget_refusal(run)

    def close(self) -> None:
        self._inner.close()

    def _reserve(self, size: int) -> float:
        """Occupy the link for `size` bytes; return the time at which the last of them has left."""
        with self._clock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            stored = file.read(8)
            free_at = struct.unpack("d", stored)[0] if len(stored) == 8 else 0.0
            done = max(free_at, time.time()) + size / self._link.rate
            file.seek(0)
            file.write(struct.pack("d", done))
        return done


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))
