"""The first centroids: what all parties' shares add up to, for every method, vertically and horizontally."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, save_npz

from support.kmeans_in_memory import horizontal, vertical
from support.parties import NAMES
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.io.sources.encode import encode_source
from veilmeans.io.sources.scaling import Scaling, scaling_of
from veilmeans.io.sources.scan import scan_source
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import InitConfig, KMeansConfig, NormaliseConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans import initial_centroids as start
from veilmeans.transforms.kmeans.initial_centroids import (
    initial_centroids_share,
    initial_rows,
    own_normalised_rows,
    own_sum_of_squares,
    random_centroids,
)
from veilmeans.transforms.kmeans.plaintext_kmeans import local_centroids

LAYOUTS = {
    "vertical, 2": vertical(7, (1, 3), 3),
    "vertical, 3": vertical(7, (2, 1, 1), 6),
    "horizontal, 2": horizontal((5, 2), 4, 2),
    "horizontal, 3": horizontal((1, 2, 4), 4, 3),
}
ROWS = np.random.default_rng(8).random((7, 4))
HALF = 2.0**-21
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))


def job(k: int, normalise: NormaliseConfig | None = None, **init: Any) -> KMeansConfig:
    return KMeansConfig.model_construct(clusters=k, init=InitConfig(**init), normalise=normalise or NormaliseConfig())


def part(layout: Layout, party: int) -> Real:
    """What a party has of ROWS."""
    first = 0 if layout.vertical else sum(layout.rows[:party])
    return ROWS[first : first + layout.rows[party], layout.own_columns(party)]


def prepared(folder: Path, layout: Layout) -> list[EncodedData]:
    """Each party's rows in shards on its disk."""
    return [prepare(folder / str(i), part(layout, i), layout.rows_per_shard) for i in range(layout.parties)]


def prepare(folder: Path, rows: Real, rows_per_shard: int) -> EncodedData:
    folder.mkdir()
    file = folder / "rows.parquet"
    pq.write_table(pa.table({f"c{i}": column for i, column in enumerate(rows.T)}), file)
    scan = scan_source(str(file), (), None, folder)
    scaling = scaling_of("none", scan.low, scan.high, scan.mean, scan.deviation)
    return encode_source(scan, scaling, (0.0, 1.0), rows_per_shard, folder)


def shares(job: KMeansConfig, layout: Layout, folder: Path) -> list[ring.Ring]:
    names = NAMES[: layout.parties]
    return [
        initial_centroids_share(job, layout, Party(i, names), data) for i, data in enumerate(prepared(folder, layout))
    ]


def joined(job: KMeansConfig, layout: Layout, folder: Path) -> Real:
    return fixed.decode(ring.total(shares(job, layout, folder)))


@layouts
def test_named_rows_are_the_start(tmp_path: Path, layout: Layout) -> None:
    named = (6, 0, 4)
    found = joined(job(3, indices=named), layout, tmp_path)
    np.testing.assert_allclose(found, ROWS[list(named)], rtol=0, atol=HALF)


@layouts
@pytest.mark.parametrize("k", [1, 3, 7])
def test_drawn_rows_are_distinct_rows_and_the_start(tmp_path: Path, layout: Layout, k: int) -> None:
    drawn = initial_rows(job(k, seed=5), layout)
    assert len(set(drawn)) == k
    np.testing.assert_allclose(joined(job(k, seed=5), layout, tmp_path), ROWS[list(drawn)], rtol=0, atol=HALF)


@layouts
def test_a_partys_share_of_rows_is_its_own_values_and_zero_elsewhere(tmp_path: Path, layout: Layout) -> None:
    named = (6, 0, 4)
    for party, share in enumerate(shares(job(3, indices=named), layout, tmp_path)):
        mine = np.zeros(ROWS.shape, bool)
        first = 0 if layout.vertical else sum(layout.rows[:party])
        mine[first : first + layout.rows[party], layout.own_columns(party)] = True
        expected = np.where(mine, ROWS, 0)[list(named)]
        np.testing.assert_array_equal(share, fixed.encode(expected))


@given(st.integers(0, 2**63 - 1), st.integers(1, 40), st.integers(0, 500))
def test_rows_are_drawn_from_the_seed(seed: int, k: int, more: int) -> None:
    layout = vertical(k + more, (1, 1), 100)
    drawn = initial_rows(job(k, seed=seed), layout)
    assert drawn == initial_rows(job(k, seed=seed), layout)
    assert len(set(drawn)) == len(drawn) == k
    assert 0 <= min(drawn) <= max(drawn) < k + more


def test_another_seed_draws_other_rows_and_all_are_drawn_alike_often() -> None:
    layout = horizontal((6, 4), 1, 100)
    drawn = [initial_rows(job(3, seed=seed), layout) for seed in range(600)]
    assert len(set(drawn)) > 300
    counts = np.bincount(np.array(drawn).reshape(-1), minlength=10)
    assert abs(counts - 180).max() < 60  # five standard deviations


