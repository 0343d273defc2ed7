"""Fixed point: a real number x as the ring element round(x·2^f), two's complement."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import ring

FRACTION_BITS = 20


def encode(values: NDArray[Any], fraction_bits: int = FRACTION_BITS) -> ring.Ring:
    """Convert real numbers to ring elements, rounded to the nearest; |x|·2^f must be below 2^62."""
    with np.errstate(over="ignore"):
        scaled = np.rint(np.ldexp(np.asarray(values, np.float64), fraction_bits))
    if not np.all(np.abs(scaled) < 2.0**62):
        raise ValueError(f"a value is not finite or too large for {fraction_bits} fractional bits")
    return ring.encode(scaled.astype(np.int64))


def decode(elements: ring.Ring, fraction_bits: int = FRACTION_BITS) -> NDArray[np.float64]:
    """Convert ring elements to real numbers."""
    return np.ldexp(ring.decode(elements).astype(np.float64), -fraction_bits)
