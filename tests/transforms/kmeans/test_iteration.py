"""K-means on shares against float64 Lloyd from the same start, after every iteration (see `check_against_lloyd`).

Every case has duplicate rows, parties of unequal widths or numbers of rows, and a last shard of one row; from three
clusters on, one starts far from all rows and stays empty, and from five on, one starts where another does. With few
columns a shard the centroids are worked on in several shards, the last of which may have one column.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import Iteration, horizontal, kmeans_for, run_kmeans, vertical
from support.lloyd_checks import TOLERANCE, check_against_lloyd
from support.primitive_checks import run_on_shares, to_ring_elements
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import NormaliseConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.primitives.argmin import Argmin

pytestmark = pytest.mark.slow

LAYOUTS = ("vertical", "horizontal")
SHARES = {1: ((1, 0), (0, 1, 0)), 2: ((1, 1), (1, 0, 1)), 7: ((5, 2), (4, 2, 1)), 16: ((5, 11), (5, 1, 10))}
"""How so many columns, or rows, are divided among two parties, and among three."""
SHARES |= {64: ((1, 63), (1, 20, 43)), 10_000: ((6_001, 3_999), (4_001, 1, 5_998))}
PER_SHARD = {1: 1, 7: 4, 10_000: 4_000}
GRID = [((1, 2, 16, 64)[i], (1, 2, 3, 5)[j], 2 + (i + j) % 2) for i in range(4) for j in range(4)]
"""d, k and, in turn as on a chessboard, M."""
SMALL = {parties: [(n, d, k) for n in (1, 7) for d, k, m in GRID if m == parties and k <= n] for parties in (2, 3)}
WIDE = {2: ((16, 8), (64, 3)), 3: ((16, 3), (64, 8))}
LARGE = {m: [(10_000, d, k) for d, k in ((1, 3), (2, 1), (2, 5), (16, 2), *wide)] for m, wide in WIDE.items()}


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


def cases() -> list[tuple[str, int, int, int, int]]:
    """Layout, M, n, d, k; one column has one owner, so d = 1 is horizontal only.

    Each (layout, d, k) of the small sizes comes with two parties or with three; so each (M, d) and (M, k) comes, too.
    """
    shapes = [(kind, parties) for kind in LAYOUTS for parties in (2, 3)]
    sizes = {parties: [*small, *LARGE[parties]] for parties, small in SMALL.items()}
    return [(*shape, *size) for shape in shapes for size in sizes[shape[1]] if shape[0] == "horizontal" or size[1] > 1]


@pytest.mark.parametrize(("kind", "parties", "n", "d", "k"), cases())
def test_every_iteration_is_lloyds(kind: str, parties: int, n: int, d: int, k: int) -> None:
    rows, start = drawn(0, n, d, k)
    kmeans = kmeans_for(layout_of(kind, parties, n, d), k)
    found = check_against_lloyd(kmeans, rows, start, iterations=2)
    for secure, clear in zip(found, lloyd(lambda: [rows], start, 2), strict=True):  # none of these rows is a near-tie
        np.testing.assert_array_equal(secure.counts, clear.counts)
        np.testing.assert_allclose(secure.centroids, clear.centroids, rtol=0, atol=TOLERANCE)
    if k >= 3:
        assert_stays_empty(found, start, cluster=1)


def assert_stays_empty(found: list[Iteration], start: Real, cluster: int) -> None:
    """Its centroid is the start's, to the last bit."""
    for iteration in found:
        assert iteration.counts[cluster] == 0
        np.testing.assert_array_equal(fixed.encode(iteration.centroids[cluster]), fixed.encode(start[cluster]))


def test_the_cases_are_those_of_the_issue() -> None:
    for kind in LAYOUTS:
        for parties in (2, 3):
            here = [case[2:] for case in cases() if case[:2] == (kind, parties)]
            large = [(d, k) for n, d, k in here if n == 10_000]
            assert {n for n, _, _ in here} == {1, 7, 10_000}
            assert {2, 16, 64} <= {d for d, _ in large} <= {1, 2, 16, 64}
            assert {k for _, k in large} == {1, 2, 3, 5, 8}


