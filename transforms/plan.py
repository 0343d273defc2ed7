"""What a job will ask of the triple store, from shapes alone: the works of one iteration, shard by shard."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from veilmeans.schemas.layout import Block, cut
from veilmeans.transforms.randomness import Need
from veilmeans.transforms.rounds import Protocol
from veilmeans.transforms.trace import Shapes, StageTrace, trace

Needs = dict[str, tuple[Need, ...]]
"""Stage -> what it asks for."""


@dataclass(frozen=True)
class Work:
    """A protocol, and each party's shapes for a shard.

    Work that is not `sharded` is done once in an iteration, as shard 0; `first` work only in the first iteration.
    """

    protocol: Protocol
    shapes: Callable[[Block], Sequence[Shapes]]
    sharded: bool = True
    first: bool = False


@dataclass(frozen=True)
class Plan:
    """All works of an iteration over all shards."""

    works: tuple[Work, ...]
    blocks: tuple[Block, ...]

    @classmethod
    def of_rows(cls, works: tuple[Work, ...], rows: int, rows_per_shard: int) -> "Plan":
        """A plan in which shards differ only in their number of rows."""
        return cls(works, tuple(Block(length) for length in cut(rows, rows_per_shard)))

    @property
    def shards(self) -> int:
        return len(self.blocks)

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    def needs(self, shard: int, iteration: int) -> Needs:
        """What a shard's stages need."""
        traces = [*self.traces(self.blocks[shard], iteration), *(self.single(iteration) if shard == 0 else [])]
        return {stage.name: stage.needs for stage in traces if stage.needs}

    def traces(self, block: Block, iteration: int) -> list[StageTrace]:
        """The sharded stages of one iteration, for one shard."""
        return [stage for first, stage in self._sharded[block] if iteration == 0 or not first]

    def single(self, iteration: int) -> list[StageTrace]:
        """The stages that an iteration does once."""
        return [stage for first, stage in self._single if iteration == 0 or not first]

    def digest(self) -> str:
        """Equal for equal jobs and shapes."""
        content = hashlib.sha256(repr(self.blocks).encode())
        for block in sorted(self._sharded, key=repr):
            content.update(repr([(first, stage.name, stage.needs) for first, stage in self._sharded[block]]).encode())
        content.update(repr([(first, stage.name, stage.needs) for first, stage in self._single]).encode())
        return content.hexdigest()

    @cached_property
    def _sharded(self) -> dict[Block, list[tuple[bool, StageTrace]]]:
        return {block: self._traced(block, sharded=True) for block in set(self.blocks)}

    @cached_property
    def _single(self) -> list[tuple[bool, StageTrace]]:
        return self._traced(Block(self.rows), sharded=False)

    def _traced(self, block: Block, sharded: bool) -> list[tuple[bool, StageTrace]]:
        works = [work for work in self.works if work.sharded == sharded]
        return [(work.first, stage) for work in works for stage in trace(work.protocol, work.shapes(block))]
