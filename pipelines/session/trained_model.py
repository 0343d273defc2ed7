"""A trained run as the model of a prediction: what its party keeps of it, read and never changed.

Centroids stay shares. Beside them a prediction needs how the party's rows became columns and how these were scaled.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veilmeans.io.exchange.handshake import earlier_handshake
from veilmeans.io.sources.column_encoding import ColumnEncoding, EncodingRules, TableEncoding, names_of
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.source_files import kind_of
from veilmeans.io.sources.sparse_matrices import parse_column_ranges
from veilmeans.io.storage.atomic_files import write_json
from veilmeans.io.storage.checkpoints import centroids, checkpoint_file
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, not_agreed, runs_in_one_call
from veilmeans.schemas.column_names import from_ranges, ranges_of
from veilmeans.schemas.config import JobConfig, kmeans_with_data
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.rounds.party_context import PartyContext

_ALIKE = ("layout", "features", "clusters", "normalise")
"""Fields of the job in which a prediction is as its model."""


@dataclass(frozen=True)
class TrainedModel:
    """A trained run at one party. `together`: equal at parties that trained it with each other, and tells nothing."""

    run: str
    folder: Path
    binding: str
    iterations: int
    encoding: TableEncoding
    scaling: Scaling
    together: str

    def fields(self, job: KMeansConfig) -> tuple[ColumnEncoding, ...]:
        """What the columns of new rows become."""
        treatment = EncodingRules(job.categories, job.one_hot, job.multi_hot, job.unseen, job.missing)
        _check_columns(self.run, job, self.encoding.fields)
        return self.encoding.again(treatment)

    def digest(self) -> str:
        """Of the shares as they lie on disk: a prediction's masks are for these and no others."""
        found = hashlib.sha256(self.binding.encode())
        files = sorted((self.folder / centroids(self.iterations)).glob("*.arrow"))
        try:
            for file in (checkpoint_file(self.folder, self.iterations), *files):
                found.update(file.read_bytes())
        except OSError as error:
            raise StorageError(f"{error.filename} cannot be read: restore it from a backup") from None
        return found.hexdigest()


def finished_run_file(config: JobConfig) -> Path:
    """Where a finished run says what it was."""
    return config.run_folder / "finished.json"


def read_finished_run(config: JobConfig) -> dict[str, Any]:
    """What a finished run was; a StorageError if it is not here."""
    file = finished_run_file(config)
    try:
        content: dict[str, Any] = json.loads(file.read_text())
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
    place = model_config(config)
    if not finished_run_file(place).exists():
        raise StorageError(f"the model {place.run!r} is not trained here: run `veilmeans train` with it first")
    saved = read_finished_run(place)
    if saved["job"].get("predict") is not None:
        raise ConfigError(f"kmeans.predict.model: the run {place.run!r} is a prediction itself; name what was trained")
    if "encoding" not in saved:
        raise StorageError(
            f"the model {place.run!r} was trained by an older veilmeans, which did not keep how rows became columns: "
            "train it again under a new name"
        )
    _check_alike(config, saved)
    return TrainedModel(
        place.run,
        place.run_folder,
        saved["binding"],
        saved["iterations"],
        TableEncoding.from_json(saved["encoding"]),
        Scaling(tuple(saved["shift"]), tuple(saved["factor"])),
        _together(place, saved["binding"]),
    )


def _check_alike(config: JobConfig, saved: dict[str, Any]) -> None:
    here = {"parties": list(config.parties), **_flat(config.required_kmeans.model_dump(mode="json"))}
    there = {"parties": saved["parties"], **_flat(saved["job"])}
    for name, value in there.items():
        if here[name] != value:
            raise ConfigError(
                f"{name} is {_shown(here[name])}, and the model {model_config(config).run!r} has {_shown(value)}: "
                "a prediction keeps what was trained"
            )


def _flat(job: dict[str, Any]) -> dict[str, Any]:
    normalise = {f"kmeans.normalise.{name}": value for name, value in job["normalise"].items()}
    return {f"kmeans.{name}": job[name] for name in _ALIKE if name != "normalise"} | normalise


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else "nothing" if value is None else str(value)


