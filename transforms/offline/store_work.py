"""Work on the shards of a triple store: as a Beam stage, or one after the other in this process."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from veilmeans.transforms.offline.traced_job import StoreShard
from veilmeans.transforms.rounds.executor import CountStage


class StoreWork(Protocol):
    """Work of the dealer or a party on each shard of a triple store, in any order."""

    def setup(self) -> None:
        """Connect and read secrets, in the process that does the work."""

    def process(self, store_shard: StoreShard, count: CountStage = ...) -> Iterator[int]:
        """Do the work of one shard; `count` takes what it costs."""


def work_in_order(work: StoreWork, shards: Iterable[StoreShard], count: CountStage) -> None:
    """Do the work of all shards in this process."""
    work.setup()
    for shard in shards:
        for _ in work.process(shard, count):
            pass
