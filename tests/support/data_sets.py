"""Real data sets: scikit-learn's, and the shared ones where they are beside the repository."""

from pathlib import Path

import pytest

from support.kmeans_in_memory import horizontal, vertical
from veilmeans.io.sources.scaling import scaling_of
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.layout import Layout

SHARED = Path(__file__).parents[3] / "shared" / "data"


def normalised(table: Real) -> Real:
    """Normalise columns by min-max, as a party does."""
    return scaling_of("minmax", table.min(axis=0).tolist(), table.max(axis=0).tolist(), (), ()).normalise(table)


def shared(name: str) -> Path:
    file = SHARED / name
    if not file.exists():
        pytest.skip(f"{name} is not bundled, and ../shared/data does not have it")
    return file


def divided(kind: str, n: int, d: int) -> Layout:
    """Two parties, one with a third of the columns; or three, one with half of the rows. Two or three shards."""
    if kind == "vertical":
        return vertical(n, (d // 3, d - d // 3), -(-n // 2))
    return horizontal((n // 2, n // 3, n - n // 2 - n // 3), d, n)
