"""The graph of a run's steps in rows, for the plan's text and for the run report.

A row has the steps of one phase, from left to right: each stands after all steps of its row that it waits for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from veilmeans.transforms.offline.traced_job import JobStep, When


@dataclass(frozen=True)
class GraphRow:
    """The steps of one phase. Steps of the same rank do not wait for each other."""

    when: When
    phase: str
    ranks: tuple[tuple[JobStep, ...], ...]


def graph_rows(steps: Iterable[JobStep]) -> list[GraphRow]:
    """Arrange a run's steps, which come in the order in which they run."""
    groups = groupby(steps, key=lambda step: (_row_of(step), step.phase))
    return [GraphRow(when, phase, _ranks(list(members))) for (when, phase), members in groups]


def _row_of(step: JobStep) -> When:
    """Place steps of some iterations with those of all, and steps after the last one at the end."""
    if step.when == "later":
        return "iteration"
    return "end" if step.when == "last" else step.when


def _ranks(steps: Sequence[JobStep]) -> tuple[tuple[JobStep, ...], ...]:
    rank: dict[str, int] = {}
    for step in steps:
        rank[step.name] = 1 + max((rank[name] for name in step.after if name in rank), default=-1)
    return tuple(tuple(step for step in steps if rank[step.name] == number) for number in range(max(rank.values()) + 1))
