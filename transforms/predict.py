"""New rows and shares of trained centroids in, shares of their nearest centroids' positions out, in one pipeline.

    shards ─▶ operands ─▶ all are here ─▶ [encrypt ─▶] load ─▶ distance ─▶ assign ─▶ keep

It is the first half of Lloyd's iteration (`transforms.lloyd`), from checkpoint 0 of a run of its own: there lie the
shares of the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np

from veilmeans.crypto import ring
from veilmeans.io.checkpoints import ENCRYPTED, Checkpoints, assignments, centres
from veilmeans.io.triples import Manifest
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.at_once import assign_whole
from veilmeans.transforms.job import Job, keep_assignments, kept
from veilmeans.transforms.lloyd import AssignRows, ExchangeOperands, Seated, check_all
from veilmeans.transforms.seat import OpenSeat
from veilmeans.transforms.totals import by_columns

_GOES_ON = np.zeros(1, np.uint8)
"""As stop bit: there is something to do."""


def copy_model(job: Job, seat: OpenSeat, model: Checkpoints, done: int) -> None:
    """Checkpoint 0: shares of the model's centroids after its `done` iterations, and of their norms; as they are."""
    kind = centres(done)
    parts = [model.read_shard(kind, shard)["mu"] for shard in model.shards(kind)]
    norms = model.read(done)["u"]
    mu: ring.Ring = np.concatenate(parts, axis=1) if parts else np.zeros((0, 0), ring.DTYPE)
    if mu.shape != (job.kmeans.k, job.kmeans.layout.total_features):
        raise StorageError(f"{model.folder / kind} lacks shares of centroids: restore it from a backup")
    store = kept(seat)
    for shard, state in by_columns(job.kmeans, "mu", mu).items():
        store.write_shard(centres(0), shard, state)
    store.write(0, {"u": norms, "stop": _GOES_ON})


def finish_prediction(job: Job, seat: OpenSeat) -> None:
    """Checkpoint 1, when every shard's assignments are kept."""
    store = kept(seat)
    if store.shards(assignments(1)) != job.shards:
        raise StorageError(f"assignments of run {seat.run!r} are missing: start it again")
    store.write(1, {"stop": _GOES_ON})
    store.drop(ENCRYPTED, before=1)


@dataclass
class PredictRows(beam.PTransform):
    """All shards' numbers in, as one element; each of them out when its assignments are kept."""

    job: Job
    manifest: Manifest

    def expand(self, start: beam.PCollection[list[int]]) -> beam.PCollection[int]:
        job, done = self.job, start
        if job.kmeans.engines.masked:
            done = start | "Operands" >> ExchangeOperands(job) | "All" >> beam.combiners.Count.Globally()
        done = done | "Begin" >> beam.Map(_begin).with_output_types(int)
        if job.whole:
            return done | "Assign" >> beam.ParDo(WholePrediction(job, self.manifest)).with_output_types(int)
        return (
            done
            | "Rows" >> AssignRows(job, self.manifest)
            | "Keep" >> beam.ParDo(KeepAssignments(job)).with_output_types(int)
        )


class KeepAssignments(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        keep_assignments(self.seat, element[0], element[1].arrays)
        yield element[0]


class WholePrediction(Seated):
    """All rounds of all shards in one call."""

    def __init__(self, job: Job, manifest: Manifest) -> None:
        super().__init__(job)
        self.manifest = manifest

    def process(self, done: int) -> Iterator[int]:
        del done
        check_all(self.job, self.seat, self.manifest)
        yield from assign_whole(self.job, self.seat)


def _begin(operands: object) -> int:
    """No iteration is done."""
    del operands
    return 0
