"""Key-value stores: what was encoded is decoded, nothing else is, and the vector is uniform."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from support.id_sets import id_hashes
from veilmeans.crypto.ot.blocks import uniform_blocks
from veilmeans.crypto.ot.psi import okvs
from veilmeans.crypto.ot.psi.okvs import OkvsShape


def words(count: int) -> np.ndarray:
    return uniform_blocks(os.urandom(32), count)[:, 0].copy()


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 400), room=st.integers(0, 50), key=st.binary(min_size=1, max_size=8))
def test_what_was_encoded_is_decoded(count: int, room: int, key: bytes) -> None:
    shape, hashes, values = OkvsShape(count + room), id_hashes(range(count), key), words(count)
    store = okvs.encode(shape, hashes, values, words(shape.size))
    assert (okvs.decode(shape, store, hashes) == values).all()
    others = id_hashes(range(count, count + 50), key)
    assert (okvs.decode(shape, store, others) != words(50)).all()


def test_a_large_store() -> None:
    shape, hashes, values = OkvsShape(60_000), id_hashes(range(60_000)), words(60_000)
    store = okvs.encode(shape, hashes, values, words(shape.size))
    assert (okvs.decode(shape, store, hashes) == values).all()
    assert shape.size < 1.28 * 60_000


def test_rows_with_the_same_positions_are_solved_by_dense_entries() -> None:
    """Twenty ids of the same three positions, and forty whose positions are among few: no row can be peeled."""
    hashes, values = id_hashes(range(60)), words(60)
    hashes[:20, :2] = hashes[0, :2]
    hashes[20:, 0] %= np.uint64(1 << 24)
    shape = OkvsShape(60)
    store = okvs.encode(shape, hashes, values, words(shape.size))
    assert (okvs.decode(shape, store, hashes) == values).all()


def test_dependent_rows_and_too_many_are_refused() -> None:
    shape, hashes = OkvsShape(10), id_hashes([1, 1])
    with pytest.raises(ValueError, match="independent"):
        okvs.encode(shape, hashes, np.array([1, 2], np.uint64), words(shape.size))
    with pytest.raises(ValueError, match="fit"):
        okvs.encode(shape, id_hashes(range(11)), words(11), words(shape.size))


def test_decoding_is_linear_over_blocks() -> None:
    shape, hashes = OkvsShape(100), id_hashes(range(100))
    one, two = uniform_blocks(os.urandom(32), shape.size), uniform_blocks(os.urandom(32), shape.size)
    both = okvs.decode_blocks(shape, one ^ two, hashes)
    assert (both == okvs.decode_blocks(shape, one, hashes) ^ okvs.decode_blocks(shape, two, hashes)).all()


def test_the_vector_looks_the_same_for_every_set_of_ids_and_every_number_of_them() -> None:
    """Values are uniform: then so is every entry, also where no id of the set points to it."""
    shape = OkvsShape(2_000)
    for count in (0, 5, 2_000):
        store = okvs.encode(shape, id_hashes(range(count)), words(count), words(shape.size))
        ones = np.unpackbits(store.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(64 * shape.size)
        assert len(np.unique(store)) == shape.size


def log2_failure(shape: OkvsShape) -> float:
    """An upper bound of log2 Pr[the rows of a full store are dependent] ≤ 2^-64 · Σ_k C(n, k)·p_k³.

    k rows add up to 0 if each of the three segments has an even number of them everywhere, p_k each, and their dense
    bits do. k!·[x^k] cosh(x)^m / m^k = p_k ≤ k!·cosh(x)^m / (x·m)^k for every x > 0; the least has x·tanh(x) = k/m.
    """
    n, m = shape.rows, shape.segment
    k = np.arange(2.0, n + 1, 2)
    low, high = np.zeros(len(k)), np.full(len(k), 10.0)
    for _ in range(60):
        x = (low + high) / 2
        small = x * np.tanh(x) < k / m
        low, high = np.where(small, x, low), np.where(small, high, x)
    log_p = np.minimum(gammaln(k + 1) + m * np.log(np.cosh(x)) - k * np.log(x * m), 0)
    log_sets = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return float(np.logaddexp.reduce(log_sets + 3 * log_p) / np.log(2) - okvs.DENSE)


@pytest.mark.parametrize("rows", [2, 3, 10, 60, 1_000, 20_000, 1 << 17, 1 << 19])
def test_full_stores_of_all_sizes_fail_with_a_chance_far_below_2_to_the_minus_40(rows: int) -> None:
    assert log2_failure(OkvsShape(rows)) < -64
