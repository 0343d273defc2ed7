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
from veilmeans.transforms.rounds.party_context import OpenSeat, Seat, hand_over, receive, send
from veilmeans.transforms.rounds.protocol import Protocol, Stage
from veilmeans.transforms.rounds.stage_metrics import Tally, report

_HAND_OVER_BYTES = 32 << 20
"""Messages are handed over when this much has gathered, and at the end of each bundle."""


@dataclass(frozen=True)
class Step:
    """The work between two barriers: receive the round before, send the next one, drop what no retry can ask for."""

    receives: Stage | None
    sends: Stage | None
    drops: Stage | None


def steps_of(protocol: Protocol) -> list[Step]:
    """One step more than there are rounds: the first only sends, the last only receives."""
    stages = [None, None, *protocol.stages(), None]
    return [Step(before, now, earlier) for earlier, before, now in zip(stages, stages[1:], stages[2:], strict=False)]


@dataclass
class RunProtocol(beam.PTransform):
    """Run `protocol` over shards: (shard number, state) in, (shard number, state) out."""

    protocol: Protocol
    seat: Seat

    def __post_init__(self) -> None:
        super().__init__(f"Run {self.protocol.name}")

    def expand(self, shards: beam.PCollection[tuple[int, Shard]]) -> beam.PCollection[tuple[int, Shard]]:
        *sending, last = steps_of(self.protocol)
        for step in sending:
            name = step.sends.name if step.sends else ""
            shards = shards | f"Send {name}" >> beam.ParDo(HalfRounds(self.seat, step))
            shards = shards | f"Barrier {name}" >> beam.GroupByKey()
        return shards | f"Finish {self.protocol.name}" >> beam.ParDo(HalfRounds(self.seat, last))


class HalfRounds(beam.DoFn):
    """A step as a DoFn."""

    def __init__(self, seat: Seat, step: Step) -> None:
        self.seat, self.step = seat, step

    def __dir__(self) -> list[str]:
        """What Beam inspects, nine times a stage, in search of state and timers. All methods: 5 ms more a round."""
        return ["setup", "start_bundle", "process", "finish_bundle"]

    def setup(self) -> None:
        self.open = self.seat.open()

    def start_bundle(self) -> None:
        self.outgoing: list[Outgoing] = []

    def process(self, element: tuple[int, Shard | Iterable[Shard]]) -> Iterator[tuple[int, Shard]]:
        shard, held = element
        after, messages = take_step(self.open, self.step, shard, _only(shard, held))
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
        hand_over(self.open, self.outgoing, tally)
        report(self.step.sends.name, tally)
        self.outgoing = []


def take_step(seat: OpenSeat, step: Step, shard: int, held: Shard) -> tuple[Shard, list[Outgoing]]:
    """One shard's work between two barriers: what crosses the next one, and the messages to hand over."""
    state = seat.scratch.load(held)
    if step.receives is not None:
        state = _receive(seat, step.receives, shard, state)
    if step.drops is not None:
        seat.scratch.drop(seat.address(step.drops, shard))
    if step.sends is None:
        return Shard(arrays=dict(state)), []
    tally = Tally()
    state, messages = send(seat, step.sends, shard, state, tally)
    report(step.sends.name, tally)
    return seat.scratch.keep(seat.address(step.sends, shard), state), messages


def _receive(seat: OpenSeat, stage: Stage, shard: int, state: Arrays) -> Arrays:
    tally = Tally()
    state = receive(seat, stage, shard, state, tally)
    report(stage.name, tally)
    return state


def _only(shard: int, held: Shard | Iterable[Shard]) -> Shard:
    if isinstance(held, Shard):
        return held
    states = list(held)
    if len(states) != 1:
        raise ValueError(f"shard {shard} came to a barrier {len(states)} times: shard numbers must be unique")
    return states[0]
