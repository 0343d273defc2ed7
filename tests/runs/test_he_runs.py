"""Runs with `products: he`: the same shares however they are executed, and whoever is killed.

Two worlds: one by columns with .npz files, where a column shard has two owners; one by rows with Parquet files and a
joint scale.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.commands import Strike, at_rename
from support.run_results import final_shares, keep_messages, opened_results, received
from support.worlds import (
    BOTH,
    CLUSTERS,
    HE_ITERATIONS,
    HE_WIDTHS,
    World,
    he_by_columns,
    he_by_rows,
    sparse_matrix,
    train_under_strikes,
)
from veilmeans.schemas.message import MessageKey


@dataclass(frozen=True)
class Undisturbed:
    """A world before its run, and the shares, results and messages of a run in one call for each iteration."""

    new: World
    shares: dict[str, bytes]
    results: dict[str, Any]
    messages: Mapping[str, list[MessageKey]]

    @classmethod
    def of(cls, new: World, folder: Path) -> "Undisturbed":
        trained = new.copied(folder, beam={"rounds": "one_call"})
        with pytest.MonkeyPatch.context() as patch:
            keep_messages(patch)
            trained.train()
        messages = {name: [key for key, _ in received(config)] for name, config in trained.parties.items()}
        return cls(new, final_shares(trained), opened_results(trained), messages)


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("columns")
    return Undisturbed.of(he_by_columns(folder / "new"), folder / "trained")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("rows")
    return Undisturbed.of(he_by_rows(folder / "new"), folder / "trained")


# Results.
def means(table: np.ndarray[Any, Any], labels: list[int]) -> np.ndarray[Any, Any]:
    return np.array([table[np.array(labels) == cluster].mean(axis=0) for cluster in range(CLUSTERS)])


def opened_centroids(expected: Undisturbed, name: str) -> np.ndarray[Any, Any]:
    rows = expected.results[f"{name}/centroids"]
    return np.array([[value for column, value in row.items() if column != "cluster"] for row in rows])


def opened_clusters(expected: Undisturbed, name: str) -> list[int]:
    return [row["cluster"] for row in expected.results[f"{name}/assignments"]]


def test_centroids_by_columns_are_the_means_of_their_rows(columns: Undisturbed) -> None:
    labels = opened_clusters(columns, "payco")
    assert labels == opened_clusters(columns, "shop")
    assert set(labels) == set(range(CLUSTERS))
    for name, part in zip(BOTH, np.split(sparse_matrix(), [HE_WIDTHS["payco"]], axis=1), strict=True):
        centroids = opened_centroids(columns, name)
        np.testing.assert_allclose(centroids, means(part, labels), rtol=0, atol=2.0**-14)


def test_centroids_by_rows_are_the_means_of_their_rows(rows: Undisturbed) -> None:
    tables = [pq.read_table(rows.new.data(name)) for name in BOTH]
    table = np.concatenate([np.column_stack([column.to_numpy() for column in each.columns]) for each in tables])
    labels = opened_clusters(rows, "payco") + opened_clusters(rows, "shop")
    assert len(labels) == len(table) == 60
    assert set(labels) == set(range(CLUSTERS))
    for name in BOTH:
        centroids = opened_centroids(rows, name)
        np.testing.assert_allclose(centroids, means(table, labels), rtol=0, atol=2.0**-8)


@pytest.mark.parametrize("which", ["columns", "rows"])
def test_ciphertexts_are_sent_and_no_masked_matrix(which: str, request: pytest.FixtureRequest) -> None:
    expected: Undisturbed = request.getfixturevalue(which)
    for name in BOTH:
        stages = Counter(key.address.stage for key in expected.messages[name])
        assert {"encrypt.00.encrypt", "distance.00.cross", "update.00.cross", "unmask.00.unmask"} <= stages.keys()
        assert not any("operand" in stage for stage in stages)


def test_one_column_shard_has_two_owners(columns: Undisturbed) -> None:
    shards = {key.address.shard for key in columns.messages["payco"] if key.address.stage == "unmask.00.unmask"}
    assert shards == {0, 1, 2, 3}


# Executions.
@pytest.mark.processes
@pytest.mark.long
def test_workers_that_are_processes_give_the_same_shares(columns: Undisturbed, tmp_path: Path) -> None:
    """Stage by stage, in worker processes that read the keys; the peer runs in one call. Nothing is opened."""
    job = {"iterations_per_pipeline": HE_ITERATIONS, "reveal": {"assignments": (), "centroids": ()}}
    world = columns.new.copied(tmp_path / "world", kmeans=job)
    world = world.altered("payco", beam={"rounds": "stages", "workers": 2, "worker_type": "processes"})
    world.train()
    assert final_shares(world) == columns.shares


def at_message(iteration: int, stage: str, number: int = 1) -> Strike:
    """Strike just before the peer can find the message of some shard; those of later shards are not written."""
    return at_rename(f"test/{iteration}/{stage}/", number)


@pytest.mark.processes
@pytest.mark.long
def test_parties_killed_in_every_stage_with_ciphertexts_resume(rows: Undisturbed, tmp_path: Path) -> None:
    """One party runs stage by stage, the other in one call; the moments are listed in the order in which they come."""
    world = rows.new.copied(tmp_path / "world", exchange={"kind": "files"})
    world = world.altered("payco", beam={"rounds": "stages"})
    strikes = {
        "payco": [
            at_message(0, "encrypt.00.encrypt", 2),
            at_message(0, "distance.00.cross", 3),
            at_message(0, "unmask.00.unmask", 2),
        ],
        "shop": [at_rename("encrypted/1/", 2), at_message(1, "update.00.cross", 2)],
    }
    train_under_strikes(world, strikes)
    assert final_shares(world) == rows.shares
    assert opened_results(world) == rows.results
