"""What a job will ask of the triple store, from shapes alone: the works of one iteration, shard by shard."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from veilmeans.transforms.randomness import Need
from veilmeans.transforms.rounds import Protocol
from veilmeans.transforms.trace import Shapes, StageTrace, trace

Needs = dict[str, tuple[Need, ...]]
"""Stage -> what it asks for."""


@dataclass(frozen=True)
class Work:
    """A protocol and each party's shapes for a shard of so many rows; `sharded` or once per iteration, as shard 0."""

    protocol: Protocol
    shapes: Callable[[int], Sequence[Shapes]]
    sharded: bool = True


@dataclass(frozen=True)
class Plan:
    """All works of an iteration over `rows` rows in shards of `rows_per_shard`."""

    works: tuple[Work, ...]
    rows: int
    rows_per_shard: int

    def shard_lengths(self) -> list[int]:
        return [min(self.rows_per_shard, self.rows - start) for start in range(0, self.rows, self.rows_per_shard)]

    def needs(self, shard: int) -> Needs:
        """What a shard's stages need."""
        length = min(self.rows_per_shard, self.rows - shard * self.rows_per_shard)
        traces = [*self._sharded[length], *(self._single if shard == 0 else [])]
        return {stage.name: stage.needs for stage in traces if stage.needs}

    def digest(self) -> str:
        """Equal for equal jobs and shapes."""
        content = hashlib.sha256(repr((self.rows, self.rows_per_shard)).encode())
        for length in sorted(self._sharded):
            content.update(repr([(stage.name, stage.needs) for stage in self._sharded[length]]).encode())
        content.update(repr([(stage.name, stage.needs) for stage in self._single]).encode())
        return content.hexdigest()

    @cached_property
    def _sharded(self) -> dict[int, list[StageTrace]]:
        return {
            length: [stage for work in self.works if work.sharded for stage in _trace(work, length)]
            for length in set(self.shard_lengths())
        }

    @cached_property
    def _single(self) -> list[StageTrace]:
        return [stage for work in self.works if not work.sharded for stage in _trace(work, self.rows)]


def _trace(work: Work, rows: int) -> list[StageTrace]:
    return trace(work.protocol, work.shapes(rows))
