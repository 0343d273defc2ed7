"""A traced job: the messages and needs of its steps, from shapes alone, by shard and iteration.

The triple store's shard i has what row shard i and column shard i need, and shard 0 also has what single elements need.
What runs once in a run, before the first iteration or after the last, has its correlations with the first iteration.
k-means++ chooses its centroids in the iterations before 0, −1 the last of them.

A store has the correlations of one job for each run number, or, for a sweep, of several jobs in turn (`StoreJobs`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, Protocol

from veilmeans.schemas.digests import digest_of_values
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.rounds.executor import Over
from veilmeans.transforms.rounds.interfaces import CiphertextNeed, CorrelationNeed
from veilmeans.transforms.rounds.trace import StageTrace

StoreShard = tuple[int, int, int]
"""Run number, iteration, shard."""
Needs = dict[str, tuple[CorrelationNeed, ...]]
"""Stage -> the correlations that it asks for."""
_OPENED = ", to be opened"
When = Literal["once", "seed", "iteration", "later", "last", "end"]
"""Before the first iteration, for each centroid that k-means++ chooses, in each iteration, in each but the first, after
the last one, when results are opened."""


@dataclass(frozen=True)
class JobStep:
    """A step of a job: what it computes, its phase (S1, S2, S3 or none), when and over what it runs, and after which.

    `stages` has its rounds for each shape of shard. `beside`: the steps with which it runs in lock-step, its own name
    among them. `before_stop`: it runs before it is known whether the run has stopped with the iteration before.
    `seeds`: how many centroids k-means++ chooses by it.
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
    seeds: int = 0

    def times(self, done: int, stopped: bool = False) -> int:
        """Count its times in a run of so many iterations; `stopped`: one more began, and was dropped."""
        if self.when not in ("iteration", "later"):
            return max(1, self.seeds)
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


class StoreJobs(Protocol):
    """The jobs for which a triple store is made."""

    @property
    def rows(self) -> int: ...

    def of(self, number: int) -> "TracedJob":
        """The job whose correlations the store has under a number."""

    def numbers(self, runs: int) -> range:
        """All numbers of a store for so many runs."""

    def places(self, runs: int, iterations: int) -> list[StoreShard]:
        """All places of a store for so many runs, each of so many iterations."""

    def digest(self) -> str:
        """A digest of what the jobs need of a store."""


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

    def of(self, number: int) -> "TracedJob":
        """The job under each number of its store: this one."""
        del number
        return self

    def numbers(self, runs: int) -> range:
        """All numbers of a store for so many runs: one for each."""
        return range(runs)

    def places(self, runs: int, iterations: int) -> list[StoreShard]:
        """All places of a store for so many runs, each of so many iterations."""
        return list(product(self.numbers(runs), self.store_iterations(iterations), range(self.store_shards)))

    def shapes(self, over: Over) -> tuple[ShardShape, ...]:
        return {Over.ROWS: self.row_shapes, Over.COLUMNS: self.column_shapes, Over.ONE: (ShardShape(self.rows),)}[over]

    def store_iterations(self, iterations: int) -> range:
        """The iterations for which the triple store has correlations, if so many follow k-means++."""
        return range(-max(step.seeds for step in self.steps), iterations)

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
            (step.when, step.seeds, step.over, shape, stage.name, stage.needs, stage.ciphertext_needs)
            for step in self.steps
            for shape in dict.fromkeys(self.shapes(step.over))
            for stage in step.stages[shape]
            if stage.needs or stage.ciphertext_needs
        ]
        return digest_of_values([self.row_shapes, self.column_shapes, needed])

    def _stages(self, shard: int, iteration: int) -> Iterator[StageTrace]:
        now: tuple[When, ...] = ("seed",)
        if iteration >= 0:
            now = ("iteration", "later") if iteration else ("once", "iteration", "last")
        for step in self.steps:
            if step.when in now:
                for shape in self.shapes(step.over)[shard : shard + 1]:
                    yield from step.stages[shape]


@dataclass(frozen=True)
class EqualPlaces:
    """Places of a store with equal needs: those of a job for a shard and an iteration, and how many there are."""

    job: TracedJob
    shard: int
    iteration: int
    count: int

    @property
    def needs(self) -> Needs:
        return self.job.needs(self.shard, self.iteration)


@dataclass(frozen=True)
class SweptJobs:
    """The jobs of a sweep, one for each number of clusters: run r has the numbers r·J … r·J + J − 1 for its J jobs."""

    jobs: tuple[TracedJob, ...]

    @property
    def rows(self) -> int:
        return self.jobs[0].rows

    def of(self, number: int) -> TracedJob:
        """The job whose correlations the store has under a number."""
        return self.jobs[number % len(self.jobs)]

    def numbers(self, runs: int) -> range:
        """All numbers of a store for so many sweeps: one for each job of each sweep."""
        return range(runs * len(self.jobs))

    def places(self, runs: int, iterations: int) -> list[StoreShard]:
        """All places of a store for so many sweeps, each of so many iterations of each job."""
        by_number = ((number, self.of(number).places(1, iterations)) for number in self.numbers(runs))
        return [(number, iteration, shard) for number, places in by_number for _, iteration, shard in places]

    def digest(self) -> str:
        """A digest of what the jobs need of a store, in their order."""
        return digest_of_values([job.digest() for job in self.jobs])
