"""The Beam executor: a description becomes a pipeline, a round becomes two stages with a GroupByKey between them.

    shards ─▶ send₀ ─▶ GroupByKey ─▶ receive₀·send₁ ─▶ GroupByKey ─▶ … ─▶ GroupByKey ─▶ receive_last ─▶ shards

GroupByKey emits only when it has seen all its input, so all puts of a round happen before any get, whatever the
number of workers and the order of shards: two pipelines cannot wait for each other. A half-round's messages are
durable with their recipients before its bundle is committed (`finish_bundle`).

Steps beside each other are lanes of one such chain, with (lane, shard) as key: all lanes send round i before any lane
receives it, as in the bare executor's lock-step (`rounds.executor` has the argument why that must be so).

    lane 0 ─▶ send₀ ─┐                                        ┌─▶ receive₁·send₂ ─▶ …
    lane 1 ─▶ send₀ ─┴▶ GroupByKey ─▶ receive₀·send₁ ─▶ GroupByKey ─▶ receive_last ─▶ lane 1

A single element whose rounds outlast those of all other lanes runs the rest of them in one call.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

import apache_beam as beam
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.beam_patches import PlainDoFn
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
    run_stages,
)
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext, deliver, receive, send
from veilmeans.transforms.rounds.protocol import Protocol, Stage
from veilmeans.transforms.rounds.shard_coder import ShardCoder
from veilmeans.transforms.rounds.stage_metrics import StageMetrics, count_stage

beam.coders.registry.register_coder(Shard, ShardCoder)
_DELIVERY_BYTES = 32 << 20  # messages are delivered when this much has gathered, and at the end of each bundle


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
        return done | "Shard numbers" >> beam.Keys()


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
        empty = beam.FlatMap(partial(_empty_states, numbers)).with_output_types(tuple[int, Shard])
        states = begin | self._label("Shards") >> empty | self._label("Rebalance") >> beam.Reshuffle()
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
        bits = beam.pvalue.AsList(stop.collection | self._label("Stop bit") >> beam.ParDo(StopBit(self.job.context)))
        passing = beam.FlatMap(_unless_stopped, bits).with_output_types(tuple[int, Shard])
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
            | self._label("Join") >> beam.ParDo(SideBySide(self.job.context))
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
        numbers = beam.pvalue.AsList(ready.collection | self._label("Ready") >> beam.Keys())
        return self._label("Hold back") >> beam.Map(_unchanged, numbers).with_output_types(element)

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


def _empty_states(numbers: Sequence[int], _begin: int) -> Iterator[tuple[int, Shard]]:
    return map(_empty_state, numbers)


def _on_shard(job: Job, work: Work) -> beam.PTransform:
    return beam.ParDo(_OnShard(job, work)).with_output_types(tuple[int, Shard])


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


def _unless_stopped(element: tuple[int, Shard], stopped: Sequence[bool]) -> Iterator[tuple[int, Shard]]:
    if not any(stopped):
        yield element


def _unchanged(element: Any, _ready: Sequence[int]) -> Any:
    return element


class SumShares(beam.CombineFn):
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


# a protocol as stages
@dataclass(frozen=True)
class HalfRound:
    """The work between two barriers: receive the round before, send the next one, drop what no retry can ask for."""

    receives: Stage | None
    sends: Stage | None
    drops: Stage | None


def half_rounds(protocol: Protocol) -> list[HalfRound]:
    """List the half-rounds of a protocol, one more than it has rounds: the first only sends, the last only receives."""
    stages = [None, None, *protocol.stages(), None]
    threes = zip(stages, stages[1:], stages[2:], strict=False)
    return [HalfRound(before, now, earlier) for earlier, before, now in threes]


@dataclass
class RunProtocol(beam.PTransform):
    """Run `protocol` over shards: (shard number, state) in, (shard number, state) out."""

    protocol: Protocol
    context: PartyContext

    def __post_init__(self) -> None:
        super().__init__(f"Run {self.protocol.name}")

    def expand(self, shards: beam.PCollection[tuple[int, Shard]]) -> beam.PCollection[tuple[int, Shard]]:
        *sending, last = half_rounds(self.protocol)
        for each in sending:
            name = each.sends.name if each.sends else ""
            shards = shards | f"Send {name}" >> beam.ParDo(RunHalfRound(self.context, each))
            shards = shards | f"Barrier {name}" >> beam.GroupByKey()
        return shards | f"Finish {self.protocol.name}" >> beam.ParDo(RunHalfRound(self.context, last))


class _Delivering(PlainDoFn):
    """A DoFn whose messages are delivered together, at the end of each bundle or when many have gathered."""

    def __init__(self, context: PartyContext) -> None:
        self.context = context

    def setup(self) -> None:
        self.open = self.context.open()

    def start_bundle(self) -> None:
        self.outgoing: list[Outgoing] = []

    def add(self, messages: Sequence[Outgoing]) -> None:
        self.outgoing += messages
        if sum(message.payload.size for message in self.outgoing) > _DELIVERY_BYTES:
            self.deliver()

    def finish_bundle(self) -> None:
        self.deliver()

    def deliver(self) -> None:
        """Deliver what has gathered; the time is counted under the stage of the first message."""
        if not self.outgoing:
            return
        metrics = StageMetrics()
        deliver(self.open, self.outgoing, metrics)
        count_stage(self.outgoing[0].key.address.stage, metrics)
        self.outgoing = []


class RunHalfRound(_Delivering):
    """A half-round as a DoFn."""

    def __init__(self, context: PartyContext, half_round: HalfRound) -> None:
        super().__init__(context)
        self.half_round = half_round

    def process(self, element: tuple[int, Shard | Iterable[Shard]]) -> Iterator[tuple[int, Shard]]:
        shard, state = element
        after, messages = run_half_round(self.open, self.half_round, shard, _only_state(shard, state))
        self.add(messages)
        yield shard, after


# several protocols as lanes of one chain
LaneShard = tuple[int, int]
"""A lane and a shard's number in it."""


