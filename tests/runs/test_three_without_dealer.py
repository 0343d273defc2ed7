"""Runs of three parties, pair by pair without a dealer: clusters as Lloyd's, and everything on the wire as planned."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.ot_dealing import SMALL
from support.run_results import opened_results
from support.worlds import CLUSTERS, World, blobs, make_world_without_stores, run_in_threads, tables
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.offline import run_offline
from veilmeans.pipelines.planning import planned_ot
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest, plaintext_iteration
from veilmeans.transforms.offline import ot_store
from veilmeans.transforms.offline.ot_setup import OtSetup

pytestmark = [pytest.mark.slow, pytest.mark.long]

NAMES, COLUMNS = ("payco", "shop", "bank"), ["amount", "age", "visits", "basket"]
ROWS, ITERATIONS = 30, 2


@pytest.fixture(autouse=True)
def _small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """LPN sets that are far too small to be secure, and fast."""
    for module in (ot_store, planned_ot):
        monkeypatch.setattr(module, "OtSetup", partial(OtSetup, setup=SMALL, main=SMALL))


def world_of(folder: Path, provider: str, layout: str) -> World:
    """Three parties with thirty rows in row shards of twelve; nobody has a store."""
    vertical = layout == "vertical"
    data = tables(blobs(ROWS, len(COLUMNS)), COLUMNS, [1, 3] if vertical else [4, 17], axis=int(vertical))
    job = {"layout": layout, "clusters": CLUSTERS, "max_iter": ITERATIONS, "products": "beaver"}
    job |= {"reveal": {"assignments": NAMES, "centroids": NAMES}, "init": {"indices": [0, 1, 2]}}
    job |= {} if vertical else {"normalise": {"aggregate": True}}
    world = make_world_without_stores(folder, data, job, beam={"rows_per_shard": 12})
    return world.altered(triples={"provider": provider})


def clusters_of(world: World, vertical: bool) -> list[int]:
    """Each row's cluster, as it was opened."""
    results = opened_results(world)
    rows = [row for name in (NAMES[:1] if vertical else NAMES) for row in results[f"{name}/assignments"]]
    return [row["cluster"] for row in rows]


def lloyd() -> list[int]:
    """Each row's cluster, in float64 from the same start."""
    data = blobs(ROWS, len(COLUMNS))
    rows = (data - data.min(axis=0)) / np.ptp(data, axis=0)
    centroids = rows[:CLUSTERS]
    for _ in range(ITERATIONS):
        labels, centroids = nearest(rows, centroids), plaintext_iteration(lambda: [rows], centroids).centroids
    return labels.tolist()


@pytest.mark.parametrize(("provider", "layout"), [("ot", "vertical"), ("ot", "horizontal"), ("iknp", "vertical")])
def test_clusters_are_lloyds_and_messages_as_planned(tmp_path: Path, provider: str, layout: str) -> None:
    world = world_of(tmp_path, provider, layout)
    plans = {name: plan_ahead(config).offline for name, config in world.configs.items()}
    run_in_threads(run_offline, world.configs)
    for name, config in world.configs.items():
        stages, plan = RunReport(config.offline().run_folder).content["stages"], plans[name]
        assert plan is not None
        counted = ("messages", "bytes_sent", "bytes_received")
        assert {stage: [counts.get(each, 0) for each in counted] for stage, counts in stages.items()} == {
            f"offline.{each.name}": [each.messages, each.bytes_sent, each.bytes_received] for each in plan.made
        }
        assert sum(file.stat().st_size for file in config.store_folder.path.rglob("*.arrow")) == plan.bytes_stored
        assert plan.rounds == (3 if provider == "iknp" else 5) + plan.passes
        assert plan.passes > 2
    world.train()
    assert clusters_of(world, layout == "vertical") == lloyd()
