"""Opened profiles of clusters in numbers: means and spreads of a party's columns, and the rate of its label."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.io.sources.scaling import Scaling
from veilmeans.schemas.arrays import Arrays, Real
from veilmeans.transforms.rounds.protocol import require
from veilmeans.transforms.statistics.profiles import SIZES, SUMS
from veilmeans.transforms.statistics.small_clusters import OPEN, hidden_clusters, opened_clusters


@dataclass(frozen=True)
class Summary:
    """Sizes, means and spreads of each cluster in normalised units, and in the last line those of all rows.

    `known`, `positive`: how many rows have a label, and how many the label 1. NaN: of no rows, or hidden.
    `hidden`: clusters whose sums are not opened, because too few rows are in them. `closed`: nor are their sizes.
    """

    sizes: NDArray[np.int64]
    means: Real
    spreads: Real
    known: NDArray[np.int64]
    positive: NDArray[np.int64]
    hidden: NDArray[np.bool_]
    closed: bool = False

    def possible(self, rows: int) -> bool:
        """Return whether so many rows can have these sizes and labels."""
        ordered = np.stack([np.zeros_like(self.sizes), self.positive, self.known, self.sizes])
        total = int(self.sizes[:-1].sum())
        complete = total <= rows if self.closed and self.hidden.any() else total == rows
        return bool((np.diff(ordered, axis=0) >= 0).all()) and int(self.sizes[-1]) == rows and complete

    @property
    def rates(self) -> tuple[Real, Real]:
        """The rates of the label 1 among known ones, and their spreads."""
        rates = _mean(self.positive.astype(float), self.known)
        return rates, np.sqrt(rates * (1 - rates))


def summarise(opened: Arrays, square_bits: int, least: int, rows: int) -> Summary:
    """Turn opened sizes and sums into means and spreads; sums of clusters with fewer than `least` rows are hidden."""
    sizes, sums = require(opened, SIZES), require(opened, SUMS)
    closed = OPEN in opened
    hidden = ~opened_clusters(require(opened, OPEN)) if closed else hidden_clusters(ring.decode(sizes), least)
    sizes = np.append(sizes, ring.DTYPE(rows) if closed else sizes.sum(dtype=ring.DTYPE))
    d = sums.shape[1] // 2 - 1
    summed = np.where([*hidden, False], 0, ring.decode(sizes))[:, None]
    means = _mean(fixed.decode(sums[:, :d]), summed)
    squares = _mean(np.ldexp(ring.decode(sums[:, d : 2 * d]).astype(float), -square_bits), summed)
    spreads = np.sqrt(np.maximum(squares - means**2, 0.0))
    known, positive = ring.decode(sums[:, 2 * d :]).T
    return Summary(ring.decode(sizes), means, spreads, known, positive, hidden, closed)


def _mean(sums: Real, counts: NDArray[np.int64]) -> Real:
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0))


def list_profiles(summary: Summary, columns: Sequence[str], scaling: Scaling, label: str | None) -> pa.Table:
    """List a line for each cluster and column, in original units; the label is a column whose mean is its rate."""
    factor = np.abs(np.array(scaling.factor))
    means = scaling.original(summary.means)
    spreads = np.divide(summary.spreads, factor, out=np.zeros_like(means), where=factor != 0)
    means, spreads = (np.where(np.isnan(summary.means), np.nan, each) for each in (means, spreads))
    names, known = list(columns), np.repeat(summary.sizes[:, None], len(columns), axis=1)
    if label is not None:
        names = [label, *names]
        means, spreads = (
            np.concatenate([of_label[:, None], each], axis=1)
            for of_label, each in zip(summary.rates, (means, spreads), strict=True)
        )
        known = np.concatenate([summary.known[:, None], known], axis=1)
    k, width = len(summary.sizes) - 1, len(names)
    return pa.table(
        {
            "cluster": np.repeat(np.arange(k, dtype=np.int32), width),
            "size": pa.array(
                np.repeat(summary.sizes[:-1], width), mask=np.repeat(summary.hidden & summary.closed, width)
            ),
            "hidden": np.repeat(summary.hidden, width),
            "column": pa.array(names * k, pa.string()),
            "label": np.tile(np.arange(width) < width - len(columns), k),
            "known": pa.array(known[:-1].reshape(-1), mask=np.repeat(summary.hidden, width)),
            **{
                name: pa.array(values.reshape(-1), pa.float64(), from_pandas=True)
                for name, values in {
                    "mean": means[:-1],
                    "spread": spreads[:-1],
                    "mean_of_all": np.tile(means[-1], k),
                    "spread_of_all": np.tile(spreads[-1], k),
                }.items()
            },
        }
    )
