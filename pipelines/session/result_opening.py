"""Opening what a reveal policy names. Shares stay on disk whatever was opened.

The stages of an opening bear the policy's digest, so two openings of one run never have a message in common.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.ledgers.opening_ledger import OpeningLedger
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.storage.checkpoints import Checkpoints, final_centroids, scores
from veilmeans.io.storage.encoded_shards import read_ids, read_rows
from veilmeans.io.storage.result_files import Rows, write_centroids, write_profiles, write_result, write_rows
from veilmeans.io.storage.run_report import RunReport, Stages
from veilmeans.pipelines.session.execution import run_description, run_on_one_element
from veilmeans.pipelines.session.trained_model import FinishedRun
from veilmeans.schemas.arrays import Array, Arrays, Real
from veilmeans.schemas.column_names import join_names, split_names
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError
from veilmeans.schemas.kmeans_config import REVEALED, RevealConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.run_folder import (
    EXPLAINED_CENTROIDS,
    OPEN_CENTROIDS,
    OPEN_CLUSTERS,
    OPENED,
    OPENED_EXPLANATIONS,
    OPENED_SCORES,
    PROFILE,
)
from veilmeans.transforms.kmeans.open_results import (
    open_assignments,
    open_centroids,
    open_explained_centroids,
    open_explained_rows,
    open_profiles,
    open_scores,
)
from veilmeans.transforms.kmeans.party_state import checkpoints_of, read_centroids
from veilmeans.transforms.kmeans.state_shapes import profiles_of
from veilmeans.transforms.openings.cluster_profiles import list_profiles, summarise
from veilmeans.transforms.openings.reveal_policy import RevealPolicy
from veilmeans.transforms.openings.score_parts import list_parts
from veilmeans.transforms.rounds.executor import has_stopped, in_memory
from veilmeans.transforms.statistics.explanations import EXPLAINED, EXPLAINED_SCORE, HAS
from veilmeans.transforms.statistics.profiles import RECIPIENTS
from veilmeans.transforms.statistics.small_clusters import OPEN, opened_clusters

_CELLS = 1 << 22  # values of outliers in memory at a time
_SLACK = 2**-12  # how much a value may be off in an opened result; rounding stays far below


def policy_of(config: JobConfig, layout: Layout, reveal: RevealConfig) -> RevealPolicy:
    """The policy with parties by their index."""
    named = {result: frozenset(map(config.parties.index, getattr(reveal, result))) for result in REVEALED}
    wide = reveal.columns == "all", reveal.contributions == "all"
    name = f"-{policy_digest(reveal)}"
    return RevealPolicy(layout, **named, all_columns=wide[0], all_contributions=wide[1], name=name)


def policy_digest(reveal: RevealConfig) -> str:
    """A short name of a policy; what never changes in a run is no part of it."""
    return hashlib.sha256(reveal.model_dump_json(exclude={"minimum_size"}).encode()).hexdigest()[:12]


def opened_results(reveal: RevealConfig) -> dict[str, tuple[str, ...]]:
    """The results that a policy opens, and to whom."""
    return {result: getattr(reveal, result) for result in REVEALED if getattr(reveal, result)}


def check_limit(finished: FinishedRun, reveal: RevealConfig) -> None:
    """Refuse an opening beyond the number that the parties agreed on."""
    config, name = finished.config, policy_digest(reveal)
    for data in finished.data if opened_results(reveal) else ():
        OpeningLedger.of(config, data).check([(config.run, name)], config.openings.limit)


def _record(finished: FinishedRun, reveal: RevealConfig) -> None:
    """Note an opening in the ledgers of the data, before it happens."""
    config, opened, command = finished.config, opened_results(reveal), finished.config.required_kmeans.command
    check_limit(finished, reveal)
    for data in finished.data if opened else ():
        OpeningLedger.of(config, data).record(config.run, policy_digest(reveal), command, opened)


def reveal_results(finished: FinishedRun, reveal: RevealConfig) -> dict[str, object]:
    """Open what the policy names; return what this party learnt, as written to its result file."""
    config, start = finished.config, time.perf_counter()
    policy = policy_of(config, finished.job.steps.layout, reveal)
    store = checkpoints_of(finished.job.context.open())
    checkpoint = read_shares(finished, policy, store)
    require_kept(finished, policy, checkpoint, store)
    _record(finished, reveal)
    stages: dict[str, dict[str, int]] = {}
    result = _run_facts(finished, checkpoint)
    if policy.assignments:
        stages |= run_description(config, finished.at_the_end(), partial(open_assignments, policy))
        if config.me.index in policy.assignments:
            result["assignments"] = _write(finished, config.run_folder.assignments, _with_ids(finished, _labels))
    if policy.scores or policy.outliers:
        stages |= run_description(config, finished.at_the_end(), partial(open_scores, policy))
        if config.me.index in policy.scores:
            result["scores"] = _write(finished, config.run_folder.scores, _with_ids(finished, _scores))
        if config.me.index in policy.outliers:
            result["outliers"] = _write(finished, config.run_folder.outliers, _outliers(finished, policy))
    if policy.explanations:
        costs, file = _reveal_explanations(finished, policy)
        stages |= costs
        result |= {} if file is None else {"explanations": str(file)}
    if policy.profiles:
        costs, file = _reveal_profiles(finished, policy, store)
        stages |= costs
        result |= {} if file is None else {"profiles": str(file)}
    if policy.centroids or policy.inertia:
        opened, costs = _open_centroids(finished, policy, checkpoint)
        stages |= costs
        result |= _write_opened(finished, policy, opened)
    finished.job.context.open().exchange.flush()  # a rerun that finds the result would not open it again
    write_result(config.run_folder, result)
    report = RunReport(config.run_folder)
    report.add(time.perf_counter() - start, stages)
    report.add_opening(reveal.model_dump(mode="json"))
    return result


def _run_facts(finished: FinishedRun, checkpoint: Arrays) -> dict[str, object]:
    """The facts about a run that stand in its result beside what was opened."""
    run, predict = finished.config.run, finished.config.required_kmeans.predict
    if predict is not None:
        return {"run": run, "model": predict.model}
    return {"run": run, "iterations": finished.done, "stopped": has_stopped(checkpoint)}


def read_shares(finished: FinishedRun, policy: RevealPolicy, store: Checkpoints) -> Arrays:
    """Read the last checkpoint, and the centroids as "mu" where they are opened; fail on damage first."""
    checkpoint = store.read(finished.done)
    if not policy.centroids:
        return checkpoint
    if finished.job.steps.closes:
        open_bits = store.read_shard(OPEN_CLUSTERS, 0)
        return {**checkpoint, **open_bits, "mu": read_centroids(finished.job, store, OPEN_CENTROIDS)}
    return {**checkpoint, "mu": read_centroids(finished.job, store, final_centroids(store.folder, finished.done))}


def require_kept(finished: FinishedRun, policy: RevealPolicy, checkpoint: Arrays, store: Checkpoints) -> None:
    """Refuse to open what the run did not compute, because nobody was to learn it."""
    config, kind = finished.config, scores(finished.kept_at)
    kept = {"inertia": "inertia" in checkpoint}
    first: Arrays = next((store.read_shard(kind, shard) for shard in store.shards(kind)[:1]), {})
    kept |= {"scores": "shown" in first, "explanations": EXPLAINED in first}
    profiled = [store.read_shard(PROFILE, shard)[RECIPIENTS].tolist() for shard in store.shards(PROFILE)]
    kept["profiles"] = policy.profiles <= set(*profiled)
    if policy.explanations and policy.opens_whole_scores:
        kept["contributions"] = EXPLAINED_SCORE in first
    for what, there in kept.items():
        if getattr(policy, what, True) and not there:
            raise ConfigError(
                f"run {config.run!r} kept no {what}, because kmeans.reveal.{what} did not ask for them when it was "
                "trained: leave it out, or train a new run"
            )


Columns = Callable[[Checkpoints, int], dict[str, Array]]
"""(checkpoints, row shard) -> what was opened of its rows."""


def _write(finished: FinishedRun, file: Path, rows: Rows) -> str:
    return str(write_rows(file, finished.id or "row", rows))


def _with_ids(finished: FinishedRun, columns: Columns) -> Rows:
    """Yield the ids of the rows that this party has, with what was opened of them."""
    store, me = checkpoints_of(finished.job.context.open()), finished.config.me.index
    for row_shard in finished.job.row_shards:
        if row_shard.owner in (None, me):
            yield read_ids(finished.job.encoded, row_shard.index), columns(store, row_shard.number)


def _labels(store: Checkpoints, shard: int) -> dict[str, Array]:
    return {"cluster": store.read_shard(OPENED, shard)["label"]}


def _scores(store: Checkpoints, shard: int) -> dict[str, Array]:
    return {"score": np.maximum(fixed.decode(store.read_shard(OPENED_SCORES, shard)["score"]), 0.0)}


def _outliers(finished: FinishedRun, policy: RevealPolicy) -> Rows:
    """Yield the ids of the outliers that this party has, with what else was opened to it of them."""
    me = finished.config.me.index

    def columns(store: Checkpoints, shard: int) -> dict[str, Array]:
        found = {"outlier": store.read_shard(OPENED_SCORES, shard)["outlier"]}
        found |= _labels(store, shard) if me in policy.assignments else {}
        return found | (_scores(store, shard) if me in policy.scores else {})

    for ids, found in _with_ids(finished, columns):
        outlier = found.pop("outlier").astype(bool)
        yield ids.filter(outlier), {name: column[outlier] for name, column in found.items()}


def _reveal_explanations(finished: FinishedRun, policy: RevealPolicy) -> tuple[Stages, Path | None]:
    """Open what explains outliers; return the costs, and the file of explanations if this party learns them."""
    config, job = finished.config, finished.at_the_end()
    store = checkpoints_of(job.context.open())
    shards = [store.read_shard(EXPLAINED_CENTROIDS, shard) for shard in store.shards(EXPLAINED_CENTROIDS)]
    parts = [shard["mu"] for shard in shards]
    stages = run_description(config, job, partial(open_explained_rows, policy))
    explained = in_memory({**shards[0], "mu": np.concatenate(parts, axis=2)})
    opened, costs = run_on_one_element(job, partial(open_explained_centroids, policy, explained))
    if config.me.index not in policy.explanations:
        return {**stages, **costs}, None
    centroids = fixed.decode(opened["centroids"])
    if HAS in opened:
        centroids[~opened_clusters(opened[HAS])] = np.nan  # withheld, or without an outlier
    lines = _explanations(finished, policy, store, centroids)
    return {**stages, **costs}, write_rows(config.run_folder.explanations, finished.id or "row", lines)


def _explanations(finished: FinishedRun, policy: RevealPolicy, store: Checkpoints, centroids: Real) -> Rows:
    """Yield the explanations of the outliers that this party has: some lines for each."""
    me = finished.config.me.index
    chunk = max(1, _CELLS // max(1, len(finished.columns)))
    for row_shard in finished.job.row_shards:
        if row_shard.owner not in (None, me):
            continue
        shard = row_shard.number
        opened = store.read_shard(OPENED_EXPLANATIONS, shard)
        outliers = np.flatnonzero(opened["cluster"] >= 0)
        _check_outliers(finished, store, shard, outliers)
        scores = _whole_scores(policy, me, store, shard, opened)
        ids, rows = read_ids(finished.job.encoded, row_shard.index), read_rows(finished.job.encoded, row_shard.index)
        for first in range(0, max(1, len(outliers)), chunk):
            here = outliers[first : first + chunk]
            clusters = opened["cluster"][here]
            x = fixed.decode(np.ascontiguousarray(rows[here].toarray()))
            mu, scaling = centroids[clusters], finished.scaling
            differences = scaling.original(x) - scaling.original(mu)
            whole = None if scores is None else scores[here]
            complete = not policy.layout.vertical
            explained = list_parts(finished.columns, x - mu, differences, whole, complete)
            lines = len(explained["column"]) // len(here) if len(here) else 0
            yield ids.take(pa.array(np.repeat(here, lines))), {"cluster": np.repeat(clusters, lines), **explained}


def _check_outliers(finished: FinishedRun, store: Checkpoints, shard: int, explained: Array) -> None:
    """Refuse explanations of other rows than those that were opened as outliers."""
    opened = store.read_shard(OPENED_SCORES, shard)
    if "outlier" in opened and not np.array_equal(np.flatnonzero(opened["outlier"]), explained):
        peers = " or ".join(finished.config.peers)
        raise RefusedError(f"the explained rows are not the outliers: a share of {peers} is not right")


def _whole_scores(
    policy: RevealPolicy, me: int, store: Checkpoints, shard: int, opened: dict[str, Array]
) -> Real | None:
    """The rows' whole scores, if they were opened."""
    if "score" in opened:
        return fixed.decode(opened["score"])
    if policy.layout.vertical and me in policy.scores:
        return fixed.decode(store.read_shard(OPENED_SCORES, shard)["score"])
    return None


