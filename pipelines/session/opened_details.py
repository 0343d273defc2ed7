"""Explanations of outliers from what was opened to this party: the parts of a score that its own columns make."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.storage.checkpoints import Checkpoints
from veilmeans.io.storage.encoded_shards import read_ids, read_rows
from veilmeans.io.storage.result_files import Rows, write_rows
from veilmeans.io.storage.run_report import Stages
from veilmeans.pipelines.session.execution import run_description, run_on_one_element
from veilmeans.pipelines.session.trained_model import FinishedRun
from veilmeans.schemas.arrays import Array, Real
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.run_folder import EXPLAINED_CENTROIDS, OPENED_EXPLANATIONS, OPENED_SCORES
from veilmeans.transforms.kmeans.open_results import open_explained_centroids, open_explained_rows
from veilmeans.transforms.kmeans.party_state import checkpoints_of
from veilmeans.transforms.openings.reveal_policy import RevealPolicy
from veilmeans.transforms.rounds.executor import in_memory

MOST_COLUMNS = 64
"""So many of its own columns explain an outlier, those that add most; the others are one line."""
OTHER_COLUMNS, OTHER_PARTIES = "(other own columns)", "(columns of other parties)"
_CELLS = 1 << 22  # values of outliers in memory at a time


def reveal_explanations(finished: FinishedRun, policy: RevealPolicy) -> tuple[Stages, Path | None]:
    """Open what explains outliers; return the costs, and the file of explanations if this party learns them."""
    config, job = finished.config, finished.at_the_end()
    store = checkpoints_of(job.context.open())
    parts = [store.read_shard(EXPLAINED_CENTROIDS, shard)["mu"] for shard in store.shards(EXPLAINED_CENTROIDS)]
    stages = run_description(config, job, partial(open_explained_rows, policy))
    explained = in_memory({"mu": np.concatenate(parts, axis=2)})
    opened, costs = run_on_one_element(job, partial(open_explained_centroids, policy, explained))
    if config.me.index not in policy.explanations:
        return {**stages, **costs}, None
    lines = _explanations(finished, policy, store, fixed.decode(opened["centroids"]))
    return {**stages, **costs}, write_rows(config.run_folder.explanations, finished.id or "row", lines)


def _explanations(finished: FinishedRun, policy: RevealPolicy, store: Checkpoints, centroids: Real) -> Rows:
    """Yield the explanations of the outliers that this party has: some lines for each."""
    me = finished.config.me.index
    chunk = max(1, _CELLS // max(1, len(finished.columns)))
    for shard, row_shard in enumerate(finished.job.row_shards):
        if row_shard.owner not in (None, me):
            continue
        opened = store.read_shard(OPENED_EXPLANATIONS, shard)
        outliers = np.flatnonzero(opened["cluster"] >= 0)
        _check_outliers(finished, store, shard, outliers)
        scores = _scores(policy, me, store, shard, opened)
        ids, rows = read_ids(finished.job.encoded, row_shard.index), read_rows(finished.job.encoded, row_shard.index)
        for first in range(0, max(1, len(outliers)), chunk):
            here = outliers[first : first + chunk]
            clusters = opened["cluster"][here]
            x = fixed.decode(np.ascontiguousarray(rows[here].toarray()))
            explained = explain_rows(finished, x, centroids[clusters], None if scores is None else scores[here])
            lines = len(explained["column"]) // len(here) if len(here) else 0
            yield ids.take(pa.array(np.repeat(here, lines))), {"cluster": np.repeat(clusters, lines), **explained}


def _check_outliers(finished: FinishedRun, store: Checkpoints, shard: int, explained: Array) -> None:
    """Refuse explanations of other rows than those that were opened as outliers."""
    opened = store.read_shard(OPENED_SCORES, shard)
    if "outlier" in opened and not np.array_equal(np.flatnonzero(opened["outlier"]), explained):
        peers = " or ".join(finished.config.peers)
        raise RefusedError(f"the explained rows are not the outliers: a share of {peers} is not right")


def _scores(policy: RevealPolicy, me: int, store: Checkpoints, shard: int, opened: dict[str, Array]) -> Real | None:
    """The rows' whole scores, if they were opened."""
    if "score" in opened:
        return fixed.decode(opened["score"])
    if policy.layout.vertical and me in policy.scores:
        return fixed.decode(store.read_shard(OPENED_SCORES, shard)["score"])
    return None


def explain_rows(finished: FinishedRun, x: Real, centroids: Real, scores: Real | None) -> dict[str, Array]:
    """List the parts of each row's score, the largest of its own columns first, as many lines for each row.

    "contribution": (x − μ)² in normalised units; "difference": x − μ in original units; "share": of the whole score,
    where it is known: from `scores` (vertical), or because all columns are this party's own.
    """
    contributions = (x - centroids) ** 2
    differences = finished.scaling.original(x) - finished.scaling.original(centroids)
    own = contributions.sum(axis=1)
    most = min(MOST_COLUMNS, x.shape[1])
    order = np.argsort(-contributions, axis=1, kind="stable")[:, :most]
    names = np.array(finished.columns, dtype=object)[order]
    parts = [np.take_along_axis(contributions, order, axis=1)]
    moved = [np.take_along_axis(differences, order, axis=1)]
    for name, rest in _rests(own, parts[0], x.shape[1] > most, scores):
        names = np.concatenate([names, np.full((len(x), 1), name, dtype=object)], axis=1)
        parts.append(rest[:, None])
        moved.append(np.full((len(x), 1), np.nan))
    lines: dict[str, Array] = {"column": pa.array(names.reshape(-1), pa.string())}
    lines |= {"difference": np.concatenate(moved, axis=1).reshape(-1)}
    added = np.concatenate(parts, axis=1)
    lines["contribution"] = added.reshape(-1)
    if scores is not None or not finished.job.steps.layout.vertical:
        whole = added.sum(axis=1, keepdims=True)
        lines["share"] = np.divide(added, whole, out=np.zeros_like(added), where=whole > 0).reshape(-1)
    return lines


def _rests(own: Real, listed: Real, more: bool, scores: Real | None) -> Iterator[tuple[str, Real]]:
    """Yield what is not listed column by column: other own columns, and the columns of all others."""
    if more:
        yield OTHER_COLUMNS, own - listed.sum(axis=1)
    if scores is not None:
        yield OTHER_PARTIES, np.maximum(0.0, scores - own)
