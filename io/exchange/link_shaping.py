"""A slower link on one machine: a rate and a round-trip delay around any exchange.

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
from veilmeans.schemas.message import MessageKey


@dataclass(frozen=True)
class Link:
    """Rate in bits per second, round trip in seconds."""

    rate: float
    round_trip: float


LAN = Link(rate=10e9, round_trip=0.02e-3)
WAN = Link(rate=20e6, round_trip=40e-3)


class ShapedExchange:
    """`inner`, as slow as `link`. `clock` is a file that the party's workers share."""

    def __init__(self, inner: Exchange, link: Link, clock: Path) -> None:
        self._inner, self._link, self._clock = inner, link, clock
        clock.parent.mkdir(parents=True, exist_ok=True)
        clock.touch()

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        if not messages:
            return
        size = sum(message.payload.size for message in messages)
        _sleep_until(self._reserve(size) + self._link.round_trip / 2)
        self._inner.put_all(messages)
        time.sleep(self._link.round_trip / 2)

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        return self._inner.get(key, timeout)

    def collect(self, run: str, before: int | None = None) -> int:
        return self._inner.collect(run, before)

    def forget_refusal(self, run: str) -> None:
        self._inner.forget_refusal(run)

    def close(self) -> None:
        self._inner.close()

    def _reserve(self, size: int) -> float:
        """Take the link for `size` bytes; when the last of them will have left."""
        with self._clock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            stored = file.read(8)
            free_at = struct.unpack("d", stored)[0] if len(stored) == 8 else 0.0
            done = max(free_at, time.time()) + size * 8 / self._link.rate
            file.seek(0)
            file.write(struct.pack("d", done))
        return done


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))
