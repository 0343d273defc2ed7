"""`veilmeans offline --check N`: spare numbers of a store are opened, and one wrong correlation is found."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.parties import NAMES
from support.run_results import keep_messages, received
from support.worlds import DEALER, World, blobs, deal_directly, make_world_without_stores, run_in_threads, tables
from veilmeans.io.storage.triple_store import TripleStore, correction_name
from veilmeans.pipelines.offline import run_check, run_offline
from veilmeans.pipelines.session.kmeans_from_config import store_jobs
from veilmeans.pipelines.session.triple_claim import open_store, store_engines
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.errors import ConfigError, RefusedError, StorageError
from veilmeans.transforms.offline.store_check import PlacedPart, StoreCheck, draw_numbers, parts_of, share_of

pytestmark = pytest.mark.slow
A, B = NAMES[:2]
RUNS = 3
KINDS = ["bits", "dabit", "inject", "mul", "trunc", "matmul"]


def make_stores(folder: Path, provider: str, parties: int = 2, **fields: Any) -> World:
    """A small job with all kinds of correlations, and a store for some runs."""
    data = tables(blobs(9, 4), list("abcd"), [1, 2][: parties - 1], axis=1)
    named = list(NAMES[:parties])
    job = {"layout": "vertical", "clusters": 2, "max_iter": 2, "reveal": {"assignments": named, "profiles": named}}
    dealer = DEALER if provider == "dealer" else None
    world = make_world_without_stores(folder, data, job | fields, beam={"rows_per_shard": 8}, dealer=dealer, runs=RUNS)
    world = world.altered(triples={"provider": provider})
    if provider == "dealer":
        deal_directly(world.parties)
    else:
        run_in_threads(run_offline, world.parties)
    return world


def check_all(world: World, count: int) -> list[list[int]]:
    return run_in_threads(partial(run_check, count=count), world.parties)


@pytest.fixture(scope="module", params=["dealer", "ot", pytest.param("iknp", marks=pytest.mark.long)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_stores(tmp_path_factory.mktemp(request.param) / "world", request.param)


@pytest.mark.parametrize("parties", [2, 3])
def test_a_right_store_passes_and_serves_the_runs_that_are_left(tmp_path: Path, parties: int) -> None:
    world = make_stores(tmp_path, "dealer", parties)
    first = check_all(world, 1)
    assert first == [first[0]] * parties
    second = check_all(world, 1)
    assert second[0] != first[0]
    (left,) = set(range(RUNS)) - {*first[0], *second[0]}
    for config in world.parties.values():
        store = TripleStore.open(config.store_folder)
        assert (store.spare_numbers(), store.next_number(), store.runs_left()) == ([left], left, 1)
        assert not store.has_corrections(first[0][0], 0, 0)  # forgotten, seeds and all
    world.train()
    for config in world.parties.values():
        claims = TripleStore.open(config.store_folder).claims()
        assert claims[left]["run"] == config.run
        assert sorted(claims) == list(range(RUNS))
    with pytest.raises(StorageError, match="0 left, 1 needed"):
        world.altered(run="more").train()


def test_stores_of_all_providers_pass(made: World, tmp_path: Path) -> None:
    world = made.copied(tmp_path / "world")
    numbers = check_all(world, 2)[0]
    assert len(numbers) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_one_wrong_value_is_found_in_any_kind(made: World, tmp_path: Path, kind: str) -> None:
    """A dealer, or a peer, whose one bit of one correlation is wrong, in a number that is checked."""
    dealt = made.copied(tmp_path / "dealt")
    deal_wrong(dealt, kind)
    world = dealt.copied(tmp_path / "world")  # files of a store never change: those that were read stay mapped
    with pytest.raises(RefusedError) as found:
        check_all(world, RUNS)
    provider = TripleStore.open(world[A].store_folder).manifest.provider
    assert f"wrong correlation of the kind {kind}" in found.value.sentence
    assert ("the dealer has dealt it wrong" in found.value.sentence) == (provider == "dealer")
    assert "number 1, iteration 0" in found.value.sentence
    for config in world.parties.values():
        for use in (open_store, partial(run_check, count=1)):
            with pytest.raises(StorageError, match=f"must not be used, because a check found a wrong .* {kind}"):
                use(config)


def deal_wrong(world: World, kind: str) -> None:
    """Change one bit of a determined part, in the file of the party that the correction is for, with a right tag."""
    config = world[A]
    store = open_store(config)
    needs = store_jobs(config, store_engines(config, store)).of(1).needs(0, 0)
    placed = next(
        each for each in parts_of(needs) if each.need.kind.name.startswith(kind) and each in determined(parts_of(needs))
    )
    holder = world.configs[config.parties[placed.part.holders[-1]]]
    theirs = TripleStore.open(holder.store_folder)
    arrays = {name: np.array(array) for name, array in theirs.corrections(1, 0, 0).items()}
    name = correction_name(placed.stage, placed.need.label(placed.part.name))
    arrays[name].reshape(-1)[0] ^= 1
    theirs.folder.corrections(1, 0, 0).unlink()
    theirs.write_corrections(1, 0, 0, arrays)


def determined(parts: list[PlacedPart]) -> list[PlacedPart]:
    return [each for each in parts if each.part in each.need.kind.determined_parts()]


def test_every_number_is_drawn_equally_often() -> None:
    """Where one of three numbers is wrong, a check of one finds it in one of three draws, as documented."""
    drawn = [draw_numbers([np.full(4, i, np.uint64)] * 2, [0, 1, 2], 1, "check")[0] for i in range(3000)]
    assert all(900 < drawn.count(number) < 1100 for number in range(3))


def test_a_number_that_a_run_has_used_is_never_opened(tmp_path: Path) -> None:
    world = make_stores(tmp_path, "dealer")
    world.train()
    assert check_all(world, 2)[0] == [1, 2]
    with pytest.raises(StorageError, match="0 spare numbers, and 1 were to be checked"):
        check_all(world, 1)


def test_a_check_that_was_interrupted_opens_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_stores(tmp_path, "dealer")
    find, begun = StoreCheck.find_wrong, []

    def die(_check: StoreCheck, numbers: list[int]) -> None:
        begun.append(numbers)
        raise KeyboardInterrupt

    monkeypatch.setattr(StoreCheck, "find_wrong", die)
    with pytest.raises(KeyboardInterrupt):
        check_all(world, 1)
    monkeypatch.setattr(StoreCheck, "find_wrong", find)
    assert check_all(world, 1)[0] == begun[0]
    assert TripleStore.open(world[A].store_folder).runs_left() == RUNS - 1


def test_a_peer_that_fits_its_share_to_what_it_has_seen_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: a peer opens another share than it has committed to, so as to hide an error or to frame the dealer."""
    world = make_stores(tmp_path, "dealer").altered(B, exchange={"timeout_s": 10})  # to hear that A has left
    shares = StoreCheck._shares

    def adapted(check: StoreCheck, place: tuple[int, int, int]) -> dict[int, Array]:
        found = shares(check, place)
        return {i: each + each.dtype.type(1) for i, each in found.items()}

    opened = StoreCheck._check_place

    def open_adapted(check: StoreCheck, place: tuple[int, int, int], committed: dict[str, Array]) -> str | None:
        if check.config.party == B:
            monkeypatch.setattr(check, "_shares", partial(adapted, check))
        return opened(check, place, committed)

    monkeypatch.setattr(StoreCheck, "_check_place", open_adapted)
    with pytest.raises(RefusedError, match="opened other shares of number"):
        check_all(world, 1)


