"""Real data sets: scikit-learn's, and the shared ones where they are beside the repository."""

from pathlib import Path

import pytest

from veilmeans.io.sources.scaling import scaling_of
from veilmeans.schemas.arrays import Real

SHARED = Path(__file__).parents[3] / "shared" / "data"


def normalised(table: Real) -> Real:
    """Normalise columns by min-max, as a party does."""
    return scaling_of("minmax", table.min(axis=0).tolist(), table.max(axis=0).tolist(), (), ()).normalise(table)


def shared(name: str) -> Path:
    file = SHARED / name
    if not file.exists():
        pytest.skip(f"{name} is not bundled, and ../shared/data does not have it")
    return file
