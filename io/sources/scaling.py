"""The scaling of columns to a common scale, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilmeans.io.sources.column_encoding import HOT, columns_of_kind
from veilmeans.io.sources.scan import Scan
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import InputError

Method = Literal["minmax", "zscore", "none"]
Floats = Sequence[float]


@dataclass(frozen=True)
class Scaling:
    """The scaling of all columns: normalised = (x − shift) · factor. A constant column has the factor 0."""

    shift: tuple[float, ...]
    factor: tuple[float, ...]

    def normalise(self, values: Real) -> Real:
        """Scale values in original units (… × columns)."""
        return np.asarray((values - np.array(self.shift)) * np.array(self.factor))

    def original(self, values: Real) -> Real:
        """Scale values back to original units; a constant column is its shift."""
        factor = np.array(self.factor)
        moved = np.divide(values, factor, out=np.zeros(np.shape(values)), where=factor != 0)
        return np.asarray(moved + np.array(self.shift))


def scaling_of(method: Method, low: Floats, high: Floats, mean: Floats, deviation: Floats) -> Scaling:
    """Compute the scaling by a method: minmax: [low, high] to [0, 1]; zscore: mean to 0, deviation to 1; none."""
    if method == "none":
        return Scaling((0.0,) * len(low), (1.0,) * len(low))
    shift, width = (low, np.subtract(high, low)) if method == "minmax" else (mean, np.array(deviation))
    with np.errstate(divide="ignore", over="ignore"):
        factor = 1 / np.asarray(width, np.float64)
    return Scaling(_floats(np.asarray(shift)), _floats(np.where(np.isfinite(factor), factor, 0)))


def scale_columns(scan: Scan, method: Method, low: Floats, high: Floats, mean: Floats, deviation: Floats) -> Scaling:
    """Compute the scaling of a source's columns.

    As `scaling_of`, but zeros of a sparse matrix stay zeros (minmax of [0, high]) and columns of 0 and 1 do not change.
    """
    check_zeros(scan, method, low)
    hot, sparse = columns_of_kind(scan.fields, *HOT), columns_of_kind(scan.fields, "matrix")
    if method == "minmax":
        low, high = np.where(hot | sparse, 0.0, low).tolist(), np.where(hot, 1.0, high).tolist()
    elif method == "zscore":
        mean, deviation = np.where(hot, 0.0, mean).tolist(), np.where(hot, 1.0, deviation).tolist()
    return scaling_of(method, low, high, mean, deviation)


def check_zeros(scan: Scan, method: Method, low: Floats) -> None:
    """Refuse a method that would turn the zeros of a sparse matrix into other values."""
    sparse = columns_of_kind(scan.fields, "matrix")
    if method == "none" or not sparse.any():
        return
    if method == "zscore":
        raise InputError(
            f"zscore would turn the zeros of the sparse {scan.source} into other values: set kmeans.normalise.method "
            "to minmax, or to none with a bound"
        )
    negative = sparse & (np.asarray(low) < 0)
    if negative.any():
        raise InputError(
            f"{scan.source}, column {scan.columns[int(negative.argmax())]!r} begins below 0, and minmax would turn its "
            "zeros into other values: set kmeans.normalise.method to none with a bound"
        )


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(values.astype(np.float64).tolist())
