"""k-means++ on shares against k-means++ in the clear with the same random numbers: the same rows are chosen."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from support.seeding_in_memory import check_seeds, run_seeding
from veilmeans.crypto import fixed_point as fixed
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import InitConfig, NormaliseConfig, ProductEnginesConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.steps import KMeansSteps

LAYOUTS = {
    "vertical": vertical(50, (2, 3), 20),
    "vertical, three parties": vertical(50, (2, 1, 2), 33),
    "horizontal": horizontal((20, 30), 5, 13),
    "horizontal, three parties": horizontal((20, 1, 29), 5, 50),
    "one shard": vertical(50, (4, 1), 100),
}
MIXED = {"payco": ProductEnginesConfig(distance="he", update="beaver"), "shop": "he"}
NORMALISED = {"minmax": (0.0, 1.0), "zscore": (-16.0, 16.0), "none": (-300.0, 300.0)}


def seeding_for(layout: Layout, k: int, normalise: NormaliseConfig | None = None, **fields: Any) -> KMeansSteps:
    return kmeans_for(layout, k, normalise, init=InitConfig(method="k-means++"), **fields)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("columns", [2, 100])
def test_rows_are_those_that_kmeans_plus_plus_chooses(name: str, columns: int) -> None:
    rows = np.random.default_rng(3).random((50, 5))
    kmeans = replace(seeding_for(LAYOUTS[name], 4, products="beaver"), columns_per_shard=columns)
    assert len(set(check_seeds(kmeans, rows))) == 4


@pytest.mark.parametrize("products", ["he", MIXED], ids=["he", "mixed"])
@pytest.mark.parametrize(
    "layout", [vertical(20, (2, 3), 11), horizontal((9, 11), 5, 11)], ids=["vertical", "horizontal"]
)
def test_products_by_he_choose_the_same_rows(layout: Layout, products: Any) -> None:
    rows = np.random.default_rng(4).random((20, 5)) * (np.random.default_rng(5).random((20, 5)) < 0.5)
    kmeans = replace(seeding_for(layout, 3, products=products), columns_per_shard=2)
    assert len(set(check_seeds(kmeans, rows))) == 3


@pytest.mark.parametrize("method", NORMALISED)
def test_values_at_the_ends_of_their_interval(method: str) -> None:
    low, high = NORMALISED[method]
    normalise = NormaliseConfig(method=method, bound=None if method != "none" else high)
    rows = np.random.default_rng(6).choice([low, high], (50, 5))
    rows[20:] = np.random.default_rng(7).uniform(low, high, (30, 5))
    assert len(set(check_seeds(seeding_for(LAYOUTS["vertical"], 5, normalise, tol=0), rows))) == 5


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6), st.sampled_from(list(LAYOUTS)), st.floats(1e-4, 1), st.integers(1, 50))
def test_of_few_distinct_rows_each_is_chosen_before_one_is_chosen_twice(
    seed: int, k: int, name: str, width: float, distinct: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.random((distinct, 5))[rng.integers(0, distinct, 50)] * width
    kmeans = seeding_for(LAYOUTS[name], k)
    check_seeds(kmeans, rows)
    centroids, _ = run_seeding(kmeans, fixed.decode(fixed.encode(rows)), 7)
    different = len(np.unique(fixed.encode(rows), axis=0))
    if width > 0.1:  # squared distances that are not tiny: their weights are not 0
        assert len(np.unique(centroids, axis=0)) == min(k, different)


def test_bounds_that_leave_no_room_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"kmeans\.init\.method is k-means"):
        seeding_for(LAYOUTS["vertical"], 3, NormaliseConfig(method="none", bound=400.0), tol=0)
