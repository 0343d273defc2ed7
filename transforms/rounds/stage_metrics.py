"""The costs of a stage: counted, added to Beam's metrics, and reported to watchers of the run in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apache_beam.metrics import Metrics


@cache
def _counter(stage: str, name: str) -> "Metrics.DelegatingCounter":
    from apache_beam.metrics import Metrics

    return Metrics.counter(stage, name)


@dataclass
class StageMetrics:
    """Costs of one stage: messages, bytes, seconds, and ciphertexts that were made offline.

    Seconds are those in which a process waited for messages, computed, or delivered messages.
    """

    messages: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    waited: float = 0.0
    computed: float = 0.0
    delivered: float = 0.0
    ciphertexts: int = 0

    def add(self, other: "StageMetrics") -> None:
        """Add the costs of other work on the same stage."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def counts(self) -> dict[str, int]:
        """The costs as integers, under the names they have in Beam's metrics."""
        return {
            "messages": self.messages,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "waited_us": round(self.waited * 1e6),
            "computed_us": round(self.computed * 1e6),
            "delivered_us": round(self.delivered * 1e6),
            "ciphertexts": self.ciphertexts,
        }


def count_stage(stage: str, metrics: StageMetrics) -> None:
    """Add a stage's costs to Beam's metrics."""
    for name, value in metrics.counts().items():
        if value:
            _counter(stage, name).inc(value)


Watcher = Callable[[int, str, int, int], None]
"""(iteration, stage, shard, bytes sent): counts, never data."""
OFFLINE = "offline"
"""The stage under which a shard of a triple store is reported as done."""
_watchers: list[Watcher] = []


@contextmanager
def watch_stages(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` for every shard that sends, while this context is open."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def shard_sent(iteration: int, stage: str, shard: int, sent: int) -> None:
    """Report to the watchers that a shard has sent its messages of a stage."""
    for watcher in _watchers:
        watcher(iteration, stage, shard, sent)
