"""Several starts in one run: each is Lloyd's algorithm from its own start, and the one of the least inertia is left."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from support.kmeans_in_memory import (
    FIRST_CHECKPOINT,
    horizontal,
    kmeans_for,
    labels_of,
    of_party,
    parties_in_step,
    run_kmeans,
    vertical,
)
from support.lloyd_checks import TOLERANCE
from support.parties import make_shares
from support.row_results import row_results
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Array, Real
from veilmeans.schemas.kmeans_config import OutliersConfig, ProductEnginesConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.iteration import (
    choose_start,
    follow_last,
    iterate,
    mask_operands,
    write_first_centroids,
)
from veilmeans.transforms.kmeans.party_state import by_columns, checkpoints_of, read_centroids
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.executor import Load

ITERATIONS = 3
NEAR = 1e-3
"""Inertias that differ by less are rounded to either order; starts may end in the same clusters."""
MIXED = {"payco": ProductEnginesConfig(distance="he", update="beaver"), "shop": "he"}
LAYOUTS = {
    "vertical": vertical(70, (2, 3), 40),
    "horizontal": horizontal((20, 50), 5, 33),
    "vertical, three parties": vertical(70, (1, 2, 2), 100),
    "horizontal, three parties": horizontal((64, 1, 5), 5, 64),
    "vertical, for more rows": replace(vertical(70, (2, 3), 40), capacity=(150, 150)),
    "horizontal, for more rows": replace(horizontal((20, 50), 5, 33), capacity=(34, 70)),
}


def rows_in_clusters(n: int) -> Real:
    rng = np.random.default_rng(2)
    return rng.random((4, 5))[rng.integers(0, 4, n)] * 0.7 + rng.random((n, 5)) * 0.3


def train(kmeans: KMeansSteps, rows: Real, starts: list[Real]) -> tuple[list[Real], Real, Array, float, dict[str, Any]]:
    """The centroids of all starts after the last iteration; the chosen centroids, the rows' clusters, the inertia.

    Last, the rows' scores and which are outliers, where the job finds them.
    """
    shares = make_shares(fixed.encode(np.concatenate(starts)), kmeans.layout.parties, seed=1)
    columns = [by_columns(kmeans, "mu", share) for share in shares]
    with parties_in_step(kmeans, rows, ITERATIONS) as run:
        if kmeans.operand is not None:
            mask_operands(kmeans.operand, run)
        write_first_centroids(Load(partial(of_party, columns), lambda *_: ()), FIRST_CHECKPOINT, run)
        for number in range(ITERATIONS):
            iterate(kmeans, number == 0, replace(run, table=run.table.at(number)))
        stores = [checkpoints_of(context) for context in run.table.contexts]
        jobs = list(zip(run.jobs, stores, strict=True))
        everything = ring.total([read_centroids(job, store, f"centroids/{ITERATIONS}") for job, store in jobs])
        choose_start(kmeans, replace(run, table=run.table.after_last(ITERATIONS), totals={}))
        last = [replace(job, steps=kmeans.last) for job in run.jobs]
        follow_last(kmeans.last, replace(run, jobs=last, table=run.table.after_last(ITERATIONS), totals={}))
        chosen = ring.total([read_centroids(job, store, "chosen") for job, store in jobs])
        inertia = ring.total([store.read(ITERATIONS)["inertia"] for store in stores])
        labels = labels_of(kmeans.layout, stores, ITERATIONS + 1)
        of_rows = row_results(kmeans.last, stores, ITERATIONS + 1)
    return (
        np.split(fixed.decode(everything), len(starts)),
        fixed.decode(chosen),
        labels,
        float(fixed.decode(inertia)[0]),
        of_rows,
    )


def check_starts(kmeans: KMeansSteps, rows: Real, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    starts = [rows[rng.choice(len(rows), kmeans.k, replace=False)] for _ in range(kmeans.starts)]
    found, chosen, labels, inertia, of_rows = train(kmeans, rows, starts)
    inertias = []
    for start, centroids in zip(starts, found, strict=True):
        before, after = lloyd(lambda: [rows], start, ITERATIONS)[-2:]
        np.testing.assert_allclose(centroids, after.centroids, rtol=0, atol=TOLERANCE)
        inertias.append(((rows - after.centroids[nearest(rows, before.centroids)]) ** 2).sum())
    best = [each for each, inertia_ in zip(found, inertias, strict=True) if inertia_ < min(inertias) + NEAR]
    assert any(np.array_equal(chosen, each) for each in best)
    assert len(best) < kmeans.starts or kmeans.k == 1
    np.testing.assert_array_equal(labels, nearest(rows, chosen))
    assert inertia == pytest.approx(min(inertias), abs=2 * NEAR)
    if kmeans.outliers is not None:
        squares = ((rows - chosen[labels]) ** 2).sum(axis=1)
        np.testing.assert_allclose(of_rows["scores"], squares, rtol=0, atol=1e-5)
        assert set(np.flatnonzero(of_rows["outliers"])) == set(np.argsort(squares)[-kmeans.outliers.count :])


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("k", "starts", "columns"), [(3, 4, 100), (2, 3, 2)])
def test_the_best_of_several_starts_is_left(name: str, k: int, starts: int, columns: int) -> None:
    kmeans = kmeans_for(LAYOUTS[name], k, products="beaver", starts=starts, tol=0)
    check_starts(replace(kmeans, columns_per_shard=columns), rows_in_clusters(70))


def test_one_cluster_has_starts_too() -> None:
    check_starts(kmeans_for(LAYOUTS["vertical"], 1, starts=2, tol=0), rows_in_clusters(70))


def test_more_starts_than_all_pairs_can_compare() -> None:
    check_starts(kmeans_for(LAYOUTS["horizontal"], 2, starts=9, tol=0), rows_in_clusters(70))


@pytest.mark.parametrize("products", ["he", MIXED], ids=["he", "mixed"])
@pytest.mark.parametrize(
    "layout", [vertical(20, (2, 3), 11), horizontal((9, 11), 5, 11)], ids=["vertical", "horizontal"]
)
def test_products_by_he(layout: Layout, products: Any) -> None:
    rows = np.where(np.random.default_rng(1).random((20, 5)) < 0.4, 0, rows_in_clusters(20))
    kmeans = kmeans_for(layout, 3, products=products, starts=2, tol=0)
    check_starts(replace(kmeans, columns_per_shard=2), rows)


@pytest.mark.parametrize(("name", "products"), [("vertical", "he"), ("horizontal, three parties", "beaver")])
def test_scores_and_outliers_are_by_the_best_start(name: str, products: str) -> None:
    found = {"scores": True, "outliers": OutliersConfig(count=5)}
    check_starts(kmeans_for(LAYOUTS[name], 2, products=products, starts=3, tol=0, **found), rows_in_clusters(70))


def test_a_tolerance_is_of_all_starts_together() -> None:
    """The stop bit of one start that has converged and one that has not is that of the sum of their movements."""
    rows = rows_in_clusters(70)
    converged = lloyd(lambda: [rows], rows[:2], 30)[-1].centroids
    other = rows[[5, 50]]
    moved = [((lloyd(lambda: [rows], start, 1)[-1].centroids - start) ** 2).sum() for start in (converged, other)]
    assert moved[0] < 1e-9 < moved[1]
    for tol, stops in ((moved[1] * 1.01, True), (moved[1] * 0.99, False)):
        kmeans = kmeans_for(LAYOUTS["vertical"], 2, starts=2, tol=tol, inertia=False)
        kmeans = replace(kmeans, final_assignment=False)
        found = run_kmeans(kmeans, rows, np.concatenate([converged, other]), 1)
        assert found[0].stop == stops
