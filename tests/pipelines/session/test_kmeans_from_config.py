"""Protocols from public bounds: comparisons are wide enough at the extremes, and bounds without room are refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.config_mistakes import config, mistake
from support.config_text import gateway
from support.kmeans_in_memory import config_for, horizontal, kmeans_for, vertical
from support.worlds import changed_config
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.pipelines.session.kmeans_from_config import (
    job_digest,
    kmeans_steps,
    layout_of,
    store_iterations,
    traced_job,
)
from veilmeans.schemas.config import JobConfig, LinkConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import NormaliseConfig
from veilmeans.transforms.kmeans.job_trace import trace_job

BEYOND = 2.0**-12
"""An upper bound of how far rounding moves a centroid out of the interval."""
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
    assert difference < 2 ** (kmeans.assignment.compare_bits - 1)
    if high - low > 1:
        assert difference >= 2 ** (kmeans.assignment.compare_bits - 3)


def farthest(ends: ring.Ring) -> int:
    """The largest difference of a row's squared distances to two centroids, with 40 fractional bits.

    The row and one of the centroids are at one end, the other centroid is at the other end.
    """
    low, high = ([int(value) for value in ring.decode(end)] for end in ends)
    return sum((b - a) ** 2 for a, b in zip(low, high, strict=True))


@given(methods, st.integers(1, 4))
def test_bits_are_dropped_to_make_words_of_32(normalise: NormaliseConfig, d: int) -> None:
    tree = kmeans_for(vertical(10, (d, 0), 10), 2, normalise, tol=0).assignment
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
    tree = kmeans_for(vertical(10, (1, features - 1), 10), 2, normalise, tol=0).assignment
    assert (tree.compare_bits, tree.drop) == (bits, drop)
    assert kmeans_for(vertical(10, (1, features - 1), 10), 2, normalise, tol=0, drop_bits=0).assignment.drop == 0


@given(st.integers(1, 2**30 - 1), methods)
def test_sums_and_counts_have_room(rows: int, normalise: NormaliseConfig) -> None:
    """|Σx| ≤ count · 2^magnitude, and counts are below 2^count_bits: what the division relies on."""
    work = kmeans_for(horizontal((rows, 0), 1, 1 << 24), 1, normalise, inertia=False, tol=0).centroid_update
    assert rows < 2**work.count_bits <= 2 * rows
    largest = ring.decode(fixed.encode(np.abs(np.array(normalise.interval)))).max()
    assert largest <= 2**work.magnitude
    assert work.count_bits + work.magnitude < 62


@pytest.mark.parametrize("bound", [1024, 5_000, 1e200])
def test_bounds_that_are_too_large_are_refused(bound: float) -> None:
    assert_names(mistake(normalise={"method": "none", "bound": bound}, tol=0), "kmeans.normalise.bound", f"{bound:g}")


def assert_names(sentence: str, *named: str) -> None:
    assert [name for name in named if name not in sentence] == []


def test_a_tiny_bound_is_possible() -> None:
    assert (
        kmeans_steps(config(normalise={"method": "none", "bound": 1e-300})).centroid_update.magnitude
        == fixed.FRACTION_BITS
    )


@pytest.mark.parametrize("tol", [2.0**22, 1e12])
def test_a_tolerance_that_is_too_large_is_refused(tol: float) -> None:
    assert_names(mistake(tol=tol), "kmeans.tol", f"{tol:g}", "4,194,304")
    assert kmeans_steps(config(tol=2.0**21)).centroid_update.threshold == 2**61


def test_a_movement_that_has_no_room_is_refused() -> None:
    fields = {"normalise": {"method": "none", "bound": 1000}, "clusters": 3}
    assert_names(mistake(**fields), "[-1000, 1000]", "kmeans.normalise.bound", "kmeans.tol")
    kmeans_steps(config(**fields, tol=0))


def test_too_many_columns_are_refused() -> None:
    assert_names(mistake(features={"payco": 1, "shop": 2**22 - 1}, tol=0), "4,194,304 columns")


def test_too_many_rows_are_refused() -> None:
    assert_names(mistake(rows=2**30), "1,073,741,824", "1,073,741,823")
    assert kmeans_steps(config(rows=2**30 - 1)).centroid_update.count_bits == 30


def test_an_inertia_that_has_no_room_is_refused() -> None:
    fields = {"rows": 2**22, "normalise": {"method": "none", "bound": 1000}, "tol": 0}
    assert_names(mistake(**fields, reveal={"inertia": ["payco"]}), "kmeans.reveal.inertia")
    assert not kmeans_steps(config(**fields)).centroid_update.inertia


def test_dropping_all_bits_is_refused() -> None:
    assert_names(mistake(normalise={"method": "none", "bound": 2.0**-13}, drop_bits=32), "kmeans.drop_bits", "32", "23")


def test_layouts_follow_the_order_of_the_parties() -> None:
    columns = config(features={"shop": 5, "payco": 1})
    assert layout_of(columns, columns.required_kmeans) == vertical(100, (1, 5), 65_536)
    rows = config(
        layout="horizontal", rows={"shop": 7, "payco": 9}, features=2, normalise={"method": "none", "bound": 1}
    )
    assert layout_of(rows, rows.required_kmeans) == horizontal((9, 7), 2, 65_536)


def test_a_configuration_without_a_job_has_no_plan() -> None:
    raw = gateway()
    del raw["kmeans"]
    empty = JobConfig.model_validate(raw)
    for function in (traced_job, kmeans_steps, job_digest):
        with pytest.raises(ConfigError, match=r"payco.*`kmeans:`"):
            function(empty)


@pytest.mark.parametrize(("columns", "shards"), [(1_000_000, 16), (65_536, 1), (65_537, 2)])
def test_many_columns_are_worked_on_in_shards(columns: int, shards: int) -> None:
    kmeans = kmeans_steps(config(features={"payco": 1, "shop": columns - 1}, clusters=4, tol=0))
    assert len(kmeans.column_shards) == shards
    assert (kmeans.column_shards[0].start, kmeans.column_shards[-1].stop) == (0, columns)


def test_the_store_has_a_shard_for_each_column_shard() -> None:
    """Three columns, one in each shard: more column shards than row shards, each with its own quotient."""
    one_shard = config(clusters=2, features={"payco": 1, "shop": 2})
    one, plan = traced_job(one_shard), traced_job(changed_config(one_shard, beam={"values_per_column_shard": 2}))
    assert [shape.widths for shape in plan.column_shapes] == [(1,), (1,), (1,)]
    assert (one.store_shards, plan.store_shards) == (1, 3)
    assert plan.digest() != one.digest()
    steps = [{stage.split(".")[0] for stage in plan.needs(shard, 0)} for shard in range(3)]
    assert steps[1] == steps[2] == {"norms", "numerator", "quotient", "last-norms"}
    assert steps[0] >= {"norms", "quotient", "scale", "refine", "distance"}
    assert {stage.split(".")[0] for stage in plan.needs(2, 1)} == {"norms", "numerator", "quotient"}


def test_the_plan_is_for_all_shards_and_iterations() -> None:
    plan = traced_job(config())
    assert (plan.rows, plan.store_shards) == (100, 1)
    assert plan.digest() == trace_job(kmeans_steps(config())).digest()
    assert len({traced_job(config(**fields)).digest() for fields in OTHERS}) == len(OTHERS)
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


@pytest.mark.parametrize(
    ("dealer", "link", "method", "radices", "most"),
    [
        ("notary", LinkConfig(), "pairs", (3, 3, 4), 210e6),
        ("notary", LinkConfig(rate_mbps=20, round_trip_ms=40), "tree", (4, 4, 2), 150e6),
        (None, LinkConfig(), "tree", (2, 2, 2, 2, 2), 170e6),
    ],
)
def test_the_assignment_follows_provider_and_link_and_many_rows_need_few_bytes(
    dealer: str | None, link: LinkConfig, method: str, radices: tuple[int, ...], most: float
) -> None:
    """Ten iterations of 10^5 rows, 2 columns, 5 clusters, both ways."""
    job = config_for(vertical(100_000, (1, 1), 65_536), 5, products="beaver")
    kmeans = kmeans_steps(job.model_copy(update={"link": link, "dealer": dealer}))
    assert (kmeans.assignment.method, kmeans.assignment.radices) == (method, radices)
    traced = trace_job(kmeans)
    iteration = [step for step in traced.steps if step.when == "iteration"]
    assert sum(10 * count * sum(each.sent) for step in iteration for count, each in traced.stage_counts(step)) <= most


def test_a_configured_assignment_is_kept_and_the_store_is_made_for_it() -> None:
    layout = vertical(100, (1, 1), 100)
    jobs = {method: config_for(layout, 5, assignment=method) for method in ("auto", "pairs", "tree")}
    assert {name: kmeans_steps(job).assignment.method for name, job in jobs.items()} == {
        "auto": "pairs",
        "pairs": "pairs",
        "tree": "tree",
    }
    assert job_digest(jobs["auto"]) == job_digest(jobs["pairs"]) != job_digest(jobs["tree"])
