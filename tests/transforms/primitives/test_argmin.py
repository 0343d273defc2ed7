"""F_min^k by tree and by all pairs against numpy's argmin: k = 1 … 17, ties, few rows, dropped bits, M = 2, 3, 4."""

from functools import reduce
from math import ceil, log2
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.primitive_checks import PARTIES, run_on_shares
from support.transcripts import InStepRun, seeds_of
from veilmeans.crypto import bits
from veilmeans.transforms.primitives.argmin import METHODS, Argmin, Method, argmin
from veilmeans.transforms.primitives.argmin_choice import argmin_cost, choose_argmin
from veilmeans.transforms.primitives.compare import choose_radices

LAN, WAN = (125e6, 0.5e-3), (2.5e6, 40e-3)
both_methods = pytest.mark.parametrize("method", METHODS)


@pytest.mark.parametrize("k", range(1, 18))
def test_the_position_and_the_value_of_the_minimum_with_ties(tmp_path: Path, k: int) -> None:
    """The tree depends on k, its comparisons on M: all k for two parties, some for more."""
    for count, rows in ((2, 53), (3, 8), (4, 1)) if k in (1, 2, 3, 5, 8) else ((2, 53),):
        distances = np.random.default_rng(k).integers(-3, 4, (k, rows))
        outcome = run_on_shares(argmin(Argmin(least="m"), k, count), count, tmp_path, d=distances.view(np.uint64))
        positions = bits.unpack_rows(outcome.xor("c"), rows)
        assert outcome.names() == {"c", "m"}
        assert (positions.sum(axis=0) == 1).all()
        np.testing.assert_array_equal(positions.argmax(axis=0), distances.argmin(axis=0))
        np.testing.assert_array_equal(outcome.total("m")[0].view(np.int64), distances.min(axis=0))


@both_methods
@pytest.mark.parametrize("count", PARTIES)
def test_the_minimum_is_not_computed_unless_asked_for(tmp_path: Path, count: int, method: Method) -> None:
    distances = np.random.default_rng(0).integers(-(2**61), 2**61, (5, 40))
    outcome = run_on_shares(argmin(Argmin(method=method), 5, count), count, tmp_path, d=distances.view(np.uint64))
    assert outcome.names() == {"c"}
    np.testing.assert_array_equal(bits.unpack_rows(outcome.xor("c"), 40).argmax(axis=0), distances.argmin(axis=0))


def positions(how: Argmin, shares: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """One-hot positions from M × k × n shares; all rows are one-hot."""
    count, k, rows = shares.shape
    run = InStepRun(argmin(how, k, count), [{"d": share} for share in shares], seeds_of(0, count))
    run.run()
    hot = bits.unpack_rows(reduce(np.bitwise_xor, (state["c"] for state in run.states)), rows)
    np.testing.assert_array_equal(hot.sum(axis=0), np.ones(rows))
    return hot


def shared(values: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    shares = rng.integers(0, 2**64, (count, *values.shape), np.uint64)
    shares[0] = values.view(np.uint64) - reduce(np.add, shares[1:])
    return shares


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    k=st.integers(2, 8),
    count=st.sampled_from(PARTIES),
    drop=st.integers(0, 24),
    seed=st.integers(0, 999),
)
def test_near_ties_and_dropped_bits_leave_every_row_one_hot(
    method: Method, k: int, count: int, drop: int, seed: int
) -> None:
    """Values so near each other that differences rounded pair by pair would contradict each other."""
    rng = np.random.default_rng(seed)
    base = rng.integers(-(2**40), 2**40, 130)
    near = rng.integers(0, 2 << drop, (k, 130)) * rng.integers(0, 2, (k, 130))
    shares = shared(base + near, count, rng)
    shares[:, :, 1::2] &= ~np.uint64((1 << drop) - 1) | (rng.integers(0, 2, shares[:, :, 1::2].shape, np.uint64))
    distances = reduce(np.add, shares).view(np.int64)
    how = Argmin(compare_bits=43, drop=drop, method=method)
    chosen = positions(how, shares).argmax(axis=0)
    excess = distances[chosen, np.arange(130)] - distances.min(axis=0)
    near_ties = k if method == "pairs" else 2 * ceil(log2(k))
    assert excess.max() < (near_ties * count << drop if drop else 1)


@both_methods
@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("k", [2, 5, 8])
def test_equal_values_of_different_shares_keep_the_lower_index_with_dropped_bits(
    method: Method, count: int, k: int
) -> None:
    rng = np.random.default_rng(3)
    distances = rng.integers(-(2**40), 2**40, (k, 3000)) >> 20 << 20
    distances[k // 2 :] = distances[0]
    distances[:, ::2] = distances[0, ::2]
    chosen = positions(Argmin(compare_bits=44, drop=12, method=method), shared(distances, count, rng)).argmax(axis=0)
    np.testing.assert_array_equal(chosen, distances.argmin(axis=0))


@both_methods
@pytest.mark.parametrize("drop", [0, 12])
def test_any_order_of_values_by_both_methods(method: Method, drop: int) -> None:
    """Every ranking with ties of four values."""
    rankings = np.stack([each.reshape(-1) for each in np.meshgrid(*[np.arange(4)] * 4)]).astype(np.int64)
    shares = shared(rankings << 20, 2, np.random.default_rng(5))
    shares[:, :, ::2] = np.stack([(rankings << 20).view(np.uint64), np.zeros_like(shares[0])])[:, :, ::2]
    chosen = positions(Argmin(compare_bits=43, drop=drop, method=method), shares).argmax(axis=0)
    np.testing.assert_array_equal(chosen, rankings.argmin(axis=0))


def test_all_pairs_take_four_rounds_and_a_tree_fewer_bytes() -> None:
    how = Argmin(compare_bits=43, drop=11, radices=choose_radices(32))
    pairs, tree = (argmin_cost(Argmin(**{**vars(how), "method": method}), 5, 2) for method in METHODS)
    assert pairs == (4, 68.75)
    assert tree == (12, 40.25)


@pytest.mark.parametrize(
    ("k", "rows", "link", "method"),
    [
        (2, 10**6, LAN, "pairs"),
        (5, 10**4, LAN, "pairs"),
        (5, 10**5, LAN, "pairs"),
        (5, 10**4, WAN, "pairs"),
        (5, 10**5, WAN, "tree"),
        (8, 10**5, LAN, "tree"),
        (9, 100, LAN, "tree"),
    ],
)
def test_the_method_is_chosen_by_clusters_rows_and_link(
    k: int, rows: int, link: tuple[float, float], method: Method
) -> None:
    chosen = choose_argmin(Argmin(compare_bits=43, drop=11), k, rows, 2, *link)
    assert chosen.method == method
    assert chosen.radices == ((3, 3, 4) if link == LAN else (4, 4, 2))
    assert choose_argmin(Argmin(compare_bits=43, drop=11), k, rows, 2, *link, methods=("tree",)).method == "tree"


def test_impossible_choices_are_refused() -> None:
    for how in ({"compare_bits": 65}, {"compare_bits": 20, "drop": 20}, {"drop": -1}):
        with pytest.raises(ValueError, match="not possible"):
            Argmin(**how)
    with pytest.raises(ValueError, match="only its position"):
        Argmin(least="m", method="pairs")