@layouts
def test_rows_do_not_depend_on_who_has_them(layout: Layout) -> None:
    assert initial_rows(job(3, seed=1), layout) == initial_rows(job(3, seed=1), vertical(7, (1, 1), 2))


@layouts
@pytest.mark.parametrize(
    ("normalise", "low", "high"),
    [
        (NormaliseConfig(), 0, 1),
        (NormaliseConfig(method="zscore"), -1, 1),
        (NormaliseConfig(method="none", bound=5), -5, 5),
    ],
    ids=["minmax", "zscore", "none"],
)
def test_random_values_are_the_start_within_the_interval(
    tmp_path: Path, layout: Layout, normalise: NormaliseConfig, low: float, high: float
) -> None:
    wanted = job(6, normalise, method="random", seed=2)
    values = random_centroids(wanted, layout)
    assert low <= values.min() < low + (high - low) / 4
    assert high - (high - low) / 4 < values.max() <= high
    first, *others = shares(wanted, layout, tmp_path)
    np.testing.assert_allclose(fixed.decode(first), values, rtol=0, atol=HALF)
    assert not any(share.any() for share in others)


def test_random_values_are_drawn_from_the_seed() -> None:
    layout = LAYOUTS["vertical, 2"]
    one, again, other = (random_centroids(job(3, method="random", seed=seed), layout) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.intersect1d(one, other).size


@layouts
def test_a_local_start_is_each_partys_own_kmeans(tmp_path: Path, layout: Layout) -> None:
    """Vertically side by side, horizontally the average."""
    found = joined(job(3, method="local", seed=4), layout, tmp_path)
    rounded = [fixed.decode(fixed.encode(part(layout, i))) for i in range(layout.parties)]
    own = [local_centroids(lambda rows=rows: [rows], 3, 4) for rows in rounded]
    expected = np.hstack(own) if layout.vertical else np.mean(own, axis=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=layout.parties * HALF)


def test_the_seed_decides_a_local_start(tmp_path: Path) -> None:
    layout = LAYOUTS["vertical, 2"]
    (tmp_path / "again").mkdir()
    (tmp_path / "other").mkdir()
    one = joined(job(3, method="local", seed=4), layout, tmp_path)
    np.testing.assert_array_equal(one, joined(job(3, method="local", seed=4), layout, tmp_path / "again"))
    assert not np.array_equal(one, joined(job(3, method="local", seed=5), layout, tmp_path / "other"))


@layouts
def test_the_squares_of_all_parties_add_up(tmp_path: Path, layout: Layout) -> None:
    parties = prepared(tmp_path, layout)
    total = fixed.decode(ring.total(own_sum_of_squares(each) for each in parties))[0]
    assert total == pytest.approx(float((ROWS**2).sum()), abs=ROWS.size * 2 * HALF + layout.parties * HALF)


def test_squares_that_do_not_fit_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where so much is summed nobody may ask for the inertia, so nothing depends on it."""
    (data, _) = prepared(tmp_path, LAYOUTS["vertical, 2"])
    shards = [np.full(4, 2.0**22), np.array([1.5]), np.zeros(0)]
    monkeypatch.setattr(start, "read_values", lambda _, shard: fixed.encode(shards[shard]))
    np.testing.assert_array_equal(own_sum_of_squares(data), np.array([(2**66 + 9 * 2**18) % 2**64], np.uint64))


@pytest.mark.parametrize("method", ["local", "indices"])
def test_a_start_of_many_columns_needs_no_dense_rows(tmp_path: Path, method: str) -> None:
    d = 10**5
    matrix = csr_array(([1.0, 0.5, 1.0], ([0, 0, 700], [0, d - 1, 7])), shape=(10**5, d))
    save_npz(tmp_path / "s.npz", matrix)
    scan = scan_source(str(tmp_path / "s.npz"), (), None, tmp_path)
    data = encode_source(scan, Scaling((0.0,) * d, (1.0,) * d), (0.0, 1.0), 10**5, tmp_path)
    wanted = job(2, method=method, **({"indices": (700, 0)} if method == "indices" else {}))
    share = initial_centroids_share(wanted, vertical(10**5, (d, 1), 10**5), Party(0, NAMES[:2]), data)
    assert share.shape == (2, d + 1)
    assert fixed.decode(own_sum_of_squares(data)).tolist() == [2.25]
    if method == "indices":
        assert np.argwhere(share).tolist() == [[0, 7], [1, 0], [1, d - 1]]


@layouts
def test_own_rows_come_shard_by_shard(tmp_path: Path, layout: Layout) -> None:
    for party, each in enumerate(prepared(tmp_path, layout)):
        blocks = [block.toarray() for block in own_normalised_rows(each)]
        assert {len(block) for block in blocks[:-1]} <= {layout.rows_per_shard}
        np.testing.assert_allclose(np.concatenate(blocks), part(layout, party), rtol=0, atol=HALF)
