"""Profiles of clusters: sizes and sums of a party's columns and labels, as the same sums over integers in the clear."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import (
    FIRST_CHECKPOINT,
    SMALL,
    Labels,
    horizontal,
    kmeans_for,
    labels_of,
    of_party,
    parties_in_step,
    vertical,
)
from support.parties import NAMES, make_shares
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.io.storage.encoded_shards import UNKNOWN, write_labels
from veilmeans.schemas.arrays import Array, Arrays, Real
from veilmeans.schemas.kmeans_config import CipherConfig, NormaliseConfig, RevealConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.run_folder import PROFILE
from veilmeans.transforms.kmeans.iteration import follow_last, iterate, mask_operands, write_first_centroids
from veilmeans.transforms.kmeans.open_results import open_profiles
from veilmeans.transforms.kmeans.party_state import PartyJob, by_columns, checkpoints_of
from veilmeans.transforms.kmeans.state_shapes import profiles_of
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.openings.cluster_profiles import summarise
from veilmeans.transforms.openings.reveal_policy import RevealPolicy
from veilmeans.transforms.rounds.executor import Load
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.statistics.profiles import SIZES, SUMS

LAYOUTS = {
    "vertical": vertical(9, (2, 3), 8),
    "vertical, three parties": vertical(9, (1, 1, 2), 4),
    "horizontal": horizontal((5, 4), 3, 4),
    "horizontal, three parties": horizontal((4, 1, 3), 2, 3),
    "vertical, of a larger store": replace(vertical(9, (2, 1), 8), capacity=(30, 30)),
    "horizontal, of a larger store": replace(horizontal((5, 4), 2, 4), capacity=(9, 4)),
}


def profiled(layout: Layout, k: int, named: Sequence[int], **fields: Any) -> KMeansSteps:
    cipher = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)
    reveal = RevealConfig(profiles=tuple(NAMES[i] for i in named))
    return kmeans_for(layout, k, reveal=reveal, cipher=cipher, tol=0, **fields)


def train_and_open(
    kmeans: KMeansSteps, rows: Real, start: Real, labels: Sequence[Array | None]
) -> tuple[Labels, list[Arrays], list[Arrays]]:
    """The final clusters, what was opened to each party, and each party's shares."""
    layout = kmeans.layout
    shares = [by_columns(kmeans, "mu", share) for share in make_shares(fixed.encode(start), layout.parties, seed=1)]
    policy = RevealPolicy(layout, profiles=frozenset(profiles_of(kmeans).recipients))
    with parties_in_step(kmeans, rows, 2) as run:
        for job, own in zip(run.jobs, labels, strict=True):
            for shard in range(0 if own is None else -(-len(own) // layout.rows_per_shard)):
                write_labels(job.encoded, shard, own[shard * layout.rows_per_shard :][: layout.rows_per_shard])
        if kmeans.operand is not None:
            mask_operands(kmeans.operand, run)
        first = Load(lambda job, context, shard: of_party(shares, job, context, shard), lambda *_: ())
        write_first_centroids(first, FIRST_CHECKPOINT, run)
        iterate(kmeans, True, run)
        jobs = [replace(job, steps=kmeans.last) for job in run.jobs]
        last = replace(run, jobs=jobs, table=run.table.after_last(1))
        follow_last(kmeans.last, last)
        opened = open_profiles(policy, Load(_profile, lambda *_: ()), last)[0]
        stores = [checkpoints_of(context) for context in run.table.contexts]
        return labels_of(layout, stores, 2), opened, [store.read_shard(PROFILE, 0) for store in stores]


def _profile(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    del job
    return checkpoints_of(context).read_shard(PROFILE, shard)


def check(kmeans: KMeansSteps, rows: Real, start: Real, labels: Sequence[Array | None]) -> None:
    layout, profiles = kmeans.layout, profiles_of(kmeans)
    clusters, opened, _ = train_and_open(kmeans, rows, start, labels)
    hot = (clusters[:, None] == np.arange(kmeans.k)).astype(np.int64)
    ends = np.cumsum([0, *layout.rows])
    values = fixed.decode(fixed.encode(rows))
    for party in range(layout.parties):
        if party not in profiles.recipients:
            assert opened[party] == {}
            continue
        own = layout.own_columns(party)
        mine = slice(None) if layout.vertical else slice(ends[party], ends[party + 1])
        known, positive = np.zeros((2, len(rows)), np.int64)
        if labels[party] is not None:
            known[mine], positive[mine] = labels[party] != UNKNOWN, labels[party] == 1
        squares = np.rint(np.ldexp(values[:, own] ** 2, profiles.square_bits)).astype(np.int64)
        x = ring.decode(fixed.encode(rows[:, own]))
        expected = hot.T @ np.concatenate([x, squares, known[:, None], positive[:, None]], axis=1)
        hidden = hidden_in_the_clear(hot.sum(axis=0).tolist(), profiles.least)
        expected = np.concatenate([np.where(hidden[:, None], 0, expected), expected.sum(axis=0, keepdims=True)])
        np.testing.assert_array_equal(ring.decode(opened[party][SIZES]), hot.sum(axis=0))
        np.testing.assert_array_equal(ring.decode(opened[party][SUMS]), expected)
        summary = summarise(opened[party], profiles.square_bits, profiles.least, len(rows))
        np.testing.assert_array_equal(summary.hidden, hidden)
        assert summary.possible(len(rows))
        for j in range(kmeans.k):
            inside = values[clusters == j][:, own]
            assert summary.sizes[j] == len(inside)
            if not len(inside) or hidden[j]:
                assert np.isnan(summary.means[j]).all()
                continue
            np.testing.assert_allclose(summary.means[j], inside.mean(axis=0), atol=1e-9)
            np.testing.assert_allclose(summary.spreads[j], inside.std(axis=0), atol=1e-5)
        np.testing.assert_allclose(summary.means[-1], values[:, own].mean(axis=0), atol=1e-9)


def hidden_in_the_clear(sizes: list[int], least: int) -> Array:
    """Clusters of fewer rows; where these are fewer together, also the smallest of the others, the first of equals."""
    hidden = [size < least for size in sizes]
    few = sum(size for size in sizes if size < least)
    if 0 < few < least:
        _, following = min((size, j) for j, size in enumerate(sizes) if size >= least)
        hidden[following] = True
    return np.array(hidden)


@pytest.mark.parametrize("products", ["beaver", "he"])
@pytest.mark.parametrize(("k", "named"), [(1, (0, 1)), (3, (1,))])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_profiles_are_sums_in_the_clear(layout: Layout, k: int, named: tuple[int, ...], products: str) -> None:
    """To the parties that are named, whether they have labels or not; to others nothing. One cluster is empty."""
    rng = np.random.default_rng(k)
    rows = rng.random((layout.total_rows, layout.total_features))
    start = rng.random((k, layout.total_features))
    start[-1] = start[0]  # ties go to the first
    labels = [rng.integers(0, 3, n).astype(np.uint8) for n in layout.rows]
    kmeans = profiled(layout, k, named, products=products, profile_minimum=2)
    check(kmeans, rows, start, [labels[0], None, *labels[2:]])


@settings(max_examples=10, deadline=None)
@given(
    vertically=st.booleans(),
    parties=st.sampled_from([2, 3]),
    n=st.integers(4, 70),
    k=st.integers(1, 5),
    seed=st.integers(0, 99),
    bound=st.sampled_from([1, 16, 200]),
    least=st.integers(1, 80),
)
def test_profiles_of_any_rows(
    vertically: bool, parties: int, n: int, k: int, seed: int, bound: int, least: int
) -> None:
    rng = np.random.default_rng(seed)
    layout = (
        vertical(n, (2,) * parties, n - 1) if vertically else horizontal((n - parties + 1, *[1] * (parties - 1)), 3, 64)
    )
    rows = rng.integers(-2, 3, (n, layout.total_features)) / 2 * bound
    start = rows[rng.integers(0, n, min(k, n))]
    labels = [rng.integers(0, 3, count).astype(np.uint8) for count in layout.rows]
    normalise = NormaliseConfig(method="none", bound=bound)
    kmeans = profiled(layout, len(start), range(parties), products="beaver", normalise=normalise, profile_minimum=least)
    check(kmeans, rows, start, labels)


@pytest.mark.parametrize("k", [1, 3])
def test_shares_of_all_clusters_do_not_add_up_to_an_owners_sums(k: int) -> None:
    """A recipient adds what a peer sends of all clusters: with a derived last cluster that were the peer's own sums."""
    layout = LAYOUTS["horizontal, three parties"]
    rows = np.random.default_rng(0).random((8, 2))
    _, _, shares = train_and_open(profiled(layout, k, [0], products="beaver"), rows, rows[:k], [None] * 3)
    ends = np.cumsum([0, *layout.rows])
    for party in (1, 2):
        own = fixed.encode(rows[ends[party] : ends[party + 1]]).sum(axis=0, dtype=ring.DTYPE)
        assert not np.isin(shares[party][SUMS].sum(axis=0, dtype=ring.DTYPE)[:2], own).any()
