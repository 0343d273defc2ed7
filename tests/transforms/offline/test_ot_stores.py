"""Runs whose triple store was made by oblivious transfer, and the OTs and bits that comparisons need."""

from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from support.ot_stores import ot_stores, run_with_stores
from support.parties import reconstruct, share_states
from support.transcript_cases import search_of_one_shard
from veilmeans.crypto import bits
from veilmeans.crypto.ot.kinds.bit_correlations import group_program
from veilmeans.crypto.ot.kinds.shared_programs import compile_shared
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.offline.ot_setup import Provider
from veilmeans.transforms.primitives.all_pairs import AllPairs, all_pairs, choice
from veilmeans.transforms.primitives.best_start import choose_best, take_counts
from veilmeans.transforms.primitives.carry_groups import levels
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.truncate import Truncation, truncate
from veilmeans.transforms.products.cross_product import shape_to_state
from veilmeans.transforms.statistics.explanations import COUNTS, EXPLAINED_SCORE, Explanations
from veilmeans.transforms.statistics.outliers import weigh
from veilmeans.transforms.statistics.profiles import SIZES, SUMS
from veilmeans.transforms.statistics.small_clusters import SmallClusters
from veilmeans.transforms.statistics.weighted_choice import choose

PROVIDERS: tuple[Provider, ...] = ("ot", "iknp")
EVERY_PROVIDER = pytest.mark.parametrize(("provider", "parties"), [("ot", 2), ("ot", 3), ("iknp", 2)])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("parties", [2, 3])
def test_products_and_truncation(tmp_path: Path, provider: Provider, parties: int) -> None:
    x, y = [3 << 20, -(5 << 20), 0, (1 << 40) - 1], [7 << 20, 9 << 20, -(1 << 20), 1 << 10]
    values = {"x": np.array(x, np.int64).view(np.uint64), "y": np.array(y, np.int64).view(np.uint64)}
    protocol = multiply("x", "y", "z") + truncate(Truncation("z", 20))
    shards = share_states(values, parties)
    states = run_with_stores(protocol, shards, ot_stores(protocol, shards, tmp_path, provider))
    result = reconstruct(states, 0, "z").view(np.int64)
    assert {int(r) - (a * b >> 20) for r, a, b in zip(result, x, y, strict=True)} <= {0, 1}


@pytest.mark.parametrize("radices", [(1, 2, 2, 2, 2, 2), (2, 2, 2, 2, 2), (3, 3, 4), (2, 4, 4)])
@pytest.mark.parametrize("parties", [2, 3])
def test_comparisons(tmp_path: Path, radices: tuple[int, ...], parties: int) -> None:
    rng = np.random.default_rng(1)
    edges = [0, 1, -1, 2**31 - 1, -(2**31), 2**30, -(2**30)]
    x = np.array([*edges, *rng.integers(-(2**31), 2**31, 150)], np.int64)
    protocol = sign(Comparison("x", "b", 32, radices=radices), parties)
    shards = share_states({"x": x.view(np.uint64)}, parties)
    states = run_with_stores(protocol, shards, ot_stores(protocol, shards, tmp_path))
    packed = reduce(np.bitwise_xor, (state[0]["b"] for state in states))
    assert (bits.unpack(packed, len(x)) == (x < 0)).all()


@pytest.mark.parametrize(("k", "parties"), [(3, 2), (5, 2), (4, 3), (3, 4)])
def test_all_pairs_with_ties(tmp_path: Path, k: int, parties: int) -> None:
    rows = np.random.default_rng(k).integers(0, 3, (k, 200)).astype(np.uint64)
    protocol = all_pairs(AllPairs("d", "c", 32, radices=(2, 2, 2, 2, 2)), k, parties)
    shards = share_states({"d": rows}, parties)
    states = run_with_stores(protocol, shards, ot_stores(protocol, shards, tmp_path))
    positions = bits.unpack_rows(reduce(np.bitwise_xor, (state[0]["c"] for state in states)), rows.shape[1])
    assert (positions == (np.arange(k)[:, None] == rows.argmin(0))).all()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("parties", [2, 3])
