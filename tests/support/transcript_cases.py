"""Cases for tests of transcripts: good starts, outliers, explanations and profiles, with shares that are not random."""

from collections.abc import Callable
from functools import partial

import numpy as np

from support.transcripts import ROWS, Case, states
from veilmeans.crypto import ring
from veilmeans.crypto.bits import ONES, word_count
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.layout import Layout, ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.kmeans_plus_plus import Seeding, nearest
from veilmeans.transforms.primitives.best_start import choose_best, take_counts
from veilmeans.transforms.primitives.bit_decomposition import BitDecomposition, decompose
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.products.cross_product import shape_to_state
from veilmeans.transforms.products.engine_parameters import EngineParameters
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.statistics.explanations import COUNTS as EXPLAINED_COUNTS
from veilmeans.transforms.statistics.explanations import HAS, Explanations
from veilmeans.transforms.statistics.largest import (
    BEFORE,
    BELOW,
    COUNTS,
    PLANES,
    SHARD,
    Largest,
    begin,
    choose_digit,
    count_digit,
    count_ties,
    take_first,
)
from veilmeans.transforms.statistics.outliers import score, weigh
from veilmeans.transforms.statistics.profiles import SIZES, SUMS, Profiles
from veilmeans.transforms.statistics.small_clusters import OPEN, SmallClusters, open_centroids
from veilmeans.transforms.statistics.weighted_choice import choose


def words(parties: int, secret: int, shape: tuple[int, ...] = (ROWS,)) -> list[ring.Ring]:
    """Make shares that are not random: all but the first are zero; or, for another secret, seven."""
    seven = 7 if secret else 0
    first = np.full(shape, (secret - seven * (parties - 1)) % 2**64, ring.DTYPE)
    return [first, *(np.full(shape, seven, ring.DTYPE) for _ in range(parties - 1))]


def shapes(parties: int, rows: int) -> list[Array]:
    """The public shape of a shard of so many rows without padding, as each party's state has it."""
    return [shape_to_state(ShardShape(rows))["shape"]] * parties


def on_weights(parties: int) -> Case:
    """Weights of which all are the limit of a row, and an own number of the shard."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        v, one = words(parties, secret * 3, (1, rows)), words(parties, secret * 2**40, (1,))
        return states(v=v, before=one, t=one, number=[np.array([0])] * parties)

    return Case(choose(1, parties), parties, begin)


def on_squared_distances(parties: int) -> Case:
    """The distances, weights and norms of one choice."""
    seeding = Seeding(Layout(True, (1,) * parties, (1,) * parties, 1), 1, 1, 42, 20, EngineParameters((), ()))

    def begin(secret: int, rows: int) -> list[Arrays]:
        d, v = (words(parties, secret * value, (1, rows)) for value in (2**41 + 5, 77))
        norms = {"u": words(parties, secret * 9, (1,)), "x2": words(parties, secret * 11, (rows,))}
        return states(d=d, v=v, **norms, shape=shapes(parties, rows))

    return Case(nearest(seeding), parties, begin)


def on_starts(parties: int) -> Case:
    """Norms and counts of four starts, each of which has many clusters."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        return states(u=words(parties, secret * 2**40, (rows,)), n=words(parties, secret * 200, (rows,)))

    return Case((choose_best(4, parties) + take_counts(4)).named("starts"), parties, begin)


def search_of_one_shard(count: int, parties: int, bits: int = 6, drop: int = 0, row_bits: int = 13) -> Protocol:
    """The whole search for the largest scores, for the rows of one shard: its counts are those of all rows."""
    search = Largest("outlier", count, bits - drop, 2, row_bits)
    compare = sign(Comparison(COUNTS, BELOW, row_bits + 1, offset=-count), parties)
    protocol = decompose(BitDecomposition("score", PLANES, bits, drop), parties).then(partial(begin, "score"))
    for digit in range(len(search.digits)):
        protocol = protocol + count_digit(search, digit) + compare + choose_digit(search, digit)
    return (protocol + count_ties().then(_only_shard) + take_first(search, parties)).named("outliers")


def _only_shard(_party: Party, state: Arrays) -> Arrays:
    """Put the rows above the threshold before the ranks of the only shard."""
    return {**state, BEFORE: state[COUNTS][1:], SHARD: np.zeros(1, np.int64)}


