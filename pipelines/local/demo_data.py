"""Made-up transactions for the demo: fraud that neither company sees alone.

Every honest transaction is of one of five kinds, and a kind has its own profile at the payment company and at the
merchant. A fraud wears one kind's profile at one company and another's at the other: ordinary on each side, and only
together out of line. With the clusters found together, each company sees which rows lie far from their own cluster.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilmeans.schemas.arrays import Real
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, local_start, nearest

KINDS = 5
FRAUD_SHARE = 0.01
_SPREAD = 0.06


@dataclass(frozen=True)
class Transactions:
    """What each company has about the same transactions, and which of them are fraud (only the demo knows)."""

    tables: dict[str, pa.Table]
    fraud: NDArray[np.bool_]


def make_transactions(rows: int, widths: dict[str, int], seed: int) -> Transactions:
    """`widths`: how many features each company has."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, KINDS, rows)
    fraud = rng.random(rows) < FRAUD_SHARE
    other = (kind + rng.integers(1, KINDS, rows)) % KINDS
    tables = {}
    for number, (company, width) in enumerate(widths.items()):
        seen = np.where(fraud & (number == 1), other, kind)
        profiles = rng.random((KINDS, width))
        values = (profiles[seen] + rng.normal(0, _SPREAD, (rows, width))) * rng.uniform(1, 1000, width)
        columns = {f"{company}_{i + 1:02d}": np.round(values[:, i], 3) for i in range(width)}
        tables[company] = pa.table({"transaction": np.arange(1_000_001, 1_000_001 + rows), **columns})
    return Transactions(tables, fraud)


def features(table: pa.Table) -> Real:
    """All columns but the first, which is the id or the cluster's number."""
    return np.stack([table.column(name).to_numpy() for name in table.column_names[1:]], axis=1)


def scaled(table: pa.Table, values: Real | None = None) -> Real:
    """The features, or other values of them, by the min-max scale of the table."""
    rows = features(table)
    low, high = rows.min(axis=0), rows.max(axis=0)
    return np.asarray(((rows if values is None else values) - low) / np.where(high > low, high - low, 1))


def distances(rows: Real, labels: NDArray[np.integer], centres: Real) -> Real:
    """Squared distance of each row to the centroid of its cluster."""
    return np.asarray(((rows - centres[labels]) ** 2).sum(axis=1))


def frauds_found(scores: Real, fraud: NDArray[np.bool_]) -> float:
    """The share of frauds among as many rows as there are frauds, those with the highest scores."""
    suspects = np.argsort(-scores)[: int(fraud.sum())]
    return float(fraud[suspects].mean())


def frauds_found_alone(table: pa.Table, fraud: NDArray[np.bool_], k: int, seed: int) -> float:
    """What a company finds with plaintext K-means on its own features."""
    rows = scaled(table)
    centres = lloyd(lambda: [rows], local_start(lambda: [rows], k, seed), 10)[-1].centres
    return frauds_found(distances(rows, nearest(rows, centres), centres), fraud)
