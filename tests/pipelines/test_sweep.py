"""Sweeps: trainings with several numbers of clusters, by one agreement and one triple store."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.commands import Strike, assert_all_succeeded, at_rename, run_all
from support.error_sentence import error_sentence
from support.ot_dealing import SMALL
from support.parties import NAMES
from support.worlds import (
    BOTH,
    DEALER,
    World,
    blobs,
    changed_config,
    deal_directly,
    make_world,
    make_world_without_stores,
    run_in_threads,
    tables,
    under_strikes,
)
from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.planning.plan_vs_run import compare_with_run
from veilmeans.pipelines.planning.sweep_plan import plan_sweep
from veilmeans.pipelines.predict import run_predict
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.pipelines.sweep import run_sweep
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.transforms.kmeans.initial_centroids import initial_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest
from veilmeans.transforms.offline import ot_store
from veilmeans.transforms.offline.ot_setup import OtSetup

ROWS, COLUMNS, ITERATIONS = 30, 4, 3
SWEPT = [1, 2, 3, 5]


def sweep_world(folder: Path, layout: str = "vertical", parties: int = 2, dealt: bool = True, **job: Any) -> World:
    """Parties with a few rows, and the store of a sweep."""
    vertical = layout == "vertical"
    cuts = ([2], [1, 3])[parties - 2] if vertical else ([18], [10, 19])[parties - 2]
    data = tables(blobs(ROWS, COLUMNS), ["a", "b", "c", "d"], cuts, axis=int(vertical))
    agreed = {"layout": layout, "clusters": SWEPT[-1], "sweep": SWEPT, "max_iter": ITERATIONS, "products": "beaver"}
    agreed |= {"reveal": {"inertia": [NAMES[0]], "assignments": NAMES[:parties]}}
    agreed |= {} if vertical else {"normalise": {"aggregate": True}}
    make = make_world if dealt else make_world_without_stores
    dealer = DEALER if dealt else None
    return make(folder, data, {**agreed, **job}, beam={"rows_per_shard": 12}, dealer=dealer)


def plain_inertias(world: World) -> dict[int, float]:
    """The inertias of float64 Lloyd from the same rows."""
    data = blobs(ROWS, COLUMNS)
    rows = (data - data.min(axis=0)) / np.ptp(data, axis=0)
    found = {}
    for k, part in world["payco"].swept().items():
        start = rows[list(initial_rows(part.required_kmeans, layout_of(part, part.required_kmeans)))]
        centroids = lloyd(lambda: [rows], start, part.required_kmeans.max_iter)[-1].centroids
        found[k] = float(((rows - centroids[nearest(rows, centroids)]) ** 2).sum())
    return found


def opened(world: World, name: str) -> dict[int, float | None]:
    """The inertias in a party's summary."""
    summary = json.loads(world.run_folder(name).sweep.read_text())
    return {each["clusters"]: each.get("inertia") for each in summary["trainings"]}


@pytest.mark.parametrize(
    ("layout", "parties"), [("vertical", 2), ("horizontal", 2), pytest.param("vertical", 3, marks=pytest.mark.long)]
)
def test_inertias_are_those_of_lloyd_and_opened_by_the_policy(tmp_path: Path, layout: str, parties: int) -> None:
    world = sweep_world(tmp_path, layout, parties)
    run_in_threads(run_sweep, world.parties)
    plain = plain_inertias(world)
    assert opened(world, "payco") == pytest.approx(plain, abs=1e-3)
    assert plain[1] > 2 * plain[5]
    assert set(opened(world, "shop").values()) == {None}
    for config in world.parties.values():
        assert TripleStore.open(config.store_folder).runs_left() == 0
        assert len(config.store_folder.claim_numbers()) == 1
        for part in config.swept().values():
            assert part.run_folder.farewell.exists()


@pytest.mark.parametrize("dealt", [True, False])
def test_the_plan_has_the_messages_of_each_training_and_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dealt: bool
) -> None:
    """With k-means++, whose iterations differ from training to training."""
    monkeypatch.setattr(ot_store, "OtSetup", partial(OtSetup, setup=SMALL, main=SMALL))
    if not dealt:
        from veilmeans.pipelines.planning import planned_ot

        monkeypatch.setattr(planned_ot, "OtSetup", partial(OtSetup, setup=SMALL, main=SMALL))
    world = sweep_world(
        tmp_path, dealt=dealt, init={"method": "k-means++"}, reveal={"inertia": BOTH}, sweep=[2, 3], clusters=3
    ).altered(audit={"keep": True})
    run_in_threads(run_sweep, world.parties)
    for config in world.parties.values():
        plan = plan_sweep(config)
        for part in config.swept().values():
            total = compare_with_run(part).total
            assert total.planned.bytes_sent == total.measured.bytes_sent > 0
            assert total.planned.rounds == total.measured.rounds
        assert plan.offline is not None
        stored = config.store_folder.all_corrections.rglob("*.arrow")
        assert sum(file.stat().st_size for file in stored) == plan.offline.bytes_stored
        if not dealt:
            made = RunReport(config.offline().run_folder).content["stages"]
            assert sum(counts["bytes_sent"] for counts in made.values()) == plan.offline.bytes_sent
    first, second = (opened(world, name) for name in BOTH)
    assert first == second
    assert all(value is not None and value >= 0 for value in first.values())


