"""Packing and permuting of bits, against bits counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.crypto import bits


@given(st.lists(st.integers(0, 1), max_size=100))
def test_unpacking_is_the_inverse_of_packing(values: list[int]) -> None:
    packed = bits.pack(np.array(values, np.uint8))
    assert packed.size == bits.padded_count(len(values)) // 8
    assert bits.unpack(packed, len(values)).tolist() == values


@given(st.integers(1, 5), st.integers(1, 30), st.randoms())
def test_each_row_is_packed_by_itself(rows: int, count: int, random: object) -> None:
    values = np.random.default_rng(hash(random) % 2**32).integers(0, 2, (rows, count), np.uint8)
    packed = bits.pack_rows(values)
    for row, expected in zip(packed, values, strict=True):
        np.testing.assert_array_equal(row, bits.pack(expected))
    np.testing.assert_array_equal(bits.unpack_rows(packed, count), values)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_reversing_the_index_moves_each_bit_to_its_mirrored_index(width: int) -> None:
    digits = width.bit_length() - 1
    for index in range(width):
        word = np.array([1 << index], bits.WORD_TYPES[width])
        mirrored = int(f"{index:0{digits}b}"[::-1], 2)
        assert int(bits.reverse_index(word)[0]) == 1 << mirrored


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_levels_of_halves_reduce_generate_and_propagate_to_the_carry(width: int) -> None:
    rng = np.random.default_rng(width)
    g, p = (rng.integers(0, 2**width, 64, np.uint64).astype(bits.WORD_TYPES[width]) for _ in "gp")
    expected = []
    for g_word, p_word in zip(g.tolist(), p.tolist(), strict=True):
        carry = 0
        for i in range(width):
            carry = (g_word >> i & 1) ^ ((p_word >> i & 1) & carry)
        expected.append(carry)
    g_level, p_level, size = bits.reverse_index(g), bits.reverse_index(p), width
    while size > 1:
        (g_high, g_low), (p_high, p_low) = bits.halves(g_level, size), bits.halves(p_level, size)
        g_level, p_level, size = g_high ^ (p_high & g_low), p_high & p_low, size // 2
    assert bits.unpack(g_level, 64).tolist() == expected
