"""The Beam executor: a description becomes a pipeline, its rounds become stages (`rounds.beam_rounds`)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic

import apache_beam as beam

from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.beam_rounds import RunLanes, RunProtocol, only_state
from veilmeans.transforms.rounds.beam_serialisation import PlainDoFn, PlainParDo, SharedWork
from veilmeans.transforms.rounds.executor import (
    AddUp,
    BareExecutor,
    Cut,
    Describe,
    DescribeFrom,
    Executor,
    J,
    Job,
    Keep,
    Lane,
    Load,
    Over,
    Step,
    has_stopped,
)
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext
from veilmeans.transforms.rounds.stage_metrics import count_stage


@dataclass
class RunDescription(beam.PTransform):
    """Run a description once for each element; shard numbers come out when all of it is done.

    Where `one_call` is set, one call runs all of it: one element cannot wait for another.
    """

    job: Job
    describe: Describe
    one_call: bool

    def expand(self, begin: beam.PCollection[int]) -> beam.PCollection[int]:
        if self.one_call:
            element = begin | "Element" >> beam.Map(_empty_state).with_output_types(tuple[int, Shard])
            done = element | "In one call" >> _on_shard(self.job, partial(_run_description, self.describe))
        else:
            done = self.describe(BeamExecutor(begin, self.job)).collection
        return done | "Shard numbers" >> _numbers()


@dataclass(frozen=True)
class BeamShards:
    """The states of some shards in a pipeline."""

    over: Over
    collection: beam.PCollection[tuple[int, Shard]]


@dataclass
class BeamExecutor(Generic[J]):
    """Build the stages of a description. `begin` has one element, or none where there is nothing to do."""

    begin: beam.PCollection[int]
    job: J
    _labels: Counter[str] = field(default_factory=Counter, repr=False)

    def shards(self, over: Over, load: Load, after: Sequence[BeamShards] = ()) -> BeamShards:
        numbers, begin = tuple(self.job.shard_numbers(over)), self.begin
        for each in after:
            begin = begin | self._hold_back_until(each, int)
        empty = PlainParDo(EmptyStates(numbers)).with_output_types(tuple[int, Shard])
        states = begin | self._label("Shards") >> empty | self._label("Rebalance") >> Rebalance()
        return self.load(load, BeamShards(over, states))

    def load(self, load: Load, states: BeamShards) -> BeamShards:
        return self._work("Load", partial(_read, load), states)

    def rounds(self, step: Step, states: BeamShards) -> BeamShards:
        if states.over is Over.ONE:
            return self.in_one_call(partial(_rounds, step), states)
        run = self._label(f"Run {step.name}") >> RunProtocol(step.protocol, self.job.context)
        return BeamShards(states.over, states.collection | run)

    def beside(self, *lanes: Lane[BeamShards]) -> list[BeamShards]:
        protocols = tuple(step.protocol for step, _ in lanes)
        single = tuple(states.over is Over.ONE for _, states in lanes)
        label = self._label(f"Run {' beside '.join(step.name for step, _ in lanes)}")
        ended = tuple(states.collection for _, states in lanes) | label >> RunLanes(protocols, single, self.job.context)
        return [BeamShards(states.over, each) for (_, states), each in zip(lanes, ended, strict=True)]

    def unless(self, stop: BeamShards, states: BeamShards) -> BeamShards:
        bits = beam.pvalue.AsList(stop.collection | self._label("Stop bit") >> PlainParDo(StopBit(self.job.context)))
        passing = PlainParDo(UnlessStopped(), bits).with_output_types(tuple[int, Shard])
        return BeamShards(states.over, states.collection | self._label("Unless stopped") >> passing)

    def keep(self, keep: Keep, states: BeamShards) -> BeamShards:
        return self._work(f"Keep {keep.name}", partial(_write, keep), states)

    def total(self, over: Over, cut: Cut, *states: BeamShards) -> BeamShards:
        shards = [each.collection for each in states] | self._label("Flatten") >> beam.Flatten()
        parts = shards | self._label("Cut") >> _on_shard(self.job, partial(_cut, cut))
        return BeamShards(over, parts | self._label("Add up") >> beam.CombinePerKey(SumShares(self.job.add_up())))

    def join(self, left: BeamShards, right: BeamShards) -> BeamShards:
        joined = (
            (left.collection, right.collection)
            | self._label("Flatten") >> beam.Flatten()
            | self._label("Group") >> beam.GroupByKey()
            | self._label("Join") >> PlainParDo(SideBySide(self.job.context))
        )
        return BeamShards(left.over, joined)

    def after(self, states: BeamShards, ready: BeamShards) -> BeamShards:
        return BeamShards(states.over, states.collection | self._hold_back_until(ready, tuple[int, Shard]))

    def in_one_call(self, description: DescribeFrom, states: BeamShards) -> BeamShards:
        if states.over is not Over.ONE:
            raise ValueError("only one element may run all its rounds in one call")
        return self._work("In one call", partial(_run_from_state, description), states)

    def _work(self, label: str, work: "Work", states: BeamShards) -> BeamShards:
        return BeamShards(states.over, states.collection | self._label(label) >> _on_shard(self.job, work))

    def _hold_back_until(self, ready: BeamShards, element: Any) -> beam.PTransform:
        """Elements pass when all of `ready` are there: they are a side input."""
        numbers = beam.pvalue.AsList(ready.collection | self._label("Ready") >> _numbers())
        return self._label("Hold back") >> PlainParDo(Unchanged(), numbers).with_output_types(element)

    def _label(self, what: str) -> str:
        """A label that is unique in this pipeline, and the same whenever it is built."""
        self._labels[what] += 1
        return what if self._labels[what] == 1 else f"{what} {self._labels[what]}"


Work = Callable[[Any, OpenPartyContext, int, Arrays], Mapping[int, Arrays]]
"""(job, context, shard, its arrays) -> shard -> arrays."""


class _OnShard(PlainDoFn):
    """Work on each shard for one party, whose context is opened in the worker."""

    def __init__(self, job: Job, work: Work) -> None:
        self.job, self.work = job, work

    def setup(self) -> None:
        self.context = self.job.context.open()

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[int, Shard]]:
        shard, state = element
        arrays = self.context.scratch.load(state)
        for key, after in self.work(self.job, self.context, shard, arrays).items():
            yield key, Shard(arrays=dict(after))


def _empty_state(number: int) -> tuple[int, Shard]:
    return number, Shard()


class EmptyStates(PlainDoFn):
    """Make an empty state for each shard number."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def process(self, _begin: int) -> Iterator[tuple[int, Shard]]:
        return map(_empty_state, self.numbers)