@pytest.mark.processes
def test_a_sweep_that_is_killed_resumes_and_ends_as_without(tmp_path: Path) -> None:
    world = sweep_world(tmp_path)
    strikes = [at_rename("test.k2/checkpoints"), at_rename("test.k3/finished.json"), Strike("test.k5/checkpoints", 3)]
    under_strikes(world, {"payco": strikes, "shop": [at_rename("test.k2/result.json")]}, "sweep")
    assert opened(world, "payco") == pytest.approx(plain_inertias(world), abs=1e-3)
    assert "<polyline" in world.run_folder("payco").sweep_page.read_text()
    assert "<polyline" not in world.run_folder("shop").sweep_page.read_text()
    assert_all_succeeded(run_all("sweep", world.parties, tmp_path))


def test_a_training_of_a_sweep_is_a_model_for_new_rows(tmp_path: Path) -> None:
    world = sweep_world(tmp_path, sweep=[2, 3], clusters=3)
    run_in_threads(run_sweep, world.parties)
    fields = {"clusters": 3, "sweep": None, "predict": {"model": "test.k3"}, "reveal": {"assignments": BOTH}}
    fields["reveal"] |= {"inertia": [], "centroids": []}
    new = world.altered(run="new", kmeans=fields, triples={"store": "new"})
    deal_directly(new.parties)
    run_in_threads(run_predict, new.parties)
    for name, config in new.parties.items():
        trained = world[name].swept()[3].run_folder
        assert pq.read_table(config.run_folder.assignments).equals(pq.read_table(trained.assignments))


@pytest.mark.long
def test_homomorphic_products_of_all_trainings_use_the_keys_of_one_store(tmp_path: Path) -> None:
    world = sweep_world(tmp_path, products="he", sweep=[1, 3], clusters=3, max_iter=2)
    run_in_threads(run_sweep, world.parties)
    assert opened(world, "payco") == pytest.approx(plain_inertias(world), abs=1e-3)


def test_parties_with_other_numbers_of_clusters_are_refused(tmp_path: Path) -> None:
    world = sweep_world(tmp_path)
    other = world.altered("shop", kmeans={"sweep": [1, 2, 4, 5]})
    with pytest.raises(StorageError, match="made for another job"):
        run_sweep(other["shop"])
    assert not other.run_folder("shop").path.exists()


def test_a_sweep_and_a_training_refuse_each_others_configurations(tmp_path: Path) -> None:
    world = sweep_world(tmp_path)
    with pytest.raises(ConfigError, match="run `veilmeans sweep`"):
        run_train(world["payco"])
    with pytest.raises(ConfigError, match="--clusters 2-10"):
        run_sweep(changed_config(world["payco"], kmeans={"sweep": None}))


@pytest.mark.parametrize(
    ("clusters", "swept"), [("2-10", tuple(range(2, 11))), ("3", (3,)), ("1,4-6,9", (1, 4, 5, 6, 9))]
)
def test_a_range_of_numbers_of_clusters_is_read(tmp_path: Path, clusters: str, swept: tuple[int, ...]) -> None:
    config = sweep_world(tmp_path, dealt=False)["payco"].sweeping(clusters)
    assert (config.required_kmeans.sweep, config.required_kmeans.clusters) == (swept, swept[-1])
    assert [part.required_kmeans.clusters for part in config.swept().values()] == list(swept)
    assert [part.run for part in config.swept().values()] == [f"{config.run}.k{k}" for k in swept]


@pytest.mark.parametrize("clusters", ["", "0-3", "5-2", "2,2", "two", "2-", "2-2000", "2-31"])
def test_a_mistake_in_the_range_is_one_sentence(tmp_path: Path, clusters: str) -> None:
    config = sweep_world(tmp_path, dealt=False)["payco"]
    sentence = error_sentence(lambda: config.sweeping(clusters), ConfigError)
    assert sentence.startswith(f"--clusters {clusters}: ")
