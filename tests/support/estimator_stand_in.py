"""Plaintext K-means instead of the parties' processes: reads their configurations and data, and writes their results.

For tests of the code around the protocol; other tests compare the protocol with plaintext. Numbers only, minmax.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import scipy.sparse

from veilmeans.io.storage.result_files import write_centroids, write_result, write_rows
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.transforms.kmeans.initial_centroids import initial_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest


def run_parties(folder: Path, command: str, names: Sequence[str], config: str) -> float:
    """Do what `party_processes.run_parties` does, for the vertical layout."""
    configs = {name: load_config(folder / name / config) for name in names}
    if command == "train":
        train(folder / "model.npz", configs)
    elif command == "predict":
        model = np.load(folder / "model.npz")
        write_labels(configs, nearest((read(configs) - model["low"]) / model["width"], model["centroids"]))
    return 0.0


def train(file: Path, configs: dict[str, JobConfig]) -> None:
    values = read(configs)
    low, high = values.min(axis=0), values.max(axis=0)
    width = np.where(high > low, high - low, 1)
    rows = (values - low) / width
    config = next(iter(configs.values()))
    job = config.required_kmeans
    start = rows[list(initial_rows(job, layout_of(config, job)))]
    steps = lloyd(lambda: [rows], start, job.max_iter, job.tol)
    np.savez(file, low=low, width=width, centroids=steps[-1].centroids)
    write_labels(configs, nearest(rows, steps[-1].centroids))
    first = 0
    for name, each in configs.items():
        last = first + job.features[name]  # type: ignore[index]
        centroids = (steps[-1].centroids * width + low)[:, first:last]
        write_centroids(each.run_folder, [str(i) for i in range(last - first)], centroids)
        write_result(each.run_folder, {"iterations": len(steps), "inertia": steps[-1].inertia})
        first = last


def read(configs: dict[str, JobConfig]) -> Real:
    return np.hstack([_values(str(each.required_kmeans.data)) for each in configs.values()])


def _values(file: str) -> Real:
    if file.endswith("npz"):
        return np.asarray(scipy.sparse.load_npz(file).toarray())
    return np.column_stack([column.to_numpy() for column in pa.parquet.read_table(file).columns])


def write_labels(configs: dict[str, JobConfig], labels: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> None:
    for each in configs.values():
        each.run_folder.path.mkdir(parents=True)
        rows = [(pa.array(range(len(labels))), {"cluster": labels.astype(np.int32)})]
        write_rows(each.run_folder.assignments, "row", rows)
