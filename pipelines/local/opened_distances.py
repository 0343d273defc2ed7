"""Distances of a party's rows to opened centroids, over the columns that it has: plaintext, at the party itself."""

import numpy as np
import pyarrow.parquet

from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.storage.encoded_shards import read_rows
from veilmeans.pipelines.session.own_data import encode_data, local_scaling, scan_data
from veilmeans.pipelines.session.trained_model import load_model
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError


def own_squared_distances(config: JobConfig) -> Real:
    """Σ (x − μ_j)² over this party's columns, for each new row of a prediction and each centroid (n × k), normalised.

    Parties that have other columns of the same rows add theirs.
    """
    model = load_model(config)
    if model is None:
        raise ConfigError(f"run {config.run!r} trains: it has no model")
    scan = scan_data(config, model)
    prepared = encode_data(config, scan, local_scaling(config, scan, model) or model.scaling)
    table = pyarrow.parquet.read_table(model.folder.centroids)
    opened = np.column_stack([table.column(number).to_numpy() for number in range(1, table.num_columns)])
    centroids = model.scaling.normalise(opened)
    parts = []
    for shard in range(prepared.shards):
        rows = read_rows(prepared.folder, shard)
        rows = rows.__class__((fixed.decode(rows.data), rows.indices, rows.indptr), shape=rows.shape)
        parts.append(rows.power(2).sum(axis=1)[:, None] - 2 * (rows @ centroids.T) + (centroids**2).sum(axis=1))
    squares: Real = np.maximum(np.concatenate(parts), 0.0)
    return squares
