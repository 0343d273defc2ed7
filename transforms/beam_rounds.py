"""The Beam executor: a protocol unrolled into stages, with a GroupByKey between the halves of each round.

    shards ─▶ send₀ ─▶ GroupByKey ─▶ receive₀·send₁ ─▶ GroupByKey ─▶ … ─▶ GroupByKey ─▶ receive_last ─▶ shards

GroupByKey emits only when it has seen all its input, so all puts of a round happen before any get, whatever the
number of workers and the order of shards: two pipelines cannot wait for each other. A half-round's messages are
durable with their recipients before its bundle is committed (`finish_bundle`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.metrics import Metrics

from veilmeans.io.exchange import Outgoing
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds import Protocol, Stage
from veilmeans.transforms.seat import OpenSeat, Seat, Tally, receive, send

_FLUSH_BYTES = 32 << 20
"""Messages are handed over when this much has gathered, and at the end of each bundle."""


@dataclass
class RunProtocol(beam.PTransform):
    """Run `protocol` over shards: (shard number, state) in, (shard number, state) out."""

    protocol: Protocol
    seat: Seat

    def __post_init__(self) -> None:
        super().__init__(f"Run {self.protocol.name}")

    def expand(self, shards: beam.PCollection[tuple[int, Shard]]) -> beam.PCollection[tuple[int, Shard]]:
        stages = list(self.protocol.stages())
        for number, stage in enumerate(stages):
            before = stages[number - 1] if number else None
            drop = stages[number - 2] if number > 1 else None
            step = HalfRounds(self.seat, receives=before, sends=stage, drops=drop)
            shards = shards | f"Send {stage.name}" >> beam.ParDo(step) | f"Barrier {stage.name}" >> beam.GroupByKey()
        last = HalfRounds(self.seat, receives=stages[-1], sends=None, drops=None)
        return shards | f"Finish {self.protocol.name}" >> beam.ParDo(last)


class HalfRounds(beam.DoFn):
    """Between two barriers: receive the round before, send the next one."""

    def __init__(self, seat: Seat, receives: Stage | None, sends: Stage | None, drops: Stage | None) -> None:
        self.seat, self.receives, self.sends, self.drops = seat, receives, sends, drops

    def setup(self) -> None:
        self.open: OpenSeat = self.seat.open()

    def start_bundle(self) -> None:
        self.outgoing: list[Outgoing] = []
        self.gathered = 0

    def process(self, element: tuple[int, Shard | Iterable[Shard]]) -> Iterator[tuple[int, Shard]]:
        shard, held = element
        state = self.open.scratch.load(_only(shard, held))
        if self.receives is not None:
            state = self._receive(self.receives, shard, state)
        if self.sends is None:
            yield shard, Shard(arrays=dict(state))
            return
        state = self._send(self.sends, shard, state)
        if self.drops is not None:
            self.open.scratch.drop(self.open.address(self.drops, shard))
        yield shard, self.open.scratch.keep(self.open.address(self.sends, shard), state)

    def finish_bundle(self) -> None:
        self._flush()

    def _gather(self, messages: list[Outgoing]) -> None:
        self.outgoing += messages
        self.gathered += sum(message.payload.size for message in messages)
        if self.gathered > _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self.open.exchange.put_all(self.outgoing)
        self.outgoing, self.gathered = [], 0

    def _receive(self, stage: Stage, shard: int, state: Arrays) -> Arrays:
        tally = Tally()
        state = receive(self.open, stage, shard, state, tally)
        _report(stage.name, tally)
        return state

    def _send(self, stage: Stage, shard: int, state: Arrays) -> Arrays:
        tally = Tally()
        state, messages = send(self.open, stage, shard, state, tally)
        _report(stage.name, tally)
        self._gather(messages)
        return state


def _only(shard: int, held: Shard | Iterable[Shard]) -> Shard:
    if isinstance(held, Shard):
        return held
    states = list(held)
    if len(states) != 1:
        raise ValueError(f"shard {shard} came to a barrier {len(states)} times: shard numbers must be unique")
    return states[0]


def _report(stage: str, tally: Tally) -> None:
    Metrics.counter(stage, "messages").inc(tally.messages)
    Metrics.counter(stage, "bytes_sent").inc(tally.bytes_sent)
    Metrics.counter(stage, "bytes_received").inc(tally.bytes_received)
    Metrics.counter(stage, "waited_us").inc(round(tally.waited * 1e6))
