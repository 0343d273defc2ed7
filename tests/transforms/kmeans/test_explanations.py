"""Explanations: an outlier's own columns, column by column, and the others' as one number, add up to its score."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import (
    SMALL,
    Integers,
    Labels,
    horizontal,
    kmeans_for,
    labels_of,
    parties_in_step,
    vertical,
)
from support.parties import NAMES, make_shares
from support.row_results import row_results
from veilmeans.crypto import bits, ring
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.storage.checkpoints import centroids as centroids_folder
from veilmeans.schemas.arrays import Array, Arrays, Real
from veilmeans.schemas.kmeans_config import CipherConfig, OutliersConfig, PredictConfig, RevealConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.run_folder import EXPLAINED_CENTROIDS, OPENED_EXPLANATIONS
from veilmeans.transforms.kmeans.iteration import predict_rows
from veilmeans.transforms.kmeans.open_results import open_explained_centroids, open_explained_rows
from veilmeans.transforms.kmeans.party_state import PartyJob, by_columns, checkpoints_of
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.openings.reveal_policy import RevealPolicy
from veilmeans.transforms.rounds.executor import Load
from veilmeans.transforms.rounds.party_context import OpenPartyContext

LAYOUTS = {
    "vertical": vertical(9, (2, 3), 8),
    "vertical, three parties": vertical(9, (1, 1, 2), 4),
    "horizontal": horizontal((5, 4), 3, 4),
    "horizontal, three parties": horizontal((4, 1, 3), 2, 3),
    "a store for more rows": replace(vertical(9, (2, 3), 8), capacity=(40, 40)),
    "horizontal, a store for more rows": replace(horizontal((5, 4), 3, 4), capacity=(12, 7)),
}


def explaining(layout: Layout, k: int, count: int, named: int, **fields: Any) -> KMeansSteps:
    """A prediction whose first `named` parties get explanations."""
    cipher = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)
    reveal = RevealConfig(explanations=NAMES[:named], outliers=NAMES[:named], contributions="all")
    about = {"outliers": OutliersConfig(count=count), "cipher": cipher, "predict": PredictConfig(model="model")}
    return kmeans_for(layout, k, reveal=reveal, **about, **fields)


@dataclass(frozen=True)
class Opened:
    """Clusters and outliers, put together from all shares, and what was opened to each party."""

    labels: Labels
    outliers: Array
    rows: list[dict[int, Arrays]]
    centroids: list[Arrays]


def predict_and_open(kmeans: KMeansSteps, rows: Real, centroids: Real, named: int) -> Opened:
    shares = make_shares(fixed.encode(centroids), kmeans.layout.parties, seed=1)
    policy = RevealPolicy(kmeans.layout, explanations=frozenset(range(named)), all_contributions=True)
    with parties_in_step(kmeans, rows, 1) as run:
        stores = [checkpoints_of(context) for context in run.table.contexts]
        for store, share in zip(stores, shares, strict=True):
            for shard, state in by_columns(kmeans, "mu", share).items():
                store.write_shard(centroids_folder(0), shard, state)
            store.write(0, {"stop": np.zeros(1, np.uint8)})
        predict_rows(kmeans, run)
        at_the_end = replace(run, table=run.table.at(1))
        open_explained_rows(policy, at_the_end)
        opened = open_explained_centroids(policy, Load(_explained_centroids, lambda *_: ()), at_the_end)[0]
        kind = OPENED_EXPLANATIONS
        opened_rows = [{shard: store.read_shard(kind, shard) for shard in store.shards(kind)} for store in stores]
        outliers = row_results(kmeans, stores, 1)["outliers"]
        return Opened(labels_of(kmeans.layout, stores, 1), outliers, opened_rows, opened)


def _explained_centroids(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    del job, shard
    store = checkpoints_of(context)
    parts = [store.read_shard(EXPLAINED_CENTROIDS, number)["mu"] for number in store.shards(EXPLAINED_CENTROIDS)]
    return {"mu": np.concatenate(parts, axis=2)}


def check(kmeans: KMeansSteps, rows: Real, centroids: Real, named: int) -> None:
    """Compare with the same sums over integers, at every party."""
    layout, found = kmeans.layout, predict_and_open(kmeans, rows, centroids, named)
    x, mu = (ring.decode(fixed.encode(values)) for values in (rows, centroids))
    squares: Integers = (x - mu[found.labels]) ** 2
    first = 0
    for row_shard in layout.row_shards():
        shard, here = row_shard.number, slice(first, first := first + row_shard.rows)
        for party in range(layout.parties):
            if party >= named or row_shard.owner not in (None, party):
                assert shard not in found.rows[party]
                continue
            opened = found.rows[party][shard]
            np.testing.assert_array_equal(opened["cluster"], np.where(found.outliers[here], found.labels[here], -1))
            outliers = np.flatnonzero(found.outliers[here])
            own = layout.own_columns(party)
            learnt = found.centroids[party]["centroids"]
            parts = (x[here][outliers][:, own] - ring.decode(learnt)[opened["cluster"][outliers]]) ** 2
            np.testing.assert_array_equal(parts, squares[here][outliers][:, own])
            if layout.vertical:
                score = fixed.decode(opened["score"])
                whole = squares[here][outliers].sum(axis=1) / 2**40
                np.testing.assert_allclose(score[outliers], whole, rtol=0, atol=2.0**-20)
                assert not score[~found.outliers[here]].any()
            else:
                assert "score" not in opened
    for party in range(layout.parties):
        own_rows = np.concatenate([np.full(s.rows, s.owner in (None, party)) for s in layout.row_shards()])
        has = np.isin(np.arange(kmeans.k), found.labels[found.outliers & own_rows])
        if party < named:
            expected = np.where(has[:, None], mu[:, layout.own_columns(party)], 0)
            np.testing.assert_array_equal(ring.decode(found.centroids[party]["centroids"]), expected)
        else:
            assert found.centroids[party] == {}


@pytest.mark.parametrize("products", ["beaver", "he"])
@pytest.mark.parametrize(("k", "named"), [(1, 2), (3, 1)])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_explanations_add_up_to_the_score(layout: Layout, k: int, named: int, products: str) -> None:
    """Nobody else learns anything, and of clusters without an outlier no centroid is opened."""
    rng = np.random.default_rng(k)
    rows = rng.uniform(-1, 2, (layout.total_rows, layout.total_features))
    centroids = rng.random((k, layout.total_features))
    check(explaining(layout, k, 2, named, products=products), rows, centroids, named)


@settings(max_examples=10, deadline=None)
@given(
    vertically=st.booleans(),
    parties=st.sampled_from([2, 3]),
    n=st.integers(4, 70),
    k=st.integers(1, 6),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_explanations_of_any_rows(
    vertically: bool, parties: int, n: int, k: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    layout = (
        vertical(n, (2,) * parties, 64) if vertically else horizontal((n - parties + 1, *[1] * (parties - 1)), 3, 64)
    )
    count = data.draw(st.integers(1, n - 1))
    rows = rng.integers(-2, 4, (n, layout.total_features)) / 2  # many ties
    centroids = rng.random((k, layout.total_features))
    centroids[-1] = centroids[0]
    check(explaining(layout, k, count, parties), rows, centroids, parties)


def test_what_two_parties_open_is_all_that_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: shares of another cluster are refused or seen."""
    kmeans = explaining(LAYOUTS["vertical"], 3, 2, 2, products="beaver")
    rng = np.random.default_rng(0)
    rows, centroids = rng.random((9, 5)), rng.random((3, 5))
    unpacked = bits.unpack_rows

    def flipped(packed: Array, count: int) -> Array:
        return np.roll(unpacked(packed, count), 1, axis=0)

    monkeypatch.setattr("veilmeans.transforms.openings.explanation_rounds.bits.unpack_rows", flipped)
    with pytest.raises(AssertionError):
        check(kmeans, rows, centroids, 2)
