"""The steps of a prediction, in memory: over all layouts, parties and engines, rows get the nearest centroid."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import SMALL, horizontal, kmeans_for, run_kmeans, run_prediction, vertical
from support.lloyd_checks import assert_near_ties_only, integer_scores
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import CipherConfig, PredictConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.openings.reveal_policy import RevealPolicy


def prediction_steps(layout: Layout, k: int, margin: float = 1.0, **fields: Any) -> KMeansSteps:
    cipher = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)
    predict = PredictConfig(model="model", margin=margin)
    return kmeans_for(layout, k, inertia=False, cipher=cipher, predict=predict, **fields)


def drawn(seed: int, n: int, d: int, k: int, margin: float) -> tuple[Real, Real]:
    """New rows up to the margin beyond the range, some at its corners; centroids within it, two of them equal."""
    rng = np.random.default_rng([seed, n, d, k])
    centroids = rng.random((k, d))
    centroids[-1] = centroids[0]
    if k > 2:
        centroids[1] = rng.integers(0, 2, d)
    rows = rng.uniform(-margin, 1 + margin, (n, d))
    corners = rng.random(n) < 0.3
    rows[corners] = rng.choice([-margin, 1 + margin], (corners.sum(), d))
    return rows, centroids


def uneven_layout(vertically: bool, parties: int, n: int, d: int) -> Layout:
    """Parties of unequal size, some without rows or columns; the last shard has one row."""
    if vertically:
        return vertical(n, (1, *(0,) * (parties - 2), d - 1), max(1, n - 1))
    return horizontal((n - n // 2, *(0,) * (parties - 2), n // 2), d, max(1, n - n // 2 - 1))


@settings(max_examples=15, deadline=None)
@given(
    vertically=st.booleans(),
    parties=st.sampled_from([2, 3]),
    n=st.sampled_from([1, 2, 9]),
    d=st.sampled_from([2, 5, 40]),
    k=st.sampled_from([1, 2, 3, 5]),
    margin=st.sampled_from([0.0, 1.0, 7.5]),
    seed=st.integers(0, 1000),
)
def test_rows_get_the_nearest_centroid(
    vertically: bool, parties: int, n: int, d: int, k: int, margin: float, seed: int
) -> None:
    """With no bit dropped: exactly, and ties go to the lower index. Else: but for near-ties."""
    rows, centroids = drawn(seed, n, d, k, margin)
    layout = uneven_layout(vertically, parties, n, d)
    exact = run_prediction(prediction_steps(layout, k, margin), rows, centroids)
    np.testing.assert_array_equal(exact, integer_scores(rows, centroids).argmin(axis=1))
    narrow = prediction_steps(layout, k, margin, drop_bits=16)
    assert_near_ties_only(narrow, rows, centroids, run_prediction(narrow, rows, centroids))


@pytest.mark.parametrize(("vertically", "parties", "n", "k"), [(True, 2, 5, 3), (False, 3, 4, 2), (True, 3, 1, 1)])
def test_rows_get_the_nearest_centroid_under_encryption(vertically: bool, parties: int, n: int, k: int) -> None:
    rows, centroids = drawn(1, n, 5, k, 1.0)
    kmeans = prediction_steps(uneven_layout(vertically, parties, n, 5), k, products="he", drop_bits=0)
    assert not kmeans.engines.masked
    labels = run_prediction(kmeans, rows, centroids)
    np.testing.assert_array_equal(labels, integer_scores(rows, centroids).argmin(axis=1))


@settings(max_examples=60, deadline=None)
@given(d=st.integers(1, 300), margin=st.floats(0, 50), seed=st.integers(0, 99))
def test_comparisons_have_room_for_the_farthest_row(d: int, margin: float, seed: int) -> None:
    """Two distances of a row differ by less than half the range of the comparison, centroids at either end of it."""
    tree = prediction_steps(horizontal((1, 0), d, 1), 2, margin).assignment
    ends = np.random.default_rng(seed).integers(0, 2, d)
    farthest = np.where(ends, 1 + margin, -margin)
    centroids = np.array([ends, 1 - ends], np.float64)
    scores = integer_scores(farthest[None], centroids)[0]
    assert abs(int(scores[1] - scores[0])) + 1 < 2 ** (tree.compare_bits - 1)


@pytest.mark.parametrize("products", ["beaver", "he"])
def test_a_prediction_runs_half_an_iteration(products: str) -> None:
    layout = vertical(9, (2, 3), 4)
    kmeans, training = prediction_steps(layout, 3, products=products), kmeans_for(layout, 3, products=products)
    first = "operand" if products == "beaver" else "encrypt"
    policy = RevealPolicy(layout, assignments=frozenset({0}))
    assert [step.name for step in trace_job(kmeans, policy=policy).steps] == [
        first,
        "distance",
        "norms",
        "assign",
        "reveal-assignments",
    ]
    assert trace_job(kmeans).digest() != trace_job(training).digest()
    assert kmeans != training


def check_trained_rows(layout: Layout, n: int, k: int, products: str) -> None:
    """Train, and predict the same rows: symmetric ones, some of them hardly nearer to one centroid than to another."""
    rng = np.random.default_rng([n, k])
    rows = 0.5 + rng.integers(-2, 3, (n, 3)) * 2.0**-20
    rows[: n // 3], rows[n // 3 : 2 * (n // 3)] = (half := rng.random((n // 3, 3))), 1 - half
    cipher = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)
    training = kmeans_for(layout, k, products=products, cipher=cipher)
    last = run_kmeans(training, rows, rows[:k], 2)[-1]
    prediction = prediction_steps(layout, k, products=products)
    assert training.last.assignment.drop == prediction.assignment.drop == 0
    np.testing.assert_array_equal(run_prediction(prediction, rows, last.centroids), last.final_labels)
    np.testing.assert_array_equal(last.final_labels, integer_scores(rows, last.centroids).argmin(axis=1))


@settings(max_examples=6, deadline=None)
@given(vertically=st.booleans(), parties=st.sampled_from([2, 3]), n=st.integers(6, 40), k=st.integers(1, 5))
def test_a_prediction_of_the_trained_rows_finds_their_clusters(vertically: bool, parties: int, n: int, k: int) -> None:
    layout = (
        vertical(n, (1, *(1,) * (parties - 2), 4 - parties), n - 1)
        if vertically
        else horizontal((n - parties + 1, *(1,) * (parties - 1)), 3, 16)
    )
    check_trained_rows(layout, n, k, "beaver")


@pytest.mark.parametrize("layout", [vertical(9, (1, 2), 5), horizontal((5, 4), 3, 4)], ids=["vertical", "horizontal"])
def test_a_prediction_of_rows_trained_under_encryption_finds_their_clusters(layout: Layout) -> None:
    check_trained_rows(layout, 9, 3, "he")
