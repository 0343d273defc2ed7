"""A party's store of correlated randomness: whole or refused, and no part of it ever serves two runs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.parties import TRIPLES, Board, in_parallel, make_configs, mode_of
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.pipelines.session.kmeans_from_config import store_requirements
from veilmeans.pipelines.session.triple_claim import check_claim, claim_triples, open_store
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError, StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.offline.store_check import check_shard

MANIFEST = Manifest("october", runs=3, iterations=2, rows=5, plan="digest")
SEED = bytes(range(32))


def made(folder: Path, manifest: Manifest = MANIFEST) -> TripleStore:
    store = TripleStore.create(folder, manifest, SEED)
    store.complete()
    return store


def sentence(call: Callable[[], object], kind: type[Exception] = StorageError) -> str:
    with pytest.raises(kind) as raised:
        call()
    said: str = raised.value.sentence  # type: ignore[attr-defined]
    return said


# On disk.
def test_a_store_opens_when_it_is_complete_and_not_before(tmp_path: Path) -> None:
    folder = tmp_path / "triples" / "october"
    missing = f"there is no complete triple store in {folder}: run `veilmeans offline` first"
    assert sentence(lambda: TripleStore.open(folder)) == missing
    store = TripleStore.create(folder, MANIFEST, SEED)
    store.write_corrections(0, 0, 0, {"x": np.ones(2, np.uint64)})
    assert sentence(lambda: TripleStore.open(folder)) == missing
    store.complete()
    opened = TripleStore.open(folder)
    assert opened == store
    assert (opened.manifest, opened.seed) == (MANIFEST, SEED)
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize("text", ["", "{", "5", "[]", "{}", '{"store": "x"}', '{"colour": "red"}', b"\xff\xfe"])
def test_a_manifest_that_cannot_be_read_is_told(tmp_path: Path, text: str | bytes) -> None:
    made(tmp_path)
    file = tmp_path / "manifest.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    said = f"{file} cannot be read: make the store again with `veilmeans offline`"
    assert sentence(lambda: TripleStore.open(tmp_path)) == said


def test_a_store_keeps_its_seed_to_itself(tmp_path: Path) -> None:
    made(tmp_path / "store")
    assert mode_of(tmp_path / "store") == 0o700
    assert mode_of(tmp_path / "store" / "seed") == 0o600
    (tmp_path / "store" / "seed").chmod(0o644)
    assert "has mode 0644" in sentence(lambda: TripleStore.open(tmp_path / "store"), ConfigError)
    (tmp_path / "store" / "seed").unlink()
    assert "cannot be read" in sentence(lambda: TripleStore.open(tmp_path / "store"), ConfigError)


def test_another_seed_does_not_replace_the_first(tmp_path: Path) -> None:
    made(tmp_path)
    made(tmp_path)
    assert "not overwritten" in sentence(lambda: TripleStore.create(tmp_path, MANIFEST, bytes(32)))
    assert TripleStore.open(tmp_path).seed == SEED


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written" in sentence(lambda: TripleStore.create(tmp_path / "file", MANIFEST, SEED))
    store = made(tmp_path / "store")
    (tmp_path / "store" / "corrections").touch()
    assert "cannot be written" in sentence(lambda: store.write_corrections(0, 0, 0, {"x": np.ones(1, np.uint64)}))


def test_corrections_come_back_by_number_iteration_and_shard(tmp_path: Path) -> None:
    store = made(tmp_path)
    places = [(number, iteration, shard) for number in range(2) for iteration in range(2) for shard in range(2)]
    for i, place in enumerate(places):
        store.write_corrections(*place, {"stage:mul.c": np.full(3, i, np.uint64), "stage:bit": np.full(2, i, np.uint8)})
    again = TripleStore.open(tmp_path)
    for i, (number, iteration, shard) in enumerate(places):
        run, where = StoreRun(again, number), Address("any", iteration, "stage", shard)
        assert again.has_corrections(number, iteration, shard)
        assert run.correction(where, "mul.c").tolist() == [i] * 3
        assert run.correction(where, "bit").dtype == np.uint8


def test_missing_corrections_are_told(tmp_path: Path) -> None:
    store = made(tmp_path)
    assert not StoreRun(store, 0).serves(0, 0)
    store.write_corrections(0, 1, 1, {})
    assert StoreRun(store, 0).serves(1, 1)  # nothing is missing where a party gets none
    store.write_corrections(0, 0, 0, {"stage:mul.c": np.ones(1, np.uint64)})
    run = StoreRun(store, 0)
    assert run.serves(0, 0)
    assert not any((run.serves(0, 1), run.serves(1, 0), StoreRun(store, 1).serves(0, 0)))
    said = sentence(lambda: run.correction(Address("any", 1, "stage", 0), "mul.c"))
    assert said == f"the triple store has no file 0.arrow in {tmp_path}/corrections/0/1: make it again"
    for iteration, shard in ((0, 0), (1, 1)):
        said = sentence(lambda i=iteration, s=shard: run.correction(Address("any", i, "stage", s), "mul.d"))
        assert said == "the triple store has no 'stage:mul.d': it was made for another job"


def test_a_shard_is_checked_before_its_first_round(tmp_path: Path) -> None:
    store = made(tmp_path)
    store.write_corrections(0, 0, 0, {"x": np.ones(1, np.uint64)})
    run = StoreRun(store, 0)
    check_shard(run, MANIFEST, 0, 0)
    unseen = "a worker does not see the triple store 'october': is `storage` shared with it?"
    assert sentence(lambda: check_shard(None, MANIFEST, 0, 0)) == unseen
    assert (
        sentence(lambda: check_shard(StoreRun(replace(store, manifest=replace(MANIFEST, plan="")), 0), MANIFEST, 0, 0))
        == unseen
    )
    for iteration, shard in ((0, 1), (1, 0), (2, 0)):
        nothing = f"the triple store 'october' has nothing for iteration {iteration}, shard {shard}"
        assert sentence(lambda i=iteration, s=shard: check_shard(run, MANIFEST, i, s)) == nothing


# The ledger.
def test_a_number_is_claimed_once(tmp_path: Path) -> None:
    store = made(tmp_path)
    assert (store.next_number(), store.runs_left()) == (0, 3)
    assert store.claim(0, "one", "data").number == 0
    assert (store.next_number(), store.runs_left()) == (1, 2)
    assert (
        sentence(lambda: store.claim(0, "two", "data")) == "number 0 of the store 'october' is not free for run 'two'"
    )
    assert store.claimed("two", "data") is None
    assert json.loads((tmp_path / "claims" / "0.json").read_text()) == {"run": "one", "binding": "data"}


def test_the_same_run_again_gets_the_same_number(tmp_path: Path) -> None:
    store = made(tmp_path)
    store.claim(0, "one", "data")
    store.claim(1, "two", "data")
    for number in (0, 1, 2, 99):
        assert store.claim(number, "one", "data").number == 0
        assert store.claim(number, "two", "data").number == 1
    assert store.claimed("two", "data") == StoreRun(store, 1)
    assert store.runs_left() == 1


def test_the_same_run_with_other_data_is_refused(tmp_path: Path) -> None:
    store = made(tmp_path)
    store.claim(0, "one", "data")
    said = (
        "run 'one' has used masks of the store 'october' for other data or another configuration: choose a new run id"
    )
    assert sentence(lambda: store.claim(1, "one", "other")) == said
    assert sentence(lambda: store.claimed("one", "other")) == said
    assert store.next_number() == 1


def test_numbers_that_were_skipped_are_never_used(tmp_path: Path) -> None:
    store = made(tmp_path)
    store.claim(1, "one", "data")
    assert (store.next_number(), store.runs_left()) == (2, 1)
    assert "is not free" in sentence(lambda: store.claim(0, "two", "data"))
    assert "is not free" in sentence(lambda: store.claim(3, "two", "data"))
    assert store.claim(2, "two", "data").number == 2


def test_the_ledger_survives(tmp_path: Path) -> None:
    made(tmp_path).claim(1, "one", "data")
    again = TripleStore.open(tmp_path)
    assert again.claimed("one", "data") == StoreRun(again, 1)
    assert again.next_number() == 2
    made(tmp_path)  # `veilmeans offline` goes on after a mishap
    assert TripleStore.open(tmp_path).next_number() == 2
    assert "choose a new run id" in sentence(lambda: TripleStore.open(tmp_path).claim(2, "one", "other"))


def test_the_numbers_of_a_large_store_are_compared_as_numbers(tmp_path: Path) -> None:
    store = made(tmp_path, replace(MANIFEST, runs=1000))
    for number in (2, 10, 100):
        store.claim(number, f"run{number}", "data")
    assert (store.next_number(), store.runs_left()) == (101, 899)


def test_of_runs_that_want_one_number_at_the_same_time_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have seen that it is free before the first of them takes it."""
    store = made(tmp_path)
    monkeypatch.setattr(TripleStore, "next_number", lambda _: 0)

    def claim(run: str) -> str:
        try:
            return f"{run} got {store.claim(0, run, 'data').number}"
        except StorageError as error:
            return error.sentence

    said = in_parallel([partial(claim, f"run{i}") for i in range(8)])
    owner = json.loads((tmp_path / "claims" / "0.json").read_text())["run"]
    assert sorted(said) == sorted(
        f"run{i} got 0" if f"run{i}" == owner else f"number 0 of the store 'october' is not free for run 'run{i}'"
        for i in range(8)
    )
    assert [file.name for file in (tmp_path / "claims").iterdir()] == ["0.json"]


