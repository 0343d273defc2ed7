"""Jobs that several systems run on the same rows from the same initial centroids, and float64 Lloyd's answers."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.figures import Figure
from benchmarks.kmeans_runs import Shape
from veilmeans.schemas.arrays import Real
from veilmeans.transforms.kmeans.plaintext_kmeans import plaintext_iteration

_SPREAD = 0.06
OUR_TOLERANCE = 2.0**-16
SPU_TOLERANCE = 2.0**-10
"""The largest deviation of a centroid's coordinate from Lloyd's. SPU's words have 18 fractional bits, and its quotients
are approximations of fewer correct ones; a row nearly between two centroids moves one of n ÷ k rows besides."""


@dataclass(frozen=True)
class PeerJob:
    """n rows × d columns around k centroids, all values in [0, 1], so that nothing has to be normalised."""

    rows: int
    features: int
    clusters: int
    iterations: int

    @property
    def name(self) -> str:
        return f"n={self.rows:,} d={self.features} k={self.clusters} t={self.iterations}"

    @property
    def shape(self) -> Shape:
        return Shape(self.rows, self.features, self.clusters, self.iterations)

    @cached_property
    def data(self) -> Real:
        """The rows, which single precision holds exactly; a run starts with the first k as centroids."""
        rng = np.random.default_rng(7)
        centroids = rng.uniform(0, 1, (self.clusters, self.features))
        noise = rng.normal(0, _SPREAD, (self.rows, self.features))
        rows = np.clip(centroids[rng.integers(0, self.clusters, self.rows)] + noise, 0, 1)
        return rows.astype(np.float32).astype(np.float64)

    @cached_property
    def lloyd(self) -> Real:
        """The centroids after all iterations in the clear, in float64."""
        centroids = self.data[: self.clusters]
        for _ in range(self.iterations):
            centroids = plaintext_iteration(lambda: [self.data], centroids).centroids
        return centroids

    def deviation(self, centroids: Real) -> float:
        """The largest difference of a coordinate from Lloyd's."""
        return float(np.abs(centroids - self.lloyd).max())


def deviation_figure(name: str, deviation: float, tolerance: float) -> Figure:
    """The deviation from Lloyd, in millionths."""
    return Figure.at_most(f"{name}: deviation from Lloyd", deviation * 1e6, "millionths", tolerance * 1e6)
