"""SMUL against Python's integers, alone and after sharing; its messages are uniform."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.parties import message_arrays, reconstruct, run_parties
from support.primitive_checks import EDGES, FEW, PARTIES, parties, run_on_shares, to_ring_elements, words
from support.share_and_multiply import share_and_multiply
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto import ring
from veilmeans.transforms.primitives.multiply import MULTIPLY

MODULUS = 2**64
RUNS, ROWS = 10, 240


@pytest.mark.parametrize("count", PARTIES)
def test_extreme_values_are_multiplied(tmp_path: Path, count: int) -> None:
    pairs = [(x, y) for x in EDGES for y in EDGES]
    x, y = (to_ring_elements([pair[i] for pair in pairs]) for i in (0, 1))
    product = run_on_shares(MULTIPLY, count, tmp_path, x=x, y=y).total("x")
    assert product.tolist() == [a * b % MODULUS for a, b in pairs]


@FEW
@given(pairs=st.lists(st.tuples(words, words), max_size=8), count=parties)
def test_any_values_are_multiplied(tmp_path: Path, pairs: list[tuple[int, int]], count: int) -> None:
    x, y = (to_ring_elements([pair[i] for pair in pairs]) for i in (0, 1))
    product = run_on_shares(MULTIPLY, count, tmp_path, x=x, y=y).total("x")
    assert product.tolist() == [a * b % MODULUS for a, b in pairs]


@FEW
@given(rows=st.lists(st.tuples(words, words, words), min_size=1, max_size=4), columns=st.permutations(range(3)))
def test_columns_of_different_parties_are_multiplied(
    tmp_path: Path, rows: list[tuple[int, int, int]], columns: list[int]
) -> None:
    x = np.array(rows, ring.DTYPE)
    left, right, _ = columns
    states, _ = run_parties(share_and_multiply(left, right), [{0: {"x": x[:, i : i + 1]}} for i in range(3)], tmp_path)
    assert reconstruct(states, 0).tolist() == [[*row, row[left] * row[right] % MODULUS] for row in rows]


@pytest.mark.parametrize("secret", [0, MODULUS - 1])
@pytest.mark.parametrize("count", [2, 3])
def test_messages_are_uniform_whatever_the_secrets_are(tmp_path: Path, count: int, secret: int) -> None:
    columns = [{0: {"x": np.full((ROWS, 1), secret, ring.DTYPE)}} for _ in range(count)]
    sent = message_arrays(share_and_multiply(0, 1), columns, tmp_path, RUNS)
    assert len(sent) == count * (count - 1) * 3  # x of the first round, e and f of the second
    for which, arrays in sent.items():
        assert chi_square(np.concatenate(arrays)) < LIMIT, which
