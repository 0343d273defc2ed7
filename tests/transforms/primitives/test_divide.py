"""Division by counts against float64: 0, 1, n = 5·10^6, random pairs, empty clusters."""

from pathlib import Path

import numpy as np
import pytest

from support.primitive_checks import PARTIES, run_on_shares
from veilmeans.crypto import fixed_point as fixed
from veilmeans.transforms.primitives.divide import Division, numerator, quotient, refine, scale

LARGEST = 5_000_000
BITS = LARGEST.bit_length()


def largest_error(
    counts: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", bound: float, parties: int, folder: Path
) -> float:
    """Compute the largest error of numerator / count, against float64."""
    rng = np.random.default_rng(7)
    means, before = (rng.uniform(-bound, bound, (counts.size, 2)) for _ in range(2))
    sums = np.rint(means * counts[:, None] * 2**20).astype(np.int64)
    magnitude = 20 + int(np.ceil(np.log2(bound)))
    division = Division(BITS, magnitude)
    protocol = scale(division, parties) + refine(division) + numerator(division) + quotient(division)
    outcome = run_on_shares(
        protocol, parties, folder, s=sums.view(np.uint64), n=counts.view(np.uint64), mu=fixed.encode(before)
    )
    assert outcome.names() == {"n", "mu"}
    divisors = np.maximum(counts, 1)[:, None]
    expected = np.where(counts[:, None] > 0, sums / 2**20 / divisors, fixed.decode(fixed.encode(before)))
    return float(np.abs(fixed.decode(outcome.total("mu")) - expected).max())


@pytest.mark.parametrize("count", PARTIES)
def test_counts_at_the_edges_and_empty_clusters(tmp_path: Path, count: int) -> None:
    counts = np.array([0, 1, 2, 3, 4, 5, 7, 8, 2**22 - 1, 2**22, 2**22 + 1, LARGEST - 1, LARGEST])
    assert largest_error(counts, 1.0, count, tmp_path) < 2**-19


def test_forty_thousand_random_pairs(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    counts = np.exp(rng.uniform(0, np.log(LARGEST), 20_000)).astype(np.int64)
    assert largest_error(counts, 1.0, 2, tmp_path) < 2**-19


@pytest.mark.parametrize("bound", [4.0, 256.0])
def test_larger_values(tmp_path: Path, bound: float) -> None:
    counts = np.random.default_rng(2).integers(0, LARGEST + 1, 2000)
    assert largest_error(counts, bound, 2, tmp_path) < 2**-16


def test_impossible_divisions_are_refused() -> None:
    for bits, magnitude in ((0, 20), (31, 20), (23, 60)):
        with pytest.raises(ValueError, match=r"not possible|too large"):
            Division(bits, magnitude)
