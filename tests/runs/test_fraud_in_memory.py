"""Real tables on shares: outliers, k-means--, k-means++ and several starts, as in the clear from the same start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from benchmarks.fraud import data_sets
from sklearn import datasets

from support.data_sets import SHARED, divided, normalised
from support.kmeans_in_memory import SMALL, kmeans_for, run_kmeans
from support.lloyd_checks import TOLERANCE
from support.outlier_checks import dropped_bits, squared_distances, top, trimmed_means
from support.seeding_in_memory import check_seeds_of_many_rows
from veilmeans.crypto import fixed_point as fixed
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import CipherConfig, InitConfig, OutliersConfig
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

K, ITERATIONS, FIRST = 5, 3, 7
START = [0, 20, 40, 60, 80]


@dataclass(frozen=True)
class RealTable:
    """The rows of a table that is there, and how their products are computed."""

    load: Callable[[], Real | None]
    products: str = "beaver"

    @property
    def rows(self) -> Real:
        table = self.load()
        if table is None:
            pytest.skip("it is not bundled, and ../shared/data does not have it")
        return normalised(table)

    def fields(self, **fields: Any) -> dict[str, Any]:
        cipher = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)
        return {"products": self.products, "cipher": cipher, "tol": 0, **fields}


def shared_rows(name: str) -> Real | None:
    """All columns of a table of `benchmarks.fraud`."""
    return next((np.hstack(list(each.parts.values())) for each in data_sets(SHARED) if each.name == name), None)


TABLES = {
    "breast_cancer": RealTable(lambda: datasets.load_breast_cancer().data),
    "wine, he": RealTable(lambda: datasets.load_wine().data[:90], "he"),
    **{name: RealTable(lambda name=name: shared_rows(name)) for name in ("satimage-2", "credit", "synthetic")},
}
every_table = pytest.mark.parametrize(
    "table",
    [
        pytest.param(each, id=name, marks=[pytest.mark.data] if name in ("satimage-2", "credit", "synthetic") else [])
        for name, each in TABLES.items()
    ],
)
both_layouts = pytest.mark.parametrize("kind", ["vertical", "horizontal"])


@every_table
@both_layouts
def test_outliers_and_scores_are_those_of_lloyd(table: RealTable, kind: str) -> None:
    """Two parties vertically, three horizontally; every row's score, and the same outliers as by sorting."""
    rows = table.rows
    count = len(rows) // 50
    found = {"outliers": OutliersConfig(count=count), "scores": True}
    kmeans = kmeans_for(divided(kind, *rows.shape), K, **table.fields(**found))
    last = run_kmeans(kmeans, rows, rows[START], ITERATIONS)[-1]
    centroids = lloyd(lambda: [rows], rows[START], ITERATIONS)[-1].centroids
    np.testing.assert_allclose(last.centroids, centroids, rtol=0, atol=TOLERANCE)
    plain = ((rows - centroids[nearest(rows, centroids)]) ** 2).sum(axis=1)
    np.testing.assert_allclose(last.scores, plain, rtol=0, atol=2.0**-14)
    assert last.final_labels is not None
    squares = squared_distances(rows, last.centroids, last.final_labels)
    np.testing.assert_array_equal(last.outliers, top(squares, count, dropped_bits(kmeans.outliers)))
    threshold = np.sort(plain)[-count]
    np.testing.assert_allclose(plain[last.outliers ^ (plain >= threshold)], threshold, rtol=0, atol=2.0**-14)


@every_table
@both_layouts
def test_k_means_without_outliers(table: RealTable, kind: str) -> None:
    rows = table.rows
    count = len(rows) // 50
    outliers = OutliersConfig(count=count, during_training=True)
    kmeans = kmeans_for(divided(kind, *rows.shape), K, inertia=False, **table.fields(outliers=outliers, drop_bits=0))
    before = fixed.decode(fixed.encode(rows[START]))
    for iteration in run_kmeans(kmeans, rows, rows[START], 2):
        after, counts = trimmed_means(kmeans, rows, before, count)
        np.testing.assert_array_equal(iteration.counts, counts)
        np.testing.assert_allclose(iteration.centroids, after, rtol=0, atol=TOLERANCE)
        before = iteration.centroids


@every_table
@both_layouts
def test_rows_of_k_means_plus_plus(table: RealTable, kind: str) -> None:
    rows = table.rows
    fields = table.fields(init=InitConfig(method="k-means++"))
    kmeans = kmeans_for(divided(kind, *rows.shape), K, **fields)
    assert len(set(check_seeds_of_many_rows(kmeans, rows, FIRST))) == K
