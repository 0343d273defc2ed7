"""One description of a job's steps, run by three executors: a plain loop, Beam, or shapes alone.

A description is a function over an `Executor`. It says over which shards a protocol runs, what is loaded and kept, what
is added up, and in which order; it never says where. `BareExecutor` runs it as a loop in one process, `BeamExecutor`
builds a pipeline of it, `TraceExecutor` runs it on zeros to learn what it sends and needs. The rounds and messages are
the same, so parties may use different executors in one run.

Lanes (`Executor.beside`) are steps that run in lock-step. Their order is part of the description: every party sends
everything of round i before it waits for anything of round i, on every executor, and a description's steps and groups
of lanes follow each other. So what a party waits for was sent before the sender waited for anything later: the earliest
round that anybody waits for has been sent, and no parties wait for each other. If one party ran its lanes one after the
other and another in lock-step, the first could wait for the second round of its first lane, which the other sends only
after the first round of the second lane has come from the first party, which has not begun it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds import protocol as rounds
from veilmeans.transforms.rounds.interfaces import Shapes
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext, deliver, receive, send
from veilmeans.transforms.rounds.stage_metrics import StageMetrics


class Over(Enum):
    """The elements that a step runs over: row shards, column shards, or one element, as shard 0."""

    ROWS = "rows"
    COLUMNS = "columns"
    ONE = "one"


@dataclass(frozen=True)
class Step:
    """A protocol at its place in a job: what it computes, and its phase in the paper's figure (S1, S2, S3 or none)."""

    protocol: rounds.Protocol
    computes: str
    phase: str = ""

    @property
    def name(self) -> str:
        return self.protocol.name


Read = Callable[[Any, OpenPartyContext, int], Arrays]
"""(job, context, shard) -> arrays from this party's own disk."""
Write = Callable[[Any, OpenPartyContext, int, Arrays], None]
Cut = Callable[[Any, Party, Arrays], Mapping[int, Arrays]]
"""(public parameters of the job, party, arrays of one shard) -> key -> what the shard adds to the total of that key."""


@dataclass(frozen=True)
class Load:
    """Arrays that a party reads from its own disk for a shard.

    `shapes` gives the same arrays for a trace: (public parameters of the job, shape of the shard) -> one mapping for
    each party. `kept` names what earlier steps must have kept for it.
    """

    read: Read
    shapes: Callable[[Any, ShardShape], Sequence[Shapes]]
    kept: tuple[str, ...] = ()


def in_memory(*shards: Arrays) -> Load:
    """A load of arrays that this process has already, for the bare executor."""

    def read(_job: Any, _context: OpenPartyContext, shard: int) -> Arrays:
        return shards[shard]

    def shapes(parameters: Any, shape: ShardShape) -> Sequence[Shapes]:
        raise ValueError(f"arrays in memory cannot be traced ({parameters}, {shape})")

    return Load(read, shapes)


@dataclass(frozen=True)
class Keep:
    """Arrays that a party writes to its own disk for a shard, under a name that a `Load` can ask for."""

    name: str
    write: Write


S = TypeVar("S")
Lane = tuple[Step, S]
"""A step and the states that it runs over, beside others."""
Describe = Callable[["Executor[Any]"], Any]
"""A description: its last states."""
DescribeFrom = Callable[["Executor[Any]", Any], Any]
"""A description of what follows from some states."""


class Executor(Protocol[S]):
    """The operations that descriptions are written in; S stands for the states of some shards, by shard number."""

    def shards(self, over: Over, load: Load, after: Sequence[S] = ()) -> S:
        """Load the state of every shard, when all of `after` are done."""

    def load(self, load: Load, states: S) -> S:
        """Add arrays from disk to the state of every shard."""

    def rounds(self, step: Step, states: S) -> S:
        """Run all rounds of a step over all shards."""

    def beside(self, *lanes: "Lane[S]") -> Sequence[S]:
        """Run several steps in lock-step: all lanes send their round i, then all receive it.

        Lanes that have no round i have ended, and wait for nobody. The states of each lane come out.
        """

    def unless(self, stop: S, states: S) -> S:
        """Drop all of `states` if the one element of `stop` has opened its stop bit as 1; wait for it."""

    def keep(self, keep: Keep, states: S) -> S:
        """Write some of every shard's arrays to disk; the states stay as they are."""

    def total(self, over: Over, cut: Cut, *states: S) -> S:
        """Cut every shard's arrays by `cut` and add up what has the same key: Σ of shares, Π of ciphertexts."""

    def join(self, left: S, right: S) -> S:
        """Put the arrays of equal keys side by side."""

    def after(self, states: S, ready: S) -> S:
        """Hold all of `states` back until all of `ready` are done."""

    def in_one_call(self, description: DescribeFrom, states: S) -> S:
        """Run a description on one element, all its rounds in one call: one element cannot wait for another."""


CountStage = Callable[[str, StageMetrics], None]
"""(stage, its metrics): where an executor reports what a stage has cost."""


AddUp = Callable[[Sequence[Arrays]], Arrays]
"""Σ of shares and Π of ciphertexts, by name; a part need not have all names."""


class Job(Protocol):
    """The view that executors have of a party's job."""

    @property
    def context(self) -> PartyContext:
        """Opened where the rounds run."""

    @property
    def parameters(self) -> Any:
        """The public parameters that shapes and cuts depend on."""

    def shard_numbers(self, over: Over) -> Sequence[int]:
        """The numbers of all shards of this kind."""

    def add_up(self) -> AddUp:
        """A function that adds up the parts of a total; it can be pickled."""


J = TypeVar("J", bound=Job)