@dataclass
class RunLanes(beam.PTransform):
    """Run protocols in lock-step, each over the shards of its own collection; as many collections come out.

    `single`: the lanes of one element.
    """

    protocols: tuple[Protocol, ...]
    single: tuple[bool, ...]
    context: PartyContext

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, lanes: Any) -> Any:
        halves, joint = [half_rounds(protocol) for protocol in self.protocols], self._joint_rounds()
        ended: dict[int, beam.PCollection] = {}
        running = [
            shards | f"Send {protocol.name}" >> beam.ParDo(BeginLane(self.context, lane, first))
            for lane, (shards, protocol, (first, *_)) in enumerate(zip(lanes, self.protocols, halves, strict=True))
        ]
        for number in range(1, joint + 1):
            grouped = running | f"Lanes {number}" >> beam.Flatten() | f"Barrier {number}" >> beam.GroupByKey()
            work = {
                lane: LaneWork(each[number], self._rest(lane, number, joint))
                for lane, each in enumerate(halves)
                if number < len(each)
            }
            tags = [_tag(lane) for lane, each in work.items() if each.ends]
            half = beam.ParDo(RunLaneHalfRounds(self.context, work)).with_outputs(*tags, main=_RUNNING)
            outputs = grouped | f"Round {number}" >> half
            running = [_typed(outputs[_RUNNING], tuple[LaneShard, Shard])]
            ended |= {lane: _typed(outputs[_tag(lane)], tuple[int, Shard]) for lane, each in work.items() if each.ends}
        return tuple(ended[lane] for lane in range(len(lanes)))

    def _joint_rounds(self) -> int:
        """The rounds that are run as stages: those of all lanes, but for what one single element does alone."""
        ordered = sorted(zip(map(len, self.protocols), self.single, strict=True))
        longest, alone = ordered[-1]
        others = [length for length, _ in ordered[:-1]]
        return max(others) if alone and others and max(others) < longest else longest

    def _rest(self, lane: int, number: int, joint: int) -> Sequence[Stage]:
        """The rounds that a lane runs in one call after the last joint one."""
        return tuple(self.protocols[lane].stages())[number:] if number == joint else ()


