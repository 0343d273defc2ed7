"""A protocol as Beam stages: a round becomes two stages with a GroupByKey between them.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.storage.freed_memory import release_often
from veilmeans.schemas.arrays import Arrays, nbytes
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.beam_serialisation import PlainDoFn, PlainParDo, ShardCoder
from veilmeans.transforms.rounds.executor import run_stages
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext, deliver, receive, send
from veilmeans.transforms.rounds.protocol import Protocol, Stage
from veilmeans.transforms.rounds.stage_metrics import StageMetrics, count_stage

beam.coders.registry.register_coder(Shard, ShardCoder)
_DELIVERY_BYTES = 4 << 20  # messages are delivered when this much has gathered, and at the end of each bundle


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
            shards = shards | f"Send {name}" >> PlainParDo(RunHalfRound(self.context, each))
            shards = shards | f"Barrier {name}" >> beam.GroupByKey()
        return shards | f"Finish {self.protocol.name}" >> PlainParDo(RunHalfRound(self.context, last))


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
        after, messages = run_half_round(self.open, self.half_round, shard, only_state(shard, state))
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
            shards | f"Send {protocol.name}" >> PlainParDo(BeginLane(self.context, lane, first))
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
            half = PlainParDo(RunLaneHalfRounds(self.context, work)).with_outputs(*tags, main=_RUNNING)
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
        work, state = self.work[lane], only_state(shard, states)
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
    release_often(nbytes(state))
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


def only_state(shard: int, state: Shard | Iterable[Shard]) -> Shard:
    if isinstance(state, Shard):
        return state
    states = list(state)
    if len(states) != 1:
        raise ValueError(f"shard {shard} came to a barrier {len(states)} times: shard numbers must be unique")
    return states[0]
