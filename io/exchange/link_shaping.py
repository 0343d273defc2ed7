"""A slower link simulated on one machine: a rate and a round-trip delay around any exchange.

Each party shapes what it sends, so both directions are shaped. Messages queue for the link's rate, then take half a
round trip to arrive; the sender's acknowledgement takes the other half. The link's clock is a small file with a lock,
so that all worker processes of a party share one link.
"""

import fcntl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.schemas.config import LinkShape
from veilmeans.schemas.message import MessageKey


@dataclass(frozen=True)
class Link:
    """The link between two parties: rate in bytes per second, round trip in seconds."""

    rate: float
    round_trip: float

    @classmethod
    def from_config(cls, shape: LinkShape | None) -> "Link":
        """The link that a configuration describes; `ASSUMED_LINK` if it describes none."""
        return ASSUMED_LINK if shape is None else cls(shape.rate_mbps * 125e3, shape.round_trip_ms / 1e3)


LAN = Link(rate=1250e6, round_trip=0.02e-3)
WAN = Link(rate=2.5e6, round_trip=40e-3)
ASSUMED_LINK = Link(rate=125e6, round_trip=0.5e-3)  # for cost estimates, where the configuration describes none


class ShapedExchange:
    """The exchange `inner`, slowed to `link`. `clock` is a file that the party's workers share."""

    def __init__(self, inner: Exchange, link: Link, clock: Path) -> None:
        self._inner, self._link, self._clock = inner, link, clock
        clock.parent.mkdir(parents=True, exist_ok=True)
        clock.touch()

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        if not messages:
            return
        size = sum(message.payload.size for message in messages)
        time.sleep(max(0.0, self._reserve(size) + self._link.round_trip / 2 - time.time()))
        self._inner.put_all(messages)
        time.sleep(self._link.round_trip / 2)

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        return self._inner.get(key, timeout)

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
