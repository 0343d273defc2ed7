"""Integers mod 2^320 against Python's integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.crypto import wide_ring as wide
from veilmeans.crypto.wide_ring import WORDS

MODULUS = 2 ** (64 * WORDS)
EDGES = [edge for word in range(WORDS) for edge in (2 ** (64 * word) - 1, -(2 ** (64 * word)))]
numbers = st.sampled_from([*EDGES, MODULUS // 2 - 1, -MODULUS // 2]) | st.integers(-MODULUS // 2, MODULUS // 2 - 1)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6))
def test_wide_integers_are_added_and_subtracted_with_carries(pairs: list[tuple[int, int]]) -> None:
    x, y = (np.array(each, object) for each in zip(*pairs, strict=True))
    a, b = wide.to_words(x), wide.to_words(y)
    for result, expected in ((wide.add(a, b), x + y), (wide.subtract(a, b), x - y)):
        np.testing.assert_array_equal(wide.to_integers(result) % MODULUS, expected % MODULUS)
    np.testing.assert_array_equal(wide.to_integers(a), x)


def test_a_carry_propagates_through_all_words() -> None:
    ones, one = (wide.to_words(np.array([each], object)) for each in (-1, 1))
    assert not wide.add(ones, one).any()
    assert (wide.subtract(np.zeros_like(one), one) == 2**64 - 1).all()