def _reveal_profiles(finished: FinishedRun, policy: RevealPolicy, store: Checkpoints) -> tuple[Stages, Path | None]:
    """Open the profiles of clusters; return the costs, and the file of profiles if this party learns them."""
    config, job = finished.config, finished.at_the_end()
    profile = in_memory(store.read_shard(PROFILE, 0))
    opened, costs = run_on_one_element(job, partial(open_profiles, policy, profile))
    if config.me.index not in policy.profiles:
        return costs, None
    summary = summarise(
        opened, profiles_of(job.steps).square_bits, profiles_of(job.steps).least, policy.layout.total_rows
    )
    _refuse_unless(summary.possible(policy.layout.total_rows), config, "profiles")
    labelled = config.kmeans_with_data.label
    return costs, write_profiles(
        config.run_folder, list_profiles(summary, finished.columns, finished.scaling, labelled)
    )


def _open_centroids(finished: FinishedRun, policy: RevealPolicy, checkpoint: Arrays) -> tuple[Arrays, Stages]:
    results = in_memory(centroids_to_open(finished, checkpoint))
    return run_on_one_element(finished.at_the_end(), partial(open_centroids, policy, results))


def centroids_to_open(finished: FinishedRun, checkpoint: Arrays) -> Arrays:
    """The state from which centroids and inertia are opened."""
    state: dict[str, Array] = {
        "shift": np.array(finished.scaling.shift),
        "factor": np.array(finished.scaling.factor),
        "names": np.frombuffer(join_names(finished.columns), np.uint8),
    }
    return state | {name: array for name, array in checkpoint.items() if name in ("mu", "inertia", OPEN)}


