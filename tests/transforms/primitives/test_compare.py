"""CMP against Python integers: all of Z_2^64, few bits exhaustively, dropped bits, M = 2, 3, 4."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.primitive_checks import EDGES, FEW, PARTIES, parties, run_on_shares, to_ring_elements, words
from support.transcripts import InStepRun, seeds_of
from veilmeans.crypto import bit_loops, bits
from veilmeans.crypto.correlations import find_part
from veilmeans.schemas.arrays import Array
from veilmeans.transforms.primitives.compare import (
    Comparison,
    Radices,
    choose_radices,
    sent_bits,
    sign,
    stored_bits,
)
from veilmeans.transforms.rounds.trace import trace


def signs(values: list[int], count: int, folder: Path, **how: int) -> list[int]:
    outcome = run_on_shares(sign(Comparison("x", "b", **how), count), count, folder, x=to_ring_elements(values))
    assert outcome.names() == {"x", "b"}
    return bits.unpack(outcome.xor("b"), len(values)).tolist()


@FEW
@given(values=st.lists(words, min_size=1, max_size=70), count=parties)
def test_the_sign_bit_of_any_ring_element(tmp_path: Path, values: list[int], count: int) -> None:
    assert signs(values, count, tmp_path) == [value >> 63 for value in values]


@pytest.mark.parametrize("count", PARTIES)
def test_the_sign_bit_at_every_edge(tmp_path: Path, count: int) -> None:
    assert signs(EDGES, count, tmp_path) == [value >> 63 for value in EDGES]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [8, 32, 63])
@pytest.mark.parametrize("count", [2, 3])
def test_many_values_by_numpy_and_by_compiled_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, size: int, compiled: bool
) -> None:
    monkeypatch.setattr(bit_loops, "COMPILED_AFTER", 0 if compiled else 1 << 62)
    monkeypatch.setattr(bit_loops, "has_compiler", lambda: compiled)
    drawn = np.random.default_rng(size).integers(-(2 ** (size - 1)), 2 ** (size - 1), 64 * bit_loops.COMPILED_FROM + 1)
    assert signs(drawn.tolist(), count, tmp_path, compare_bits=size) == (drawn < 0).astype(int).tolist()


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("size", range(2, 9))
def test_few_bits_exhaustively(tmp_path: Path, size: int, count: int) -> None:
    values = list(range(-(2 ** (size - 1)), 2 ** (size - 1)))
    assert signs(values, count, tmp_path, compare_bits=size) == [int(value < 0) for value in values]


@FEW
@given(size=st.integers(9, 64), count=parties, data=st.data())
def test_any_number_of_bits_up_to_its_bounds(tmp_path: Path, size: int, count: int, data: st.DataObject) -> None:
    half = 2 ** (size - 1)
    drawn = data.draw(st.lists(st.integers(-half, half - 1), max_size=20))
    values = [-half, -half + 1, -1, 0, 1, half - 1, *drawn]
    assert signs(values, count, tmp_path, compare_bits=size) == [int(value < 0) for value in values]


@FEW
@given(drop=st.integers(1, 20), count=parties, data=st.data())
def test_dropped_bits_make_only_small_values_negative(
    tmp_path: Path, drop: int, count: int, data: st.DataObject
) -> None:
    size = 40
    half, small = 2 ** (size - 1), (count - 1) << drop
    far = data.draw(st.lists(st.integers(small, half - 1), min_size=1, max_size=20))
    negative = data.draw(st.lists(st.integers(-half + small, -1), min_size=1, max_size=20))
    values = [*far, small, half - 1, *negative, -1]
    expected = [int(value < 0) for value in values]
    assert signs(values, count, tmp_path, compare_bits=size, drop=drop) == expected


@FEW
@given(constant=st.integers(-(2**40), 2**40), count=parties)
def test_comparison_with_a_public_constant(tmp_path: Path, constant: int, count: int) -> None:
    values = [constant - 1, constant, constant + 1, 0, -(2**41), 2**41]
    expected = [int(value < constant) for value in values]
    assert signs(values, count, tmp_path, offset=-constant) == expected


@pytest.mark.parametrize(("size", "most", "dealt"), [(64, 12, 60), (32, 6.75, 18)])
def test_a_comparison_costs_three_rounds_and_few_bytes(size: int, most: float, dealt: float) -> None:
    stages = trace(sign(Comparison("x", "b", size), 2), [{"x": ((4096,), "uint64")}] * 2)
    assert len(stages) == 3
    assert all(sum(stage.sent[i] for stage in stages) <= most * 4096 for i in (0, 1))
    sums = [find_part(need.kind, "sums") for stage in stages for need in stage.needs]
    assert sum(8 * prod(part.shape) for part in sums) <= dealt * 4096


@pytest.mark.parametrize("count", PARTIES)
def test_planned_bits_are_those_of_the_protocol(count: int) -> None:
    for size in (2, 3, 8, 19, 32, 44, 64):
        radices = choose_radices(size, count)
        stages = trace(sign(Comparison("x", "b", size, radices=radices), count), [{"x": ((64,), "uint64")}] * count)
        sums = [find_part(need.kind, "sums") for stage in stages for need in stage.needs]
        assert sum(stage.sent[0] for stage in stages) == 8 * (count - 1) * sent_bits(size, radices, count)
        assert sum(prod(part.shape) for part in sums) == stored_bits(size, radices, count)


@pytest.mark.parametrize("radices", [(7,), (1, 7), (2, 4), (4, 2), (3, 3), (2, 2, 2), (1, 3, 3), (1, 2, 2, 2)])
@pytest.mark.parametrize("count", PARTIES)
def test_every_pair_of_addends_of_eight_bits(radices: Radices, count: int) -> None:
    """All 65,536 pairs; with more parties the further shares are drawn."""
    x, y = (each.reshape(-1) for each in np.meshgrid(np.arange(256), np.arange(256)))
    others = np.random.default_rng(0).integers(0, 2**64, (count - 2, x.size), np.uint64)
    shares = [share.astype(np.uint64) for share in (x, y, *others)]
    np.testing.assert_array_equal(signs_of(shares, Comparison("x", "b", 8, radices=radices)), top_bit(shares, 8))


def signs_of(shares: Sequence[Array], comparison: Comparison) -> NDArray[np.uint8]:
    """The signs of values with these shares, by all parties in step."""
    states = [{"x": share} for share in shares]
    run = InStepRun(sign(comparison, len(shares)), states, seeds_of(0, len(shares)))
    run.run()
    return bits.unpack(reduce(np.bitwise_xor, (state["b"] for state in run.states)), shares[0].size)


def top_bit(shares: Sequence[Array], size: int) -> Array:
    total: Array = reduce(np.add, shares)
    return total >> np.uint64(size - 1) & np.uint64(1)


def fitting(size: int, draw: Callable[[st.SearchStrategy[int]], int]) -> Radices:
    """Draw radices that reduce the bits below the sign to one."""
    left, radices = size - 1, [draw(st.integers(1, 5))]
    left = -(-left // radices[0])
    while left > 1:
        radices.append(draw(st.integers(2, 6)))
        left = -(-left // radices[-1])
    return tuple(radices)


@FEW
@given(size=st.integers(2, 64), count=parties, rows=st.sampled_from([1, 64, 65, 2049]), data=st.data())
def test_any_radices_of_any_width(size: int, count: int, rows: int, data: st.DataObject) -> None:
    """Few rows by numpy, many by the compiled loops; shares that carry far, ties, extremes."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shares = rng.integers(0, 2**64, (count, rows), np.uint64)
    shares[0, ::3] = -reduce(np.add, shares[1:, ::3])
    shares[0, 1::3] = -reduce(np.add, shares[1:, 1::3]) - np.uint64(1)
    comparison = Comparison("x", "b", size, radices=fitting(size, data.draw))
    np.testing.assert_array_equal(signs_of(list(shares), comparison), top_bit(list(shares), size))


