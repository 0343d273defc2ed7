"""A trained run as the model of a prediction: what its party keeps of it, read and never changed.

Centroids stay shares. Beside them a prediction needs how the party's rows became columns and how these were scaled.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veilmeans.io.exchange.handshake import own_binding, stored_terms
from veilmeans.io.files.atomic_files import parse_json, write_json
from veilmeans.io.files.party_files import files_at
from veilmeans.io.sources.column_encoding import ColumnEncoding, EncodingRules, TableEncoding, encoded_names
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.source_files import format_of
from veilmeans.io.sources.sparse_matrices import parse_column_ranges
from veilmeans.io.storage.checkpoints import final_centroids, shard_numbers
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, runs_in_one_call
from veilmeans.schemas.column_names import from_ranges, ranges_of
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import bound_fields, model_fields
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.schemas.run_folder import OPEN_CLUSTERS, RunFolder
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.rounds.party_context import PartyContext


@dataclass(frozen=True)
class TrainedModel:
    """A trained run at one party. `training_digest`: equal at the parties of one training; it reveals nothing else."""

    run: str
    folder: RunFolder
    binding: str
    iterations: int
    encoding: TableEncoding
    scaling: Scaling
    training_digest: str
    data: tuple[str, ...] = ()

    def fields(self, job: KMeansConfig) -> tuple[ColumnEncoding, ...]:
        """The encoding of the columns of new rows."""
        treatment = EncodingRules(job.categories, job.one_hot, job.multi_hot, job.unseen, job.missing)
        _check_columns(self.run, job, self.encoding.fields)
        return self.encoding.for_new_rows(treatment)

    def digest(self) -> str:
        """A digest of the shares on disk: a prediction's masks are bound to these shares."""
        digest = hashlib.sha256(self.binding.encode())
        kind = final_centroids(self.folder, self.iterations)
        kinds = (kind, OPEN_CLUSTERS)
        shards = [self.folder.shard(each, number) for each in kinds for number in shard_numbers(self.folder, each)]
        for file in (self.folder.checkpoint(self.iterations), *shards):
            try:
                digest.update(files_at(file).read(file, fresh=True))
            except OSError:  # that of Arrow has no name of the file
                raise StorageError(f"{file} cannot be read: restore it from a backup") from None
        return digest.hexdigest()


def read_finished_run(config: JobConfig) -> dict[str, Any]:
    """Read what a finished run has saved; raise a StorageError if it is not here."""
    file = config.run_folder.finished
    try:
        content: dict[str, Any] = parse_json(file.read_text())
    except FileNotFoundError:
        what, command = ("trained", "train") if config.required_kmeans.predict is None else ("finished", "predict")
        raise StorageError(f"run {config.run!r} is not {what} here: run `veilmeans {command}` first") from None
    except (OSError, ValueError):
        raise StorageError(f"{file} cannot be read: restore it from a backup") from None
    return content


def model_config(config: JobConfig) -> JobConfig:
    """The configuration of a prediction, at the place of its model's run."""
    job = config.required_kmeans
    if job.predict is None:
        raise ConfigError(f"run {config.run!r} trains: it has no model")
    return config.model_copy(update={"run": job.predict.model})


def load_model(config: JobConfig) -> TrainedModel | None:
    """The model of a prediction, checked to be fit for its job; None where the job trains."""
    job = config.required_kmeans
    if job.predict is None:
        return None
    trained = model_config(config)
    if not trained.run_folder.finished.exists():
        raise StorageError(f"the model {trained.run!r} is not trained here: run `veilmeans train` with it first")
    saved = read_finished_run(trained)
    if "predict.model" in saved["job"]:
        raise ConfigError(f"kmeans.predict.model: the run {trained.run!r} is a prediction itself; name a training")
    if "encoding" not in saved:
        raise StorageError(f"the model {trained.run!r} is of an older veilmeans: train it again under a new name")
    _check_kept_fields(config, saved)
    binding, encoding = saved["binding"], TableEncoding.from_json(saved["encoding"])
    scaling = Scaling(tuple(saved["shift"]), tuple(saved["factor"]))
    digest = _training_digest(trained)
    place = trained.run, trained.run_folder, binding, saved["iterations"]
    return TrainedModel(*place, encoding, scaling, digest, tuple(saved.get("data", ())))


def _check_kept_fields(config: JobConfig, saved: dict[str, Any]) -> None:
    """Refuse a prediction that differs from its model in a field that it must keep."""
    trained = {"parties": saved["parties"], **{f"kmeans.{name}": value for name, value in saved["job"].items()}}
    for name, value in model_fields(config).items():
        there = trained.get(name, 0)  # an optional field, which was left out while it was 0
        if value != there:
            model = model_config(config).run
            raise ConfigError(
                f"{name} is {_shown(value)}, and the model {model!r} was trained with {_shown(there)}: set it so"
            )


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else "nothing" if value is None else str(value)


