"""What each step of a K-means job sends and receives at one party, from shapes alone."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from veilmeans.crypto import bits
from veilmeans.crypto.wide import WORDS
from veilmeans.pipelines.aggregate import aggregate_work
from veilmeans.pipelines.estimate import Traffic
from veilmeans.pipelines.reveal import policy_of
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import Block, Layout
from veilmeans.transforms.dag import Step, step_of, steps_of
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.open_result import Policy, open_assignments, open_centres
from veilmeans.transforms.plan import Over, Plan, Work
from veilmeans.transforms.statistics import MOMENTS
from veilmeans.transforms.trace import Shapes, StageTrace

Counted = list[tuple[int, StageTrace]]
"""The stages of a step, each with the number of shards that are alike in it."""
NAME_LENGTH = 8
"""Letters of a column's name, where names are told and not known yet."""


def steps_with_stages(config: JobConfig, kmeans: KMeans) -> list[tuple[Step, Counted]]:
    """The steps of the job in their order, with the stages of each."""
    works = {step_of(f"{work.protocol.name}."): work for work in _works(config, kmeans)}
    opened = [name for name in ("reveal-assignments", "reveal-centres") if name in works]
    statistics = next((name for name in ("extremes", "moments") if name in works), None)
    plan = kmeans.plan()
    return [
        (step, Plan((works[step.name],), plan.blocks, plan.columns).counted(0))
        for step in steps_of(kmeans, statistics, opened)
    ]


def _works(config: JobConfig, kmeans: KMeans) -> tuple[Work, ...]:
    job, layout = config.needed_kmeans, kmeans.layout
    works = (*kmeans.plan(aggregate_work(job, layout)).works,)
    if job.aggregates and job.normalise.method == "zscore":
        works += (Work(MOMENTS, partial(_moments, layout), Over.ONE, first=True),)
    policy = policy_of(config, layout, job.reveal)
    if policy.assignments:
        works += (Work(open_assignments(policy), partial(_assignments, kmeans)),)
    if policy.centroids or policy.inertia:
        works += (Work(open_centres(policy), partial(_centres, kmeans, policy), Over.ONE),)
    return works


def _moments(layout: Layout, block: Block) -> Sequence[Shapes]:
    del block
    return [{"x": ((WORDS, 2, layout.total_features), "uint64")}] * layout.parties


def _assignments(kmeans: KMeans, block: Block) -> Sequence[Shapes]:
    """All rows in the first cluster, as the first party's share says."""
    layout, width = kmeans.layout, bits.padded(block.rows) // 8
    owner = layout.parties if layout.vertical else int(np.argmax(block.widths))
    shares: list[Array] = [np.zeros((kmeans.k, width), np.uint8) for _ in range(layout.parties)]
    shares[0][0] = 0xFF
    public = {"rows": np.array([block.rows]), "owner": np.array([owner])}
    return [{"c": share, **public} for share in shares]


def _centres(kmeans: KMeans, policy: Policy, block: Block) -> Sequence[Shapes]:
    """Names of columns are told with their scales; of how many letters is estimated."""
    del block
    shares: Shapes = {"mu": ((kmeans.k, kmeans.layout.total_features), "uint64"), "inertia": ((1,), "uint64")}
    return [
        {**shares, **dict.fromkeys(("shift", "factor"), ((d,), "float64")), "names": ((_letters(d),), "uint8")}
        for d in policy.layout.features
    ]


def _letters(columns: int) -> int:
    return columns * (NAME_LENGTH + 1) - 1


def traffic_of(config: JobConfig, counted: Counted) -> Traffic:
    """What these stages move between this party and its peers."""
    me, names = config.me.index, config.parties
    rounds: set[str] = set()
    messages, sent, received = 0, Counter[str](), Counter[str]()
    for count, stage in counted:
        for message in stage.messages:
            if me == message.sender:
                messages += count
                sent[names[message.recipient]] += count * message.size
            elif me == message.recipient:
                received[names[message.sender]] += count * message.size
            else:
                continue
            rounds.add(stage.name)
    return Traffic(len(rounds), messages, dict(sent), dict(received))


def busiest(counted: Counted) -> int:
    """Bytes that the party with most to send sends, stage by stage: what a link is waited for."""
    stages: dict[str, Counter[int]] = {}
    for count, stage in counted:
        for message in stage.messages:
            stages.setdefault(stage.name, Counter())[message.sender] += count * message.size
    return sum(max(senders.values()) for senders in stages.values())
