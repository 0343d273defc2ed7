"""Statistics of bytes that should be uniform."""

import numpy as np

from veilmeans.schemas.arrays import Array

LIMIT = 455.0
"""χ² with 255 degrees of freedom exceeds it with probability below 10^-12; fewer than 10^3 values are compared."""


def chi_square(values: Array) -> float:
    """The largest χ² of byte values over the eight bytes of a word."""
    counts = [np.bincount(column, minlength=256) for column in values.reshape(-1, 1).view(np.uint8).T]
    expected = values.size / 256
    return max(float(((count - expected) ** 2 / expected).sum()) for count in counts)
