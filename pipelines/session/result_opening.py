"""Opening what a reveal policy names. Shares stay on disk whatever was opened.

The stages of an opening bear the policy's digest, so two openings of one run never have a message in common.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.storage.checkpoints import Checkpoints
from veilmeans.io.storage.encoded_shards import read_ids
from veilmeans.io.storage.result_files import write_assignments, write_centroids, write_result
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.session.beam_runner import counters, run_pipeline
from veilmeans.pipelines.session.trained_model import FinishedRun
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError
from veilmeans.schemas.kmeans_config import RevealConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.open_results import OPENED, RevealPolicy, _build, open_centroids
from veilmeans.transforms.kmeans.party_state import checkpoints_of, has_stopped, read_centroids
from veilmeans.transforms.rounds.executor import Tallies, counts_of, run_bare


def policy_of(config: JobConfig, layout: Layout, reveal: RevealConfig) -> RevealPolicy:
    """The policy by the parties' places."""

    def members(names: Sequence[str]) -> frozenset[int]:
        return frozenset(config.parties.index(name) for name in names)

    return RevealPolicy(
        layout,
        members(reveal.assignments),
        members(reveal.centroids),
        reveal.columns == "all",
        members(reveal.inertia),
        f"-{policy_digest(reveal)}",
    )


def policy_digest(reveal: RevealConfig) -> str:
    """A short name of a policy."""
    return hashlib.sha256(reveal.model_dump_json().encode()).hexdigest()[:12]


def reveal_results(finished: FinishedRun, reveal: RevealConfig) -> dict[str, object]:
    """Open what the policy names; what this party got, as written to `result.json`."""
    config, start = finished.config, time.perf_counter()
    policy = policy_of(config, finished.job.kmeans.layout, reveal)
    checkpoint = read_shares(finished, policy, checkpoints_of(finished.job.context.open()))
    require_inertia(finished, policy, checkpoint)
    stages: dict[str, dict[str, int]] = {}
    found = _told(finished, checkpoint)
    if policy.assignments:
        stages |= counters(run_pipeline(config, partial(_build, finished.seated(), policy)))
        if config.me.index in policy.assignments:
            found["assignments"] = str(_write_assignments(finished))
    if policy.centroids or policy.inertia:
        opened, tallies = _open_centres(finished, policy, checkpoint)
        stages |= counts_of(tallies)
        found |= _write_centres(finished, policy, opened)
    write_result(config.run_folder, found)
    report = RunReport(config.run_folder)
    report.add(time.perf_counter() - start, stages)
    report.add_opening(reveal.model_dump(mode="json"))
    return found


def _told(finished: FinishedRun, checkpoint: Arrays) -> dict[str, object]:
    """What a result says besides what was opened."""
    config = finished.config
    predict = config.required_kmeans.predict
    if predict is not None:
        return {"run": config.run, "model": predict.model}
    return {"run": config.run, "iterations": finished.done, "stopped": has_stopped(checkpoint)}


def read_shares(finished: FinishedRun, policy: RevealPolicy, store: Checkpoints) -> Arrays:
    """The last checkpoint, and the centroids as "mu" where they are opened; damage is told before anything is sent."""
    checkpoint = store.read(finished.done)
    if not policy.centroids:
        return checkpoint
    return {**checkpoint, "mu": read_centroids(finished.job, store, finished.done)}


def require_inertia(finished: FinishedRun, policy: RevealPolicy, checkpoint: Arrays) -> None:
    if policy.inertia and "inertia" not in checkpoint:
        raise ConfigError(
            f"run {finished.config.run!r} kept no inertia, because kmeans.reveal.inertia named nobody when it was "
            "trained: leave it out, or train a new run"
        )


def _write_assignments(finished: FinishedRun) -> Path:
    """The rows that this party has, with their clusters."""
    return write_assignments(finished.config.run_folder, finished.id or "row", _labelled(finished))


def _labelled(finished: FinishedRun) -> Iterator[tuple[pa.Array, Array]]:
    store, me = checkpoints_of(finished.job.context.open()), finished.config.me.index
    for shard in finished.job.shards:
        place = finished.job.place(shard)
        if place.owner in (None, me):
            labels = store.read_shard(OPENED, shard)["label"]
            yield read_ids(finished.job.prepared, place.index), labels


def _open_centres(finished: FinishedRun, policy: RevealPolicy, checkpoint: Arrays) -> tuple[Arrays, Tallies]:
    state: dict[str, Array] = {
        "shift": np.array(finished.scaling.shift),
        "factor": np.array(finished.scaling.factor),
        "names": np.frombuffer("\n".join(finished.columns).encode(), np.uint8),
    }
    state |= {name: array for name, array in checkpoint.items() if name in ("mu", "inertia")}
    tallies: Tallies = {}
    return run_bare(open_centroids(policy), finished.seated().context.open(), {0: state}, tallies)[0], tallies


def _write_centres(finished: FinishedRun, policy: RevealPolicy, opened: Arrays) -> dict[str, object]:
    found: dict[str, object] = {}
    if "total" in opened:
        found["inertia"] = max(0.0, float(fixed.decode(opened["total"])[0]))
    if "centres" in opened:
        scaling, columns = _scale_and_names(finished, policy, opened)
        centres = scaling.original(fixed.decode(opened["centres"]))
        found["centroids"] = str(write_centroids(finished.config.run_folder, columns, centres))
    return found


def _scale_and_names(finished: FinishedRun, policy: RevealPolicy, opened: Arrays) -> tuple[Scaling, Sequence[str]]:
    """How to read the opened columns: by my own scale, or by everyone's."""
    config = finished.config
    if not policy.opens_scale(config.me.index):
        return finished.scaling, finished.columns
    shift, factor, names = [], [], []
    for i, party in enumerate(config.parties):
        shift += opened[f"shift{i}"].tolist()
        factor += opened[f"factor{i}"].tolist()
        columns = opened[f"names{i}"].tobytes().decode(errors="replace").split("\n")
        if len(columns) != policy.layout.features[i]:
            raise RefusedError(f"{party} sent {len(columns):,} column names for {policy.layout.features[i]:,} columns")
        names += [f"{party}.{column}" for column in columns]
    return Scaling(tuple(shift), tuple(factor)), names
