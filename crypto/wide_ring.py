"""Integers mod 2^320, for exact sums: words of 64 bits, the lowest first, along the first axis of an array."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import ring

WORDS = 5
"""Words of one integer."""


def add(x: ring.Ring, y: ring.Ring) -> ring.Ring:
    """x + y, with carries from word to word."""
    result = x + y
    carry = result < x
    for word in range(1, WORDS):
        result[word] += carry[word - 1]
        carry[word] |= result[word] < carry[word - 1]
    return result


def subtract(x: ring.Ring, y: ring.Ring) -> ring.Ring:
    """x − y = ¬(¬x + y)."""
    return ~add(~x, y)


def to_words(integers: NDArray[Any]) -> ring.Ring:
    """Convert Python integers to words, in two's complement."""
    data = b"".join(int(each).to_bytes(8 * WORDS, "little", signed=True) for each in integers.flat)
    words = np.frombuffer(data, "<u8").reshape(*integers.shape, WORDS)
    return np.ascontiguousarray(np.moveaxis(words, -1, 0), ring.DTYPE)


def to_integers(words: ring.Ring) -> NDArray[Any]:
    """Convert words to signed Python integers: the inverse of `to_words`."""
    rows = np.moveaxis(words, 0, -1).reshape(-1, WORDS).astype("<u8")
    integers = [int.from_bytes(row.tobytes(), "little", signed=True) for row in rows]
    return np.array(integers, object).reshape(words.shape[1:])
