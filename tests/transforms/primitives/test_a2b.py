"""A2B against Python integers: every bit of any ring element, M = 2, 3, 4; and MUX, which chooses by a shared bit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.parties import run_parties, split
from support.primitive_checks import EDGES, PARTIES, parties, run, signed, words
from veilmeans.crypto import bits
from veilmeans.schemas.arrays import Arrays
from veilmeans.transforms.primitives.a2b import Decomposition, a2b
from veilmeans.transforms.primitives.bit_injection import mux

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FEW
@given(values=st.lists(words, min_size=1, max_size=40), count=parties)
def test_all_bits_of_any_ring_element(tmp_path: Path, values: list[int], count: int) -> None:
    outcome = run(a2b(Decomposition("x", "b"), count), count, tmp_path, x=signed(values))
    assert outcome.names() == {"x", "b"}
    assert outcome.xor("b").tolist() == values


@pytest.mark.parametrize("count", PARTIES)
def test_the_shape_is_kept(tmp_path: Path, count: int) -> None:
    values = signed(EDGES).reshape(3, 4)
    outcome = run(a2b(Decomposition("x", "b"), count), count, tmp_path, x=values)
    np.testing.assert_array_equal(outcome.xor("b"), values)


@pytest.mark.parametrize("count", PARTIES)
def test_mux_chooses_left_where_the_bit_is_set(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(count)
    left, right = (rng.integers(0, 2**64, 21, np.uint64) for _ in range(2))
    chosen = rng.integers(0, 2, 21, np.uint8)
    packed = [rng.integers(0, 256, 3, np.uint8) for _ in range(count - 1)]
    packed.append(np.bitwise_xor.reduce([bits.pack(chosen), *packed]))
    shares = zip(split(left, count, 1), split(right, count, 2), packed, strict=True)
    states: list[dict[int, Arrays]] = [{0: {"x": x, "y": y, "b": b}} for x, y, b in shares]
    after, _ = run_parties(mux("b", "x", "y", "z"), states, tmp_path)
    result = sum(state[0]["z"] for state in after)
    np.testing.assert_array_equal(result, np.where(chosen, left, right))