def test_a_store_that_is_used_up_says_how_much_is_left(tmp_path: Path) -> None:
    store = made(tmp_path)
    store.claim(1, "one", "data")
    store.require(runs=1)
    assert sentence(lambda: store.require(runs=2)) == (
        "the store 'october' serves 3 runs and has 1 left, 2 needed: make a new store with `veilmeans offline`"
    )
    store.claim(2, "two", "data")
    used_up = "the store 'october' serves 3 runs and has 0 left, 1 needed: make a new store with `veilmeans offline`"
    assert sentence(lambda: store.claim(3, "three", "data")) == used_up
    assert store.claim(3, "two", "data").number == 2


def test_a_store_for_fewer_iterations_says_how_many_more_are_needed(tmp_path: Path) -> None:
    store = made(tmp_path)
    store.require(iterations=2)
    assert sentence(lambda: store.require(iterations=1200)) == (
        "the store 'october' serves 2 iterations a run, and the job may need 1,200: 1,198 more; "
        "make a store for them with `veilmeans offline`"
    )


def test_a_store_for_another_job_is_refused(tmp_path: Path) -> None:
    store = made(tmp_path)
    store.require(plan="digest")
    assert sentence(lambda: store.require(plan="other")) == (
        "the store 'october' was made for another job or other shapes (5 rows): "
        "make one for this job with `veilmeans offline`"
    )