def _write_opened(finished: FinishedRun, policy: RevealPolicy, opened: Arrays) -> dict[str, object]:
    """Write the opened centroids in original units; return what the result says of them and of the inertia."""
    result: dict[str, object] = {}
    low, high = finished.config.kmeans_with_data.interval
    if "total" in opened:
        inertia, values = (
            float(fixed.decode(opened["total"])[0]),
            policy.layout.total_rows * policy.layout.total_features,
        )
        slack = _SLACK * values * max(1.0, abs(low), abs(high))
        _refuse_unless(-slack <= inertia <= values * (high - low) ** 2 + slack, finished.config, "inertia")
        result["inertia"] = max(0.0, inertia)
    if "centroids" in opened:
        scaling, columns = _scale_and_names(finished, policy, opened)
        normalised, slack = fixed.decode(opened["centroids"]), _SLACK * (high - low)
        inside = (normalised >= low - slack) & (normalised <= high + slack)
        if OPEN in opened:
            closed = ~opened_clusters(opened[OPEN])
            inside[closed] = normalised[closed] == 0
            normalised[closed] = np.nan
            result["withheld"] = np.flatnonzero(closed).tolist()
        _refuse_unless(bool(inside.all()), finished.config, "centroids")
        centroids = scaling.original(normalised)
        result["centroids"] = str(write_centroids(finished.config.run_folder, columns, centroids))
    return result


def _refuse_unless(possible: bool, config: JobConfig, what: str) -> None:
    """Refuse a result that no rows in their interval have: a share, or randomness that made it, is not right."""
    if not possible:
        raise RefusedError(
            f"the opened {what} of run {config.run!r} cannot be those of rows in the interval: a share or a triple "
            f"store of {' or '.join(config.parties)} is damaged or does not follow the protocol"
        )


def _scale_and_names(finished: FinishedRun, policy: RevealPolicy, opened: Arrays) -> tuple[Scaling, Sequence[str]]:
    """The scaling and names of the opened columns: this party's own, or all parties'."""
    config = finished.config
    if not policy.opens_scale(config.me.index):
        return finished.scaling, finished.columns
    shift, factor, names = [], [], []
    for i, party in enumerate(config.parties):
        shift += opened[f"shift{i}"].tolist()
        factor += opened[f"factor{i}"].tolist()
        columns = split_names(opened[f"names{i}"].tobytes())
        if len(columns) != policy.layout.features[i]:
            raise RefusedError(f"{party} sent {len(columns):,} column names for {policy.layout.features[i]:,} columns")
        names += [f"{party}.{column}" for column in columns]
    return Scaling(tuple(shift), tuple(factor)), names
