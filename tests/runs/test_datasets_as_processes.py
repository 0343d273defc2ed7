"""Real tables: two companies as processes train from the files as they are; the clusters are plaintext Lloyd's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse as sp
from benchmarks.fraud import data_sets

from support.commands import assert_all_succeeded, run_all
from support.data_sets import SHARED, normalised, shared
from support.parties import make_configs
from support.worlds import BOTH, DEALER, changed_config
from veilmeans import VeilKMeans
from veilmeans.io.storage.encoded_shards import load_encoded_data
from veilmeans.pipelines.session.aligned_config import with_alignment
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans.initial_centroids import initial_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

K, ITERATIONS = 5, 5
pytestmark = [pytest.mark.data, pytest.mark.processes, pytest.mark.timeout(3600)]


JOB = {
    "layout": "vertical",
    "clusters": K,
    "max_iter": ITERATIONS,
    "tol": 0,
    "init": {"method": "indices", "seed": 7},
    "reveal": {"assignments": BOTH, "centroids": BOTH},
}
CREDIT = {"payco": ("guest", 13), "shop": ("host", 10)}
"""FATE's file and the number of columns of each company."""


def trained(folder: Path, own: Mapping[str, Mapping[str, Any]], **job: Any) -> dict[str, JobConfig]:
    """Train both companies, each with its own fields of the job; return their configurations."""
    configs = make_configs(folder, dealer=DEALER, triples={"store": "store"}, kmeans=JOB | job)
    configs |= {name: changed_config(configs[name], kmeans=dict(fields)) for name, fields in own.items()}
    for command, names in (("offline", (*BOTH, DEALER)), ("train", BOTH)):
        assert_all_succeeded(run_all(command, {name: configs[name] for name in names}, folder, patience=1800))
    return {name: configs[name] for name in BOTH}


def assert_lloyd(configs: Mapping[str, JobConfig], rows: Real) -> None:
    """Check the clusters against Lloyd on all normalised columns, from the same rows.

    A row may be in another cluster that is as near, up to rounding to 20 bits.
    """
    config = configs["payco"]
    start = rows[list(initial_rows(config.required_kmeans, layout_of(config, config.required_kmeans)))]
    *_, last = (step.centroids for step in lloyd(lambda: [rows], start, ITERATIONS))
    for each in configs.values():
        labels = pyarrow.parquet.read_table(each.run_folder.assignments)["cluster"].to_numpy()
        assert np.mean(labels == nearest(rows, last)) > 0.9999
        squares = np.stack([((rows - centroid) ** 2).sum(axis=1) for centroid in last], axis=1)
        assert np.max(squares[np.arange(len(rows)), labels] - squares.min(axis=1)) < 2 * rows.shape[1] * 2**-20
        assert pyarrow.parquet.read_table(each.run_folder.centroids).num_rows == len(last)


def nonzeros(config: JobConfig) -> int:
    """Values in the shards on disk."""
    folders = config.storage_folder.prepared.path.glob("prepared-*")
    return sum(sum(data.nonzeros) for folder in folders if (data := load_encoded_data(folder)))


def test_credit_tables_of_two_companies_train_as_they_are(tmp_path: Path) -> None:
    tables, own = [], {}
    for name, (side, width) in CREDIT.items():
        file = shared(f"fate_default_credit_hetero_{side}.csv.gz")
        columns = [f"x{i}" for i in range(width)]
        own[name] = {"data": str(file), "id": "id", "columns": columns}
        table = pyarrow.csv.read_csv(file)
        tables.append(normalised(np.stack([table[column].to_numpy() for column in columns], axis=1)))
    shapes = {"rows": 30_000, "features": {name: width for name, (_, width) in CREDIT.items()}}
    assert_lloyd(trained(tmp_path, own, **shapes, id="id"), np.hstack(tables))


def test_credit_tables_that_do_not_line_up_train_by_one_command(tmp_path: Path) -> None:
    """Shuffled, and each company lacks 20 % of the rows: `train` aligns them, makes the triple store, and trains."""
    features = {name: width for name, (_, width) in CREDIT.items()}
    job = JOB | {"features": features, "id": "id", "rows": None}
    configs = make_configs(tmp_path, triples={"store": "store", "provider": "ot"}, align={}, kmeans=job)
    kept: dict[str, pa.Table] = {}
    for seed, (name, (side, width)) in enumerate(CREDIT.items()):
        table = pyarrow.csv.read_csv(shared(f"fate_default_credit_hetero_{side}.csv.gz"))
        kept[name] = table.take(np.random.default_rng(seed).permutation(len(table))[: len(table) * 4 // 5])
        file = tmp_path / name / "data.csv"
        pyarrow.csv.write_csv(kept[name], file)
        own = {"data": str(file), "columns": [f"x{i}" for i in range(width)]}
        configs[name] = changed_config(configs[name], kmeans=own)
    assert_all_succeeded(run_all("train", configs, tmp_path, patience=1800))
    ids = pyarrow.parquet.read_table(configs["shop"].run_folder.assignments)["id"].cast(pa.int64()).to_numpy()
    assert set(ids) == set.intersection(*(set(table["id"].to_pylist()) for table in kept.values()))
    columns = []
    for name, table in kept.items():
        order = np.argsort(table["id"].to_numpy())
        rows = order[np.searchsorted(table["id"].to_numpy(), ids, sorter=order)]
        columns += [table[f"x{i}"].to_numpy()[rows] for i in range(features[name])]
    assert_lloyd({name: with_alignment(config) for name, config in configs.items()}, normalised(np.stack(columns, 1)))


def test_a9a_trains_from_its_file_and_stays_sparse(tmp_path: Path) -> None:
    file = shared("a9a.X.npz")
    table = sp.load_npz(file).toarray().astype(np.float64)
    own = {"payco": {"data": str(file), "columns": ["0-61"]}, "shop": {"data": str(file), "columns": ["62-122"]}}
    shapes = {"rows": len(table), "features": {"payco": 62, "shop": 61}}
    configs = trained(tmp_path, own, **shapes, sparse={name: {"nonzeros": 7, "integer_valued": True} for name in BOTH})
    assert_lloyd(configs, table)
    assert sum(map(nonzeros, configs.values())) == np.count_nonzero(table)


@pytest.mark.parametrize("products", ["beaver", "he"])
def test_internet_ads_train_from_their_file_and_stay_sparse(tmp_path: Path, products: str) -> None:
    file = shared("adbench_17_InternetAds.npz")
    table = normalised(np.load(file)["X"].astype(np.float64))
    own = {"payco": {"data": str(file), "columns": ["0-777"]}, "shop": {"data": str(file), "columns": ["778-1554"]}}
    configs = trained(tmp_path, own, rows=len(table), features={"payco": 778, "shop": 777}, products=products)
    assert_lloyd(configs, table)
    assert sum(map(nonzeros, configs.values())) <= np.count_nonzero(table)


@pytest.mark.parametrize("name", ["satimage-2", "credit", "synthetic"])
def test_a_prediction_of_the_trained_rows_finds_their_clusters(name: str) -> None:
    """The data of `benchmarks.fraud`."""
    found = [each.parts for each in data_sets(SHARED) if each.name == name]
    if not found:
        pytest.skip(f"{name} is not bundled, and ../shared/data does not have it")
    model = VeilKMeans(K, random_state=3, max_iter=20, dealer=True).fit(found[0])
    np.testing.assert_array_equal(model.predict(found[0]), model.labels_)
