"""A party's data for K-means: read, checked against the configuration, normalised, encoded in shards."""

from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from veilmeans.io.encode import REFUSED, Beyond, encode_source
from veilmeans.io.fields import HOT, Treatment, of_kind
from veilmeans.io.names import brief
from veilmeans.io.prepared import Prepared
from veilmeans.io.scaling import Scaling, check_zeros, scale_columns
from veilmeans.io.scan import Scan, scan_source
from veilmeans.pipelines.model import load_model
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, InputError
from veilmeans.schemas.jobs import KMeansJob
from veilmeans.transforms.kmeans import KMeans

LOCAL_FIELDS = {
    "data", "id", "columns", "categories", "one_hot", "unseen", "multi_hot", "missing", "iterations_per_pipeline"
}  # fmt: skip
"""Fields of the job that are each party's own."""
_HOW = "`veilmeans inspect` tells the command that corrects it"


_ONLY_TRAINING = {"max_iter", "tol", "init"}
_FEW_ROWS = 1 << 17
"""Up to so many rows an iteration is one element."""


def runs_whole(config: JobConfig, kmeans: KMeans) -> bool:
    """Whether all rounds of an iteration run in one call here."""
    rounds = config.engine.rounds
    return rounds == "whole" or (rounds == "auto" and kmeans.layout.total_rows <= _FEW_ROWS)


def not_agreed(job: KMeansJob) -> dict[str, Any]:
    """The fields that parties need not have alike, as pydantic excludes them."""
    if job.predict is None:
        return dict.fromkeys({*LOCAL_FIELDS, "predict"}, True)
    return {**dict.fromkeys(LOCAL_FIELDS | _ONLY_TRAINING, True), "predict": {"outside"}}


def check_command(config: JobConfig, predicts: bool) -> None:
    """Refuse a configuration that is for the other command."""
    predict = config.needed_kmeans.predict
    if predict is not None and not predicts:
        raise ConfigError(
            f"run {config.run!r} predicts with the model {predict.model!r} (kmeans.predict): run `veilmeans predict`"
        )
    if predict is None and predicts:
        raise ConfigError(
            f"run {config.run!r} trains: run `veilmeans train`, or, to predict with it, write a configuration for new "
            "rows with `veilmeans predict --new`"
        )


def kmeans_job(config: JobConfig) -> KMeansJob:
    """The job in a party's configuration, checked to be whole."""
    job = config.needed_kmeans
    if config.party not in config.parties:
        raise ConfigError(f"{config.party} is the dealer of this run: start it with `veilmeans offline`")
    if job.data is None:
        raise ConfigError(f"the configuration of {config.party} needs kmeans.data: where its rows are")
    return job


def scan_data(config: JobConfig) -> Scan:
    """A first pass over the data: what there is, and that it is what the configuration says."""
    job = kmeans_job(config)
    rows, features = declared(config, job)
    scan = look_at_data(config)
    if scan.rows != rows:
        raise InputError(f"{job.data} of {config.party} has {scan.rows:,} rows, and kmeans.rows is {rows:,}; {_HOW}")
    if len(scan.columns) != features:
        raise InputError(
            f"{job.data} of {config.party} has {len(scan.columns):,} columns "
            f"({brief(scan.columns)}), and kmeans.features is {features:,}; {_HOW}"
        )
    return scan


def declared(config: JobConfig, job: KMeansJob) -> tuple[int, int]:
    """How many rows and columns this party has, as the job says."""
    rows, features = (value[config.party] if isinstance(value, dict) else value for value in (job.rows, job.features))
    return rows, features


def look_at_data(config: JobConfig) -> Scan:
    """The first pass, whatever the configuration says about rows and columns."""
    job = kmeans_job(config)
    FileSystems.set_options(PipelineOptions(list(config.engine.options)))
    treatment = Treatment(job.categories, job.one_hot, job.multi_hot, job.unseen, job.missing)
    _, features = declared(config, job)
    model = load_model(config)
    known = None if model is None else model.fields(job)
    return scan_source(job.data or "", job.columns, job.id, _folder(config), features, treatment, known)


def local_scaling(config: JobConfig, scan: Scan) -> Scaling | None:
    """How our columns are normalised, or None where that depends on the others' rows."""
    normalise, model = kmeans_job(config).normalise, load_model(config)
    if model is not None:
        return model.scaling
    if normalise.aggregate:
        check_zeros(scan, normalise.method, scan.low)
        return None
    low, high = scan.low, scan.high
    if normalise.ranges is not None:
        ranges = dict.fromkeys(compress(scan.columns, of_kind(scan.fields, *HOT)), (0.0, 1.0)) | normalise.ranges
        missing = [column for column in scan.columns if column not in ranges]
        if missing:
            raise ConfigError(f"kmeans.normalise.ranges has nothing for the column {missing[0]!r}")
        low = tuple(ranges[column][0] for column in scan.columns)
        high = tuple(ranges[column][1] for column in scan.columns)
        _check_from_zero(scan, low)
    return scale_columns(scan, normalise.method, low, high, scan.mean, scan.deviation)


def _check_from_zero(scan: Scan, low: tuple[float, ...]) -> None:
    """Zeros of a sparse matrix stay zeros only where a range begins there."""
    moved = of_kind(scan.fields, "matrix") & (np.array(low) != 0)
    if moved.any():
        name = scan.columns[int(moved.argmax())]
        raise ConfigError(
            f"kmeans.normalise.ranges of the column {name!r} must begin at 0: {scan.source} is sparse, "
            "and its zeros stay zeros"
        )


def encode_data(config: JobConfig, scan: Scan, scaling: Scaling) -> Prepared:
    """The second pass: encoded shards, unless they are there already."""
    job = kmeans_job(config)
    beyond = REFUSED
    if job.predict is not None:
        advice = "raise kmeans.predict.margin at all parties, or set kmeans.predict.outside to clip"
        beyond = Beyond(job.predict.outside == "clip", advice)
    return encode_source(scan, scaling, job.interval, config.engine.rows_per_shard, _folder(config), beyond)


def check_whole(config: JobConfig, prepared: Prepared) -> None:
    """Refuse fractions where all were told that our normalised values are whole numbers."""
    job = kmeans_job(config)
    told = job.sparse.get(config.party)
    if told is not None and told.whole and not prepared.whole:
        raise InputError(
            f"kmeans.sparse.{config.party}.whole is true, and {job.data} has normalised values that are no whole "
            "numbers: set it to false in all parties' configurations"
        )


def prepare_data(config: JobConfig) -> str:
    """Both passes, as far as they go without the others; what was found, in a sentence."""
    scan = scan_data(config)
    scaling = local_scaling(config, scan)
    found = f"{scan.rows:,} rows, {len(scan.columns):,} columns: {brief(scan.columns)}"
    if scaling is None:
        return f"{found}; they are encoded when all parties' statistics are known"
    prepared = encode_data(config, scan, scaling)
    cells = prepared.rows * len(prepared.columns)
    return f"{found}; {prepared.shards:,} shards, {1 - sum(prepared.nonzeros) / cells:.1%} zeros"


def _folder(config: JobConfig) -> Path:
    return config.storage / "prepared"
