"""Statistics of columns, block by block: n, min, max, mean and Σ(x − mean)², and how many values are not 0.

Two blocks together (Chan): mean = m₁ + (m₂ − m₁)·n₂/n, squares = s₁ + s₂ + (m₂ − m₁)²·n₁·n₂/n.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Statistics of the values that there are, per column; `squares` sums the squared distances to the mean."""

    rows: NDArray[np.int64]
    low: Floats
    high: Floats
    mean: Floats
    squares: Floats
    nonzeros: NDArray[np.int64]

    @classmethod
    def of(cls, values: Floats) -> "Moments":
        """Of dense rows; what is not a number is not there."""
        absent = np.isnan(values)
        if absent.any():
            return cls._of_some(values, absent)
        mean = values.mean(axis=0)
        squares = np.square(values - mean).sum(axis=0)
        rows = np.full(len(mean), len(values))
        return cls(rows, values.min(axis=0), values.max(axis=0), mean, squares, np.count_nonzero(values, axis=0))

    @classmethod
    def _of_some(cls, values: Floats, absent: NDArray[np.bool_]) -> "Moments":
        rows = (~absent).sum(axis=0)
        low, high = np.where(absent, np.inf, values).min(axis=0), np.where(absent, -np.inf, values).max(axis=0)
        mean = np.where(absent, 0, values).sum(axis=0) / np.maximum(rows, 1)
        squares = np.where(absent, 0, np.square(values - mean)).sum(axis=0)
        return cls(rows, low, high, mean, squares, np.count_nonzero(~absent & (values != 0), axis=0))

    @classmethod
    def of_sparse(cls, rows: "scipy.sparse.csr_array") -> "Moments":
        """The same, where zeros are not stored; time is proportional to what is."""
        (n, d), at, x = rows.shape, rows.indices, rows.data
        zeros = n - np.bincount(at, minlength=d)
        mean = np.bincount(at, x, minlength=d) / n
        low, high = np.where(zeros, 0, np.inf), np.where(zeros, 0, -np.inf)
        np.minimum.at(low, at, x)
        np.maximum.at(high, at, x)
        squares = np.bincount(at, np.square(x - mean[at]), minlength=d) + zeros * np.square(mean)
        return cls(np.full(d, n), low, high, mean, squares, np.bincount(at[x != 0], minlength=d))

    def merge(self, other: "Moments") -> "Moments":
        rows = self.rows + other.rows
        share = other.rows / np.maximum(rows, 1)
        apart = other.mean - self.mean
        return Moments(
            rows,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.mean + apart * share,
            self.squares + other.squares + np.square(apart) * (self.rows * share),
            self.nonzeros + other.nonzeros,
        )

    def put(self, at: NDArray[np.intp], other: "Moments") -> None:
        """In the places `at`, those of another."""
        for name, values in vars(self).items():
            values[at] = getattr(other, name)

    def columns(self, chosen: slice) -> "Moments":
        """Those of some columns."""
        return Moments(
            self.rows[chosen],
            self.low[chosen],
            self.high[chosen],
            self.mean[chosen],
            self.squares[chosen],
            self.nonzeros[chosen],
        )

    def mean_and_deviation(self, rows: int) -> tuple[Floats, Floats]:
        """Of `rows` rows, where the mean stands for what is not there.

        Those of a constant column are exact, whatever was lost in rounding.
        """
        constant = self.low == self.high
        deviation = np.sqrt(self.squares / rows)
        return np.where(constant, self.low, self.mean), np.where(constant & np.isfinite(deviation), 0, deviation)
