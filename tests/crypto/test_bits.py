"""Packed bits and planes, against bits counted one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from veilmeans.crypto import bit_loops, bits
from veilmeans.crypto.bit_loops import COMPILED_FROM


@given(st.lists(st.integers(0, 1), max_size=200))
def test_unpacking_is_the_inverse_of_packing(values: list[int]) -> None:
    packed = bits.pack(np.array(values, np.uint8))
    assert (packed.dtype, packed.size) == (np.uint64, bits.word_count(len(values)))
    assert bits.unpack(packed, len(values)).tolist() == values
    for i, value in enumerate(values):
        assert int(packed[i % packed.size]) >> (i // packed.size) & 1 == value


def drawn(rows: int, count: int, seed: int, top: int = 2) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, top, (rows, count), np.uint64, endpoint=top > 2)


@given(st.integers(1, 5), st.integers(1, 150), st.integers(0, 99))
def test_each_row_is_packed_by_itself(rows: int, count: int, seed: int) -> None:
    values = drawn(rows, count, seed).astype(np.uint8)
    packed = bits.pack_rows(values)
    for row, expected in zip(packed, values, strict=True):
        np.testing.assert_array_equal(row, bits.pack(expected))
    np.testing.assert_array_equal(bits.unpack_rows(packed, count), values)


@given(st.integers(1, 5), st.integers(1, 150), st.integers(0, 99))
def test_values_in_lanes_are_packed_as_their_rows_are(rows: int, count: int, seed: int) -> None:
    values = drawn(rows, count, seed)
    lanes = bits.to_lanes(values)
    assert lanes.shape == (64, rows, bits.word_count(count))
    np.testing.assert_array_equal(bits.pack(lanes), bits.pack_rows(values).reshape(-1))
    np.testing.assert_array_equal(bits.from_lanes(lanes, rows, count), values)
    np.testing.assert_array_equal(bits.from_lanes(lanes.reshape(-1), rows, count), values)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 500, 64 * COMPILED_FROM - 1, 64 * COMPILED_FROM + 1])
@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64])
@pytest.mark.parametrize("compiled", [False, True])
def test_planes_are_the_packed_bits_of_all_values(
    width: int, count: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bit_loops, "COMPILED_AFTER", 0 if compiled else 1 << 62)
    monkeypatch.setattr(bit_loops, "has_compiler", lambda: compiled)
    values = drawn(1, count, width, 2**64 - 1)[0]
    expected = bits.pack_rows(values >> np.arange(width, dtype=np.uint64)[:, None] & np.uint64(1))
    before = values.copy()
    np.testing.assert_array_equal(bits.to_planes(values, width), expected)
    np.testing.assert_array_equal(values, before)
    if width <= 32:
        np.testing.assert_array_equal(bits.to_planes(values.astype(np.uint32), width), expected)
