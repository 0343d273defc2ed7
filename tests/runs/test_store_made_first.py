"""`train` without a dealer makes the triple store that is missing; all parties decide alike whether it is."""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from support.error_sentence import error_sentence
from support.fault_injection import files_below
from support.ot_dealing import SMALL
from support.parties import in_parallel
from support.run_results import opened_results
from support.worlds import BOTH, CLUSTERS, World, blobs, make_world_without_stores, run_in_threads, tables
from veilmeans.pipelines import offline
from veilmeans.pipelines.offline import run_offline
from veilmeans.pipelines.planning.job_plan import plan_train
from veilmeans.pipelines.reporting.status import read_status, show_status
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError, InputError, PeerError, StorageError, VeilmeansError
from veilmeans.transforms.offline import ot_store
from veilmeans.transforms.offline.ot_setup import OtSetup

ROWS = 12
Job = Callable[[JobConfig], object]


@pytest.fixture(autouse=True)
def _small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """LPN sets that are far too small to be secure, and fast."""
    monkeypatch.setattr(ot_store, "OtSetup", partial(OtSetup, setup=SMALL, main=SMALL))


def new_world(folder: Path, kind: str = "gateway", **triples: int) -> World:
    """Two parties with data and without a store."""
    job = {"layout": "vertical", "clusters": CLUSTERS, "max_iter": 1, "products": "beaver"}
    job |= {"reveal": {"assignments": BOTH, "centroids": BOTH}}
    data = tables(blobs(ROWS, 3), ["amount", "age", "visits"], [2], axis=1)
    return make_world_without_stores(folder, data, job, kind, **triples)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose store for two runs is made, and not used yet."""
    world = new_world(tmp_path_factory.mktemp("made"), runs=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ot_store, "OtSetup", partial(OtSetup, setup=SMALL, main=SMALL))
        run_in_threads(run_offline, world.configs)
    return world


def sentences(jobs: Mapping[str, Job], world: World, kind: type[VeilmeansError]) -> dict[str, str]:
    """Run each party's job at the same time; the sentences with which both fail."""
    failing = [partial(error_sentence, partial(jobs[name], world[name]), kind) for name in BOTH]
    return dict(zip(BOTH, in_parallel(failing), strict=True))


def store_messages(config: JobConfig) -> list[str]:
    """The messages of making the store that a party still holds."""
    return files_below(config.storage_folder.inbox / config.offline().run)


@pytest.mark.parametrize("kind", ["gateway", "files"])
def test_training_makes_the_store_and_a_second_run_uses_it(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = new_world(tmp_path, kind, runs=2)
    assert plan_train(world["payco"]).job["makes_store"] == "store"
    assert files_below(world["payco"].storage) == []
    caplog.set_level("INFO")
    world.train()
    assert "there is no triple store 'store' yet: making it with shop" in caplog.text
    results = opened_results(world)
    assert results["payco/assignments"] == results["shop/assignments"]
    for config in world.configs.values():
        assert config.offline().run_folder.farewell.exists()
        assert store_messages(config) == []
    caplog.clear()
    again = world.altered(run="again")
    assert plan_train(again["payco"]).job["makes_store"] is None
    again.train()
    assert "making it" not in caplog.text
    assert opened_results(again)["payco/assignments"] == results["payco/assignments"]


def test_who_prepared_ahead_and_who_did_not_meet(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    prepared: dict[str, Job] = {"payco": lambda config: (run_offline(config), run_train(config)), "shop": run_train}
    in_parallel([partial(prepared[name], world[name]) for name in BOTH])
    assert opened_results(world)["shop/assignments"]


def test_a_mistake_in_the_data_is_found_before_a_store_is_made(tmp_path: Path) -> None:
    config = new_world(tmp_path).altered(kmeans={"rows": ROWS + 1})["payco"]
    assert "kmeans.rows is 13" in error_sentence(partial(run_train, config), InputError)
    assert not config.offline().run_folder.path.exists()


def test_a_store_that_one_has_lost_ends_both(made: World, tmp_path: Path) -> None:
    world = made.copied(tmp_path / "lost")
    shutil.rmtree(world["shop"].storage)
    ended = sentences(dict.fromkeys(BOTH, run_train), world, HandshakeError)
    assert ended["shop"].startswith("the triple store 'store' is complete at payco and missing here: choose a new")
    assert "triples.store is store here and store (lost) at shop" in ended["payco"]
    renamed = world.altered(triples={"store": "new"})
    renamed.train()
    assert opened_results(renamed)["payco/assignments"]


def test_a_store_that_is_gone_while_its_run_is_known_is_named(made: World, tmp_path: Path) -> None:
    world = made.copied(tmp_path / "gone")
    shutil.rmtree(world["shop"].store_folder.path)
    sentence = error_sentence(partial(run_train, world["shop"]), StorageError)
    assert f"{world['shop'].store_folder} is gone: choose a new triples.store, the same" in sentence
    assert error_sentence(partial(plan_train, world["shop"]), StorageError) == sentence


def test_a_run_that_began_with_a_store_that_is_gone_is_named(made: World, tmp_path: Path) -> None:
    world = made.copied(tmp_path / "gone")
    world.train()
    shutil.rmtree(world["shop"].store_folder.path)
    sentence = error_sentence(partial(run_train, world["shop"]), StorageError)
    assert "choose a new triples.store and a new run, the same at all" in sentence


def test_with_a_dealer_the_store_is_made_beforehand(tmp_path: Path) -> None:
    data = tables(blobs(ROWS, 3), ["amount", "age", "visits"], [2], axis=1)
    world = make_world_without_stores(tmp_path, data, {"layout": "vertical", "clusters": 2}, dealer="notary")
    sentence = error_sentence(partial(run_train, world["payco"]), StorageError)
    assert "run `veilmeans offline` first" in sentence


@pytest.mark.parametrize("step", ["complete", "exchange_farewells"])
def test_a_party_that_dies_at_the_end_of_making_the_store_reruns(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no complete store yet, or it has one and has not said so: the other waits for it in either case."""
    world = new_world(tmp_path)
    place = ot_store.TripleStore if step == "complete" else offline
    whole = getattr(place, step)

    def dies(*arguments: object, **options: object) -> object:
        if any(getattr(each, "party", "") == "payco" or str(world["payco"].storage) in f"{each}" for each in arguments):
            monkeypatch.setattr(place, step, whole)
            raise PeerError("killed")
        return whole(*arguments, **options)

    monkeypatch.setattr(place, step, dies)
    with ThreadPoolExecutor(1) as pool:
        shop = pool.submit(run_train, world["shop"])
        assert error_sentence(partial(run_train, world["payco"]), PeerError) == "killed"
        assert world["payco"].store_folder.manifest.exists() == (step != "complete")
        run_train(world["payco"])
        shop.result()
    assert opened_results(world)["payco/assignments"]
    assert all(config.offline().run_folder.farewell.exists() for config in world.configs.values())
    assert not any(map(store_messages, world.configs.values()))


@pytest.mark.parametrize(("dealer", "advice"), [("notary", "and the dealer"), (None, "`veilmeans train` makes it")])
def test_status_says_who_makes_a_missing_store(tmp_path: Path, dealer: str | None, advice: str) -> None:
    data = tables(blobs(ROWS, 3), ["amount", "age", "visits"], [2], axis=1)
    world = make_world_without_stores(tmp_path, data, {"layout": "vertical", "clusters": 2}, dealer=dealer)
    assert advice in next(
        cell
        for cell in show_status(world["payco"], read_status(world["payco"])).columns[1].cells
        if "not made" in str(cell)
    )