def _check_columns(model: str, job: KMeansConfig, known: tuple[ColumnEncoding, ...]) -> None:
    """Refuse columns in the configuration that differ from those that were trained."""
    configured: dict[str, tuple[object, object]] = {
        "columns": (job.columns, _configured_columns(job, known)),
        "categories": (job.categories, {f.name: f.values for f in known if f.name in job.categories}),
        "one_hot": (set(job.one_hot), {f.name for f in known if f.kind == "one_hot" and f.name in job.one_hot}),
        "multi_hot": (job.multi_hot, {f.name: f.width for f in known if f.kind == "multi_hot"}),
    }
    for name, (here, there) in configured.items():
        if here and here != there:
            raise ConfigError(f"kmeans.{name} is not what the model {model!r} was trained with: leave it out")


def _configured_columns(job: KMeansConfig, known: tuple[ColumnEncoding, ...]) -> tuple[str, ...]:
    """The names of the encoded columns; as the configuration has them, if those are the same columns by number."""
    names = tuple(encoded_names(known)) if known[0].chosen else tuple(field.name for field in known)
    if format_of(job.data or "") not in ("npz", "svmlight"):
        return names
    runs = parse_column_ranges(job.data or "", job.columns)
    return job.columns if tuple(str(i) for first, last in runs for i in range(first, last)) == names else names


def _training_digest(place: JobConfig) -> str:
    """A digest of the bindings that all parties announced when they trained the model; those of a sweep are its own."""
    me, folder = place.party, place.run_folder
    peers = {peer: Terms({}) for peer in place.parties if peer != me}
    first = next(iter(peers))
    heard = stored_terms(folder, me, peers)
    if heard is None or not folder.terms(me, first).exists():
        files = [*(folder.terms(peer, me) for peer in peers), folder.terms(me, first)]
        missing = next(file for file in files if not file.exists())
        raise StorageError(f"{missing} is missing: restore it from a backup")
    binding = own_binding(folder, me, first)
    bindings = [binding if party == me else heard[party].binding for party in place.parties]
    return hashlib.sha256(json.dumps(bindings).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FinishedRun:
    """A run whose iterations are done, at one party: its job and iterations, and how to read its columns.

    `encoding`: the encoding of its rows, for predictions. `data`: digests of the data on which its results depend
    (`io.ledgers.opening_ledger`).
    """

    config: JobConfig
    job: PartyJob
    done: int
    scaling: Scaling
    columns: Sequence[str]
    id: str | None
    encoding: TableEncoding
    data: tuple[str, ...] = ()

    def at_the_end(self) -> PartyJob:
        """The job after its last iteration, from where results are opened."""
        return replace(self.job, context=replace(self.job.context, iteration=self.done))

    def opened_as(self, opening: str) -> "FinishedRun":
        """The same run in a later opening, which has a transcript of its own."""
        return replace(self, job=replace(self.job, context=replace(self.job.context, opening=opening)))

    @property
    def kept_at(self) -> int:
        """The number under which the shares of the rows' results are kept."""
        return self.done + self.job.steps.final_assignment

    def save(self) -> None:
        """Save what later openings and predictions need, when the data may be gone."""
        content = {
            "parties": self.config.parties,
            "job": public_job(self.config),
            "binding": self.job.context.binding,
            "iterations": self.done,
            "prepared": str(self.job.encoded),
            "shift": self.scaling.shift,
            "factor": self.scaling.factor,
            "columns": ranges_of(self.columns),
            "id": self.id,
            "encoding": self.encoding.to_json(),
            "data": self.data,
        }
        write_json(self.config.run_folder.finished, content)

    @classmethod
    def load(cls, config: JobConfig) -> "FinishedRun":
        saved = read_finished_run(config)
        if saved["job"] != public_job(config):
            raise ConfigError(
                f"the configuration has changed since run {config.run!r}: only kmeans.reveal may, without minimum_size"
            )
        steps = kmeans_steps(config)
        context = PartyContext(config, saved["binding"])
        job = PartyJob(steps, context, Path(saved["prepared"]), runs_in_one_call(config, steps))
        scaling = Scaling(tuple(saved["shift"]), tuple(saved["factor"]))
        encoding = TableEncoding.from_json(saved.get("encoding", {"fields": [], "means": []}))
        columns, data = from_ranges(saved["columns"]), tuple(saved.get("data", ()))
        return cls(config, job, saved["iterations"], scaling, columns, saved["id"], encoding, data)


def public_job(config: JobConfig) -> dict[str, Any]:
    """The fields of the job to which the run is bound, by their names below `kmeans`."""
    job = config.kmeans_with_data
    return {**bound_fields(job, job.command), **capacity_field(config)}


def capacity_field(config: JobConfig) -> dict[str, Any]:
    """The rows that the triple store is for, if it is for more than its run has: shards have their shapes from it."""
    capacity = config.triples.rows if config.triples is not None else None
    return {} if capacity is None else {"triples.rows": capacity}