def on_scores(parties: int) -> Case:
    """Scores that are all equal: every row is a tie."""
    return Case(
        search_of_one_shard(5, parties),
        parties,
        lambda secret, rows: states(score=words(parties, secret * 37, (rows,)), shape=shapes(parties, rows)),
    )


def flags(parties: int, secret: int, rows: int, planes: int = 1) -> list[Array]:
    """Make shares of packed bits that are all 1, or all 0; all but the first are zero."""
    shape = planes, word_count(rows)
    return [np.full(shape, ONES if secret and i == 0 else 0, np.uint64) for i in range(parties)]


def on_outliers(protocol: Protocol, parties: int, planes: int = 3) -> Case:
    """Clusters, outliers and scores of rows: each bit the same."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        hot, outlier = (flags(parties, secret, rows, count) for count in (planes, 1))
        shown = words(parties, secret * 2**21, (rows,))
        return states(c=hot, outlier=[each[0] for each in outlier], shown=shown, shape=shapes(parties, rows))

    return Case(protocol, parties, begin)


def on_own_distances(parties: int) -> Case:
    """The distances of rows to three centroids, and the bits of the nearest."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        return states(c=flags(parties, secret, rows, 3), far=words(parties, secret * (2**41 + 3), (3, rows)))

    return Case(score(3, shown=True).named("score"), parties, begin)


EXPLANATIONS = Explanations(3, 1, 13, others=True)


def on_explained_clusters(parties: int, closes: bool = False) -> Case:
    """As many clusters as rows, each with outliers or without."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        found = {OPEN: words(parties, secret, (rows,))} if closes else {}
        return states(**{EXPLAINED_COUNTS: words(parties, secret * 3, (1, rows)), **found})

    return Case(EXPLANATIONS.clusters(parties, closes), parties, begin)


def on_explained_centroids(parties: int) -> Case:
    def begin(secret: int, rows: int) -> list[Arrays]:
        return states(mu=words(parties, secret * 2**19, (rows, 1)), **{HAS: words(parties, secret, (1, rows))})

    return Case(EXPLANATIONS.centroids(), parties, begin)


def on_profiles(parties: int) -> Case:
    """P of each party has four columns: a value, its square, and a label."""
    layout = Layout(True, (1,) * parties, (1,) * parties, 1)

    def begin(secret: int, rows: int) -> list[Arrays]:
        shape = [shape_to_state(ShardShape(rows // 4, (4,) * parties))["shape"]] * parties
        operands = [np.full((rows // 4, 4), secret * 2**19, ring.DTYPE)] * parties
        return states(c=flags(parties, secret, rows // 4, 4), x=operands, shape=shape)

    return Case(Profiles(layout, 4, tuple(range(parties)), 40).rows(), parties, begin)


def on_small_clusters(parties: int, sizes: bool = False) -> Case:
    """Eight clusters of two rows, or without any; in both all are small."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        sums = words(parties, secret * 2**20, (9, rows // 8))
        return states(**{SIZES: words(parties, secret * 2, (8,)), SUMS: sums})

    return Case(SmallClusters(8, 5, 12).hide(parties, sizes), parties, begin)


def on_closed_centroids(parties: int) -> Case:
    """Many clusters, all open or all closed."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        return states(mu=words(parties, secret * 2**19, (rows, 1)), **{OPEN: words(parties, secret, (rows,))})

    return Case(open_centroids(), parties, begin)


CLUSTER_CASES: dict[str, Callable[[int], Case]] = {
    "the distance of each row to its own centroid": on_own_distances,
    "clusters without outliers": lambda parties: on_outliers(weigh(3), parties),
    "the clusters and scores of outliers": lambda parties: on_outliers(EXPLANATIONS.rows(), parties),
    "the clusters that have outliers": on_explained_clusters,
    "the centroids of outliers": on_explained_centroids,
    "profiles": on_profiles,
    "profiles without small clusters": on_small_clusters,
    "profiles without small clusters and their sizes": partial(on_small_clusters, sizes=True),
    "centroids without those of small clusters": on_closed_centroids,
    "the clusters that have outliers and may be opened": partial(on_explained_clusters, closes=True),
}
"""Cases of scores, outliers and profiles, by the number of parties."""
