"""A party's data for K-means: read, checked against the configuration, normalised, encoded in shards."""

from itertools import compress
from pathlib import Path

import numpy as np

from veilmeans.io.sources.column_encoding import HOT, EncodingRules, columns_of_kind
from veilmeans.io.sources.encode import REFUSE_OUT_OF_RANGE, OutOfRange, encode_source
from veilmeans.io.sources.scaling import Scaling, check_zeros, scale_columns
from veilmeans.io.sources.scan import Scan, scan_source
from veilmeans.io.sources.source_files import set_filesystem_options
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.pipelines.session.trained_model import TrainedModel
from veilmeans.schemas.column_names import list_briefly
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, InputError
from veilmeans.schemas.run_folder import StorageFolder
from veilmeans.transforms.statistics.joint_statistics import moment_sums

_HOW = "`veilmeans inspect` shows the command that corrects it"


def scan_data(config: JobConfig, model: TrainedModel | None) -> Scan:
    """Scan this party's data and check that they are as the configuration declares; `model`: of a prediction."""
    job = config.kmeans_with_data
    rows, features = config.declared_shape
    scan = scan_own_data(config, model)
    if scan.rows != rows:
        raise InputError(f"{job.data} of {config.party} has {scan.rows:,} rows, and kmeans.rows is {rows:,}; {_HOW}")
    if len(scan.columns) != features:
        columns = f"{len(scan.columns):,} columns ({list_briefly(scan.columns)})"
        raise InputError(f"{job.data} of {config.party} has {columns}, and kmeans.features is {features:,}; {_HOW}")
    return scan


def scan_own_data(config: JobConfig, model: TrainedModel | None) -> Scan:
    """Scan this party's data, whatever the configuration declares about rows and columns."""
    job = config.kmeans_with_data
    set_filesystem_options(job.data or "", config.beam.options)
    rules = EncodingRules(job.categories, job.one_hot, job.multi_hot, job.unseen, job.missing)
    features = config.declared_features
    model_fields = None if model is None else model.fields(job)
    exact_sums = moment_sums if job.aggregates and job.normalise.method == "zscore" else None
    label = job.label if model is None else None
    return scan_source(job.data or "", job.columns, job.id, features, rules, model_fields, exact_sums, label=label)


def local_scaling(config: JobConfig, scan: Scan, model: TrainedModel | None) -> Scaling | None:
    """The scaling of this party's columns, or None where it depends on the others' rows."""
    normalise = config.kmeans_with_data.normalise
    if model is not None:
        return model.scaling
    if normalise.aggregate:
        check_zeros(scan, normalise.method, scan.low)
        return None
    low, high = scan.low, scan.high
    if normalise.ranges is not None:
        hot = compress(scan.columns, columns_of_kind(scan.fields, *HOT))
        ranges = dict.fromkeys(hot, (0.0, 1.0)) | normalise.ranges
        missing = [column for column in scan.columns if column not in ranges]
        if missing:
            raise ConfigError(f"kmeans.normalise.ranges has nothing for the column {missing[0]!r}")
        low, high = zip(*(ranges[column] for column in scan.columns), strict=True)
        _check_from_zero(scan, low)
    return scale_columns(scan, normalise.method, low, high, scan.mean, scan.deviation)


def _check_from_zero(scan: Scan, low: tuple[float, ...]) -> None:
    """Refuse a range that does not begin at 0 for a sparse matrix, whose zeros must stay zeros."""
    moved = columns_of_kind(scan.fields, "matrix") & (np.array(low) != 0)
    if moved.any():
        name = scan.columns[int(moved.argmax())]
        raise ConfigError(f"kmeans.normalise.ranges of {name!r} must begin at 0 to keep zeros: {scan.source} is sparse")


def encode_data(config: JobConfig, scan: Scan, scaling: Scaling, storage: Path | None = None) -> EncodedData:
    """Encode this party's data into shards, unless they are there already."""
    job = config.kmeans_with_data
    out_of_range = REFUSE_OUT_OF_RANGE
    if job.predict is not None:
        advice = "raise kmeans.predict.margin at all parties, or set kmeans.predict.out_of_range to clip"
        out_of_range = OutOfRange(job.predict.out_of_range == "clip", advice)
    folder = StorageFolder(storage or config.storage).prepared.path
    return encode_source(scan, scaling, job.interval, config.beam.rows_per_shard, folder, out_of_range)


def check_integer_valued(config: JobConfig, prepared: EncodedData) -> None:
    """Refuse fractions where kmeans.sparse declares this party's normalised values to be integers."""
    job = config.kmeans_with_data
    declared = job.sparse.get(config.party)
    if declared is not None and declared.integer_valued and not prepared.integer_valued:
        raise InputError(
            f"kmeans.sparse.{config.party}.integer_valued is true, and {job.data} has normalised values with a "
            "fraction: set it to false in all parties' configurations"
        )