def _check_columns(model: str, job: KMeansConfig, known: tuple[ColumnEncoding, ...]) -> None:
    """What the configuration says about columns, if it says something, must be what was trained."""
    said: dict[str, tuple[object, object]] = {
        "columns": (job.columns, _columns_as_said(job, known)),
        "categories": (job.categories, {f.name: f.values for f in known if f.name in job.categories}),
        "one_hot": (set(job.one_hot), {f.name for f in known if f.kind == "one_hot" and f.name in job.one_hot}),
        "multi_hot": (job.multi_hot, {f.name: f.width for f in known if f.kind == "multi_hot"}),
    }
    for name, (here, there) in said.items():
        if here and here != there:
            raise ConfigError(
                f"kmeans.{name} is not what the model {model!r} was trained with: leave it out, or take it from there"
            )


def _columns_as_said(job: KMeansConfig, known: tuple[ColumnEncoding, ...]) -> tuple[str, ...]:
    """The columns of the fields; in the words of the job, if it has the same by number."""
    names = tuple(names_of(known)) if known[0].chosen else tuple(field.name for field in known)
    if kind_of(job.data or "") not in ("npz", "svmlight"):
        return names
    runs = parse_column_ranges(job.data or "", job.columns)
    return job.columns if tuple(str(i) for first, last in runs for i in range(first, last)) == names else names


def _together(place: JobConfig, binding: str) -> str:
    """A digest of what all parties' handshakes of the training were bound to."""
    peers = {peer: Terms({}) for peer in place.parties if peer != place.party}
    heard = earlier_handshake(place.run_folder, place.party, peers)
    if heard is None:
        raise StorageError(f"{place.run_folder} lacks what the peers said (bound.….json): restore it from a backup")
    bindings = [binding if party == place.party else heard[party].binding for party in place.parties]
    return hashlib.sha256(json.dumps(bindings).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FinishedRun:
    """A run whose iterations are done, at one party: what can be opened of it, and how to read it.

    `encoding`: how its rows became columns, for a prediction with it.
    """

    config: JobConfig
    job: PartyJob
    done: int
    scaling: Scaling
    columns: Sequence[str]
    id: str | None
    encoding: TableEncoding

    def seated(self) -> PartyJob:
        """The job at the seat from which results are opened."""
        return replace(self.job, context=replace(self.job.context, iteration=self.done))

    def save(self) -> None:
        """So that more can be opened, and rows assigned, when the data are gone."""
        content = {
            "parties": self.config.parties,
            "job": public_job(self.config),
            "binding": self.job.context.binding,
            "iterations": self.done,
            "prepared": str(self.job.prepared),
            "shift": self.scaling.shift,
            "factor": self.scaling.factor,
            "columns": ranges_of(self.columns),
            "id": self.id,
            "encoding": self.encoding.to_json(),
        }
        write_json(finished_run_file(self.config), content)

    @classmethod
    def load(cls, config: JobConfig) -> "FinishedRun":
        saved = read_finished_run(config)
        if saved["job"] != public_job(config):
            raise ConfigError(f"the configuration has changed since run {config.run!r}: only kmeans.reveal may differ")
        kmeans = kmeans_steps(config)
        context = PartyContext(config, saved["binding"])
        job = PartyJob(kmeans, context, Path(saved["prepared"]), runs_in_one_call(config, kmeans))
        scaling = Scaling(tuple(saved["shift"]), tuple(saved["factor"]))
        encoding = TableEncoding.from_json(saved.get("encoding", {"fields": [], "means": []}))
        return cls(config, job, saved["iterations"], scaling, from_ranges(saved["columns"]), saved["id"], encoding)


def public_job(config: JobConfig) -> dict[str, Any]:
    """What a finished run was, but for what each party may choose by itself or later."""
    job = kmeans_with_data(config)
    return job.model_dump(mode="json", exclude={**not_agreed(job), "reveal": True})
