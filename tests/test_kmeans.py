"""K-means on shares against float64 Lloyd from the same start, after every iteration (see `check_against_lloyd`).

Every case has duplicate rows, parties of unequal widths or numbers of rows, and a last shard of one row; from three
clusters on, one starts far from all rows and stays empty, and from five on, one starts where another does.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmeans_parties import (
    TOLERANCE,
    Iteration,
    check_against_lloyd,
    horizontal,
    kmeans_for,
    lloyd_with,
    near_tie,
    run_kmeans,
    vertical,
)
from veilmeans.crypto import fixed
from veilmeans.crypto.lloyd import Real, lloyd
from veilmeans.schemas.jobs import NormaliseConfig
from veilmeans.schemas.layout import Layout

LAYOUTS = ("vertical", "horizontal")
SHARES = {1: ((1, 0), (0, 1, 0)), 2: ((1, 1), (1, 0, 1)), 7: ((5, 2), (4, 2, 1)), 16: ((5, 11), (5, 1, 10))}
"""How so many columns, or rows, are divided among two parties, and among three."""
SHARES |= {64: ((1, 63), (1, 20, 43)), 10_000: ((6_001, 3_999), (4_001, 1, 5_998))}
PER_SHARD = {1: 1, 7: 4, 10_000: 4_000}
SMALL = [(n, d, k) for n in (1, 7) for d in (1, 2, 16, 64) for k in (1, 2, 3, 5) if k <= n]
LARGE = [(10_000, d, k) for d, k in ((1, 3), (2, 1), (2, 5), (16, 2), (16, 8), (64, 3), (64, 8))]


def layout_of(kind: str, parties: int, n: int, d: int) -> Layout:
    """Unequal parts; the last shard of the rows, or of the first party's rows, has one row."""
    if kind == "vertical":
        return vertical(n, SHARES[d][parties - 2], max(1, n - 1))
    return horizontal(SHARES[n][parties - 2], d, PER_SHARD[n])


def drawn(seed: int, n: int, d: int, k: int) -> tuple[Real, Real]:
    """Rows around three places of [0, ½]^d, some of them twice, and a start."""
    rng = np.random.default_rng([seed, n, d, k])
    rows = rng.random((3, d))[rng.integers(0, 3, n)] * 0.3 + rng.random((n, d)) * 0.2
    rows[n // 2 :: 5] = rows[0]
    start = rows[rng.choice(n, k, replace=False)]
    if k >= 3:
        start[1] = 1.0
    if k >= 5:
        start[4] = start[2]
    return rows, start


@pytest.mark.parametrize(("n", "d", "k"), [*SMALL, *LARGE])
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_iteration_is_lloyds(kind: str, parties: int, n: int, d: int, k: int) -> None:
    if kind == "vertical" and d == 1:
        pytest.skip("one column has one owner")
    rows, start = drawn(0, n, d, k)
    kmeans = kmeans_for(layout_of(kind, parties, n, d), k)
    found = check_against_lloyd(kmeans, rows, start, iterations=2)
    if k >= 3:
        assert_stays_empty(found, start, cluster=1)


def assert_stays_empty(found: list[Iteration], start: Real, cluster: int) -> None:
    """Its centroid is the start's, to the last bit."""
    for iteration in found:
        assert iteration.counts[cluster] == 0
        np.testing.assert_array_equal(fixed.encode(iteration.centres[cluster]), fixed.encode(start[cluster]))
