"""F_min^k against numpy's argmin: k = 1 … 17, ties, few rows, dropped bits, M = 2, 3, 4."""

from pathlib import Path

import numpy as np
import pytest

from support.primitive_checks import PARTIES, run_on_shares
from veilmeans.crypto import bits
from veilmeans.transforms.primitives.argmin_tree import ArgminTree, argmin


@pytest.mark.parametrize("k", range(1, 18))
def test_the_position_and_the_value_of_the_minimum_with_ties(tmp_path: Path, k: int) -> None:
    """The tree depends on k, its comparisons on M: all k for two parties, some for more."""
    for count, rows in ((2, 53), (3, 8), (4, 1)) if k in (1, 2, 3, 5, 8) else ((2, 53),):
        distances = np.random.default_rng(k).integers(-3, 4, (k, rows))
        outcome = run_on_shares(argmin(ArgminTree(least="m"), k, count), count, tmp_path, d=distances.view(np.uint64))
        positions = bits.unpack_rows(outcome.xor("c"), rows)
        assert outcome.names() == {"c", "m"}
        assert (positions.sum(axis=0) == 1).all()
        np.testing.assert_array_equal(positions.argmax(axis=0), distances.argmin(axis=0))
        np.testing.assert_array_equal(outcome.total("m")[0].view(np.int64), distances.min(axis=0))


@pytest.mark.parametrize("count", PARTIES)
def test_the_minimum_is_not_computed_unless_asked_for(tmp_path: Path, count: int) -> None:
    distances = np.random.default_rng(0).integers(-(2**61), 2**61, (5, 40))
    outcome = run_on_shares(argmin(ArgminTree(), 5, count), count, tmp_path, d=distances.view(np.uint64))
    assert outcome.names() == {"c"}
    np.testing.assert_array_equal(bits.unpack_rows(outcome.xor("c"), 40).argmax(axis=0), distances.argmin(axis=0))


def test_dropped_bits_change_only_near_ties_and_ties_keep_the_lower_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    distances = rng.integers(-(2**40), 2**40, (6, 300))
    distances[3] = distances[1]
    tree = ArgminTree(compare_bits=44, drop=16)
    outcome = run_on_shares(argmin(tree, 6, 2), 2, tmp_path, d=distances.view(np.uint64))
    chosen = bits.unpack_rows(outcome.xor("c"), 300).argmax(axis=0)
    excess = distances[chosen, np.arange(300)] - distances.min(axis=0)
    assert excess.max() <= 3 * 2**16
    assert not (chosen == 3).any()
