"""A training reads each party's source twice, and a rerun reads it once."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from support.data_files import counted_reads, write_npz
from support.worlds import make_world

ROWS, COLUMNS = 40, 300
LOOK_UPS = 0.3
"""Bytes read for the directory and the header of an archive, as a part of its size."""


def test_a_training_with_joint_statistics_reads_a_source_twice_and_a_rerun_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(3).random((2, ROWS, COLUMNS))
    job = {
        "layout": "horizontal",
        "clusters": 2,
        "max_iter": 1,
        "init": {"indices": [0, 1]},
        "normalise": {"method": "zscore", "aggregate": True},
    }
    tables = [pa.table({str(i): column for i, column in enumerate(each.T)}) for each in values]
    world = make_world(tmp_path, tables, job)
    for name, each in zip(world.configs, values, strict=True):
        world = world.altered(name, kmeans={"data": write_npz(tmp_path / name / "data.npz", X=each)})
    size = ROWS * COLUMNS * 8
    for passes in (2, 1):
        counter = counted_reads(monkeypatch)
        world.train()
        for config in world.parties.values():
            assert passes * size <= counter.bytes[config.kmeans_with_data.data or ""] <= (passes + LOOK_UPS) * size