@dataclass(frozen=True)
class OneElement:
    """A job of one element, for a step beside K-means itself."""

    context: PartyContext
    parameters: Any = None

    def shard_numbers(self, _over: Over) -> Sequence[int]:
        return (0,)

    def add_up(self) -> AddUp:
        raise ValueError("one element has nothing to add up")


@dataclass(frozen=True)
class BareExecutor(Generic[J]):
    """A loop over rounds with an exchange, no Beam. For work on one element, for small jobs, and for tests."""

    job: J
    context: OpenPartyContext
    count: CountStage

    def shards(self, over: Over, load: Load, _after: Sequence[dict[int, Arrays]] = ()) -> dict[int, Arrays]:
        return {shard: load.read(self.job, self.context, shard) for shard in self.job.shard_numbers(over)}

    def load(self, load: Load, states: dict[int, Arrays]) -> dict[int, Arrays]:
        return {shard: {**state, **load.read(self.job, self.context, shard)} for shard, state in states.items()}

    def rounds(self, step: Step, states: dict[int, Arrays]) -> dict[int, Arrays]:
        return run_rounds(step.protocol, self.context, states, self.count)

    def beside(self, *lanes: Lane[dict[int, Arrays]]) -> list[dict[int, Arrays]]:
        return run_lanes([(step.protocol, states) for step, states in lanes], self.context, self.count)

    def unless(self, stop: dict[int, Arrays], states: dict[int, Arrays]) -> dict[int, Arrays]:
        return {} if any(has_stopped(each) for each in stop.values()) else states

    def keep(self, keep: Keep, states: dict[int, Arrays]) -> dict[int, Arrays]:
        for shard, state in states.items():
            keep.write(self.job, self.context, shard, state)
        return states

    def total(self, _over: Over, cut: Cut, *states: dict[int, Arrays]) -> dict[int, Arrays]:
        parts: dict[int, list[Arrays]] = {}
        for state in (state for each in states for state in each.values()):
            for key, part in cut(self.job.parameters, self.context.party, state).items():
                parts.setdefault(key, []).append(part)
        add_up = self.job.add_up()
        return {key: add_up(each) for key, each in sorted(parts.items())}

    def join(self, left: dict[int, Arrays], right: dict[int, Arrays]) -> dict[int, Arrays]:
        return {shard: {**state, **right[shard]} for shard, state in left.items()}

    def after(self, states: dict[int, Arrays], _ready: dict[int, Arrays]) -> dict[int, Arrays]:
        return states

    def in_one_call(self, description: DescribeFrom, states: dict[int, Arrays]) -> dict[int, Arrays]:
        result: dict[int, Arrays] = description(self, states)
        return result


def not_counted(_stage: str, _metrics: StageMetrics) -> None:
    """Leave a stage's metrics out of account."""


def has_stopped(state: Arrays) -> bool:
    """True if the stop bit was opened as 1."""
    return bool(state["stop"].any())


def run_rounds(
    protocol: rounds.Protocol, context: OpenPartyContext, shards: Mapping[int, Arrays], count: CountStage = not_counted
) -> dict[int, Arrays]:
    """Run all rounds over all shards: every put of a round before any get."""
    return run_lanes([(protocol, shards)], context, count)[0]


def run_lanes(
    lanes: Sequence[tuple[rounds.Protocol, Mapping[int, Arrays]]],
    context: OpenPartyContext,
    count: CountStage = not_counted,
) -> list[dict[int, Arrays]]:
    """Run protocols in lock-step, each over its own shards: every put of round i, of all lanes, before any get.

    The messages of a round are delivered together, and its wait is shared. The time of a delivery is counted under the
    first lane that takes part.
    """
    stages = [tuple(protocol.stages()) if shards else () for protocol, shards in lanes]
    states = [dict(shards) for _, shards in lanes]
    for number in range(max(map(len, stages), default=0)):
        running = [(each[number], lane) for each, lane in zip(stages, states, strict=True) if number < len(each)]
        _run_round(running, context, count)
    return states


def run_stages(
    stages: Sequence[rounds.Stage], context: OpenPartyContext, shards: Mapping[int, Arrays], count: CountStage
) -> dict[int, Arrays]:
    """Run some rounds over all shards, one after the other."""
    states = dict(shards)
    for stage in stages:
        _run_round([(stage, states)], context, count)
    return states


def _run_round(
    running: Sequence[tuple[rounds.Stage, dict[int, Arrays]]], context: OpenPartyContext, count: CountStage
) -> None:
    """Run one round of some lanes, whose states change."""
    metrics = [StageMetrics() for _ in running]
    outgoing: list[Outgoing] = []
    for (stage, states), costs in zip(running, metrics, strict=True):
        for shard, state in states.items():
            states[shard], messages = send(context, stage, shard, state, costs, receives_here=True)
            outgoing += messages
    deliver(context, outgoing, metrics[0])
    for (stage, states), costs in zip(running, metrics, strict=True):
        for shard, state in states.items():
            states[shard] = receive(context, stage, shard, state, costs)
        count(stage.name, costs)


@dataclass
class StageCosts:
    """The costs of stages that run in this process, by stage."""

    metrics: dict[str, StageMetrics] = field(default_factory=dict)

    def __call__(self, stage: str, metrics: StageMetrics) -> None:
        self.metrics.setdefault(stage, StageMetrics()).add(metrics)

    def counts(self) -> dict[str, dict[str, int]]:
        """Each stage's costs as integers."""
        return {stage: metrics.counts() for stage, metrics in self.metrics.items()}


def only(*names: str) -> Cut:
    """A cut that takes some of a shard's arrays, those that are there, under the one key 0."""
    return partial(_take, names)


def _take(names: Sequence[str], _parameters: Any, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    return {0: {name: state[name] for name in names if name in state}}
