"""Opened results that no rows can have are refused: a share, or a triple that made it, was damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.worlds import make_world_without_stores
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.sources.column_encoding import TableEncoding
from veilmeans.io.sources.scaling import Scaling
from veilmeans.pipelines.session.result_opening import _write_opened, policy_of
from veilmeans.pipelines.session.trained_model import FinishedRun
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.layout import Layout

NO_JOB: Any = None
ROWS = 8


@pytest.mark.parametrize("method", ["minmax", "zscore"])
@pytest.mark.parametrize(
    ("what", "value", "possible"),
    [
        ("centroids", 0.5, True),
        ("centroids", 1.0, True),
        ("centroids", -2358.0, False),
        ("centroids", 2.0**30, False),
        ("total", 0.0, True),
        ("total", -(2.0**-12), True),
        ("total", 3.5, True),
        ("total", -1.0, False),
        ("total", 2.9e12, False),
    ],
)
def test_impossible_results_are_refused(tmp_path: Path, method: str, what: str, value: float, possible: bool) -> None:
    parts = [pa.table({name: np.arange(float(ROWS)) for name in names}) for names in (("a", "b"), ("c",))]
    reveal = {"centroids": ["payco"], "inertia": ["payco"], "columns": "own"}
    job = {"layout": "vertical", "clusters": 2, "max_iter": 1, "normalise": {"method": method}, "reveal": reveal}
    config = make_world_without_stores(tmp_path, parts, job)["payco"]
    policy = policy_of(config, Layout(True, (ROWS, ROWS), (2, 1), ROWS), config.required_kmeans.reveal)
    unscaled, encoding = Scaling((0.0, 0.0), (1.0, 1.0)), TableEncoding.from_json({"fields": [], "means": []})
    finished = FinishedRun(config, NO_JOB, 1, unscaled, ("a", "b"), None, encoding)
    opened = {what: fixed.encode(np.full((2, 2) if what == "centroids" else (1,), value))}
    if possible:
        assert _write_opened(finished, policy, opened)
        return
    with pytest.raises(RefusedError, match=r"cannot be those of rows .* payco or shop"):
        _write_opened(finished, policy, opened)
    assert not config.run_folder.centroids.exists()
