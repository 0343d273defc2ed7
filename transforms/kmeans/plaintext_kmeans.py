"""Lloyd's K-means in the clear, in float64: the reference for tests and demo, and `init: local` on a party's own data.

One iteration, for centroids μ_1 … μ_k:

  1. assign:   j(x) = argmin_j ‖x − μ_j‖² = argmin_j (‖μ_j‖² − 2·x·μ_j)       (ties go to the lower index)
  2. update:   μ_j ← Σ_{j(x)=j} x / #{j(x)=j}                                  (an empty cluster keeps its centroid)

Rows are read batch by batch, once per iteration; all of them are never in memory together.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.schemas.arrays import Real

Sparse: TypeAlias = "scipy.sparse.csr_array"
Rows: TypeAlias = "Real | scipy.sparse.csr_array"
RowBatches = Callable[[], Iterable[Rows]]
"""All rows, in batches of n × d, dense or sparse; each call begins at the first row again, with the same rows."""


@dataclass(frozen=True)
class PlaintextIteration:
    """The result of one iteration.

    New centroids (k × d); rows in each cluster; inertia Σ ‖x − μ_j(x)‖² and movement Σ ‖μ_new − μ‖², where μ are the
    centroids with which the iteration began.
    """

    centroids: Real
    counts: NDArray[np.intp]
    inertia: float
    movement: float


def nearest(rows: Rows, centroids: Real) -> NDArray[np.intp]:
    """Find the index of the centroid that is nearest to each row; of equally near ones the lowest."""
    positions: NDArray[np.intp] = _scores(rows, centroids).argmin(axis=1)
    return positions


def _scores(rows: Rows, centroids: Real) -> Real:
    """‖μ_j‖² − 2·x·μ_j (n × k).

    einsum and not `@`: BLAS may round the products with two equal centroids differently, and would break a tie. Sparse
    products do not use BLAS.
    """
    sparse = scipy.sparse.issparse(rows)
    products = rows @ centroids.T if sparse else np.einsum("nd,kd->nk", rows, centroids)
    return np.asarray((centroids**2).sum(axis=1) - 2 * products)


def plaintext_iteration(batches: RowBatches, centroids: Real) -> PlaintextIteration:
    """Run one iteration over all rows."""
    k = len(centroids)
    sums, counts, inertia = np.zeros_like(centroids), np.zeros(k, np.intp), 0.0
    for rows in batches():
        labels = nearest(rows, centroids)
        counts += np.bincount(labels, minlength=k)
        sums += _sums(rows, labels, k)
        inertia += _inertia(rows, labels, centroids)
    new = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centroids)
    return PlaintextIteration(new, counts, inertia, float(((new - centroids) ** 2).sum()))


def _sums(rows: Rows, labels: NDArray[np.intp], k: int) -> Real:
    """Σ_{j(x)=j} x for each j (k × d)."""
    if not scipy.sparse.issparse(rows):
        return np.asarray((labels == np.arange(k)[:, None]).astype(np.float64) @ rows)
    n = len(labels)
    members = scipy.sparse.csc_array((np.ones(n), labels, np.arange(n + 1)), shape=(k, n))
    return np.asarray((members @ rows).toarray())


def _inertia(rows: Rows, labels: NDArray[np.intp], centroids: Real) -> float:
    """Σ ‖x − μ_j(x)‖²; for sparse rows Σ ‖x‖² + (‖μ_j‖² − 2·x·μ_j), which needs no array of n × d values."""
    if not scipy.sparse.issparse(rows):
        return float(((rows - centroids[labels]) ** 2).sum())
    chosen = np.take_along_axis(_scores(rows, centroids), labels[:, None], axis=1)
    return max(0.0, float(np.square(rows.data).sum() + chosen.sum()))


def lloyd(batches: RowBatches, start: Real, iterations: int, tol: float = 0.0) -> list[PlaintextIteration]:
    """Run at most so many iterations; the last is the first whose movement Σ ‖μ_{t+1} − μ_t‖² is below `tol`."""
    steps: list[PlaintextIteration] = []
    centroids = np.asarray(start, np.float64)
    for _ in range(iterations):
        steps.append(plaintext_iteration(batches, centroids))
        centroids = steps[-1].centroids
        if steps[-1].movement < tol:
            break
    return steps


def local_centroids(batches: RowBatches, k: int, seed: int, iterations: int = 10) -> Real:
    """Compute k centroids of one party's own rows, the same for the same rows and seed.

      1. draw k row numbers without repetition from the seed; where there are fewer rows than k, repeat them
      2. `iterations` of Lloyd from those rows

    Parties that hold columns of the same rows draw the same rows with the same seed. numpy's generator suffices here:
    the seed is public, and nothing is masked with the numbers that it draws.
    """
    count = sum(rows.shape[0] for rows in batches())
    drawn = np.random.default_rng(seed).choice(count, min(k, count), replace=False)
    start = _rows_at(batches, np.resize(drawn, k))
    steps = lloyd(batches, start, iterations)
    return steps[-1].centroids if steps else start


def _rows_at(batches: RowBatches, numbers: NDArray[Any]) -> Real:
    """Read the rows with these numbers, in the order of the numbers."""
    selected: list[Real] = []
    positions: list[NDArray[Any]] = []
    first = 0
    for rows in batches():
        (in_batch,) = np.nonzero((first <= numbers) & (numbers < first + rows.shape[0]))
        chosen = rows[numbers[in_batch] - first]
        selected.append(chosen.toarray() if scipy.sparse.issparse(chosen) else chosen)
        positions.append(in_batch)
        first += rows.shape[0]
    return np.concatenate(selected)[np.argsort(np.concatenate(positions))]