ENDS = {
    "minmax": NormaliseConfig(),
    "zscore": NormaliseConfig(method="zscore"),
    "none": NormaliseConfig(method="none", bound=1000),
}


def crossed(*values: Any) -> list[tuple[str, int, Any]]:
    """Each value with either layout, and with two and with three parties."""
    return [(kind, 2 + (i + j) % 2, value) for i, value in enumerate(values) for j, kind in enumerate(LAYOUTS)]


@pytest.mark.parametrize(("kind", "parties", "ends"), crossed(*ENDS))
def test_values_at_the_ends_of_their_interval(kind: str, parties: int, ends: str) -> None:
    """Rows in the corners, with centroids in opposite corners: distances are as different as they can be."""
    low, high = ENDS[ends].interval
    rng = np.random.default_rng(5)
    rows = rng.choice([low, high], (7, 2))
    rows[5] = rng.uniform(low, high, 2)
    start = np.array([[low, low], [high, high], [low, high]])
    kmeans = kmeans_for(layout_of(kind, parties, 7, 2), 3, ENDS[ends], tol=0)
    check_against_lloyd(kmeans, rows, start, iterations=2)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_mean_of_many_rows_at_the_bound_is_the_bound(sign: int) -> None:
    rows = np.full((3_000, 2), sign * 1000.0)
    kmeans = kmeans_for(horizontal((2_999, 1), 2, 2_999), 2, ENDS["none"], tol=0)
    (found,) = check_against_lloyd(kmeans, rows, np.array([[0.0, 0.0], [900.0, -900.0]]), iterations=1)
    np.testing.assert_allclose(found.centroids[found.labels[0]], sign * 1000.0, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("kind", "parties", "cut"), crossed((5, 3), (7, 1), (1, 5), (16, 5)))