_RUNNING = "running"


def _tag(lane: int) -> str:
    return f"lane{lane}"


def _typed(collection: beam.PCollection, element: Any) -> beam.PCollection:
    """Declare the type of a DoFn's output, one of several: without it, Beam would pickle the elements."""
    collection.element_type = convert_to_beam_type(element)
    return collection


@dataclass(frozen=True)
class LaneWork:
    """A lane's half-round between two barriers, and the rounds that follow it in the same call."""

    half_round: HalfRound
    rest: Sequence[Stage]

    @property
    def ends(self) -> bool:
        """True if the lane has no rounds after this work."""
        return self.half_round.sends is None or bool(self.rest)


class BeginLane(_Delivering):
    """The first half-round of a lane: it sends, beside the work that makes its states."""

    def __init__(self, context: PartyContext, lane: int, half_round: HalfRound) -> None:
        super().__init__(context)
        self.lane, self.half_round = lane, half_round

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[LaneShard, Shard]]:
        shard, state = element
        after, messages = run_half_round(self.open, self.half_round, shard, state)
        self.add(messages)
        yield (self.lane, shard), after


class RunLaneHalfRounds(_Delivering):
    """The half-rounds of all lanes between two barriers; what has ended comes out by lanes."""

    def __init__(self, context: PartyContext, work: Mapping[int, LaneWork]) -> None:
        super().__init__(context)
        self.work = work

    def process(self, element: tuple[LaneShard, Iterable[Shard]]) -> Iterator[Any]:
        (lane, shard), states = element
        work, state = self.work[lane], _only_state(shard, states)
        if not work.ends:
            after, messages = run_half_round(self.open, work.half_round, shard, state)
            self.add(messages)
            yield (lane, shard), after
            return
        receives = replace(work.half_round, sends=None)
        after, _ = run_half_round(self.open, receives, shard, state)
        arrays = run_stages(work.rest, self.open, {shard: after.arrays}, count_stage)[shard]
        yield beam.pvalue.TaggedOutput(_tag(lane), (shard, self._keep(work.half_round, shard, arrays)))

    def _keep(self, half_round: HalfRound, shard: int, arrays: Arrays) -> Shard:
        """Keep the state of a lane that has ended until the iteration ends: it may wait for other lanes."""
        if half_round.receives is None:
            return Shard(arrays=dict(arrays))
        end = replace(half_round.receives, name=f"{half_round.receives.name}.end")
        return self.open.scratch.keep(self.open.address(end, shard), arrays)


def run_half_round(
    context: OpenPartyContext, half_round: HalfRound, shard: int, kept: Shard
) -> tuple[Shard, list[Outgoing]]:
    """Do one shard's work between two barriers; return what crosses the next one, and the messages to deliver."""
    state = context.scratch.load(kept)
    if half_round.receives is not None:
        metrics = StageMetrics()
        state = receive(context, half_round.receives, shard, state, metrics)
        count_stage(half_round.receives.name, metrics)
    if half_round.drops is not None:
        context.scratch.drop(context.address(half_round.drops, shard))
    if half_round.sends is None:
        return Shard(arrays=dict(state)), []
    metrics = StageMetrics()
    state, messages = send(context, half_round.sends, shard, state, metrics)
    count_stage(half_round.sends.name, metrics)
    return context.scratch.keep(context.address(half_round.sends, shard), state), messages


def _only_state(shard: int, state: Shard | Iterable[Shard]) -> Shard:
    if isinstance(state, Shard):
        return state
    states = list(state)
    if len(states) != 1:
        raise ValueError(f"shard {shard} came to a barrier {len(states)} times: shard numbers must be unique")
    return states[0]
