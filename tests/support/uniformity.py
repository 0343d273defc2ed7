"""A statistic of bytes that should be uniform."""

import numpy as np

from veilmeans.schemas.arrays import Array

LIMIT = 455.0
"""χ² with 255 degrees of freedom exceeds this with probability below 10^-12; fewer than 10^6 values are compared."""


def chi_square(values: Array) -> float:
    """Compute the largest χ² of byte values over the bytes of a word."""
    counts = [np.bincount(column, minlength=256) for column in values.reshape(-1, 1).view(np.uint8).T]
    expected = values.size / 256
    return max(float(((count - expected) ** 2 / expected).sum()) for count in counts)
