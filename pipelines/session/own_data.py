"""A party's data for K-means: read, checked against the configuration, normalised, encoded in shards."""

from itertools import compress
from pathlib import Path

import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from veilmeans.io.sources.column_encoding import HOT, EncodingRules, of_kind
from veilmeans.io.sources.encode import REFUSE_OUT_OF_RANGE, OutOfRange, encode_source
from veilmeans.io.sources.scaling import Scaling, check_zeros, scale_columns
from veilmeans.io.sources.scan import Scan, scan_source
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.pipelines.session.trained_model import load_model
from veilmeans.schemas.column_names import brief
from veilmeans.schemas.config import JobConfig, declared_shape, kmeans_with_data
from veilmeans.schemas.errors import ConfigError, InputError

_HOW = "`veilmeans inspect` tells the command that corrects it"


def scan_data(config: JobConfig, storage: Path | None = None) -> Scan:
    """A first pass over the data: what there is, and that it is what the configuration says.

    `storage`: where it is kept instead of our own.
    """
    job = kmeans_with_data(config)
    rows, features = declared_shape(config, job)
    scan = scan_own_data(config, storage)
    if scan.rows != rows:
        raise InputError(f"{job.data} of {config.party} has {scan.rows:,} rows, and kmeans.rows is {rows:,}; {_HOW}")
    if len(scan.columns) != features:
        raise InputError(
            f"{job.data} of {config.party} has {len(scan.columns):,} columns "
            f"({brief(scan.columns)}), and kmeans.features is {features:,}; {_HOW}"
        )
    return scan


def scan_own_data(config: JobConfig, storage: Path | None = None) -> Scan:
    """The first pass, whatever the configuration says about rows and columns."""
    job = kmeans_with_data(config)
    FileSystems.set_options(PipelineOptions(list(config.engine.options)))
    treatment = EncodingRules(job.categories, job.one_hot, job.multi_hot, job.unseen, job.missing)
    _, features = declared_shape(config, job)
    model = load_model(config)
    known = None if model is None else model.fields(job)
    folder = _folder(storage or config.storage)
    return scan_source(job.data or "", job.columns, job.id, folder, features, treatment, known)


def local_scaling(config: JobConfig, scan: Scan) -> Scaling | None:
    """How our columns are normalised, or None where that depends on the others' rows."""
    normalise, model = kmeans_with_data(config).normalise, load_model(config)
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


def encode_data(config: JobConfig, scan: Scan, scaling: Scaling, storage: Path | None = None) -> EncodedData:
    """The second pass: encoded shards, unless they are there already."""
    job = kmeans_with_data(config)
    beyond = REFUSE_OUT_OF_RANGE
    if job.predict is not None:
        advice = "raise kmeans.predict.margin at all parties, or set kmeans.predict.outside to clip"
        beyond = OutOfRange(job.predict.outside == "clip", advice)
    folder = _folder(storage or config.storage)
    return encode_source(scan, scaling, job.interval, config.engine.rows_per_shard, folder, beyond)


def check_integer_valued(config: JobConfig, prepared: EncodedData) -> None:
    """Refuse fractions where all were told that our normalised values are whole numbers."""
    job = kmeans_with_data(config)
    told = job.sparse.get(config.party)
    if told is not None and told.whole and not prepared.whole:
        raise InputError(
            f"kmeans.sparse.{config.party}.whole is true, and {job.data} has normalised values that are no whole "
            "numbers: set it to false in all parties' configurations"
        )


def _folder(storage: Path) -> Path:
    return storage / "prepared"
