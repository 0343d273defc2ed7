"""What a job will ask of the triple store, from shapes alone: the works of one iteration, shard by shard.

Work goes over shards of rows, over shards of columns, or is done once. The store's shard i has what row shard i and
column shard i need, and shard 0 also has what single work needs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from veilmeans.schemas.digests import digest_of_values
from veilmeans.schemas.layout import ShardShape, shard_lengths
from veilmeans.transforms.rounds.interfaces import CiphertextNeed, CorrelationNeed
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import Shapes, StageTrace, trace, trace_rows

Needs = dict[str, tuple[CorrelationNeed, ...]]
"""Stage -> what it asks for."""
PERIOD = 8
"""Bits are packed eight to a byte."""


class Over(Enum):
    """What a work is done over in an iteration: shards of rows, shards of columns, or one element, as shard 0."""

    ROWS = "rows"
    COLUMNS = "columns"
    ONE = "one"


@dataclass(frozen=True)
class StepShapes:
    """A protocol, and each party's shapes for a shard; `first` work is done only in the first iteration.

    `period`: shapes are affine in the rows, for rows that leave the same rest when divided by it.
    """

    protocol: Protocol
    shapes: Callable[[ShardShape], Sequence[Shapes]]
    over: Over = Over.ROWS
    first: bool = False
    period: int = PERIOD

    def trace(self, block: ShardShape) -> list[StageTrace]:
        """Its stages for a shard, or for one like it."""
        if self.over is not Over.ROWS:
            return trace(self.protocol, self.shapes(block))
        return trace_rows(self.protocol, lambda rows: self.shapes(replace(block, rows=rows)), block.rows, self.period)


@dataclass(frozen=True)
class StoreRequirements:
    """All works of an iteration over all shards; a block of `columns` is the k × w values of a shard of columns."""

    works: tuple[StepShapes, ...]
    blocks: tuple[ShardShape, ...]
    columns: tuple[ShardShape, ...] = ()

    @classmethod
    def of_rows(cls, works: tuple[StepShapes, ...], rows: int, rows_per_shard: int) -> "StoreRequirements":
        """A plan in which shards differ only in their number of rows."""
        return cls(works, tuple(ShardShape(length) for length in shard_lengths(rows, rows_per_shard)))

    @property
    def shards(self) -> int:
        """How many shards the store has."""
        return max(len(self.blocks), len(self.columns))

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    def needs(self, shard: int, iteration: int) -> Needs:
        """What the stages of the store's shard need."""
        return {stage.name: stage.needs for stage in self._stages(shard, iteration) if stage.needs}

    def ciphertext_needs(self, shard: int, iteration: int) -> dict[str, tuple[CiphertextNeed, ...]]:
        """What ciphertexts they need that are made beforehand."""
        return {
            stage.name: stage.ciphertext_needs for stage in self._stages(shard, iteration) if stage.ciphertext_needs
        }

    def _stages(self, shard: int, iteration: int) -> list[StageTrace]:
        return [
            stage
            for over, blocks in self._all_blocks.items()
            for block in blocks[shard : shard + 1]
            for stage in self.traces(over, block, iteration)
        ]

    def traces(self, over: Over, block: ShardShape, iteration: int) -> list[StageTrace]:
        """The stages of one iteration over this kind of shard, for one of them."""
        return [stage for first, stage in self._traced[over, block] if iteration == 0 or not first]

    def counted(self, iteration: int) -> list[tuple[int, StageTrace]]:
        """All stages of one iteration, each with the number of shards that are alike in it."""
        return [
            (count, stage)
            for over, blocks in self._all_blocks.items()
            for block, count in Counter(blocks).items()
            for stage in self.traces(over, block, iteration)
        ]

    def digest(self) -> str:
        """Equal for equal jobs and shapes."""
        content: list[Any] = []
        for over, blocks in self._all_blocks.items():
            content.append((over, blocks))
            for block in dict.fromkeys(blocks):
                traced = self._traced[over, block]
                content += [(first, stage.name, stage.needs, stage.ciphertext_needs) for first, stage in traced]
        return digest_of_values(content)

    @cached_property
    def _all_blocks(self) -> dict[Over, tuple[ShardShape, ...]]:
        return {Over.ROWS: self.blocks, Over.COLUMNS: self.columns, Over.ONE: (ShardShape(self.rows),)}

    @cached_property
    def _traced(self) -> dict[tuple[Over, ShardShape], list[tuple[bool, StageTrace]]]:
        return {
            (over, block): self._trace(over, block)
            for over, blocks in self._all_blocks.items()
            for block in set(blocks)
        }

    def _trace(self, over: Over, block: ShardShape) -> list[tuple[bool, StageTrace]]:
        works = [work for work in self.works if work.over == over]
        return [(work.first, stage) for work in works for stage in work.trace(block)]