def test_words_of_32_bits_compare_like_the_low_half_of_64() -> None:
    shares = np.random.default_rng(1).integers(0, 2**64, (2, 100), np.uint64)
    comparison = Comparison("x", "b", 32, offset=-5)
    narrow, wide = (signs_of([each.astype(dtype) for each in shares], comparison) for dtype in (np.uint32, np.uint64))
    np.testing.assert_array_equal(narrow, wide)


def test_radices_that_leave_several_carries_are_refused() -> None:
    for radices in ((2, 4), (31, 1), (1, 1, 31)):
        with pytest.raises(ValueError, match=r"\) do not reduce 31 bits"):
            sign(Comparison("x", "b", 32, radices=radices), 2)


def test_radices_are_chosen_by_width_and_by_the_price_of_what_is_dealt() -> None:
    assert choose_radices(32) == (3, 3, 4)
    assert choose_radices(64) == (4, 4, 4)
    assert choose_radices(32, dealt_weight=0.0) == (4, 4, 2)
    assert [len(choose_radices(size)) for size in (2, 5, 6, 17, 18, 64)] == [1, 1, 2, 2, 3, 3]


def test_impossible_comparisons_are_refused() -> None:
    for how in ({"compare_bits": 65}, {"compare_bits": 20, "drop": 20}, {"drop": -1}, {"compare_bits": 1}):
        with pytest.raises(ValueError, match="not possible"):
            Comparison("x", "b", **how)


def test_a_shard_of_one_row(tmp_path: Path) -> None:
    assert signs([2**63], 2, tmp_path) == [1]
    assert np.array_equal(signs([5], 3, tmp_path), [0])