def test_several_column_shards(kind: str, parties: int, cut: tuple[int, int]) -> None:
    """16 columns: the last shard has one column, two, or all are single; shards cut across owners."""
    width, k = cut
    rows, start = drawn(3, 7, 16, k)
    kmeans = replace(kmeans_for(layout_of(kind, parties, 7, 16), k), columns_per_shard=width)
    assert len(kmeans.column_shards) == -(-16 // width)
    found = check_against_lloyd(kmeans, rows, start, iterations=2)
    for secure, clear in zip(found, lloyd(lambda: [rows], start, 2), strict=True):
        np.testing.assert_array_equal(secure.counts, clear.counts)
        np.testing.assert_allclose(secure.centroids, clear.centroids, rtol=0, atol=TOLERANCE)
    if k >= 3:
        assert_stays_empty(found, start, cluster=1)


def test_column_shards_move_together() -> None:
    """The stop bit and the inertia are of all columns: they do not depend on how these are cut."""
    rows, start = drawn(4, 7, 2, 3)
    moved = [step.movement for step in lloyd(lambda: [rows], start, 3)]
    kmeans = replace(kmeans_for(layout_of("vertical", 2, 7, 2), 3, tol=0.001), columns_per_shard=1)
    found = check_against_lloyd(kmeans, rows, start, iterations=3)
    assert [iteration.stop for iteration in found] == [each < 0.001 for each in moved]
    assert all(iteration.inertia is not None for iteration in found)


@pytest.mark.parametrize(("kind", "parties", "drop"), crossed(0, 20, None))
def test_wide_and_narrow_comparisons(kind: str, parties: int, drop: int | None) -> None:
    rows, start = drawn(1, 7, 16, 5)
    kmeans = kmeans_for(layout_of(kind, parties, 7, 16), 5, drop_bits=drop)
    assert kmeans.assignment.drop == (14 if drop is None else drop)
    check_against_lloyd(kmeans, rows, start, iterations=2)


def test_comparisons_of_all_64_bits() -> None:
    rows, start = drawn(2, 7, 16, 5)
    kmeans = replace(kmeans_for(layout_of("vertical", 2, 7, 16), 5), assignment=Argmin(compare_bits=64))
    check_against_lloyd(kmeans, rows, start, iterations=2)


@pytest.mark.parametrize("parties", [2, 3])
def test_very_narrow_comparisons_move_near_ties_and_nothing_else(parties: int) -> None:
    """With 32 bits dropped near-ties are below 2^-8 a party and cluster: some rows move, and all are explained."""
    rng = np.random.default_rng(0)
    rows, start = rng.random((500, 2)), rng.random((6, 2))
    kmeans = kmeans_for(vertical(500, (1, 1, 0)[:parties], 500), 6, drop_bits=32)
    (found,) = check_against_lloyd(kmeans, rows, start, iterations=1)
    squares = ((rows[:, None, :] - start) ** 2).sum(axis=2)
    excess = squares[np.arange(500), found.labels] - squares.min(axis=1)
    assert np.count_nonzero(found.labels != nearest(rows, start)) > 0
    assert excess.max() < 6 * parties * 2.0**-8 + 2.0**-16


@pytest.mark.parametrize("kind", LAYOUTS)
def test_equal_rows_and_equal_centroids(kind: str) -> None:
    """All rows are equal, and so are all centroids: ties go to the lowest, and the others stay where they were."""
    rows, start = np.full((7, 2), 0.3), np.full((3, 2), 0.7)
    found = check_against_lloyd(kmeans_for(layout_of(kind, 3, 7, 2), 3), rows, start, iterations=2)
    np.testing.assert_array_equal(found[0].counts, [7, 0, 0])
    np.testing.assert_allclose(found[0].centroids, [[0.3, 0.3], [0.7, 0.7], [0.7, 0.7]], atol=TOLERANCE)


def test_half_way_between_two_centroids_the_lower_one_wins() -> None:
    rows = np.array([[0.5, 0.25], [0.5, 0.75]])
    start = np.array([[0.0, 0.5], [1.0, 0.5]])
    for kind in (vertical(2, (1, 1), 1), horizontal((1, 1), 2, 1)):
        for centroids in (start, start[::-1]):
            (found,) = check_against_lloyd(kmeans_for(kind, 2), rows, centroids, iterations=1)
            np.testing.assert_array_equal(found.labels, [0, 0])


@pytest.mark.parametrize("kind", LAYOUTS)
def test_it_stops_when_lloyd_does(kind: str) -> None:
    rows, start = drawn(4, 7, 2, 3)
    moved = [step.movement for step in lloyd(lambda: [rows], start, 3)]
    assert moved[0] > 0.001 > moved[2]
    kmeans = kmeans_for(layout_of(kind, 2, 7, 2), 3, tol=0.001)
    found = run_kmeans(kmeans, rows, start, iterations=3)
    assert [iteration.stop for iteration in found] == [each < 0.001 for each in moved]


@pytest.mark.parametrize("parties", [2, 3])
def test_it_stops_below_the_tolerance_and_not_at_it(parties: int) -> None:
    """The centroids' movement in their last bits: ε is exactly that, or one unit of 2^-40 more."""
    rows, start = drawn(0, 7, 2, 2)
    layout = layout_of("vertical", parties, 7, 2)
    (first,) = run_kmeans(kmeans_for(layout, 2, tol=1.0), rows, start, iterations=1)
    steps = ring.decode(fixed.encode(first.centroids)) - ring.decode(fixed.encode(start))
    moved = int((steps**2).sum())
    for unit, stops in ((0, False), (1, True)):
        (found,) = run_kmeans(kmeans_for(layout, 2, tol=(moved + unit) * 2.0**-40), rows, start, iterations=1)
        assert found.stop is stops


def test_the_smallest_tolerance_stops_when_nothing_moves() -> None:
    rows, start = drawn(0, 7, 2, 2)
    kmeans = kmeans_for(layout_of("horizontal", 2, 7, 2), 2, tol=1e-300)
    found = run_kmeans(kmeans, rows, start, iterations=4)
    assert not found[0].stop
    assert found[-1].stop


def test_without_a_tolerance_nothing_is_opened() -> None:
    rows, start = drawn(0, 7, 2, 1)
    layout = layout_of("vertical", 2, 7, 2)
    never, ever = (kmeans_for(layout, 1, tol=tol) for tol in (0, 1e-4))
    found = run_kmeans(never, rows, start, iterations=2)
    assert not any(iteration.stop for iteration in found)
    np.testing.assert_allclose(found[0].centroids, found[1].centroids, rtol=0, atol=2.0**-19)
    assert never.stop is None
    assert ever.stop is not None


def test_inertia_only_where_it_may_be_revealed() -> None:
    rows, start = drawn(0, 7, 2, 2)
    layout = layout_of("vertical", 2, 7, 2)
    (with_it,), (without,) = (
        run_kmeans(kmeans_for(layout, 2, inertia=inertia), rows, start, iterations=1) for inertia in (True, False)
    )
    assert with_it.inertia is not None
    assert without.inertia is None


@pytest.mark.parametrize("bound", [1, 1000])
@pytest.mark.parametrize("n", [5_000_000, 2**30 - 1])
@pytest.mark.parametrize("parties", [2, 3])
def test_centroids_of_very_many_rows(tmp_path: Path, parties: int, n: int, bound: int) -> None:
    """The k × d work alone, on sums and sizes as the shards give them: nearly all rows, a million, one, none."""
    sizes = [n - 1_000_001, 1_000_000, 1, 0]
    means = np.random.default_rng(n).uniform(-bound, bound, (4, 2))
    means[0] = bound, -bound
    sums = [[round(size * value * 2**20) for value in mean] for size, mean in zip(sizes, means, strict=True)]
    normalise = NormaliseConfig(method="none", bound=bound)
    kmeans = kmeans_for(vertical(n, (2,) + (0,) * (parties - 1), 1 << 24), 4, normalise, inertia=bound == 1, tol=0)
    s = np.array([to_ring_elements(row) for row in sums])
    mu = np.full((4, 2), fixed.encode(np.array(0.25)))
    squares = sum(size * float((mean**2).sum()) for size, mean in zip(sizes, means, strict=True))
    x2 = fixed.encode(np.array([squares + 3.0])) if bound == 1 else np.zeros(1, np.uint64)
    first, *others = kmeans.scale, kmeans.refine, kmeans.numerator, kmeans.quotient
    divide = sum((step.protocol for step in others), first.protocol)
    outcome = run_on_shares(divide, parties, tmp_path, mu=mu, s=s, n=np.array(sizes))
    np.testing.assert_allclose(fixed.decode(outcome.total("mu"))[:3], means[:3], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(outcome.total("mu")[3], mu[3])
    if bound == 1:
        norms = run_on_shares(kmeans.last.norms.protocol, parties, tmp_path, mu=outcome.total("mu"))
        parts = {"u": norms.total("u"), "n": np.array(sizes), "x2": x2}
        outcome = run_on_shares(kmeans.inertia.protocol, parties, tmp_path, **parts)
        assert fixed.decode(outcome.total("inertia"))[0] == pytest.approx(3.0, abs=n * 2.0**-17)


sizes = st.tuples(st.integers(1, 30), st.integers(1, 5), st.integers(1, 6))
"""n, d, k."""


@st.composite
def small_jobs(draw: st.DrawFn) -> tuple[KMeansSteps, Real, Real]:
    """A job, rows and a start: any division among the parties, any shards, ties where values are on a grid."""
    n, d, k = draw(sizes.filter(lambda size: size[2] <= size[0]))
    parties = draw(st.integers(2, 3))
    cuts = sorted(draw(st.lists(st.integers(0, 30), min_size=parties - 1, max_size=parties - 1)))
    total = d if draw(st.booleans()) else n
    ends = [0, *(min(cut, total) for cut in cuts), total]
    parts = tuple(b - a for a, b in pairwise(ends))
    per_shard = draw(st.integers(max(1, n // 4), 30))
    layout = vertical(n, parts, per_shard) if total == d else horizontal(parts, d, per_shard)
    kmeans = kmeans_for(layout, k, drop_bits=draw(st.sampled_from([None, 0, 20])))
    kmeans = replace(kmeans, columns_per_shard=draw(st.integers(1, 6)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, start = rng.random((n, d)), rng.random((k, d))
    if draw(st.booleans()):
        rows, start = np.rint(rows * 4) / 4, np.rint(start * 4) / 4
    return kmeans, rows, start


@settings(max_examples=20, deadline=None)
@given(small_jobs())
def test_small_jobs_of_any_shape(job: tuple[KMeansSteps, Real, Real]) -> None:
    kmeans, rows, start = job
    check_against_lloyd(kmeans, rows, start, iterations=2)
