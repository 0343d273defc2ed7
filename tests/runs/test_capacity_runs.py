"""One triple store for runs of different sizes: two trainings by it, in both layouts, with a plan that is right."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.worlds import BOTH, DEALER, World, make_world, run_in_threads
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_vs_run import compare_with_run
from veilmeans.pipelines.reveal import run_reveal
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import ConfigError
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

pytestmark = pytest.mark.slow
JOB = {"clusters": 2, "max_iter": 1, "normalise": {"method": "none", "bound": 1.0}, "init": {"indices": [0, 1]}}
JOB["reveal"] = {"assignments": BOTH, "scores": BOTH, "inertia": ["payco"]}
SECOND = {"vertical": 9, "horizontal": {"payco": 6, "shop": 1}}
"""The rows of the second run; the first has as many as the store is for in the vertical layout."""


def drawn(rows: int) -> Real:
    values = np.random.default_rng(rows).uniform(0.3, 1, (rows, 2))
    values[0], values[1] = 0.3, 1.0
    return values


def table(values: Real) -> pa.Table:
    return pa.table({f"c{i}": column for i, column in enumerate(values.T)})


def two_runs(folder: Path, layout: str, **beam: Any) -> tuple[World, World]:
    """The first run's world, and that of a second run with fewer rows and the same store."""
    vertical = layout == "vertical"
    parts = np.split(drawn(20), [1] if vertical else [12], axis=int(vertical))
    capacity: Any = 20 if vertical else {"payco": 13, "shop": 30}
    triples: Any = {"runs": 2, "rows": capacity}
    settings = {"beam": {"rows_per_shard": 8, **beam}, "dealer": DEALER, **triples}
    first = make_world(folder, [table(each) for each in parts], {**JOB, "layout": layout}, **settings)
    rows: Any = SECOND[layout]
    values = drawn(rows if vertical else sum(rows.values()))
    for name, part in zip(BOTH, np.split(values, [1] if vertical else [6], axis=int(vertical)), strict=True):
        pq.write_table(table(part), folder / name / "second.parquet")
    second = first.altered(run="second", kmeans={"rows": rows})
    for name in BOTH:
        second = second.altered(name, kmeans={"data": str(folder / name / "second.parquet")})
    return first, second


def check_run(world: World, values: Real, layout: str) -> None:
    """Both parties' results are those of Lloyd on the rows alone."""
    (after,) = lloyd(lambda: [values], values[:2], 1)
    labels = nearest(values, after.centroids)
    squares = ((values - after.centroids[labels]) ** 2).sum(axis=1)
    firsts = [0, 0] if layout == "vertical" else [0, world["payco"].declared_shape[0]]
    for name, first in zip(BOTH, firsts, strict=True):
        count, folder = world[name].declared_shape[0], world[name].run_folder
        mine = slice(first, first + count)
        assert pq.read_table(folder.assignments)["cluster"].to_pylist() == labels[mine].tolist()
        found = pq.read_table(folder.scores)["score"].to_numpy()
        np.testing.assert_allclose(found, squares[mine], atol=2**-14)
    inertia = ((values - after.centroids[nearest(values, values[:2])]) ** 2).sum()
    assert json.loads(world["payco"].run_folder.result.read_text())["inertia"] == pytest.approx(inertia, abs=2**-12)


@pytest.mark.parametrize(
    ("layout", "rounds"), [("vertical", "one_call"), pytest.param("horizontal", "stages", marks=pytest.mark.long)]
)
def test_one_store_serves_runs_of_different_sizes(tmp_path: Path, layout: str, rounds: str) -> None:
    first, second = two_runs(tmp_path, layout, rounds=rounds)
    for world, rows in ((first, 20), (second, 9 if layout == "vertical" else 7)):
        world.train()
        check_run(world, drawn(rows), layout)
        for config in world.parties.values():
            total = compare_with_run(config).total
            assert {total.difference(name) for name in ("messages", "bytes_sent", "bytes_received")} == {0.0}
    later = second.altered(kmeans={"reveal": {"assignments": ["shop"]}})
    run_in_threads(run_reveal, later.parties)
    assert pq.read_table(second["shop"].run_folder.assignments).num_rows == second["shop"].declared_shape[0]
    other = second.altered(triples={"rows": 40 if layout == "vertical" else {"payco": 14, "shop": 30}})
    with pytest.raises(ConfigError, match="the configuration has changed since run 'second'"):
        run_reveal(other["payco"])


def test_a_plan_has_the_store_of_the_capacity_and_the_run_of_its_rows(tmp_path: Path) -> None:
    first, second = two_runs(tmp_path, "vertical")
    largest, smaller = (plan_ahead(world["payco"].online()) for world in (first, second))
    assert largest.offline == smaller.offline
    assert (largest.job["shards"], smaller.job["shards"], smaller.job["padding"]) == (3, 2, 7)
    assert sum(smaller.traffic().sent.values()) < sum(largest.traffic().sent.values())


def test_more_rows_than_the_store_is_for_are_refused(tmp_path: Path) -> None:
    first, _ = two_runs(tmp_path, "vertical")
    with pytest.raises(ValueError, match=r"triples.rows: the store is for 20 rows, and kmeans.rows is 21: make a new"):
        first.altered(kmeans={"rows": 21})
    with pytest.raises(ValueError, match=r"triples.rows: must be one number"):
        first.altered(triples={"rows": {"payco": 20, "shop": 20}})