# A run and its store.
JOB = {"data": "x.csv", "columns": ["a"], "product": ["payco.a", "shop.a"], "bound": 10}


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, JobConfig]:
    made_up = make_configs(tmp_path, 3, kind="files", triples=TRIPLES, sums=JOB, exchange={"timeout_s": 5})
    return {name: config.online() for name, config in made_up.items()}


def stores_of(configs: dict[str, JobConfig], skipped: Sequence[int], runs: int = 9) -> dict[str, TripleStore]:
    """Everyone's store; each has claimed the number below `skipped` before."""
    manifest = replace(MANIFEST, store="store", runs=runs)
    stores = {name: made(config.store_folder, manifest) for name, config in configs.items()}
    for store, number in zip(stores.values(), skipped, strict=True):
        if number:
            store.claim(number - 1, "earlier", "data")
    return stores


def claim_all(
    configs: dict[str, JobConfig], stores: dict[str, TripleStore], run: str, board: Board | None = None
) -> list[int]:
    exchange = board or Board()
    renamed = {name: config.model_copy(update={"run": run}) for name, config in configs.items()}
    return in_parallel(
        [partial(claim_triples, exchange, config, stores[name], "data") for name, config in renamed.items()]
    )


def with_rows(config: JobConfig, rows: int) -> JobConfig:
    return config.model_copy(update={"triples": config.required_triples.model_copy(update={"rows": rows})})


def in_shards_of(config: JobConfig, rows: int) -> JobConfig:
    return config.model_copy(update={"engine": config.engine.model_copy(update={"rows_per_shard": rows})})


