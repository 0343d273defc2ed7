"""The ring Z_2^64 in numpy: uint64 arrays whose arithmetic wraps, and additive shares of them (A-shares).

Shr: ⟨x⟩_j uniform for j ≠ i, ⟨x⟩_i = x − Σ_{j≠i} ⟨x⟩_j      Rec: x = Σ_j ⟨x⟩_j      (mod 2^64)
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPE = np.uint64
Ring = NDArray[np.uint64]


def encode(integers: NDArray[Any]) -> Ring:
    """Convert signed integers to ring elements (two's complement)."""
    return np.ascontiguousarray(integers, dtype=np.int64).view(DTYPE)


def decode(elements: Ring) -> NDArray[np.int64]:
    """Convert ring elements to signed integers in [−2^63, 2^63)."""
    return np.ascontiguousarray(elements).view(np.int64)


def total(shares: Iterable[Ring]) -> Ring:
    """Σ shares mod 2^64."""
    shares = iter(shares)
    result = next(shares).copy()
    for share in shares:
        result += share
    return result


def column_sums(matrix: Ring) -> Ring:
    """Σ over rows mod 2^64."""
    sums: Ring = np.sum(matrix, axis=0, dtype=DTYPE)
    return sums
