"""The Beam executor: a protocol unrolled into stages, with a GroupByKey between the halves of each round.

    shards ─▶ send₀ ─▶ GroupByKey ─▶ receive₀·send₁ ─▶ GroupByKey ─▶ … ─▶ GroupByKey ─▶ receive_last ─▶ shards

GroupByKey emits only when it has seen all its input, so all puts of a round happen before any get, whatever the
number of workers and the order of shards: two pipelines cannot wait for each other. A half-round's messages are
durable with their recipients before its bundle is committed (`finish_bundle`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext, deliver, receive, send
from veilmeans.transforms.rounds.protocol import Protocol, Stage
from veilmeans.transforms.rounds.stage_metrics import Tally, count_stage

_HAND_OVER_BYTES = 32 << 20
"""Messages are handed over when this much has gathered, and at the end of each bundle."""


@dataclass(frozen=True)
class HalfRound:
    """The work between two barriers: receive the round before, send the next one, drop what no retry can ask for."""

    receives: Stage | None
    sends: Stage | None
    drops: Stage | None


def half_rounds(protocol: Protocol) -> list[HalfRound]:
    """One step more than there are rounds: the first only sends, the last only receives."""
    stages = [None, None, *protocol.stages(), None]
    return [
        HalfRound(before, now, earlier) for earlier, before, now in zip(stages, stages[1:], stages[2:], strict=False)
    ]


@dataclass
class RunProtocol(beam.PTransform):
    """Run `protocol` over shards: (shard number, state) in, (shard number, state) out."""

    protocol: Protocol
    context: PartyContext

    def __post_init__(self) -> None:
        super().__init__(f"Run {self.protocol.name}")

    def expand(self, shards: beam.PCollection[tuple[int, Shard]]) -> beam.PCollection[tuple[int, Shard]]:
        *sending, last = half_rounds(self.protocol)
        for step in sending:
            name = step.sends.name if step.sends else ""
            shards = shards | f"Send {name}" >> beam.ParDo(RunHalfRound(self.context, step))
            shards = shards | f"Barrier {name}" >> beam.GroupByKey()
        return shards | f"Finish {self.protocol.name}" >> beam.ParDo(RunHalfRound(self.context, last))


class RunHalfRound(beam.DoFn):
    """A step as a DoFn."""

    def __init__(self, context: PartyContext, step: HalfRound) -> None:
        self.context, self.step = context, step

    def __dir__(self) -> list[str]:
        """What Beam inspects, nine times a stage, in search of state and timers. All methods: 5 ms more a round."""
        return ["setup", "start_bundle", "process", "finish_bundle"]

    def setup(self) -> None:
        self.open = self.context.open()

    def start_bundle(self) -> None:
        self.outgoing: list[Outgoing] = []

    def process(self, element: tuple[int, Shard | Iterable[Shard]]) -> Iterator[tuple[int, Shard]]:
        shard, held = element
        after, messages = run_half_round(self.open, self.step, shard, _only(shard, held))
        self.outgoing += messages
        if sum(message.payload.size for message in self.outgoing) > _HAND_OVER_BYTES:
            self._hand_over()
        yield shard, after

    def finish_bundle(self) -> None:
        self._hand_over()

    def _hand_over(self) -> None:
        if self.step.sends is None:
            return
        tally = Tally()
        deliver(self.open, self.outgoing, tally)
        count_stage(self.step.sends.name, tally)
        self.outgoing = []


def run_half_round(context: OpenPartyContext, step: HalfRound, shard: int, held: Shard) -> tuple[Shard, list[Outgoing]]:
    """One shard's work between two barriers: what crosses the next one, and the messages to hand over."""
    state = context.scratch.load(held)
    if step.receives is not None:
        state = _receive(context, step.receives, shard, state)
    if step.drops is not None:
        context.scratch.drop(context.address(step.drops, shard))
    if step.sends is None:
        return Shard(arrays=dict(state)), []
    tally = Tally()
    state, messages = send(context, step.sends, shard, state, tally)
    count_stage(step.sends.name, tally)
    return context.scratch.keep(context.address(step.sends, shard), state), messages


def _receive(context: OpenPartyContext, stage: Stage, shard: int, state: Arrays) -> Arrays:
    tally = Tally()
    state = receive(context, stage, shard, state, tally)
    count_stage(stage.name, tally)
    return state


def _only(shard: int, held: Shard | Iterable[Shard]) -> Shard:
    if isinstance(held, Shard):
        return held
    states = list(held)
    if len(states) != 1:
        raise ValueError(f"shard {shard} came to a barrier {len(states)} times: shard numbers must be unique")
    return states[0]
