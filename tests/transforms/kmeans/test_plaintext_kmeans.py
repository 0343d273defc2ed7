"""Lloyd in the clear against distances written out; rows in one block and in many; ties, empty clusters, few rows."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from veilmeans.schemas.arrays import Real
from veilmeans.transforms.kmeans.plaintext_kmeans import (
    RowBatches,
    lloyd,
    local_centroids,
    nearest,
    plaintext_iteration,
)

seeds = st.integers(0, 2**32)
sizes = st.integers(1, 40)


def in_blocks(rows: Real, cuts: Sequence[int] = ()) -> RowBatches:
    """The same rows, cut into blocks; some may be empty."""
    return lambda: np.split(rows, sorted(cut % (len(rows) + 1) for cut in cuts))


def by_hand(rows: Real, centroids: Real) -> tuple[Real, NDArray[np.intp], float]:
    """One iteration with the distances written out, row by row: centroids, positions, inertia."""
    squares = np.array([[((x - mu) ** 2).sum() for mu in centroids] for x in rows])
    labels = squares.argmin(axis=1)
    new = [rows[labels == j].mean(axis=0) if (labels == j).any() else centroids[j] for j in range(len(centroids))]
    return np.array(new), labels, float(squares.min(axis=1).sum())


def drawn(seed: int, n: int, d: int, k: int) -> tuple[Real, Real]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(k, d))


@given(seeds, sizes, st.integers(1, 6), st.integers(1, 7), st.lists(st.integers(0, 99), max_size=4))
def test_a_step_is_the_one_by_hand_however_the_rows_are_cut(seed: int, n: int, d: int, k: int, cuts: list[int]) -> None:
    rows, centroids = drawn(seed, n, d, k)
    new, labels, inertia = by_hand(rows, centroids)
    found = plaintext_iteration(in_blocks(rows, cuts), centroids)
    np.testing.assert_array_equal(nearest(rows, centroids), labels)
    np.testing.assert_array_equal(found.counts, np.bincount(labels, minlength=k))
    np.testing.assert_allclose(found.centroids, new, atol=1e-12)
    assert found.inertia == pytest.approx(inertia)
    assert found.movement == pytest.approx(((new - centroids) ** 2).sum())


@given(seeds, sizes, st.integers(1, 6), st.integers(1, 7), st.lists(st.integers(0, 99), max_size=4))
def test_sparse_rows_give_what_dense_ones_do(seed: int, n: int, d: int, k: int, cuts: list[int]) -> None:
    rows, centroids = drawn(seed, n, d, k)
    rows[np.random.default_rng(seed).random(rows.shape) < 0.7] = 0
    blocks = in_blocks(rows, cuts)
    sparse = lambda: map(csr_array, blocks())  # noqa: E731
    found, expected = plaintext_iteration(sparse, centroids), plaintext_iteration(blocks, centroids)
    np.testing.assert_array_equal(nearest(csr_array(rows), centroids), nearest(rows, centroids))
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_allclose(found.centroids, expected.centroids, atol=1e-12)
    assert found.inertia == pytest.approx(expected.inertia, abs=1e-9)
    np.testing.assert_array_equal(local_centroids(sparse, k, seed, 0), local_centroids(blocks, k, seed, 0))
    assert not nearest(csr_array(rows), np.repeat(centroids[:1], k, axis=0)).any()


@given(seeds, sizes, sizes, st.integers(1, 20))
def test_of_equal_centroids_the_lower_one_wins(seed: int, n: int, d: int, k: int) -> None:
    rows, centroids = drawn(seed, n, d, 1)
    assert not nearest(rows, np.repeat(centroids, k, axis=0)).any()


def test_half_way_between_two_centroids_the_lower_one_wins() -> None:
    rows, centroids = np.array([[0.0, 1.0], [2.0, 1.0], [1.0, 1.0]]), np.array([[0.0, 1.0], [2.0, 1.0]])
    np.testing.assert_array_equal(nearest(rows, centroids), [0, 1, 0])
    np.testing.assert_array_equal(nearest(rows, centroids[::-1]), [1, 0, 0])


def test_an_empty_cluster_keeps_its_centroid() -> None:
    rows, centroids = np.array([[0.0], [1.0], [0.0]]), np.array([[0.0], [50.0], [1.0], [1.0]])
    found = plaintext_iteration(in_blocks(rows), centroids)
    np.testing.assert_array_equal(found.centroids, centroids)
    np.testing.assert_array_equal(found.counts, [2, 0, 1, 0])
    assert (found.inertia, found.movement) == (0.0, 0.0)


def test_one_cluster_is_the_mean() -> None:
    rows, centroids = drawn(1, 30, 3, 1)
    (found,) = lloyd(in_blocks(rows, [7, 7, 20]), centroids, 1)
    np.testing.assert_allclose(found.centroids[0], rows.mean(axis=0))


@given(seeds, st.integers(5, 40), st.integers(1, 5))
def test_iterations_follow_each_other_and_inertia_does_not_grow(seed: int, n: int, k: int) -> None:
    rows, centroids = drawn(seed, n, 2, k)
    found = lloyd(in_blocks(rows, [3]), centroids, 6)
    assert len(found) == 6
    for each in found:
        centroids, _, inertia = by_hand(rows, centroids)
        np.testing.assert_allclose(each.centroids, centroids, atol=1e-9)
        assert each.inertia == pytest.approx(inertia)
    assert all(after.inertia <= before.inertia * (1 + 1e-12) for before, after in pairwise(found))


def test_it_stops_after_the_first_iteration_that_moves_less_than_the_tolerance() -> None:
    rows, centroids = drawn(3, 200, 2, 5)
    moved = [each.movement for each in lloyd(in_blocks(rows), centroids, 30)]
    tol = moved[4] * 1.001
    stopped = lloyd(in_blocks(rows), centroids, 30, tol)
    assert len(stopped) == 1 + next(i for i, each in enumerate(moved) if each < tol)
    assert [each.movement for each in stopped] == moved[: len(stopped)]
    assert len(lloyd(in_blocks(rows), centroids, 30, moved[0])) > 1
    assert len(lloyd(in_blocks(rows), rows[:1], 30)) == 30
    assert lloyd(in_blocks(rows), centroids, 0) == []


@given(seeds, sizes, st.integers(1, 7), st.lists(st.integers(0, 99), max_size=4))
def test_a_local_start_is_lloyd_from_rows_and_the_seed_decides_which(
    seed: int, n: int, k: int, cuts: list[int]
) -> None:
    rows, _ = drawn(seed, n, 3, 1)
    blocks = in_blocks(rows, cuts)
    begin = local_centroids(blocks, k, seed, iterations=0)
    distinct = {tuple(each) for each in begin}
    assert distinct <= {tuple(each) for each in rows}
    assert len(distinct) == min(n, k)
    np.testing.assert_array_equal(begin, local_centroids(in_blocks(rows), k, seed, iterations=0))
    np.testing.assert_array_equal(local_centroids(blocks, k, seed), lloyd(blocks, begin, 10)[-1].centroids)


def test_another_seed_draws_other_rows_and_columns_of_the_same_rows_draw_together() -> None:
    rows, _ = drawn(0, 500, 4, 1)
    left, right = (local_centroids(in_blocks(part), 5, 9, 0) for part in (rows[:, :1], rows[:, 1:]))
    np.testing.assert_array_equal(np.hstack([left, right]), local_centroids(in_blocks(rows), 5, 9, 0))
    assert not np.array_equal(local_centroids(in_blocks(rows), 5, 9), local_centroids(in_blocks(rows), 5, 10))


@pytest.mark.parametrize("k", [1, 4])
def test_one_row_and_equal_rows(k: int) -> None:
    for n in (1, 3):
        found = local_centroids(in_blocks(np.full((n, 2), 7.5)), k, 0)
        np.testing.assert_array_equal(found, np.full((k, 2), 7.5))
