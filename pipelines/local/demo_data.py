"""Synthetic transactions for the demo: fraud that neither company sees alone.

Every honest transaction is of one of five kinds, and a kind has its own profile at the payment company and at the
merchant. A fraud has one kind's profile at one company and another kind's profile at the other: it is ordinary on each
side, and unusual only in the joint data: it is far from all joint clusters.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilmeans.schemas.arrays import Real
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, local_centroids, nearest

KINDS = 5
FRAUD_RATE = 0.01
_NOISE = 0.06


@dataclass(frozen=True)
class Transactions:
    """Each company's columns of the same transactions, and which of them are fraud (only the demo knows)."""

    tables: dict[str, pa.Table]
    fraud: NDArray[np.bool_]


def make_transactions(rows: int, widths: dict[str, int], seed: int) -> Transactions:
    """Make transactions. `widths`: the number of each company's features."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, KINDS, rows)
    fraud = rng.random(rows) < FRAUD_RATE
    other = (kind + rng.integers(1, KINDS, rows)) % KINDS
    tables = {}
    for number, (company, width) in enumerate(widths.items()):
        seen = np.where(fraud & (number == 1), other, kind)
        profiles = rng.random((KINDS, width))
        values = (profiles[seen] + rng.normal(0, _NOISE, (rows, width))) * rng.uniform(1, 1000, width)
        columns = {f"{company}_{i + 1:02d}": np.round(values[:, i], 3) for i in range(width)}
        tables[company] = pa.table({"transaction": np.arange(1_000_001, 1_000_001 + rows), **columns})
    return Transactions(tables, fraud)


def features(table: pa.Table) -> Real:
    """Return all columns except the first, which is the id or the cluster's number."""
    return np.stack([table.column(name).to_numpy() for name in table.column_names[1:]], axis=1)


def scaled(table: pa.Table) -> Real:
    """Scale the features of a table by its minimum and maximum."""
    rows = features(table)
    low, high = rows.min(axis=0), rows.max(axis=0)
    return np.asarray((rows - low) / np.where(high > low, high - low, 1))


def distances(rows: Real, labels: NDArray[np.integer], centroids: Real) -> Real:
    """Return the squared distance of each row to the centroid of its cluster."""
    return np.asarray(((rows - centroids[labels]) ** 2).sum(axis=1))


def farthest(scores: Real, count: int) -> NDArray[np.bool_]:
    """Mark the rows with the highest scores; of equal ones those that come first."""
    found = np.zeros(len(scores), bool)
    found[np.argsort(-scores, kind="stable")[:count]] = True
    return found


def jaccard(found: NDArray[np.bool_], fraud: NDArray[np.bool_]) -> float:
    """Return the Jaccard coefficient |found ∩ fraud| / |found ∪ fraud|."""
    return float((found & fraud).sum() / max(1, int((found | fraud).sum())))


def outliers_alone(table: pa.Table, count: int, k: int, seed: int) -> NDArray[np.bool_]:
    """Mark the outliers that a company finds with plaintext K-means on its own features."""
    rows = scaled(table)
    centroids = lloyd(lambda: [rows], local_centroids(lambda: [rows], k, seed), 10)[-1].centroids
    return farthest(distances(rows, nearest(rows, centroids), centroids), count)
