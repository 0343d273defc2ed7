"""Opening what a reveal policy names. Shares stay on disk whatever was opened.

The stages of an opening bear the policy's digest, so two openings of one run never have a message in common.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from veilmeans.crypto import fixed
from veilmeans.io.checkpoints import Checkpoints, assignments
from veilmeans.io.fields import Encoding
from veilmeans.io.files import write_json
from veilmeans.io.names import from_parts, parts_of
from veilmeans.io.prepared import read_ids
from veilmeans.io.results import write_assignments, write_centroids, write_result
from veilmeans.io.scaling import Scaling
from veilmeans.pipelines.jobs import kmeans_of
from veilmeans.pipelines.model import read_saved, saved_run
from veilmeans.pipelines.party import counters, run_pipeline
from veilmeans.pipelines.prepare import kmeans_job, not_agreed, runs_whole
from veilmeans.pipelines.report import RunReport
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError
from veilmeans.schemas.jobs import RevealConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.at_once import run_and_report
from veilmeans.transforms.bare import Tallies, counts_of, run_bare
from veilmeans.transforms.beam_rounds import RunProtocol
from veilmeans.transforms.job import Job, kept, read_centroids, stopped
from veilmeans.transforms.lloyd import Seated
from veilmeans.transforms.open_result import Policy, open_assignments, open_centres
from veilmeans.transforms.seat import OpenSeat, Seat

OPENED = "opened"


@dataclass(frozen=True)
class Finished:
    """A run whose iterations are done, at one party: what can be opened of it, and how to read it.

    `encoding`: how its rows became columns, for a prediction with it.
    """

    config: JobConfig
    job: Job
    done: int
    scaling: Scaling
    columns: Sequence[str]
    id: str | None
    encoding: Encoding

    def seated(self) -> Job:
        """The job at the seat from which results are opened."""
        return replace(self.job, seat=replace(self.job.seat, iteration=self.done))

    def save(self) -> None:
        """So that more can be opened, and rows assigned, when the data are gone."""
        content = {
            "parties": self.config.parties,
            "job": public_job(self.config),
            "binding": self.job.seat.binding,
            "iterations": self.done,
            "prepared": str(self.job.prepared),
            "shift": self.scaling.shift,
            "factor": self.scaling.factor,
            "columns": parts_of(self.columns),
            "id": self.id,
            "encoding": self.encoding.to_json(),
        }
        write_json(saved_run(self.config), content)

    @classmethod
    def load(cls, config: JobConfig) -> "Finished":
        saved = read_saved(config)
        if saved["job"] != public_job(config):
            raise ConfigError(f"the configuration has changed since run {config.run!r}: only kmeans.reveal may differ")
        kmeans = kmeans_of(config)
        seat = Seat(config, saved["binding"])
        job = Job(kmeans, seat, Path(saved["prepared"]), runs_whole(config, kmeans))
        scaling = Scaling(tuple(saved["shift"]), tuple(saved["factor"]))
        encoding = Encoding.from_json(saved.get("encoding", {"fields": [], "means": []}))
        return cls(config, job, saved["iterations"], scaling, from_parts(saved["columns"]), saved["id"], encoding)


def public_job(config: JobConfig) -> dict[str, Any]:
    """What a finished run was, but for what each party may choose by itself or later."""
    job = kmeans_job(config)
    return job.model_dump(mode="json", exclude={**not_agreed(job), "reveal": True})


def policy_of(config: JobConfig, layout: Layout, reveal: RevealConfig) -> Policy:
    """The policy by the parties' places."""

    def members(names: Sequence[str]) -> frozenset[int]:
        return frozenset(config.parties.index(name) for name in names)

    return Policy(
        layout,
        members(reveal.assignments),
        members(reveal.centroids),
        reveal.columns == "all",
        members(reveal.inertia),
        f"-{digest_of(reveal)}",
    )


def digest_of(reveal: RevealConfig) -> str:
    """A short name of a policy."""
    return hashlib.sha256(reveal.model_dump_json().encode()).hexdigest()[:12]


def reveal_results(finished: Finished, reveal: RevealConfig) -> dict[str, object]:
    """Open what the policy names; what this party got, as written to `result.json`."""
    config, start = finished.config, time.perf_counter()
    policy = policy_of(config, finished.job.kmeans.layout, reveal)
    checkpoint = read_shares(finished, policy, kept(finished.job.seat.open()))
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


def _told(finished: Finished, checkpoint: Arrays) -> dict[str, object]:
    """What a result says besides what was opened."""
    config = finished.config
    predict = config.needed_kmeans.predict
    if predict is not None:
        return {"run": config.run, "model": predict.model}
    return {"run": config.run, "iterations": finished.done, "stopped": stopped(checkpoint)}