def _on_shard(job: Job, work: Work) -> beam.PTransform:
    return PlainParDo(_OnShard(job, work)).with_output_types(tuple[int, Shard])


def _run_description(describe: Describe, job: Job, context: OpenPartyContext, _shard: int, _arrays: Arrays) -> Any:
    return describe(BareExecutor(job, context, count_stage))


def _run_from_state(follow: DescribeFrom, job: Job, context: OpenPartyContext, shard: int, arrays: Arrays) -> Any:
    return follow(BareExecutor(job, context, count_stage), {shard: arrays})


def _read(load: Load, job: Job, context: OpenPartyContext, shard: int, arrays: Arrays) -> Mapping[int, Arrays]:
    return {shard: {**arrays, **load.read(job, context, shard)}}


def _write(keep: Keep, job: Job, context: OpenPartyContext, shard: int, arrays: Arrays) -> Mapping[int, Arrays]:
    keep.write(job, context, shard, arrays)
    return {shard: arrays}


def _cut(cut: Cut, job: Job, context: OpenPartyContext, _shard: int, arrays: Arrays) -> Mapping[int, Arrays]:
    return cut(job.parameters, context.party, arrays)


def _rounds(step: Step, run: Executor[Any], states: Any) -> Any:
    return run.rounds(step, states)


class SideBySide(PlainDoFn):
    """Put all arrays of a shard into one state."""

    def __init__(self, context: PartyContext) -> None:
        self.context = context

    def setup(self) -> None:
        self.open = self.context.open()

    def process(self, element: tuple[int, Iterable[Shard]]) -> Iterator[tuple[int, Shard]]:
        shard, states = element
        loaded = [self.open.scratch.load(state) for state in states]
        yield shard, Shard(arrays={name: array for state in loaded for name, array in state.items()})


class StopBit(PlainDoFn):
    """Take the opened stop bit out of a state."""

    def __init__(self, context: PartyContext) -> None:
        self.context = context

    def setup(self) -> None:
        self.open = self.context.open()

    def process(self, element: tuple[int, Shard]) -> Iterator[bool]:
        yield has_stopped(self.open.scratch.load(element[1]))


class Rebalance(beam.Reshuffle):
    """Spread shards over the workers. Shard numbers are unique: they are the keys, and Beam adds none.

    Runners may replace it as a whole, as they do Beam's own; that has three more steps, and four times the bytes.
    """

    def expand(self, pcoll: beam.PCollection[tuple[int, Shard]]) -> beam.PCollection[tuple[int, Shard]]:
        return pcoll | "Group" >> beam.GroupByKey() | "Only" >> PlainParDo(OnlyState())


class OnlyState(PlainDoFn):
    """Take the one state of a shard."""

    def process(self, element: tuple[int, Iterable[Shard]]) -> Iterator[tuple[int, Shard]]:
        shard, states = element
        yield shard, only_state(shard, states)


class UnlessStopped(PlainDoFn):
    """Pass elements on unless a stop bit is 1."""

    def process(self, element: tuple[int, Shard], stopped: Sequence[bool]) -> Iterator[tuple[int, Shard]]:
        if not any(stopped):
            yield element


class Unchanged(PlainDoFn):
    """Pass elements on, when the side input is there."""

    def process(self, element: Any, _ready: Sequence[int]) -> Iterator[Any]:
        yield element


class ShardNumber(PlainDoFn):
    """Take the shard's number."""

    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        yield element[0]


def _numbers() -> beam.PTransform:
    return PlainParDo(ShardNumber()).with_output_types(int)


class SumShares(SharedWork, beam.CombineFn):
    """Add up parts of a total in a tree: shares mod 2^64, ciphertexts as products under the peers' public moduli."""

    def __init__(self, add_up: AddUp) -> None:
        self.add_up = add_up

    def create_accumulator(self) -> Shard:
        return Shard()

    def add_input(self, total: Shard, part: Shard) -> Shard:
        return self.merge_accumulators([total, part])

    def merge_accumulators(self, totals: Iterable[Shard]) -> Shard:
        return Shard(arrays=dict(self.add_up([total.arrays for total in totals])))

    def extract_output(self, total: Shard) -> Shard:
        return total
