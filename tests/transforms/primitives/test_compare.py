"""CMP against Python integers: all of Z_2^64, few bits exhaustively, dropped bits, M = 2, 3, 4."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.primitive_checks import EDGES, FEW, PARTIES, parties, run_on_shares, to_ring_elements, words
from veilmeans.crypto import bits
from veilmeans.transforms.primitives.compare import Comparison, sign
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


def test_a_64_bit_comparison_costs_at_most_32_bytes_and_7_rounds() -> None:
    for size, most, rounds in ((64, 32, 7), (32, 17, 6)):
        protocol = sign(Comparison("x", "b", size), 2)
        stages = trace(protocol, [{"x": ((4096,), "uint64")}] * 2)
        assert len(stages) == rounds
        assert all(sum(stage.sent[i] for stage in stages) <= most * 4096 for i in (0, 1))


def test_impossible_comparisons_are_refused() -> None:
    for how in ({"compare_bits": 65}, {"compare_bits": 20, "drop": 20}, {"drop": -1}, {"compare_bits": 1}):
        with pytest.raises(ValueError, match="not possible"):
            Comparison("x", "b", **how)


def test_a_shard_of_one_row(tmp_path: Path) -> None:
    assert signs([2**63], 2, tmp_path) == [1]
    assert np.array_equal(signs([5], 3, tmp_path), [0])