def read_shares(finished: Finished, policy: Policy, store: Checkpoints) -> Arrays:
    """The last checkpoint, and the centroids as "mu" where they are opened; damage is told before anything is sent."""
    checkpoint = store.read(finished.done)
    if not policy.centroids:
        return checkpoint
    return {**checkpoint, "mu": read_centroids(finished.job, store, finished.done)}


def require_inertia(finished: Finished, policy: Policy, checkpoint: Arrays) -> None:
    if policy.inertia and "inertia" not in checkpoint:
        raise ConfigError(
            f"run {finished.config.run!r} kept no inertia, because kmeans.reveal.inertia named nobody when it was "
            "trained: leave it out, or train a new run"
        )


def _build(job: Job, policy: Policy, pipeline: beam.Pipeline) -> None:
    protocol = open_assignments(policy)
    start = pipeline | beam.Create([job.shards])
    if job.whole:
        _ = start | "Open" >> beam.ParDo(OpenWhole(job, policy))
        return
    _ = (
        start
        | "Shards" >> beam.FlatMap(list).with_output_types(int)
        | "Spread" >> beam.Reshuffle()
        | "Load" >> beam.ParDo(LoadAssignments(job)).with_output_types(tuple[int, Shard])
        | "Open" >> RunProtocol(protocol, job.seat)
        | "Keep" >> beam.ParDo(KeepLabels(job))
    )


def load_assignments(job: Job, seat: OpenSeat, shard: int) -> dict[str, Array]:
    """The shares of a shard's rows, and which party they belong to (M: all)."""
    place = job.place(shard)
    owner = job.kmeans.layout.parties if place.owner is None else place.owner
    shares = kept(seat).read_shard(assignments(seat.iteration), shard)
    return {"c": shares["c"], "rows": np.array([place.block.rows]), "owner": np.array([owner])}


def keep_labels(seat: OpenSeat, shard: int, opened: Arrays) -> None:
    if "label" in opened:
        kept(seat).write_shard(OPENED, shard, {"label": opened["label"]})


class LoadAssignments(Seated):
    def process(self, shard: int) -> Iterator[tuple[int, Shard]]:
        yield shard, Shard(arrays=load_assignments(self.job, self.seat, shard))


class KeepLabels(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        shard, state = element
        keep_labels(self.seat, shard, state.arrays)
        yield shard


class OpenWhole(Seated):
    def __init__(self, job: Job, policy: Policy) -> None:
        super().__init__(job)
        self.policy = policy

    def process(self, shards: list[int]) -> Iterator[int]:
        states: dict[int, Arrays] = {shard: load_assignments(self.job, self.seat, shard) for shard in shards}
        for shard, opened in run_and_report(open_assignments(self.policy), self.seat, states).items():
            keep_labels(self.seat, shard, opened)
            yield shard


def _write_assignments(finished: Finished) -> Path:
    """The rows that this party has, with their clusters."""
    return write_assignments(finished.config.run_folder, finished.id or "row", _labelled(finished))


def _labelled(finished: Finished) -> Iterator[tuple[pa.Array, Array]]:
    store, me = kept(finished.job.seat.open()), finished.config.me.index
    for shard in finished.job.shards:
        place = finished.job.place(shard)
        if place.owner in (None, me):
            labels = store.read_shard(OPENED, shard)["label"]
            yield read_ids(finished.job.prepared, place.index), labels


def _open_centres(finished: Finished, policy: Policy, checkpoint: Arrays) -> tuple[Arrays, Tallies]:
    state: dict[str, Array] = {
        "shift": np.array(finished.scaling.shift),
        "factor": np.array(finished.scaling.factor),
        "names": np.frombuffer("\n".join(finished.columns).encode(), np.uint8),
    }
    state |= {name: array for name, array in checkpoint.items() if name in ("mu", "inertia")}
    tallies: Tallies = {}
    return run_bare(open_centres(policy), finished.seated().seat.open(), {0: state}, tallies)[0], tallies


def _write_centres(finished: Finished, policy: Policy, opened: Arrays) -> dict[str, object]:
    found: dict[str, object] = {}
    if "total" in opened:
        found["inertia"] = max(0.0, float(fixed.decode(opened["total"])[0]))
    if "centres" in opened:
        scaling, columns = _scale_and_names(finished, policy, opened)
        centres = scaling.original(fixed.decode(opened["centres"]))
        found["centroids"] = str(write_centroids(finished.config.run_folder, columns, centres))
    return found


def _scale_and_names(finished: Finished, policy: Policy, opened: Arrays) -> tuple[Scaling, Sequence[str]]:
    """How to read the opened columns: by my own scale, or by everyone's."""
    config = finished.config
    if not policy.tells_scale(config.me.index):
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