def test_the_largest_scores(tmp_path: Path, provider: Provider, parties: int) -> None:
    """Many are equal: of those at the threshold the first ones are taken."""
    scores = np.random.default_rng(parties).integers(0, 2**10, 130).astype(np.uint64) >> np.uint64(4)
    protocol = search_of_one_shard(9, parties, row_bits=8)
    shape = shape_to_state(ShardShape(len(scores)))
    shards = [{0: {**shares[0], **shape}} for shares in share_states({"score": scores}, parties)]
    states = run_with_stores(protocol, shards, ot_stores(protocol, shards, tmp_path, provider))
    found = bits.unpack(reduce(np.bitwise_xor, (state[0]["outlier"] for state in states)), len(scores))
    assert np.flatnonzero(found).tolist() == sorted(np.argsort(-scores.astype(int), kind="stable")[:9].tolist())


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("parties", [2, 3])
def test_the_best_start(tmp_path: Path, provider: Provider, parties: int) -> None:
    """The start with the largest Σ n·|μ|² has the least inertia; its counts are taken."""
    norms, counts = [[4, 1], [6, 2], [3, 3], [5, 1]], [[3, 7], [4, 6], [5, 5], [2, 8]]
    best = max(range(4), key=lambda i: sum(n * u for n, u in zip(counts[i], norms[i], strict=True)))
    values = {
        "u": np.array(norms, np.uint64).reshape(-1) << np.uint64(40),
        "n": np.array(counts, np.uint64).reshape(-1),
    }
    protocol = (choose_best(4, parties) + take_counts(4)).named("starts")
    shards = share_states(values, parties)
    states = run_with_stores(protocol, shards, ot_stores(protocol, shards, tmp_path, provider))
    assert reconstruct(states, 0, "n").tolist() == counts[best]


@pytest.mark.parametrize(
    ("radices", "cots", "sent"),
    [
        ((1, 2, 2, 2, 2, 2), 91, 0),
        ((2, 2, 2, 2, 2), 61, 45),
        ((2, 2, 2, 4), 61, 73),
        ((3, 3, 4), 51, 188),
        ((2, 4, 4), 64, 239),
    ],
)
def test_what_a_comparison_of_32_bits_costs(radices: tuple[int, ...], cots: int, sent: int) -> None:
    """The table in `product_programs`; whoever chooses, the costs are the same."""
    for chooser in range(2):
        groups = [group for level in levels(31, radices) for group in level if not group.passes]
        programs = [(g.count, group_program(g.products().masks, g.products().sums, g.inputs, chooser)) for g in groups]
        assert sum(count * len(program.steps) for count, program in programs) == cots
        assert sum(count * program.sent_bits for count, program in programs) == sent


@pytest.mark.parametrize(("k", "cots", "most"), [(3, 3, 2), (4, 6, 24), (5, 10, 112), (6, 15, 380), (7, 21, 1200)])
def test_what_the_choice_of_all_pairs_costs(k: int, cots: int, most: int) -> None:
    (groups,) = choice(k).groups
    program = group_program(groups.masks, groups.sums, False, 0)
    assert (len(program.steps), program.sent_bits) <= (cots, most)


@pytest.mark.parametrize(
    ("radices", "entries", "free", "messages"),
    [
        ((1, 2, 2, 2, 2, 2), 87, 87, 1),
        ((1, 2, 2, 2, 4), 94, 84, 3),
        ((2, 2, 2, 2, 2), 102, 42, 2),
        ((3, 3, 4), 234, 19, 3),
        ((4, 8), 645, 9, 7),
    ],
)
def test_what_a_comparison_of_more_than_two_parties_costs(
    radices: tuple[int, ...], entries: int, free: int, messages: int
) -> None:
    """The table in `shared_programs`: 61 OTs for each ordered pair, however the bits are grouped."""
    groups = [group for level in levels(31, radices) for group in level if not group.passes]
    programs = [(group.count, compile_shared(group.products().sums)) for group in groups]
    assert sum(count * len(program.steps) for count, program in programs) == 61
    assert sum(count * program.sent_bits(free=False) for count, program in programs) == entries
    assert entries - sum(count * program.sent_bits(free=True) for count, program in programs) == free
    assert max(program.messages for _, program in programs) == messages


