"""Truncation against Python's own shift, for every shift and up to the bounds."""

from pathlib import Path

import numpy as np
import pytest

from support.primitive_checks import PARTIES, run_on_shares, to_ring_elements
from veilmeans.transforms.primitives.truncate import Truncation, truncate


def values(seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    edges = [0, 1, -1, 2**62 - 1, -(2**62), 2**20, -(2**20), 2**20 - 1, 2**61, -(2**61)]
    return [*edges, *map(int, rng.integers(-(2**62), 2**62, 200)), *map(int, rng.integers(-(2**21), 2**21, 50))]


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("shift", [1, 2, 19, 20, 31, 32, 33, 40, 61])
def test_truncation_is_the_floor_or_one_more(tmp_path: Path, shift: int, count: int) -> None:
    x = values(shift)
    result = (
        run_on_shares(truncate(Truncation("x", shift)), count, tmp_path, x=to_ring_elements(x))
        .total("x")
        .view(np.int64)
    )
    assert {int(r) - (v >> shift) for r, v in zip(result, x, strict=True)} <= {0, 1}


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("shift", [1, 20, 33, 61])
def test_multiples_are_truncated_exactly_and_zero_stays_zero(tmp_path: Path, shift: int, count: int) -> None:
    x = [0, *(v >> shift << shift for v in values(shift))]
    outcome = run_on_shares(truncate(Truncation("x", shift)), count, tmp_path, x=to_ring_elements(x))
    assert outcome.names() == {"x"}
    assert outcome.total("x").view(np.int64).tolist() == [v >> shift for v in x]


def test_truncation_is_right_on_average(tmp_path: Path) -> None:
    x = [3] * 4096
    outcome = run_on_shares(truncate(Truncation("x", 2)), 2, tmp_path, x=to_ring_elements(x))
    assert outcome.total("x").mean() == pytest.approx(0.75, abs=0.05)


def test_impossible_shifts_are_refused() -> None:
    for shift in (0, 62, -3):
        with pytest.raises(ValueError, match="not possible"):
            Truncation("x", shift)
