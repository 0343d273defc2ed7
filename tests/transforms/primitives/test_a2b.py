"""A2B against Python integers: every bit of any ring element, M = 2, 3, 4."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.primitive_checks import EDGES, FEW, PARTIES, parties, run_on_shares, to_ring_elements, words
from veilmeans.transforms.primitives.a2b import a2b


@FEW
@given(values=st.lists(words, min_size=1, max_size=40), count=parties)
def test_all_bits_of_any_ring_element(tmp_path: Path, values: list[int], count: int) -> None:
    outcome = run_on_shares(a2b("x", "b", count), count, tmp_path, x=to_ring_elements(values))
    assert outcome.names() == {"x", "b"}
    assert outcome.xor("b").tolist() == values


@pytest.mark.parametrize("count", PARTIES)
def test_the_shape_is_kept(tmp_path: Path, count: int) -> None:
    values = to_ring_elements(EDGES).reshape(3, 4)
    outcome = run_on_shares(a2b("x", "b", count), count, tmp_path, x=values)
    np.testing.assert_array_equal(outcome.xor("b"), values)
