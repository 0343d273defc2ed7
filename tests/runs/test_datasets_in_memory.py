"""Real tables: prepared from their files as they are, and clustered on shares as by plaintext Lloyd."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from sklearn import datasets
from sklearn.metrics import adjusted_rand_score

from support.data_sets import SHARED, divided, normalised, shared
from support.kmeans_in_memory import kmeans_for, run_kmeans
from support.lloyd_checks import TOLERANCE
from support.parties import make_configs
from support.worlds import changed_config
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.storage.encoded_shards import EncodedData, read_ids, read_rows
from veilmeans.pipelines.prepare import prepare_data
from veilmeans.pipelines.session.own_data import encode_data, local_scaling, scan_data
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import InitConfig, KMeansConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.initial_centroids import initial_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

SATIMAGE = SHARED / "adbench_31_satimage-2.npz"
BUNDLED = {
    "iris": (datasets.load_iris, 3),
    "wine": (datasets.load_wine, 3),
    "digits": (datasets.load_digits, 10),
    "breast_cancer": (datasets.load_breast_cancer, 2),
}
"""Loader and k."""
LAYOUTS = ("vertical", "horizontal")
ITERATIONS = 10


def drawn_rows(layout: Layout, k: int) -> list[int]:
    """The rows at which a job with `init: {method: indices, seed: 7}` starts."""
    job = KMeansConfig.model_construct(clusters=k, init=InitConfig(seed=7))
    return list(initial_rows(job, layout))


def assert_same_clusters(table: Real, k: int, layout: Layout) -> None:
    rows = normalised(table)
    start = rows[drawn_rows(layout, k)]
    *_, before, after = (step.centroids for step in lloyd(lambda: [rows], start, ITERATIONS))
    last = run_kmeans(kmeans_for(layout, k, tol=0), rows, start, ITERATIONS)[-1]
    assert adjusted_rand_score(nearest(rows, before), last.labels) == 1.0
    assert adjusted_rand_score(nearest(rows, after), last.final_labels) == 1.0
    np.testing.assert_allclose(last.centroids, after, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("name", BUNDLED)
def test_clusters_are_those_of_lloyd_in_the_clear(name: str, kind: str) -> None:
    load, k = BUNDLED[name]
    table = load().data
    assert_same_clusters(table, k, divided(kind, *table.shape))


@pytest.mark.skipif(not SATIMAGE.exists(), reason="satimage-2 is not bundled, and ../shared/data does not have it")
@pytest.mark.parametrize("kind", LAYOUTS)
def test_clusters_of_satimage_are_those_of_lloyd_in_the_clear(kind: str) -> None:
    table = np.load(SATIMAGE)["X"].astype(np.float64)
    assert_same_clusters(table, 6, divided(kind, *table.shape))


def prepared_from(folder: Path, name: str, rows: int, features: int, **job: Any) -> tuple[str, EncodedData]:
    """Prepare a data file; return what `veilmeans prepare` prints, and the encoded data."""
    kmeans = {"layout": "vertical", "rows": rows, "features": {"payco": features, "shop": 1}, "clusters": 5, **job}
    config = make_configs(folder, kind="files", dealer="notary", kmeans=kmeans)["payco"]
    config = changed_config(config, kmeans={"data": str(shared(name))})
    scan = scan_data(config, None)
    scaling = local_scaling(config, scan, None)
    assert scaling is not None
    return prepare_data(config), encode_data(config, scan, scaling)


def decoded(prepared: EncodedData) -> Real:
    return np.concatenate([fixed.decode(read_rows(prepared.folder, i).toarray()) for i in range(prepared.shards)])


def test_a9a_is_prepared_as_it_is(tmp_path: Path) -> None:
    output, prepared = prepared_from(tmp_path, "a9a.X.npz", 32_561, 123)
    assert [part for part in ("32,561 rows", "123 columns", "1 shards", "88.7%") if part not in output] == []
    assert (sum(prepared.nonzeros), prepared.integer_valued) == (451_592, True)


def test_internet_ads_are_prepared_as_they_are(tmp_path: Path) -> None:
    _, prepared = prepared_from(tmp_path, "adbench_17_InternetAds.npz", 1966, 1555)
    table = np.load(shared("adbench_17_InternetAds.npz"))["X"]
    np.testing.assert_allclose(decoded(prepared), normalised(table), rtol=0, atol=2.0**-21)


@pytest.mark.parametrize(("side", "columns"), [("guest", 13), ("host", 10)])
def test_fates_credit_tables_are_prepared_as_they_are(tmp_path: Path, side: str, columns: int) -> None:
    name = f"fate_default_credit_hetero_{side}.csv.gz"
    chosen = [f"x{i}" for i in range(columns)]
    _, prepared = prepared_from(tmp_path, name, 30_000, columns, id="id", columns=chosen)
    table = pyarrow.csv.read_csv(shared(name))
    plain = np.stack([table[column].to_numpy() for column in chosen], axis=1)
    np.testing.assert_allclose(decoded(prepared), normalised(plain), rtol=0, atol=2.0**-21)
    ids = [value for i in range(prepared.shards) for value in read_ids(prepared.folder, i).to_pylist()]
    assert ids == [str(value) for value in table["id"].to_pylist()]
