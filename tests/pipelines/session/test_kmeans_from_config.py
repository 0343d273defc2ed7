"""From public bounds to protocols: comparisons are wide enough at the extremes, and what cannot fit is said so."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.config_mistakes import config, mistake
from support.config_text import gateway
from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, layout_of, store_iterations, store_requirements
from veilmeans.schemas import layout as layouts
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import NormaliseConfig

BEYOND = 2.0**-12
"""How far outside the interval a centroid could be by rounding; it is much less."""
methods = st.one_of(
    st.just(NormaliseConfig()),
    st.just(NormaliseConfig(method="zscore")),
    st.floats(2.0**-30, 700).map(lambda bound: NormaliseConfig(method="none", bound=bound)),
)


@given(methods, st.integers(1, 4))
def test_comparisons_are_as_wide_as_distances_can_differ_and_no_wider(normalise: NormaliseConfig, d: int) -> None:
    low, high = normalise.interval
    ends = fixed.encode(np.array([[low - BEYOND] * d, [high + BEYOND] * d]))
    kmeans = kmeans_for(horizontal((1, 1), d, 1), 2, normalise, tol=0)
    difference = farthest(ends)
    assert difference < 2 ** (kmeans.tree.compare_bits - 1)
    if high - low > 1:
        assert difference >= 2 ** (kmeans.tree.compare_bits - 3)


def farthest(ends: ring.Ring) -> int:
    """The largest difference of a row's squared distances to two centroids, with 40 fractional bits: the row and one
    of them are at the one end, the other is at the other."""
    low, high = ([int(value) for value in ring.decode(end)] for end in ends)
    return sum((b - a) ** 2 for a, b in zip(low, high, strict=True))


@given(methods, st.integers(1, 4))
def test_bits_are_dropped_to_make_words_of_32(normalise: NormaliseConfig, d: int) -> None:
    tree = kmeans_for(vertical(10, (d, 0), 10), 2, normalise, tol=0).tree
    assert 0 <= tree.drop <= 20
    if tree.drop:
        assert tree.compare_bits - tree.drop == 32
    else:
        assert not 32 < tree.compare_bits <= 52


@pytest.mark.parametrize(
    ("normalise", "features", "bits", "drop"),
    [
        (NormaliseConfig(), 2, 43, 11),
        (NormaliseConfig(), 64, 48, 16),
        (NormaliseConfig(), 4_096, 54, 0),
        (NormaliseConfig(method="zscore"), 2, 53, 0),
        (NormaliseConfig(method="zscore", bound=8), 2, 51, 19),
        (NormaliseConfig(method="none", bound=1000), 2, 64, 0),
    ],
)
def test_widths_of_comparisons(normalise: NormaliseConfig, features: int, bits: int, drop: int) -> None:
    tree = kmeans_for(vertical(10, (1, features - 1), 10), 2, normalise, tol=0).tree
    assert (tree.compare_bits, tree.drop) == (bits, drop)
    assert kmeans_for(vertical(10, (1, features - 1), 10), 2, normalise, tol=0, drop_bits=0).tree.drop == 0


@given(st.integers(1, 2**30 - 1), methods)
def test_sums_and_counts_have_room(rows: int, normalise: NormaliseConfig) -> None:
    """|Σx| ≤ count · 2^magnitude, and counts are below 2^count_bits: what the division relies on."""
    work = kmeans_for(horizontal((rows, 0), 1, 1 << 24), 1, normalise, inertia=False, tol=0).work
    assert rows < 2**work.count_bits <= 2 * rows
    largest = ring.decode(fixed.encode(np.abs(np.array(normalise.interval)))).max()
    assert largest <= 2**work.magnitude
    assert work.count_bits + work.magnitude < 62


def too_large(shown: str) -> str:
    return (
        f"kmeans.normalise.bound is too large: squared distances over 2 columns of values within {shown} "
        "need over 64 bits; normalise (minmax or zscore), or lower the bound"
    )


@pytest.mark.parametrize("bound", [1024, 5_000, 1e200])
def test_bounds_that_are_too_large_are_refused(bound: float) -> None:
    sentence = mistake(normalise={"method": "none", "bound": bound}, tol=0)
    assert sentence == too_large(f"[{-bound:g}, {bound:g}]")


def test_a_tiny_bound_is_possible() -> None:
    assert kmeans_steps(config(normalise={"method": "none", "bound": 1e-300})).work.magnitude == fixed.FRACTION_BITS


@pytest.mark.parametrize("tol", [2.0**22, 1e12])
def test_a_tolerance_that_is_too_large_is_refused(tol: float) -> None:
    assert mistake(tol=tol) == f"kmeans.tol is {tol:g}, and must be below 4,194,304"
    assert kmeans_steps(config(tol=2.0**21)).work.threshold == 2**61


def test_a_movement_that_has_no_room_is_refused() -> None:
    fields = {"normalise": {"method": "none", "bound": 1000}, "clusters": 3}
    assert mistake(**fields) == (
        "the movement of 3 centroids of 2 columns within [-1000, 1000] needs over 64 bits: "
        "lower kmeans.normalise.bound, or set kmeans.tol to 0"
    )
    kmeans_steps(config(**fields, tol=0))


def test_too_many_columns_are_refused() -> None:
    sentence = mistake(features={"payco": 1, "shop": 2**22 - 1}, tol=0)
    assert sentence == "4,194,304 columns of values within [0, 1] are too many: leave out some"


def test_too_many_rows_are_refused() -> None:
    assert mistake(rows=2**30) == "1,073,741,824 rows are too many: there can be 1,073,741,823"
    assert kmeans_steps(config(rows=2**30 - 1)).work.count_bits == 30


def test_an_inertia_that_has_no_room_is_refused() -> None:
    fields = {"rows": 2**22, "normalise": {"method": "none", "bound": 1000}, "tol": 0}
    sentence = mistake(**fields, reveal={"inertia": ["payco"]})
    assert sentence == "the inertia of so many rows does not fit in 64 bits: leave out kmeans.reveal.inertia"
    assert not kmeans_steps(config(**fields)).work.inertia


def test_dropping_all_bits_is_refused() -> None:
    sentence = mistake(normalise={"method": "none", "bound": 2.0**-13}, drop_bits=32)
    assert sentence == "kmeans.drop_bits is 32, and distances have 23 bits: leave at least 2 of them"


def test_layouts_follow_the_order_of_the_parties() -> None:
    upright = config(features={"shop": 5, "payco": 1})
    assert upright.kmeans is not None
    assert layout_of(upright, upright.kmeans) == vertical(100, (1, 5), 65_536)
    flat = config(
        layout="horizontal", rows={"shop": 7, "payco": 9}, features=2, normalise={"method": "none", "bound": 1}
    )
    assert flat.kmeans is not None
    assert layout_of(flat, flat.kmeans) == horizontal((9, 7), 2, 65_536)


def test_a_configuration_without_a_job_has_no_plan() -> None:
    raw = {**gateway(), "triples": {"store": "october"}}
    del raw["sums"]
    empty = JobConfig.model_validate(raw)
    with pytest.raises(ConfigError, match="has no job: add `kmeans:` or `sums:`"):
        store_requirements(empty)
    with pytest.raises(ConfigError, match="has no K-means job: add `kmeans:`"):
        kmeans_steps(empty)


@pytest.mark.parametrize(("columns", "shards"), [(1_000_000, 16), (65_536, 1), (65_537, 2)])
def test_many_columns_are_worked_on_in_shards(columns: int, shards: int) -> None:
    kmeans = kmeans_steps(config(features={"payco": 1, "shop": columns - 1}, clusters=4, tol=0))
    assert len(kmeans.column_shards) == shards
    assert (kmeans.column_shards[0].start, kmeans.column_shards[-1].stop) == (0, columns)


def test_the_store_follows_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three columns, one in each shard: more shards than there are of rows, each with its own quotient."""
    fields = {"clusters": 2, "features": {"payco": 1, "shop": 2}}
    whole = store_requirements(config(**fields))
    monkeypatch.setattr(layouts, "VALUES_PER_COLUMN_SHARD", 2)
    plan = store_requirements(config(**fields))
    assert [block.widths for block in plan.columns] == [(1,), (1,), (1,)]
    assert (whole.shards, plan.shards) == (1, 3)
    assert plan.digest() != whole.digest()
    works = [{stage.split(".")[0] for stage in plan.needs(shard, 0)} for shard in range(3)]
    assert works[1] == works[2] == {"norms", "quotient"}
    assert works[0] >= {"norms", "quotient", "reciprocal", "finish", "distance"}
    assert {stage.split(".")[0] for stage in plan.needs(2, 1)} == {"quotient"}


def test_the_plan_is_for_all_shards_and_iterations() -> None:
    plan = store_requirements(config())
    assert (plan.rows, plan.shards) == (100, 1)
    assert plan.digest() == kmeans_steps(config()).plan().digest()
    assert len({store_requirements(config(**fields)).digest() for fields in OTHERS}) == len(OTHERS)
    assert store_iterations(config()) == 10
    assert store_iterations(config(max_iter=3)) == 3


OTHERS: list[dict[str, Any]] = [
    {},
    {"rows": 101},
    {"clusters": 4},
    {"features": {"payco": 2, "shop": 1}},
    {"drop_bits": 0},
    {"tol": 0},
    {"reveal": {"inertia": ["shop"]}},
]
"""Jobs that need different triples."""
