"""Lloyd's K-means in the clear, in float64: the reference for tests and demo, and a party's start from its own data.

One iteration, for centroids μ_1 … μ_k:

  1. assign:   j(x) = argmin_j ‖x − μ_j‖² = argmin_j (‖μ_j‖² − 2·x·μ_j)       (ties go to the lower index)
  2. update:   μ_j ← Σ_{j(x)=j} x / #{j(x)=j}                                  (an empty cluster keeps its centroid)

Rows come block by block, as often as they are asked for; never all of them at once.
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
Blocks = Callable[[], Iterable[Rows]]
"""All rows, in blocks of n × d, dense or sparse; each call begins again at the first row, with the same rows."""


@dataclass(frozen=True)
class PlaintextIteration:
    """One iteration: the new centroids (k × d); rows in each cluster; Σ ‖x − μ_j(x)‖² and Σ ‖μ_new − μ‖², where μ are
    the centroids that the iteration began with."""

    centres: Real
    counts: NDArray[np.intp]
    inertia: float
    moved: float


def nearest(rows: Rows, centres: Real) -> NDArray[np.intp]:
    """The index of the centroid that is nearest to each row; the lower one of equals."""
    positions: NDArray[np.intp] = _scores(rows, centres).argmin(axis=1)
    return positions


def _scores(rows: Rows, centres: Real) -> Real:
    """‖μ_j‖² − 2·x·μ_j (n × k).

    einsum and not `@`: BLAS may round the products with two equal centroids differently, and then a tie is none. Sparse
    products do not use BLAS.
    """
    sparse = scipy.sparse.issparse(rows)
    products = rows @ centres.T if sparse else np.einsum("nd,kd->nk", rows, centres)
    return np.asarray((centres**2).sum(axis=1) - 2 * products)


def plaintext_iteration(blocks: Blocks, centres: Real) -> PlaintextIteration:
    """One iteration over all rows."""
    k = len(centres)
    sums, counts, inertia = np.zeros_like(centres), np.zeros(k, np.intp), 0.0
    for rows in blocks():
        labels = nearest(rows, centres)
        counts += np.bincount(labels, minlength=k)
        sums += _sums(rows, labels, k)
        inertia += _inertia(rows, labels, centres)
    moved_to = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
    return PlaintextIteration(moved_to, counts, inertia, float(((moved_to - centres) ** 2).sum()))


def _sums(rows: Rows, labels: NDArray[np.intp], k: int) -> Real:
    """Σ_{j(x)=j} x for each j (k × d)."""
    if not scipy.sparse.issparse(rows):
        return np.asarray((labels == np.arange(k)[:, None]).astype(np.float64) @ rows)
    n = len(labels)
    members = scipy.sparse.csc_array((np.ones(n), labels, np.arange(n + 1)), shape=(k, n))
    return np.asarray((members @ rows).toarray())


def _inertia(rows: Rows, labels: NDArray[np.intp], centres: Real) -> float:
    """Σ ‖x − μ_j(x)‖²; of sparse rows Σ ‖x‖² + (‖μ_j‖² − 2·x·μ_j), so that nothing has n × d values."""
    if not scipy.sparse.issparse(rows):
        return float(((rows - centres[labels]) ** 2).sum())
    chosen = np.take_along_axis(_scores(rows, centres), labels[:, None], axis=1)
    return max(0.0, float(np.square(rows.data).sum() + chosen.sum()))


def lloyd(blocks: Blocks, start: Real, iterations: int, tol: float = 0.0) -> list[PlaintextIteration]:
    """At most so many iterations; the last is the one whose squared movement Σ ‖μ_{t+1} − μ_t‖² is below `tol`."""
    steps: list[PlaintextIteration] = []
    centres = np.asarray(start, np.float64)
    for _ in range(iterations):
        steps.append(plaintext_iteration(blocks, centres))
        centres = steps[-1].centres
        if steps[-1].moved < tol:
            break
    return steps


def local_start(blocks: Blocks, k: int, seed: int, iterations: int = 10) -> Real:
    """k centroids of one party's own rows, the same for the same rows and seed.

      1. draw k row numbers without repetition from the seed; where there are fewer rows than k, repeat them
      2. `iterations` of Lloyd from those rows

    Parties that hold columns of the same rows draw the same rows with the same seed. numpy's generator will do here:
    the seed is public and nothing is masked with what it draws.
    """
    count = sum(rows.shape[0] for rows in blocks())
    drawn = np.random.default_rng(seed).choice(count, min(k, count), replace=False)
    start = _rows_at(blocks, np.resize(drawn, k))
    steps = lloyd(blocks, start, iterations)
    return steps[-1].centres if steps else start


def _rows_at(blocks: Blocks, numbers: NDArray[Any]) -> Real:
    """The rows with these numbers, in the order of the numbers."""
    found: list[Real] = []
    places: list[NDArray[Any]] = []
    first = 0
    for rows in blocks():
        (inside,) = np.nonzero((first <= numbers) & (numbers < first + rows.shape[0]))
        here = rows[numbers[inside] - first]
        found.append(here.toarray() if scipy.sparse.issparse(here) else here)
        places.append(inside)
        first += rows.shape[0]
    return np.concatenate(found)[np.argsort(np.concatenate(places))]
