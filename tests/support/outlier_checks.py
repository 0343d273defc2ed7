"""Scores, outliers and k-means-- in the clear, from the parties' own fixed-point numbers."""

import numpy as np
from numpy.typing import NDArray

from support.kmeans_in_memory import Integers, Labels
from support.lloyd_checks import integer_scores
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Real
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.statistics.outliers import Outliers

Flags = NDArray[np.bool_]


def top(scores: Integers, count: int, dropped: int) -> Flags:
    """The rows with the largest values of the bits that are searched; of equal ones those that come first."""
    chosen = np.zeros(len(scores), bool)
    chosen[np.argsort(-(scores >> dropped), kind="stable")[:count]] = True
    return chosen


def dropped_bits(outliers: Outliers | None) -> int:
    assert outliers is not None
    return outliers.score_bits - outliers.search.width


def squared_distances(rows: Real, centroids: Real, labels: Labels) -> Integers:
    """|x − μ|² to the rows' own centroids, exactly, with 40 fractional bits."""
    x, mu = (ring.decode(fixed.encode(values)) for values in (rows, centroids))
    squares: Integers = ((x - mu[labels]) ** 2).sum(axis=1)
    return squares


def trimmed_means(kmeans: KMeansSteps, rows: Real, before: Real, count: int) -> tuple[Real, Integers]:
    """One iteration of k-means--, from the parties' own fixed-point numbers: centroids and counts without outliers."""
    labels = integer_scores(rows, before).argmin(axis=1)
    squares = squared_distances(rows, before, labels)
    inlier = ~top(squares, count, dropped_bits(kmeans.outliers))
    counts = np.bincount(labels[inlier], minlength=kmeans.k)
    means = [rows[inlier & (labels == j)].mean(axis=0) if n else before[j] for j, n in enumerate(counts)]
    return np.array(means), counts
