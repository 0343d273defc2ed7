"""`veilmeans offline` and `veilmeans train` with `products: he`: the same shares however it is run, and whoever dies.

Two worlds, each made by a dealer and two parties: one by columns with .npz files, cut into so few columns a shard that
rounds over columns have several, one of which has two owners; one by rows with Parquet files and an aggregated scale.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.he_tables import (
    CLUSTERS,
    ITERATIONS,
    WIDTHS,
    Undisturbed,
    by_columns,
    by_rows,
    everything,
    in_threads,
    matrix,
)
from support.train_world import BOTH, Strike, play


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("columns")
    return Undisturbed.of(by_columns(folder / "new"), folder / "trained")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("rows")
    return Undisturbed.of(by_rows(folder / "new"), folder / "trained")


# What comes out.
def means(table: np.ndarray[Any, Any], labels: list[int]) -> np.ndarray[Any, Any]:
    return np.array([table[np.array(labels) == cluster].mean(axis=0) for cluster in range(CLUSTERS)])


def numbers(found: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    """Centroids without their names."""
    return np.array([[value for name, value in row.items() if name != "cluster"] for row in found])


def labels_in(expected: Undisturbed, name: str) -> list[int]:
    return [row["cluster"] for row in expected.results[_file(expected, name, "assignments")]]


def _file(expected: Undisturbed, name: str, what: str) -> str:
    return next(file for file in expected.results if file.startswith(f"{name}/") and file.endswith(f"{what}.parquet"))


def test_centroids_by_columns_are_the_means_of_their_rows(columns: Undisturbed) -> None:
    labels = labels_in(columns, "payco")
    assert labels == labels_in(columns, "shop")
    assert set(labels) == set(range(CLUSTERS))
    for name, part in zip(BOTH, np.split(matrix(), [WIDTHS["payco"]], axis=1), strict=True):
        found = numbers(columns.results[_file(columns, name, "centroids")])
        np.testing.assert_allclose(found, means(part, labels), rtol=0, atol=2.0**-14)


def test_centroids_by_rows_are_the_means_of_their_rows(rows: Undisturbed) -> None:
    tables = [pq.read_table(rows.world.data(name)) for name in BOTH]
    table = np.concatenate([np.column_stack([column.to_numpy() for column in each.columns]) for each in tables])
    labels = labels_in(rows, "payco") + labels_in(rows, "shop")
    assert len(labels) == len(table) == 60
    assert set(labels) == set(range(CLUSTERS))
    for name in BOTH:
        found = numbers(rows.results[_file(rows, name, "centroids")])
        np.testing.assert_allclose(found, means(table, labels), rtol=0, atol=2.0**-8)


@pytest.mark.parametrize("which", ["columns", "rows"])
def test_the_store_says_he_and_no_matrix_is_sent(which: str, request: pytest.FixtureRequest) -> None:
    expected: Undisturbed = request.getfixturevalue(which)
    for name in BOTH:
        stages = Counter(key.address.stage for key, _ in expected.messages[name])
        assert {"encrypt.00.encrypt", "distance.00.cross", "update.01.cross", "unmask.00.unmask"} <= stages.keys()
        assert not any("operand" in stage for stage in stages)


def test_one_shard_of_columns_has_two_owners(columns: Undisturbed) -> None:
    shards = {key.address.shard for key, _ in columns.messages["payco"] if key.address.stage == "unmask.00.unmask"}
    assert shards == {0, 1, 2, 3}


# However it is run.
def test_workers_that_are_processes_give_the_same_shares(columns: Undisturbed, tmp_path: Path) -> None:
    """Stage by stage, in real processes that read the keys; the peer runs whole iterations. Nothing is opened."""
    fields = {"iterations_per_pipeline": ITERATIONS, "reveal": {"assignments": (), "centroids": ()}}
    world = columns.world.copied(tmp_path / "world", kmeans=fields)
    world = world.altered("payco", engine={"rounds": "stages", "workers": 2, "spread": "processes"})
    in_threads(world)
    assert everything(world) == columns.shares


# Whoever dies.
def named(what: str, number: int = 1) -> Strike:
    """As a file is about to get its name."""
    return Strike(what, number, "os.rename")


def sending(iteration: int, stage: str, number: int = 1) -> Strike:
    """As the message of some shard is about to be put where the peer finds it, and the others are not."""
    return named(f"test/{iteration}/{stage}/", number)


def test_parties_killed_in_every_stage_with_ciphertexts_go_on(rows: Undisturbed, tmp_path: Path) -> None:
    """The one runs stage by stage, the other whole iterations; the moments stand in the order in which they come."""
    world = rows.world.copied(tmp_path / "world", exchange={"kind": "files"})
    world = world.altered("payco", engine={"rounds": "stages"})
    strikes = {
        "payco": [
            sending(0, "encrypt.00.encrypt", 2),
            sending(0, "distance.00.cross", 3),
            sending(0, "unmask.00.unmask", 2),
        ],
        "shop": [named("encrypted/1/", 2), sending(1, "update.01.cross", 2)],
    }
    play(world, strikes)
    rows.check(world)
