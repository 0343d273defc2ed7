"""A traced job: the messages and needs of its steps, from shapes alone, by shard and iteration.

The triple store's shard i has what row shard i and column shard i need, and shard 0 also has what single elements need.
What runs once in a run, before the first iteration or after the last, has its correlations with the first iteration.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from veilmeans.schemas.digests import digest_of_values
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.rounds.executor import Over
from veilmeans.transforms.rounds.interfaces import CiphertextNeed, CorrelationNeed
from veilmeans.transforms.rounds.trace import StageTrace

Needs = dict[str, tuple[CorrelationNeed, ...]]
"""Stage -> the correlations that it asks for."""
_OPENED = ", to be opened"
When = Literal["once", "iteration", "later", "last", "end"]
"""Before the first iteration, in each, in each but the first, after the last one, when results are opened."""


@dataclass(frozen=True)
class JobStep:
    """A step of a job: what it computes, its phase (S1, S2, S3 or none), when and over what it runs, and after which.

    `stages` has its rounds for each shape of shard. `beside`: the steps with which it runs in lock-step, its own name
    among them. `before_stop`: it runs before it is known whether the run has stopped with the iteration before.
    """

    name: str
    computes: str
    phase: str
    over: Over
    when: When
    after: tuple[str, ...]
    stages: Mapping[ShardShape, tuple[StageTrace, ...]]
    beside: tuple[str, ...] = ()
    before_stop: bool = False

    def times(self, done: int, stopped: bool = False) -> int:
        """Count its times in a run of so many iterations; `stopped`: one more began, and was dropped."""
        if self.when not in ("iteration", "later"):
            return 1
        return done + (stopped and self.before_stop) - (self.when == "later")

    @property
    def message_contents(self) -> list[str]:
        """The contents of its messages, in the paper's letters."""
        sends = (stage.sends for stages in self.stages.values() for stage in stages)
        return list(dict.fromkeys(text for each in sends for text in each.split("; ") if text != "nothing"))

    @property
    def opens(self) -> list[str]:
        """The values that its messages open, as its rounds declare them."""
        return [text.removesuffix(_OPENED) for text in self.message_contents if text.endswith(_OPENED)]


@dataclass(frozen=True)
class TracedJob:
    """All steps of a job in the order in which they run, and the shapes of its row shards and column shards."""

    row_shapes: tuple[ShardShape, ...]
    column_shapes: tuple[ShardShape, ...]
    steps: tuple[JobStep, ...]

    @property
    def rows(self) -> int:
        return sum(shape.rows for shape in self.row_shapes)

    @property
    def store_shards(self) -> int:
        """The number of shards that the triple store has for an iteration."""
        return max(len(self.row_shapes), len(self.column_shapes))

    def shapes(self, over: Over) -> tuple[ShardShape, ...]:
        return {Over.ROWS: self.row_shapes, Over.COLUMNS: self.column_shapes, Over.ONE: (ShardShape(self.rows),)}[over]

    def needs(self, shard: int, iteration: int) -> Needs:
        """The correlations that a shard of the store has for an iteration."""
        return {stage.name: stage.needs for stage in self._stages(shard, iteration) if stage.needs}

    def ciphertext_needs(self, shard: int, iteration: int) -> dict[str, tuple[CiphertextNeed, ...]]:
        """The ciphertexts, made beforehand, that a shard of the store has for an iteration."""
        return {
            stage.name: stage.ciphertext_needs for stage in self._stages(shard, iteration) if stage.ciphertext_needs
        }

    def stage_counts(self, step: JobStep) -> list[tuple[int, StageTrace]]:
        """The stages of a step, each with the number of shards of the same shape."""
        shapes = Counter(self.shapes(step.over))
        return [(count, stage) for shape, count in shapes.items() for stage in step.stages[shape]]

    def digest(self) -> str:
        """A digest of what the job needs of a store: equal for equal jobs and shapes."""
        needed = [
            (step.when, step.over, shape, stage.name, stage.needs, stage.ciphertext_needs)
            for step in self.steps
            for shape in dict.fromkeys(self.shapes(step.over))
            for stage in step.stages[shape]
            if stage.needs or stage.ciphertext_needs
        ]
        return digest_of_values([self.row_shapes, self.column_shapes, needed])

    def _stages(self, shard: int, iteration: int) -> Iterator[StageTrace]:
        for step in self.steps:
            if step.when == "iteration" or step.when in (("later",) if iteration else ("once", "last")):
                for shape in self.shapes(step.over)[shard : shard + 1]:
                    yield from step.stages[shape]