@pytest.mark.parametrize(("k", "cots", "entries", "messages"), [(3, 1, 2, 1), (5, 6, 44, 3), (7, 15, 342, 5)])
def test_what_the_choice_of_more_than_two_parties_costs(k: int, cots: int, entries: int, messages: int) -> None:
    """An entry for each product: none is computed twice."""
    (groups,) = choice(k).groups
    program = compile_shared(groups.sums)
    assert (len(program.steps), program.sent_bits(free=False), program.messages) == (cots, entries, messages)
    assert entries == len(groups.sums)


@EVERY_PROVIDER
def test_a_row_of_k_means_plus_plus(tmp_path: Path, provider: Provider, parties: int) -> None:
    """The first row whose prefix sum of weights exceeds the limit."""
    weights = np.random.default_rng(parties).integers(0, 1000, (1, 70))
    limit = np.array([int(weights.sum()) * 2**31 // 3])
    shared = {"v": weights.astype(np.uint64), "t": limit.astype(np.uint64), "before": np.zeros(1, np.uint64)}
    public = {"number": np.zeros(1, np.int64), **shape_to_state(ShardShape(70))}
    shards = [{0: {**shares[0], **public}} for shares in share_states(shared, parties)]
    protocol = choose(0, parties)
    states = run_with_stores(protocol, shards, ot_stores(protocol, shards, tmp_path, provider))
    chosen = reconstruct(states, 0, "hot")[:, 0]
    assert chosen.sum() == 1
    assert chosen.argmax() == np.flatnonzero(np.cumsum(weights) * 2**31 > limit[0])[0]


@EVERY_PROVIDER
def test_the_sums_of_large_clusters(tmp_path: Path, provider: Provider, parties: int) -> None:
    """One cluster has few rows: the next larger one is hidden with it. The sums of all rows are not."""
    sizes = np.array([40, 3, 12, 45], np.uint64)
    sums = np.arange(10, dtype=np.uint64).reshape(5, 2) + np.uint64(100)
    protocol = SmallClusters(4, 10, 7).hide(parties)
    shards = share_states({SIZES: sizes, SUMS: sums}, parties)
    states = run_with_stores(protocol, shards, ot_stores(protocol, shards, tmp_path, provider))
    assert reconstruct(states, 0, SUMS).tolist() == [[100, 101], [0, 0], [0, 0], [106, 107], [108, 109]]
    assert reconstruct(states, 0, SIZES).tolist() == sizes.tolist()


@EVERY_PROVIDER
@pytest.mark.parametrize("what", ["weigh", "explain"])
def test_clusters_with_and_without_outliers(tmp_path: Path, provider: Provider, parties: int, what: str) -> None:
    """Σ over rows of c_j without outliers, which move centroids, and of c_j of outliers, which are explained."""
    rng = np.random.default_rng(parties)
    labels, outlier = rng.integers(0, 3, 130), rng.random(130) < 0.3
    hot, flags = bits.pack_rows(labels == np.arange(3)[:, None]), bits.pack(outlier)
    nothing = [{"c": np.zeros_like(hot), "outlier": np.zeros_like(flags)}] * (parties - 1)
    scores = share_states({"shown": np.arange(130, dtype=np.uint64)}, parties)
    owned = [{"c": hot, "outlier": flags}, *nothing]
    public = shape_to_state(ShardShape(130, (1,) * parties))
    shards = [{0: {**each[0], **own, **public}} for each, own in zip(scores, owned, strict=True)]
    protocol = weigh(3) if what == "weigh" else Explanations(3, 1, 8, others=True).rows()
    states = run_with_stores(protocol, shards, ot_stores(protocol, shards, tmp_path, provider))
    counted = labels[outlier] if what == "explain" else labels[~outlier]
    name = COUNTS if what == "explain" else "n"
    assert reconstruct(states, 0, name).reshape(-1).tolist() == np.bincount(counted, minlength=3).tolist()
    if what == "explain":
        assert reconstruct(states, 0, EXPLAINED_SCORE).tolist() == np.where(outlier, np.arange(130), 0).tolist()