def test_a_peer_that_excludes_numbers_cannot_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: a peer says that the numbers that it made wrong are not free, so that they are not drawn."""
    world = make_stores(tmp_path, "dealer")
    free = StoreCheck._free_at_first
    monkeypatch.setattr(StoreCheck, "_free_at_first", lambda check: [0, 1] if check.config.party == B else free(check))
    checked = check_all(world, 1)[0]
    assert 2 not in checked
    assert 2 not in TripleStore.open(world[A].store_folder).spare_numbers()


def test_what_is_opened_says_nothing_of_other_numbers(
    made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Search all messages of a check for the seeds, and for the shares of the numbers that were not checked."""
    keep_messages(monkeypatch)
    world = made.copied(tmp_path / "world")
    stores = {name: TripleStore.open(config.store_folder) for name, config in world.parties.items()}
    seeds = {(name, n): store.seed_of(n) for name, store in stores.items() for n in range(RUNS)}
    numbers = check_all(world, 1)[0]
    others = [n for n in range(RUNS) if n not in numbers]
    jobs = store_jobs(world[A], store_engines(world[A], stores[A]))
    secret = list(seeds.values())
    for config in world.parties.values():
        for number in others:
            for each in parts_of(jobs.of(number).needs(0, 0)):
                if config.me.index in each.part.holders:
                    share = share_of(stores[config.party], config.me.index, number, Address("", 0, "", 0), each)
                    secret.append(share.tobytes()[:16])
    sent = [
        array.tobytes()
        for config in world.parties.values()
        for _, arrays in received(config)
        for array in arrays.values()
    ]
    assert len(sent) > 20
    for each in secret:
        if len(each) >= 16:
            assert not any(each in content for content in sent)


def test_the_dealer_takes_no_part(tmp_path: Path) -> None:
    world = make_stores(tmp_path, "dealer")
    with pytest.raises(ConfigError, match="takes no part in a check"):
        run_check(world[DEALER], 1)
