"""A triple store for more rows than a run has: what fills shards up changes no result, and is never opened."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import (
    SMALL,
    InStepExecutor,
    config_for,
    horizontal,
    kmeans_for,
    parties_in_step,
    predict_and_score,
    run_kmeans,
    vertical,
)
from support.lloyd_checks import check_against_lloyd
from support.parties import make_shares
from support.seeding_in_memory import run_seeding
from support.triple_stores import at_capacity
from veilmeans.crypto import bits
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.storage.checkpoints import assignments, scores
from veilmeans.io.storage.checkpoints import centroids as centroids_folder
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, traced_job
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import CipherConfig, InitConfig, OutliersConfig, PredictConfig
from veilmeans.schemas.layout import Layout, RowShard, ShardShape
from veilmeans.transforms.kmeans.iteration import predict_rows
from veilmeans.transforms.kmeans.open_results import ASSIGNMENTS, SHARES_OF_SCORES
from veilmeans.transforms.kmeans.party_state import by_columns, checkpoints_of
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.executor import Over

LAYOUTS = {
    "as many rows": replace(vertical(20, (2, 1), 8), capacity=(20, 20)),
    "one row more": replace(vertical(20, (2, 1), 8), capacity=(21, 21)),
    "a row for a new shard": replace(vertical(16, (2, 1), 8), capacity=(17, 17)),
    "several shards left out": replace(vertical(9, (1, 2), 8), capacity=(70, 70)),
    "one row": replace(vertical(1, (2, 1), 8), capacity=(12, 12)),
    "three parties": replace(vertical(70, (1, 1, 1), 66), capacity=(140, 140, 140)),
    "horizontal": replace(horizontal((9, 12), 3, 8), capacity=(20, 30)),
    "horizontal, three parties": replace(horizontal((3, 1, 17), 3, 8), capacity=(30, 1, 18)),
    "horizontal, one row each": replace(horizontal((1, 1), 3, 4), capacity=(9, 5)),
}
SOME = ("one row more", "horizontal, three parties")
CIPHER = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)


def drawn(layout: Layout, k: int, seed: int = 0) -> tuple[Real, Real]:
    """Rows, and initial centroids of which one is at the origin, where padding would be put."""
    rng = np.random.default_rng([seed, layout.total_rows, k])
    rows = rng.uniform(0.3, 1, (layout.total_rows, layout.total_features))
    start = rng.random((k, layout.total_features))
    start[-1] = 0
    return rows, start


def test_shards_have_the_shapes_of_the_store() -> None:
    layout = LAYOUTS["horizontal"]
    assert layout.row_shards() == [
        RowShard(0, 0, ShardShape(8, (3, 0)), 0),
        RowShard(0, 1, ShardShape(8, (3, 0)), 1, padding=7),
        RowShard(1, 0, ShardShape(8, (0, 3)), 3),
        RowShard(1, 1, ShardShape(8, (0, 3)), 4, padding=4),
    ]
    largest = {shard.number: shard.shape for shard in layout.at_capacity().row_shards()}
    assert all(largest[shard.number] == shard.shape for shard in layout.row_shards())
    for each in LAYOUTS.values():
        assert [shard.shape for shard in each.with_padding().row_shards()] == [
            shard.shape for shard in each.row_shards()
        ]


@pytest.mark.parametrize("name", SOME)
def test_the_store_is_that_of_its_largest_run(name: str) -> None:
    """Every run of a store needs a part of the correlations that its largest run needs, at the same places."""
    fields: dict[str, Any] = {"init": InitConfig(method="k-means++"), "outliers": OutliersConfig(fraction=0.1)}
    config = config_for(LAYOUTS[name], 3, **fields)
    largest = kmeans_steps(config.at_capacity())
    count = kmeans_steps(config).outliers.count  # type: ignore[union-attr]
    assert replace(at_capacity(kmeans_steps(config)), outliers=None) == replace(largest, outliers=None)
    assert largest.outliers == replace(kmeans_steps(config).outliers, count=largest.outliers.count)  # type: ignore
    assert count <= largest.outliers.count  # type: ignore[union-attr]
    assert traced_job(config).digest() == traced_job(config.at_capacity()).digest()


@pytest.mark.parametrize(
    ("name", "k", "products"), [*product(LAYOUTS, [1, 3], ["beaver"]), *product(SOME, [3], ["he"])]
)
def test_clusters_are_those_of_lloyd_on_the_rows_alone(name: str, k: int, products: str) -> None:
    """Counts, centroids, inertia and assignments; an empty cluster at the origin stays empty."""
    layout = LAYOUTS[name]
    kmeans = kmeans_for(layout, k, products=products, cipher=CIPHER, max_iter=2, drop_bits=0)
    rows, start = drawn(layout, k)
    found = check_against_lloyd(kmeans, rows, start, 2)
    assert all(each.counts.sum() == layout.total_rows for each in found)


@settings(max_examples=6, deadline=None)
@given(st.booleans(), st.integers(1, 70), st.integers(0, 140), st.sampled_from([2, 3]), st.sampled_from([5, 64, 65]))
def test_any_capacity(vertically: bool, n: int, more: int, parties: int, per_shard: int) -> None:
    if vertically:
        layout = replace(vertical(n, (1,) * parties, per_shard), capacity=(n + more,) * parties)
    else:
        counts = (n, *range(2, parties + 1))
        layout = replace(horizontal(counts, 2, per_shard), capacity=tuple(count + more for count in counts))
    rows, start = drawn(layout, 2, more)
    check_against_lloyd(kmeans_for(layout, 2, max_iter=1, tol=0.0), rows, start, 1)


@pytest.mark.parametrize(("name", "products"), [*product(LAYOUTS, ["beaver"]), *product(SOME, ["he"])])
def test_a_prediction_scores_its_rows_alone(name: str, products: str) -> None:
    """The padding would be the farthest: all centroids are at the far end."""
    layout = LAYOUTS[name]
    outliers = OutliersConfig(count=1) if layout.total_rows > 1 else None
    fields: dict[str, Any] = {"predict": PredictConfig(model="m"), "outliers": outliers, "products": products}
    kmeans = kmeans_for(layout, 2, inertia=False, scores=True, cipher=CIPHER, drop_bits=0, **fields)
    rows, _ = drawn(layout, 2)
    centroids = np.full((2, layout.total_features), 1.0)
    centroids[1] -= 0.25
    labels, found = predict_and_score(kmeans, rows, centroids)
    squares = ((fixed.decode(fixed.encode(rows))[:, None] - centroids) ** 2).sum(axis=2)
    np.testing.assert_array_equal(labels, squares.argmin(axis=1))
    np.testing.assert_allclose(found["scores"], squares.min(axis=1), atol=2**-18)
    if outliers is not None:
        assert np.flatnonzero(found["outliers"]).tolist() == [squares.min(axis=1).argmax()]


@pytest.mark.parametrize(
    ("name", "products"), [("one row more", "he"), ("three parties", "beaver"), ("horizontal", "beaver")]
)
def test_outliers_of_an_iteration_are_rows(name: str, products: str) -> None:
    """k-means--: the farthest rows move no centroid; neither does the padding, which is farther."""
    layout, outliers = LAYOUTS[name], OutliersConfig(count=2, during_training=True)
    fields: dict[str, Any] = {"products": products, "cipher": CIPHER, "drop_bits": 0, "max_iter": 1}
    kmeans = kmeans_for(layout, 2, inertia=False, outliers=outliers, **fields)
    rows, start = drawn(layout, 2)
    start[-1] = 0.9
    (found,) = run_kmeans(kmeans, rows, start, 1)
    exact, begun = (fixed.decode(fixed.encode(each)) for each in (rows, start))
    squares = ((exact[:, None] - begun) ** 2).sum(axis=2)
    labels, kept = squares.argmin(axis=1), np.ones(len(rows), bool)
    kept[np.argsort(-squares.min(axis=1), kind="stable")[:2]] = False
    np.testing.assert_array_equal(found.counts, np.bincount(labels[kept], minlength=2))
    means = [rows[kept & (labels == j)].mean(axis=0) if (kept & (labels == j)).any() else start[j] for j in range(2)]
    np.testing.assert_allclose(found.centroids, means, rtol=0, atol=2**-16)


@pytest.mark.parametrize(
    ("name", "products"),
    [("one row more", "he"), ("several shards left out", "beaver"), ("horizontal, three parties", "beaver")],
)
@pytest.mark.parametrize("alike", [False, True], ids=["different rows", "all rows alike"])
def test_kmeans_plus_plus_chooses_rows_only(name: str, products: str, alike: bool) -> None:
    """Where all rows are alike no weight is left, and the last row is chosen, not what follows it."""
    layout = LAYOUTS[name]
    kmeans = kmeans_for(layout, 3, init=InitConfig(method="k-means++"), products=products, cipher=CIPHER)
    rows = fixed.decode(fixed.encode(drawn(layout, 3)[0]))
    if alike:
        rows[:] = rows[0]
    centroids, _ = run_seeding(kmeans, rows, 4)
    assert all((rows == centroid).all(axis=1).any() for centroid in centroids)
    assert alike or len(np.unique(centroids, axis=0)) == 3


@pytest.mark.parametrize("name", ["several shards left out", "horizontal"])
def test_the_padding_is_not_opened(name: str) -> None:
    """What a peer gets of the padding are zeros, not the cluster, score or bit that the shares on disk have."""
    layout = LAYOUTS[name]
    fields: dict[str, Any] = {"predict": PredictConfig(model="m"), "outliers": OutliersConfig(count=1)}
    kmeans = kmeans_for(layout, 2, inertia=False, scores=True, **fields)
    rows, centroids = drawn(layout, 2)
    with parties_in_step(kmeans, rows, 1) as run:
        _predict(kmeans, run, centroids)
        ended = replace(run, table=run.table.at(1))
        for shard in filter(lambda each: each.padding, layout.row_shards()):
            kept = [checkpoints_of(each).read_shard(assignments(1), shard.number)["c"] for each in run.table.contexts]
            together = np.bitwise_xor.reduce(kept)
            assert bits.unpack_rows(together, shard.shape.rows)[:, shard.rows :].any(), "padding has a cluster"
            (opened, *_), (scored, *_) = (
                ended.shards(Over.ROWS, load)[shard.number] for load in (ASSIGNMENTS, SHARES_OF_SCORES)
            )
            assert int(opened["rows"][0]) == shard.rows
            assert not bits.unpack_rows(opened["c"], shard.shape.rows)[:, shard.rows :].any()
            assert not bits.unpack(scored["outlier"], shard.shape.rows)[shard.rows :].any()
            assert not scored["shown"][shard.rows :].any()
            assert checkpoints_of(run.table.contexts[0]).read_shard(scores(1), shard.number)["shown"][-1]


def _predict(kmeans: KMeansSteps, run: InStepExecutor, centroids: Real) -> None:
    shares = make_shares(fixed.encode(centroids), kmeans.layout.parties, seed=1)
    for context, share in zip(run.table.contexts, shares, strict=True):
        store = checkpoints_of(context)
        for shard, state in by_columns(kmeans, "mu", share).items():
            store.write_shard(centroids_folder(0), shard, state)
        store.write(0, {"stop": np.zeros(1, np.uint8)})
    predict_rows(kmeans, run)
