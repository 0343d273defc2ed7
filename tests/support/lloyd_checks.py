"""K-means on shares against plaintext Lloyd: assignments, centroids and inertia of every iteration."""

from math import ceil, log2

import numpy as np

from support.kmeans_in_memory import Integers, Iteration, Labels, run_kmeans
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Real
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest, plaintext_iteration
from veilmeans.transforms.kmeans.steps import KMeansSteps

TOLERANCE = 2.0**-16
"""The largest distance of a centroid from float64 Lloyd's, in every coordinate."""
_HALF = 2.0**-21
"""The largest error when a number is rounded to 20 fractional bits."""


def check_against_lloyd(kmeans: KMeansSteps, rows: Real, start: Real, iterations: int) -> list[Iteration]:
    """Run K-means, and compare every iteration with float64 Lloyd from the same start on the same, unrounded rows.

    1. On the parties' own fixed-point numbers assignments are exact, but for near-ties: the chosen centroid is
       farther than the nearest by less than k·M·2^(drop−40), all pairs, or ⌈log2 k⌉·2M·2^(drop−40), tree.
    2. Rows that Lloyd puts elsewhere are near-ties for Lloyd, too, but for what rounding adds. Lloyd then continues
       with these rows where the parties have put them.
    3. Centroids are within 2^-16 of Lloyd's.
    """
    result = run_kmeans(kmeans, rows, start, iterations)
    before, secure = np.asarray(start, np.float64), fixed.decode(fixed.encode(start))
    for iteration in result:
        assert_near_ties_only(kmeans, rows, secure, iteration.labels)
        after = lloyd_with(kmeans, rows, before, secure, iteration)
        np.testing.assert_allclose(iteration.centroids, after, rtol=0, atol=TOLERANCE)
        if iteration.final_labels is not None:
            assert_near_ties_only(kmeans.last, rows, iteration.centroids, iteration.final_labels)
        np.testing.assert_array_equal(iteration.counts, np.bincount(iteration.labels, minlength=kmeans.k))
        assert_inertia(rows, after, iteration)
        before, secure = after, iteration.centroids
    return result


def near_tie(kmeans: KMeansSteps) -> int:
    """The bound on how much farther than the nearest a chosen centroid is, with 40 fractional bits; 1: not at all."""
    lost = kmeans.layout.parties * 2**kmeans.assignment.drop
    times = kmeans.k if kmeans.assignment.method == "pairs" else 2 * ceil(log2(kmeans.k))
    return 1 + times * lost if kmeans.assignment.drop else 1


def assert_near_ties_only(kmeans: KMeansSteps, rows: Real, secure: Real, labels: Labels) -> None:
    """Compare assignments with integers, without any rounding; ties go to the lower index."""
    scores = integer_scores(rows, secure)
    excess = scores[np.arange(len(rows)), labels] - scores.min(axis=1)
    assert excess.max() < near_tie(kmeans)
    if kmeans.assignment.drop == 0:
        np.testing.assert_array_equal(labels, scores.argmin(axis=1))


def integer_scores(rows: Real, centroids: Real) -> Integers:
    """|μ|² − 2·x·μ of the rounded rows, n × k, exactly."""
    x, mu = (ring.decode(fixed.encode(values)) for values in (rows, centroids))
    scores: Integers = (mu**2).sum(axis=1) - 2 * np.einsum("nd,kd->nk", x, mu)
    return scores


def lloyd_with(kmeans: KMeansSteps, rows: Real, before: Real, secure: Real, iteration: Iteration) -> Real:
    """Lloyd's next centroids, with near-ties assigned as by the parties."""
    (moved,) = np.nonzero(nearest(rows, before) != iteration.labels)
    if not len(moved):
        return plaintext_iteration(lambda: [rows], before).centroids
    squares = ((rows[moved, None, :] - before) ** 2).sum(axis=2)
    excess = squares[np.arange(len(moved)), iteration.labels[moved]] - squares.min(axis=1)
    error = float(np.abs(secure - before).max())
    assert (excess < near_tie(kmeans) * 2.0**-40 + rounding(squares.max(axis=1), rows.shape[1], error)).all()
    means = [rows[iteration.labels == j].mean(axis=0) if n else before[j] for j, n in enumerate(iteration.counts)]
    return np.array(means)


def rounding(squares: Real, columns: int, error: float) -> Real:
    """The change of a difference of two squared distances if each coordinate of x − μ is off by e.

    e is 2^-21 for x and `error` for μ; (a + e)² − a² = 2ae + e², Σ|a| ≤ √(d·Σa²), and there are two distances.
    """
    e = _HALF + error
    return 2 * (2 * e * np.sqrt(columns * squares) + columns * e**2)


def assert_inertia(rows: Real, after: Real, iteration: Iteration) -> None:
    """Check Σ|x − μ'|² to the rows' own centroids.

    Each of Σ|x|² and n·|μ'|² is off by 2·|x|·e + e² in every coordinate.
    """
    if iteration.inertia is None:
        return
    inertia = float(((rows - after[iteration.labels]) ** 2).sum())
    e = _HALF + float(np.abs(iteration.centroids - after).max())
    largest = max(np.abs(rows).max(), np.abs(after).max())
    off = rows.size * 2 * (2 * largest * e + e**2) + (len(rows) + 4) * _HALF
    assert abs(iteration.inertia - inertia) <= off