def test_a_store_is_checked_before_a_run(configs: dict[str, JobConfig]) -> None:
    payco = with_rows(configs["payco"], 20)
    assert "there is no complete triple store" in sentence(lambda: open_store(payco))
    store = made(payco.store_folder, Manifest("store", 1, 2, 20, store_requirements(payco).digest()))
    assert open_store(payco) == open_store(payco, iterations=2) == store
    assert "1 more; make a store" in sentence(lambda: open_store(payco, iterations=3))
    assert open_store(in_shards_of(payco, 20)) == store
    assert "another job" in sentence(lambda: open_store(in_shards_of(payco, 7)))
    assert "another job or other shapes (20 rows)" in sentence(lambda: open_store(with_rows(payco, 21)))
    more = payco.model_copy(update={"parties": (*payco.parties, "carrier")})
    assert "another job" in sentence(lambda: open_store(more))


def test_parties_agree_on_the_lowest_number_that_is_free_at_all(configs: dict[str, JobConfig]) -> None:
    stores = stores_of(configs, [0, 2, 1])
    assert claim_all(configs, stores, "one") == [2, 2, 2]
    assert [store.next_number() for store in stores.values()] == [3, 3, 3]


def test_no_two_runs_get_the_same_number_and_one_that_goes_on_asks_nobody(configs: dict[str, JobConfig]) -> None:
    stores = stores_of(configs, [0, 2, 0])
    numbers = [claim_all(configs, stores, run) for run in ("one", "two", "three")]
    assert numbers == [[2] * 3, [3] * 3, [4] * 3]
    assert [claim_all(configs, stores, run) for run in ("three", "one", "two")] == [[4] * 3, [2] * 3, [3] * 3]
    silent = Board()
    again = configs["payco"].model_copy(update={"run": "two"})
    assert claim_triples(silent, again, stores["payco"], "data") == 3
    assert not silent.messages


def test_a_party_that_died_before_its_claim_gets_the_number_that_the_others_have(configs: dict[str, JobConfig]) -> None:
    stores, board = stores_of(configs, [0, 1, 0]), Board()
    assert claim_all(configs, stores, "one", board) == [1, 1, 1]
    (configs["shop"].store_folder / "claims" / "1.json").unlink()
    assert claim_all(configs, stores, "one", board) == [1, 1, 1]


def test_a_run_that_can_get_no_number_is_refused_before_it_says_anything(configs: dict[str, JobConfig]) -> None:
    payco, board = configs["payco"], Board()
    store = stores_of(configs, [1, 0, 0], runs=1)["payco"]
    for refused in (lambda: check_claim(payco, store, "data"), lambda: claim_triples(board, payco, store, "data")):
        assert sentence(refused).startswith("the store 'store' serves 1 runs and has 0 left, 1 needed")
    assert not board.messages
    check_claim(payco.model_copy(update={"run": "earlier"}), store, "data")
    said = sentence(lambda: check_claim(payco.model_copy(update={"run": "earlier"}), store, "other"))
    assert said.endswith("choose a new run id")


def test_a_number_beyond_the_store_is_not_taken(configs: dict[str, JobConfig]) -> None:
    """Shop says that its next number is one that the store does not have."""
    stores, board = stores_of(configs, [0, 0, 0], runs=2), Board()
    put_next(board, "shop", np.array([2**40], np.uint64))
    put_next(board, "bank", np.array([0], np.uint64))
    said = sentence(lambda: claim_triples(board, configs["payco"], stores["payco"], "data"))
    assert said == f"number {2**40} of the store 'store' is not free for run 'test'"
    assert stores["payco"].next_number() == 0


@pytest.mark.parametrize("said", [None, np.zeros(1, np.int64), np.zeros(2, np.uint64), np.zeros((), np.uint64)])
def test_a_peer_that_does_not_say_what_is_free_is_refused(configs: dict[str, JobConfig], said: Array | None) -> None:
    stores, board = stores_of(configs, [0, 0, 0]), Board()
    put_next(board, "shop", said)
    told = sentence(lambda: claim_triples(board, configs["payco"], stores["payco"], "data"), RefusedError)
    assert told == "shop did not say which part of the store is free"


def put_next(board: Board, sender: str, value: Array | None) -> None:
    where = Address("test", 0, "triples", 0)
    arrays = {"other": np.zeros(1, np.uint8)} if value is None else {"next": value}
    board.put_all([Outgoing.of(MessageKey(where, sender, "payco"), arrays)])
