"""Scores and outliers on shares against integers and sorting: layouts, parties, engines, ties, shards of one row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import (
    SMALL,
    Integers,
    horizontal,
    kmeans_for,
    parties_in_step,
    predict_and_score,
    run_kmeans,
    vertical,
)
from support.lloyd_checks import integer_scores
from support.outlier_checks import Flags, dropped_bits, squared_distances, top, trimmed_means
from support.parties import make_shares
from veilmeans.crypto import bits
from veilmeans.crypto import fixed_point as fixed
from veilmeans.schemas.arrays import Arrays, Real
from veilmeans.schemas.kmeans_config import CipherConfig, OutliersConfig, PredictConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.iteration import find_outliers
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.products.cross_product import shape_to_state
from veilmeans.transforms.statistics.outliers import Outliers, choose_digit_bits


def predicting(layout: Layout, k: int, count: int | None = None, **fields: Any) -> KMeansSteps:
    outliers = None if count is None else OutliersConfig(count=count)
    cipher = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)
    predict = PredictConfig(model="model")
    return kmeans_for(layout, k, inertia=False, outliers=outliers, cipher=cipher, predict=predict, **fields)


def search(kmeans: KMeansSteps, scores: Integers) -> Flags:
    """Run the search alone, on shares of any scores."""
    layout = kmeans.layout
    shares = make_shares(scores.astype(np.uint64), layout.parties, seed=3)
    with parties_in_step(kmeans, np.zeros((layout.total_rows, layout.total_features)), 1) as run:
        states: dict[int, list[Arrays]] = {}
        first = 0
        for row_shard in layout.row_shards():
            here = slice(first, first := first + row_shard.rows)
            shape = shape_to_state(row_shard.shape, row_shard.padding)
            states[row_shard.number] = [{"score": share[here], **shape} for share in shares]
        assert kmeans.outliers is not None
        found = find_outliers(kmeans.outliers, kmeans, run, states)
        packed = [np.bitwise_xor.reduce([state["outlier"] for state in found[shard]]) for shard in sorted(found)]
        sizes = [each.rows for each in layout.row_shards()]
        return np.concatenate([bits.unpack(*each) for each in zip(packed, sizes, strict=True)]).astype(bool)


@settings(max_examples=30, deadline=None)
@given(
    parties=st.sampled_from([2, 3]),
    n=st.sampled_from([2, 5, 65, 130]),
    link=st.sampled_from([1, 2, 3, 4]),
    ties=st.sampled_from([0, 8, 33, 42]),
    data=st.data(),
)
def test_the_largest_are_those_of_sorting(parties: int, n: int, link: int, ties: int, data: st.DataObject) -> None:
    """Of rows with the same score, in the bits that are searched, the first ones; the last shard has one row."""
    count = data.draw(st.integers(1, n - 1))
    seed = data.draw(st.integers(0, 1000))
    kmeans = predicting(vertical(n, (1,) * parties, max(1, n - 1)), 1, count)
    assert kmeans.outliers is not None
    kmeans = replace_digits(kmeans, link)
    drawn = np.random.default_rng(seed).integers(0, 1 << kmeans.outliers.score_bits, n)  # type: ignore[union-attr]
    scores = drawn >> ties << ties
    np.testing.assert_array_equal(search(kmeans, scores), top(scores, count, dropped_bits(kmeans.outliers)))


def replace_digits(kmeans: KMeansSteps, digit_bits: int) -> KMeansSteps:
    assert kmeans.outliers is not None
    return replace(kmeans, outliers=replace(kmeans.outliers, digit_bits=digit_bits))


@pytest.mark.parametrize("scores", [[0] * 7, [2**40] * 7, [0, 0, 0, 5 << 20, 0, 0, 0], list(range(7))])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_ties_go_to_the_rows_that_come_first(scores: list[int], count: int) -> None:
    kmeans = predicting(horizontal((3, 4), 2, 2), 1, count)
    found = search(kmeans, np.array(scores))
    assert found.sum() == count
    np.testing.assert_array_equal(found, top(np.array(scores), count, dropped_bits(kmeans.outliers)))


def drawn_rows(seed: int, n: int, d: int, k: int) -> tuple[Real, Real]:
    """Rows within the margin, some equal, and centroids, of which the last is like the first."""
    rng = np.random.default_rng([seed, n, d, k])
    rows, centroids = rng.uniform(-1, 2, (n, d)), rng.random((k, d))
    rows[n // 2 :] = rows[: n - n // 2]
    centroids[-1] = centroids[0]
    return rows, centroids


LAYOUTS = {
    "vertical": vertical(9, (2, 3), 8),
    "vertical, three parties": vertical(9, (1, 0, 2), 4),
    "horizontal": horizontal((5, 4), 3, 4),
    "horizontal, three parties": horizontal((4, 1, 3), 2, 3),
}


@pytest.mark.parametrize("products", ["beaver", "he"])
@pytest.mark.parametrize("k", [1, 2, 3, 9])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_scores_and_outliers_of_new_rows(layout: Layout, k: int, products: str) -> None:
    rows, centroids = drawn_rows(1, layout.total_rows, layout.total_features, k)
    kmeans = predicting(layout, k, 3, scores=True, products=products)
    labels, found = predict_and_score(kmeans, rows, centroids)
    squares = squared_distances(rows, centroids, labels)
    np.testing.assert_allclose(found["scores"], squares / 2**40, rtol=0, atol=2.0**-20)
    np.testing.assert_array_equal(found["outliers"], top(squares, 3, dropped_bits(kmeans.outliers)))


@settings(max_examples=6, deadline=None)
@given(
    vertically=st.booleans(),
    parties=st.sampled_from([2, 3]),
    n=st.integers(4, 40),
    k=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_scores_and_outliers_are_by_the_final_centroids(
    vertically: bool, parties: int, n: int, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    layout = (
        vertical(n, (2,) * parties, 16) if vertically else horizontal((n - parties + 1, *[1] * (parties - 1)), 3, 16)
    )
    rows = rng.random((n, layout.total_features))
    kmeans = kmeans_for(layout, k, scores=True, outliers=OutliersConfig(fraction=0.3))
    for iteration in run_kmeans(kmeans, rows, rows[rng.permutation(n)[:k]], 2):
        assert iteration.final_labels is not None
        assert iteration.scores is not None
        squares = squared_distances(rows, iteration.centroids, iteration.final_labels)
        np.testing.assert_allclose(iteration.scores, squares / 2**40, rtol=0, atol=2.0**-20)
        expected = top(squares, max(1, int(0.3 * n)), dropped_bits(kmeans.outliers))
        np.testing.assert_array_equal(iteration.outliers, expected)


def test_digits_are_longer_where_rounds_are_dear() -> None:
    asked = Outliers(10, 46, 17)
    lan, wan = (choose_digit_bits(asked, 10**5, 2, *link).digit_bits for link in ((125e6, 2e-4), (2.5e6, 0.04)))
    assert choose_digit_bits(asked, 10**7, 2, 125e6, 2e-4).digit_bits <= lan <= wan
    assert choose_digit_bits(asked, 10**3, 2, 2.5e6, 0.04).digit_bits == 4


@pytest.mark.parametrize("products", ["beaver", "he"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_outliers_do_not_move_centroids(layout: Layout, k: int, products: str) -> None:
    """k-means-- from the same start; one cluster is empty if there are several."""
    cipher = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)
    outliers = OutliersConfig(count=2, during_training=True)
    fields: dict[str, Any] = {"products": products, "cipher": cipher, "drop_bits": 0, "max_iter": 2}
    kmeans = kmeans_for(layout, k, inertia=False, outliers=outliers, **fields)
    rng = np.random.default_rng(k)
    rows = rng.random((layout.total_rows, layout.total_features)) / 4
    rows[:2] = 1.0
    start = np.vstack([rows[2 : 2 + max(1, k - 1)], np.ones((k - max(1, k - 1), layout.total_features))])
    before = fixed.decode(fixed.encode(start))
    for iteration in run_kmeans(kmeans, rows, start, 2):
        after, counts = trimmed_means(kmeans, rows, before, 2)
        np.testing.assert_array_equal(iteration.counts, counts)
        np.testing.assert_allclose(iteration.centroids, after, rtol=0, atol=2.0**-16)
        np.testing.assert_array_equal(iteration.labels, integer_scores(rows, before).argmin(axis=1))
        before = iteration.centroids


@settings(max_examples=8, deadline=None)
@given(vertically=st.booleans(), parties=st.sampled_from([2, 3]), n=st.integers(4, 70), k=st.integers(1, 4))
def test_k_means_without_outliers_is_that_of_integers(vertically: bool, parties: int, n: int, k: int) -> None:
    rng = np.random.default_rng([n, k, parties])
    layout = (
        vertical(n, (1,) * parties, 64) if vertically else horizontal((n - parties + 1, *[1] * (parties - 1)), 2, 64)
    )
    rows = rng.integers(0, 5, (n, layout.total_features)) / 4  # many ties
    outliers = OutliersConfig(count=min(3, n - 1), during_training=True)
    kmeans = kmeans_for(layout, k, inertia=False, outliers=outliers, drop_bits=0)
    before = rows[rng.permutation(n)[:k]]
    for iteration in run_kmeans(kmeans, rows, before, 2):
        after, counts = trimmed_means(kmeans, rows, before, min(3, n - 1))
        np.testing.assert_array_equal(iteration.counts, counts)
        np.testing.assert_allclose(iteration.centroids, after, rtol=0, atol=2.0**-16)
        before = iteration.centroids
