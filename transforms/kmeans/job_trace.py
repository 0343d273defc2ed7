"""Trace a K-means job: the descriptions that run, run on shapes.

Row shards of one shape are traced once, and from a few rows where they have many; see `trace_rows`.
"""

from dataclasses import replace
from functools import partial
from math import lcm
from typing import NoReturn

from veilmeans.crypto.bits import LANES
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.kmeans import state_shapes as shapes
from veilmeans.transforms.kmeans.iteration import (
    choose_centroid,
    choose_start,
    follow_last,
    iterate,
    mask_operands,
    predict_rows,
    write_first_centroids,
)
from veilmeans.transforms.kmeans.open_results import (
    open_assignments,
    open_centroids,
    open_explained_centroids,
    open_explained_rows,
    open_profiles,
    open_scores,
)
from veilmeans.transforms.kmeans.steps import KMeansSteps, step_name
from veilmeans.transforms.offline.traced_job import JobStep, TracedJob, When
from veilmeans.transforms.openings.reveal_policy import RevealPolicy
from veilmeans.transforms.rounds.executor import Keep, Load, Over
from veilmeans.transforms.rounds.trace import StageTrace, trace_rows
from veilmeans.transforms.rounds.trace_executor import Memo, TracedStep, TraceExecutor
from veilmeans.transforms.statistics.joint_statistics import open_statistics, statistics_step

_Traced = tuple[tuple[When, TracedStep], ...]


def trace_job(steps: KMeansSteps, statistics: str | None = None, policy: RevealPolicy | None = None) -> TracedJob:
    """Trace all steps of a job.

    `statistics`: how joint statistics are normalised by (minmax or zscore), where there are some. `policy`: what is
    opened at the end; it asks nothing of the triple store.
    """
    steps = _with_padding(steps)
    rows = tuple(row_shard.shape for row_shard in steps.layout.row_shards())
    columns = _column_shapes(steps)
    memo: Memo = {}
    traced = {}
    for shape in dict.fromkeys(rows):
        trace_of = partial(_trace, steps, (shape, *_shards_of_others(shape, rows)), columns, memo, statistics, policy)
        traced[shape] = trace_rows(trace_of, shape.rows, _period(steps))
    seeds = steps.seeding.times if steps.seeding is not None else 0
    return TracedJob(rows, columns, _job_steps(traced, columns, sum(shape.rows for shape in rows), seeds))


def _with_padding(steps: KMeansSteps) -> KMeansSteps:
    """The steps with padding as rows, which have the same messages."""
    layout = steps.layout.with_padding()
    seeding = None if steps.seeding is None else replace(steps.seeding, layout=layout)
    return replace(steps, layout=layout, seeding=seeding)


def _period(steps: KMeansSteps) -> int:
    """Rows are packed 64 bits to a word, and in groups to a ciphertext."""
    return lcm(LANES, *(product.group for product in steps.engines.distance if product is not None))


def _shards_of_others(shape: ShardShape, rows: tuple[ShardShape, ...]) -> list[ShardShape]:
    """A row of every other owner's: what owners add to the sums of all rows is part of a trace."""
    widths = dict.fromkeys(each.widths for each in rows if each.widths != shape.widths)
    return [ShardShape(1, each) for each in widths]


def _column_shapes(steps: KMeansSteps) -> tuple[ShardShape, ...]:
    """The column shards; which columns they are matters to ciphertexts alone."""
    encrypted = steps.engines.cipher is not None
    return tuple(
        ShardShape(steps.k, (each.stop - each.start,), each.start if encrypted else 0) for each in steps.column_shards
    )


