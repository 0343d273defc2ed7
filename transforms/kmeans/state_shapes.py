"""The shapes of what parties load from their disks, from public parameters alone: one mapping for each party.

Arrays that are public, such as a shard's shape, are given as they are.
"""

from collections.abc import Sequence

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.wide_ring import WORDS
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.kmeans.kmeans_plus_plus import Seeding
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.products.cross_product import shape_to_state
from veilmeans.transforms.products.he_product import CSR_ARRAYS
from veilmeans.transforms.rounds.interfaces import Shape, Shapes
from veilmeans.transforms.statistics.explanations import EXPLAINED, EXPLAINED_SCORE, HAS
from veilmeans.transforms.statistics.largest import SHARD
from veilmeans.transforms.statistics.profiles import RECIPIENTS, SIZES, SUMS, Profiles
from veilmeans.transforms.statistics.small_clusters import OPEN

COLUMN_NAME_LENGTH = 8
"""Letters of a column's name, where names are opened and not known yet."""


def matrix_to_mask(_steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    return [{"x": ((shape.rows, width), "uint64"), **shape_to_state(shape)} for width in shape.widths]


def distance_operands(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    k, d = steps.all_clusters, steps.layout.total_features
    centroids: Shapes = {"mu": ((k, d), "uint64")}
    return [{**each, **centroids} for each in _operands(shape, steps.engines.distance)]


def update_operands(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    return _operands(shape, steps.engines.update)


def _operands(shape: ShardShape, engines: Sequence[HEProductParameters | None]) -> Sequence[Shapes]:
    """Each party's own matrix and the masked matrices of others; a sparse matrix is traced without its nonzeros."""
    dense: list[tuple[Shape, str]] = [((shape.rows, width), "uint64") for width in shape.widths]
    nothing = np.zeros(0, ring.DTYPE), np.zeros(0, np.int32), np.zeros(shape.rows + 1, np.int32)
    empty: Shapes = dict(zip(CSR_ARRAYS, nothing, strict=True))
    masked = {i: dense[i] for i, engine in enumerate(engines) if engine is None}
    return [
        {
            **shape_to_state(shape),
            **({"x": dense[i]} if engine is None else empty),
            **{f"e{owner}": matrix for owner, matrix in masked.items() if owner != i},
        }
        for i, engine in enumerate(engines)
    ]


def column_centroids(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    return [{"mu": ((steps.all_clusters, *shape.widths), "uint64")}] * steps.layout.parties


def moved_centroids(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    names = ("mu", "before") if steps.centroid_update.threshold else ("mu",)
    return [dict.fromkeys(names, ((steps.all_clusters, *shape.widths), "uint64"))] * steps.layout.parties


def seeding_of(steps: KMeansSteps) -> Seeding:
    """The parameters of k-means++, in a job that begins with it."""
    if steps.seeding is None:
        raise ValueError("the first centroids of this job are not chosen by k-means++")
    return steps.seeding


def newest_seeds(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    return [{"mu": ((seeding_of(steps).choices, *shape.widths), "uint64")}] * steps.layout.parties


def seed_operands(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    centroids: Shapes = {"mu": ((seeding_of(steps).choices, steps.layout.total_features), "uint64")}
    return [{**each, **centroids} for each in _operands(shape, seeding_of(steps).engines.distance)]


def seed_update_operands(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    return _operands(shape, seeding_of(steps).engines.update)


def seed_weights(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    """Weights and norms of rows; one shard stands for all."""
    weights: Shapes = {"v": ((seeding_of(steps).choices, shape.rows), "uint64"), "x2": ((shape.rows,), "uint64")}
    return [{"number": np.array([0]), **weights}] * steps.layout.parties


def nothing(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    return [{}] * steps.layout.parties


def column_range(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    (width,) = shape.widths
    return [{"columns": np.array([shape.start, shape.start + width])}] * steps.layout.parties


def extremes(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    """Lowest and highest value of each column."""
    return [{"x": ((2, steps.layout.total_features), "uint64")}] * steps.layout.parties


def moments(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    """Σ x and Σ x² of each column."""
    return [{"x": ((WORDS, 2, steps.layout.total_features), "uint64")}] * steps.layout.parties


def squares(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    return [{"x2": ((1,), "uint64")}] * steps.layout.parties


def row_squares(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    return [{"x2": ((shape.rows,), "uint64")}] * steps.layout.parties


def counts_and_squares(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    return [{"n": ((steps.all_clusters,), "uint64"), "x2": ((1,), "uint64")}] * steps.layout.parties


def cluster_counts(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    return [{SIZES: ((steps.all_clusters,), "uint64")}] * steps.layout.parties


def open_bits(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    """Shares of which centroids may be opened, where some may stay closed."""
    found: Shapes = {OPEN: ((steps.k,), "uint64")} if steps.closes else {}
    return [found] * steps.layout.parties


def assignments(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    """All rows in the first cluster, by the first party's share: opened assignments are checked to be one-hot."""
    width = bits.word_count(shape.rows)
    shares: list[Array] = [np.zeros((steps.k, width), np.uint64) for _ in range(steps.layout.parties)]
    shares[0][0] = bits.ONES
    return [{"c": share, **_rows_and_owner(steps, shape)} for share in shares]


def scores(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    """Shares of scores that may be opened, and of the outliers' bits."""
    found: dict[str, tuple[Shape, str]] = {"shown": ((shape.rows,), "uint64")} if steps.scores else {}
    if steps.outliers is not None:
        found["outlier"] = ((bits.word_count(shape.rows),), "uint64")
    return [{**found, **_rows_and_owner(steps, shape)}] * steps.layout.parties


def explained_rows(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    """Shares of the outliers' clusters, and of their scores where these are needed."""
    found: dict[str, tuple[Shape, str]] = {EXPLAINED: ((steps.k, bits.word_count(shape.rows)), "uint64")}
    if steps.explanations is not None and steps.explanations.others:
        found[EXPLAINED_SCORE] = ((shape.rows,), "uint64")
    return [{**found, **_rows_and_owner(steps, shape)}] * steps.layout.parties


def explained_centroids(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    """Shares of the centroids that have outliers, for each owner of rows."""
    groups, d = 1 if steps.layout.vertical else steps.layout.parties, steps.layout.total_features
    bits_of: Shapes = {HAS: ((groups, steps.k), "uint64")} if steps.closes else {}
    return [{"mu": ((groups, steps.k, d), "uint64"), **bits_of}] * steps.layout.parties


def profiles_of(steps: KMeansSteps) -> Profiles:
    """The parameters of profiles, in a job that has them."""
    if steps.profiles is None:
        raise ValueError("nobody gets profiles of this job")
    return steps.profiles


def profile_operands(steps: KMeansSteps, shape: ShardShape) -> Sequence[Shapes]:
    shape = profiles_of(steps).shape(shape)
    return [{"x": ((shape.rows, width), "uint64"), **shape_to_state(shape)} for width in shape.widths]


def profile(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    """Shares of sizes and sums; what is sent is the same whoever else gets profiles."""
    parties = tuple(range(steps.layout.parties))
    sums = ((steps.k + 1, Profiles(steps.layout, steps.k, parties, 0).width), "uint64")
    found: Shapes = {SIZES: ((steps.k,), "uint64"), SUMS: sums, RECIPIENTS: np.array(parties)}
    return [{**found, **bits_of} for bits_of in open_bits(steps, _shape)]


def shard_number(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    return [{SHARD: np.array([0])}] * steps.layout.parties


def _rows_and_owner(steps: KMeansSteps, shape: ShardShape) -> Shapes:
    layout = steps.layout
    owner = layout.parties if layout.vertical else int(np.argmax(shape.widths))
    return {"rows": np.array([shape.rows]), "owner": np.array([owner])}


def results(steps: KMeansSteps, _shape: ShardShape) -> Sequence[Shapes]:
    """Shares of centroids and inertia, and each party's scales and column names, whose length is estimated."""
    layout = steps.layout
    shares: Shapes = {"mu": ((steps.k, layout.total_features), "uint64"), "inertia": ((1,), "uint64")}
    return [
        {
            **shares,
            **bits_of,
            **dict.fromkeys(("shift", "factor"), ((d,), "float64")),
            "names": ((d * (COLUMN_NAME_LENGTH + 1) - 1,), "uint8"),
        }
        for d, bits_of in zip(layout.features, open_bits(steps, _shape), strict=True)
    ]
