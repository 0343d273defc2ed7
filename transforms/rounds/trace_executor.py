"""The trace executor: a description run on zeros, for all parties in step, to learn what it sends and needs.

It takes shapes, never data. The plan, the step graph, the disclosures and the dealer's work come from it, so they are
of the description that runs. A step comes after the steps whose output it uses, in memory or from disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.rounds.executor import Cut, DescribeFrom, Keep, Lane, Load, Over, Step
from veilmeans.transforms.rounds.trace import StageTrace, all_parties, trace_states, zeros


@dataclass(frozen=True)
class TracedShards:
    """The states of all parties for some shards, and the steps that they come from."""

    over: Over
    states: Mapping[int, Sequence[Arrays]]
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class TracedStep:
    """A step as it ran: `shards` has the stages of each shard, `after` the steps whose output it used.

    `beside`: the names of the steps that ran in lock-step with it, its own among them. `before_stop`: it runs before
    it is known whether the run has stopped.
    """

    name: str
    computes: str
    phase: str
    over: Over
    after: tuple[str, ...]
    shards: tuple[tuple[StageTrace, ...], ...]
    beside: tuple[str, ...] = ()
    before_stop: bool = False


Memo = dict[Any, tuple[Sequence[Arrays], tuple[StageTrace, ...]]]
"""Traces of steps on states of the same shapes."""


@dataclass
class TraceExecutor:
    """Trace a description. `parameters` are the job's, `shapes` those of its shards; `steps` is what was traced."""

    parameters: Any
    parties: int
    shapes: Mapping[Over, Sequence[ShardShape]]
    memo: Memo = field(default_factory=dict, repr=False)
    steps: list[TracedStep] = field(default_factory=list)
    _kept: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def shards(self, over: Over, load: Load, after: Sequence[TracedShards] = ()) -> TracedShards:
        states = {number: self._read(load, over, number) for number in range(len(self.shapes[over]))}
        return TracedShards(over, states, _union(self._made_by(load), *(each.after for each in after)))

    def load(self, load: Load, states: TracedShards) -> TracedShards:
        read = {number: self._read(load, states.over, number) for number in states.states}
        beside = {number: _beside(state, read[number]) for number, state in states.states.items()}
        return TracedShards(states.over, beside, _union(states.after, self._made_by(load)))

    def rounds(self, step: Step, states: TracedShards) -> TracedShards:
        return self.beside((step, states))[0]

    def beside(self, *lanes: Lane[TracedShards]) -> list[TracedShards]:
        names = tuple(step.name for step, _ in lanes)
        return [self._run(step, states, names) for step, states in lanes]

    def unless(self, stop: TracedShards, states: TracedShards) -> TracedShards:
        """Mark all steps so far; a trace never stops."""
        self.steps[:] = [replace(step, before_stop=True) for step in self.steps]
        return self.after(states, stop)

    def _run(self, step: Step, states: TracedShards, beside: tuple[str, ...]) -> TracedShards:
        after, stages = {}, []
        for number, state in states.states.items():
            after[number], traced = self._trace(step, state)
            stages.append(traced)
        about = step.name, step.computes, step.phase, states.over, states.after
        self.steps.append(TracedStep(*about, tuple(stages), beside))
        return TracedShards(states.over, after, (step.name,))

    def keep(self, keep: Keep, states: TracedShards) -> TracedShards:
        self._kept[keep.name] = states.after
        return states

    def total(self, over: Over, cut: Cut, *states: TracedShards) -> TracedShards:
        """Parts of a total have its shapes, so one part of each name stands for the total."""
        totals: dict[int, list[dict[str, Any]]] = {}
        for party in all_parties(self.parties):
            for state in (state for each in states for state in each.states.values()):
                for key, part in cut(self.parameters, party, state[party.index]).items():
                    totals.setdefault(key, [{} for _ in range(self.parties)])[party.index] |= part
        return TracedShards(over, dict(sorted(totals.items())), _union(*(each.after for each in states)))

    def join(self, left: TracedShards, right: TracedShards) -> TracedShards:
        joined = {number: _beside(state, right.states[number]) for number, state in left.states.items()}
        return TracedShards(left.over, joined, _union(left.after, right.after))

    def after(self, states: TracedShards, ready: TracedShards) -> TracedShards:
        return TracedShards(states.over, states.states, _union(states.after, ready.after))

    def in_one_call(self, description: DescribeFrom, states: TracedShards) -> TracedShards:
        traced: TracedShards = description(self, states)
        return traced

    def _read(self, load: Load, over: Over, number: int) -> list[Arrays]:
        return [zeros(shapes) for shapes in load.shapes(self.parameters, self.shapes[over][number])]

    def _made_by(self, load: Load) -> tuple[str, ...]:
        return _union(*(self._kept.get(name, ()) for name in load.kept))

    def _trace(self, step: Step, states: Sequence[Arrays]) -> tuple[Sequence[Arrays], tuple[StageTrace, ...]]:
        key = (step.name, step.protocol.first, tuple(_shape_key(state) for state in states))
        if key not in self.memo:
            after, stages = trace_states(step.protocol, states)
            self.memo[key] = after, tuple(stages)
        return self.memo[key]


def _shape_key(state: Arrays) -> tuple[Any, ...]:
    """The key of a trace: names, types and shapes, and the values of int64 arrays, which are public."""
    return tuple(
        (name, array.dtype.str, array.shape, array.tobytes() if array.dtype.kind == "i" else b"")
        for name, array in state.items()
    )


def _beside(left: Sequence[Arrays], right: Sequence[Arrays]) -> list[Arrays]:
    return [{**mine, **more} for mine, more in zip(left, right, strict=True)]


def _union(*names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))