def _trace(
    steps: KMeansSteps,
    row_shapes: tuple[ShardShape, ...],
    columns: tuple[ShardShape, ...],
    memo: Memo,
    statistics: str | None,
    policy: RevealPolicy | None,
    rows: int,
) -> _Traced:
    """Run all descriptions of a job, as if the first of the row shards had so many rows."""
    first, *others = row_shapes
    all_shapes = {Over.ROWS: (replace(first, rows=rows), *others), Over.COLUMNS: columns, Over.ONE: (ShardShape(rows),)}
    run = TraceExecutor(steps, steps.layout.parties, all_shapes, memo)
    if statistics is not None:
        kind = shapes.extremes if statistics == "minmax" else shapes.moments
        open_statistics(statistics_step(statistics, steps.layout.parties), Load(_no_data, kind), run)
    _trace_once(steps, run)
    once = len(run.steps)
    if steps.seeding is not None:
        choose_centroid(steps.seeding, run)
    begun = len(run.steps)
    if not steps.predicts:
        iterate(steps, False, run)
    iterated = len(run.steps)
    if steps.starts > 1:
        choose_start(steps, run)
    if steps.ends_with_more:
        follow_last(steps.last, replace(run, parameters=steps.last))
    last = len(run.steps)
    if policy is not None and policy.assignments:
        open_assignments(policy, run)
    if policy is not None and (policy.scores or policy.outliers):
        open_scores(policy, run)
    if policy is not None and policy.explanations:
        open_explained_rows(policy, run)
        open_explained_centroids(policy, _EXPLAINED, run)
    if policy is not None and policy.profiles:
        open_profiles(policy, _PROFILE, run)
    if policy is not None and (policy.centroids or policy.inertia):
        open_centroids(policy, _RESULTS, run)
    return (
        *(("once", replace(step, before_stop=False)) for step in run.steps[:once]),
        *(("seed", replace(step, before_stop=False)) for step in run.steps[once:begun]),
        *(("later" if step.name == "stop" else "iteration", step) for step in run.steps[begun:iterated]),
        *(("last", step) for step in run.steps[iterated:last]),
        *(("end", step) for step in run.steps[last:]),
    )


def _trace_once(steps: KMeansSteps, run: TraceExecutor) -> None:
    """Trace what comes before the first iteration, or all of a prediction."""
    if steps.predicts:
        predict_rows(steps, run)
        return
    if steps.operand is not None:
        mask_operands(steps.operand, run)
    write_first_centroids(_FIRST_CENTROIDS, _KEEP_FIRST_CHECKPOINT, run)


def _no_data(*arguments: object) -> NoReturn:
    raise AssertionError(f"a trace has no data to read or write ({len(arguments)} arguments)")


_FIRST_CENTROIDS = Load(_no_data, shapes.column_centroids, kept=("scale",))
_KEEP_FIRST_CHECKPOINT = Keep("checkpoint", _no_data)
_EXPLAINED = Load(_no_data, shapes.explained_centroids, kept=("explained",))
_PROFILE = Load(_no_data, shapes.profile)
_RESULTS = Load(_no_data, shapes.results, kept=("centroids", "checkpoint", "inertia"))


def _job_steps(
    traced: dict[ShardShape, _Traced], columns: tuple[ShardShape, ...], rows: int, seeds: int
) -> tuple[JobStep, ...]:
    """Put the traces of all shapes of row shards together; steps over columns are the same in each of them."""
    result, first = dict[str, JobStep](), next(iter(traced.values()))
    for number, (when, step) in enumerate(first):
        stages: dict[ShardShape, tuple[StageTrace, ...]]
        if step.over is Over.ROWS:
            stages = {shape: each[number][1].shards[0] for shape, each in traced.items()}
        elif step.over is Over.COLUMNS:
            stages = dict(zip(columns, step.shards, strict=True))
        else:
            stages = {ShardShape(rows): step.shards[0]}
        name = step_name(step.name)
        about = name, step.computes, step.phase, step.over, when, step.after, stages
        if name in result:  # one more part of a step, its rounds numbered through
            known = result[name].stages
            result[name] = replace(result[name], stages={shape: known[shape] + stages[shape] for shape in known})
        else:
            result[name] = JobStep(*about, step.beside, step.before_stop, seeds if when == "seed" else 0)
    return tuple(result.values())
