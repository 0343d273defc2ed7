"""Fixed point against Python's own rounding."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.crypto import fixed_point as fixed

fractions = st.integers(0, 40)


def nearest(value: float, fraction_bits: int) -> int:
    """round(x·2^f), halves to even, in exact arithmetic."""
    return round(Fraction(value) * 2**fraction_bits)


@given(st.lists(st.floats(-(2.0**21), 2.0**21), max_size=20), fractions)
def test_encoding_is_the_nearest_integer_in_twos_complement(values: list[float], fraction_bits: int) -> None:
    encoded = fixed.encode(np.array(values, np.float64), fraction_bits)
    assert encoded.dtype == np.uint64
    assert encoded.tolist() == [nearest(value, fraction_bits) % 2**64 for value in values]


@given(st.lists(st.integers(-(2**52), 2**52), max_size=20), fractions)
def test_encoding_is_the_inverse_of_decoding(integers: list[int], fraction_bits: int) -> None:
    elements = np.array([i % 2**64 for i in integers], np.uint64)
    decoded = fixed.decode(elements, fraction_bits)
    assert decoded.dtype == np.float64
    assert decoded.tolist() == [i / 2**fraction_bits for i in integers]
    np.testing.assert_array_equal(fixed.encode(decoded, fraction_bits), elements)


@given(st.floats(-(2.0**41), 2.0**41))
def test_a_round_trip_has_an_error_of_half_a_unit_at_most(value: float) -> None:
    (back,) = fixed.decode(fixed.encode(np.array([value])))
    assert abs(Fraction(float(back)) - Fraction(value)) <= Fraction(1, 2 ** (fixed.FRACTION_BITS + 1))


def test_twenty_fractional_bits_are_the_default() -> None:
    assert fixed.FRACTION_BITS == 20
    values = np.array([1.0, -1.0, 0.5, 0.0, -0.0])
    assert fixed.encode(values).tolist() == [2**20, 2**64 - 2**20, 2**19, 0, 0]
    assert fixed.encode(values, 8).tolist() == [2**8, 2**64 - 2**8, 2**7, 0, 0]
    assert fixed.decode(np.array([2**20, 2**64 - 1], np.uint64)).tolist() == [1.0, -(2.0**-20)]
    assert fixed.decode(np.array([2**20, 2**64 - 1], np.uint64), 0).tolist() == [2.0**20, -1.0]


def test_negative_values_round_to_the_nearest_and_not_down() -> None:
    unit = 2.0**-20
    values = np.array([0.4, 0.6, -0.4, -0.6, 1.4, -1.4, -1.6, 0.5, 1.5, -0.5, -1.5]) * unit
    expected = [0, 1, 0, -1, 1, -1, -2, 0, 2, 0, -2]
    assert fixed.encode(values).view(np.int64).tolist() == expected


@pytest.mark.parametrize("fraction_bits", [0, 8, 20, 40])
def test_the_bound_is_2_to_the_62(fraction_bits: int) -> None:
    bound = 2.0 ** (62 - fraction_bits)
    largest = np.nextafter(bound, 0)
    encoded = fixed.encode(np.array([largest, -largest]), fraction_bits)
    assert encoded.view(np.int64).tolist() == [2**62 - 512, 512 - 2**62]
    for out_of_range in (bound, -bound, 2 * bound, -1e300):
        with pytest.raises(ValueError, match=f"{fraction_bits} fractional bits"):
            fixed.encode(np.array([0.0, out_of_range]), fraction_bits)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        fixed.encode(np.array([1.0, value]))


def test_a_value_that_overflows_when_it_is_scaled_is_refused_without_a_warning() -> None:
    with np.errstate(all="raise"), pytest.raises(ValueError, match="too large"):
        fixed.encode(np.array([1e308]), 40)


def test_shapes_and_number_types_are_accepted() -> None:
    for values in (
        np.arange(6).reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6.0).reshape(3, 2).T,
    ):
        encoded = fixed.encode(values)
        assert encoded.shape == (2, 3)
        np.testing.assert_array_equal(fixed.decode(encoded), values)
    assert fixed.encode(np.zeros((0, 3))).shape == (0, 3)
    assert fixed.decode(fixed.encode(np.arange(6.0).reshape(2, 3)).T).tolist() == [[0, 3], [1, 4], [2, 5]]
