"""The ring against Python's integers mod 2^64."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.crypto import ring

MODULUS = 2**64
EDGES = [0, 1, 2, 2**63 - 1, 2**63, 2**63 + 1, MODULUS - 2, MODULUS - 1]
elements = st.sampled_from(EDGES) | st.integers(0, MODULUS - 1)
signed = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)


def as_ring(values: list[Any]) -> ring.Ring:
    return np.array(values, np.uint64)


@given(st.lists(signed))
def test_encoding_is_the_residue(values: list[int]) -> None:
    encoded = ring.encode(np.array(values, np.int64))
    assert encoded.dtype == np.uint64
    assert encoded.tolist() == [value % MODULUS for value in values]


@given(st.lists(signed))
def test_decoding_undoes_encoding(values: list[int]) -> None:
    assert ring.decode(ring.encode(np.array(values, np.int64))).tolist() == values


@given(st.lists(elements))
def test_decoding_gives_the_signed_residue(values: list[int]) -> None:
    decoded = ring.decode(as_ring(values)).tolist()
    assert all(-(2**63) <= d < 2**63 and d % MODULUS == v for d, v in zip(decoded, values, strict=True))


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(elements, min_size=n, max_size=n), min_size=1)))
def test_the_total_of_shares_and_the_sums_of_columns_are_taken_mod_2_64(rows: list[list[int]]) -> None:
    expected = [sum(column) % MODULUS for column in zip(*rows, strict=True)]
    assert ring.total(as_ring(row) for row in rows).tolist() == expected
    assert ring.column_sums(as_ring(rows)).tolist() == expected


def test_a_total_does_not_change_the_shares() -> None:
    shares = [as_ring([1, 2]), as_ring([3, 4])]
    ring.total(shares)
    assert [share.tolist() for share in shares] == [[1, 2], [3, 4]]


def test_the_sums_of_no_rows_are_zero() -> None:
    assert ring.column_sums(np.empty((0, 3), np.uint64)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("part", [np.s_[::2], np.s_[:, 1], np.s_[:, ::-1]])
def test_views_with_gaps_are_encoded_and_decoded(part: tuple[slice, ...]) -> None:
    values = np.arange(-6, 6, dtype=np.int64).reshape(4, 3)
    np.testing.assert_array_equal(ring.decode(ring.encode(values[part])), values[part])
