"""Real tables: ten iterations on shares and in the clear from the same rows give the same clusters."""

from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets
from sklearn.metrics import adjusted_rand_score

from kmeans_parties import TOLERANCE, horizontal, kmeans_for, run_kmeans, vertical
from veilmeans.crypto.lloyd import Real, lloyd, nearest
from veilmeans.io.scaling import scaling_of
from veilmeans.pipelines.start import start_rows
from veilmeans.schemas.jobs import InitConfig, KMeansJob
from veilmeans.schemas.layout import Layout

SATIMAGE = Path(__file__).parents[2] / "shared" / "data" / "adbench_31_satimage-2.npz"
BUNDLED = {
    "iris": (datasets.load_iris, 3),
    "wine": (datasets.load_wine, 3),
    "digits": (datasets.load_digits, 10),
    "breast_cancer": (datasets.load_breast_cancer, 2),
}
"""Loader and k."""
LAYOUTS = ("vertical", "horizontal")
ITERATIONS = 10


def normalised(table: Real) -> Real:
    """min-max, as a party prepares its columns."""
    return scaling_of("minmax", table.min(axis=0).tolist(), table.max(axis=0).tolist(), (), ()).normalise(table)


def divided(kind: str, n: int, d: int) -> Layout:
    """Two parties, one with a third of the columns; or three, one with half of the rows. Two or three shards."""
    if kind == "vertical":
        return vertical(n, (d // 3, d - d // 3), -(-n // 2))
    return horizontal((n // 2, n // 3, n - n // 2 - n // 3), d, n)


def drawn_rows(layout: Layout, k: int) -> list[int]:
    """The rows at which a job with `init: {method: indices, seed: 7}` starts."""
    job = KMeansJob.model_construct(clusters=k, init=InitConfig(seed=7))
    return list(start_rows(job, layout))


def assert_same_clusters(table: Real, k: int, layout: Layout) -> None:
    rows = normalised(table)
    start = rows[drawn_rows(layout, k)]
    *_, before, after = (step.centres for step in lloyd(lambda: [rows], start, ITERATIONS))
    found = run_kmeans(kmeans_for(layout, k, tol=0), rows, start, ITERATIONS)[-1]
    assert adjusted_rand_score(nearest(rows, before), found.labels) == 1.0
    np.testing.assert_allclose(found.centres, after, rtol=0, atol=TOLERANCE)


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
