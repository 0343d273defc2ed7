"""A run claims a part of everyone's triple store: the same number at all parties, and none twice."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from support.error_sentence import error_sentence
from support.parties import TRIPLES, InMemoryExchange, in_parallel, make_configs
from support.small_kmeans import job_of
from support.triple_stores import MANIFEST, begin_ledger, make_store
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.pipelines.session.kmeans_from_config import traced_job
from veilmeans.pipelines.session.triple_claim import check_claim, claim_triples, ledger_of, open_store
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError, RefusedError, StorageError, VeilmeansError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.kmeans.iteration import check_shard

storage_error = partial(error_sentence, kind=StorageError)


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, JobConfig]:
    made_up = make_configs(tmp_path, 3, kind="files", triples=TRIPLES, kmeans=job_of(3, rows=20))
    return {name: config.online() for name, config in made_up.items()}


def stores_of(configs: dict[str, JobConfig], skipped: Sequence[int], runs: int = 9) -> dict[str, TripleStore]:
    """Make everyone's store; in each, the number below `skipped` was claimed before."""
    manifest = replace(MANIFEST, store="store", runs=runs)
    stores = {name: begin_ledger(c, make_store(c.store_folder, manifest)) for name, c in configs.items()}
    for store, number in zip(stores.values(), skipped, strict=True):
        if number:
            store.claim(number - 1, "earlier", "data")
    return stores


def claim_all(
    configs: dict[str, JobConfig], stores: dict[str, TripleStore], run: str, exchange: InMemoryExchange | None = None
) -> list[int]:
    common = exchange or InMemoryExchange()
    renamed = {name: config.model_copy(update={"run": run}) for name, config in configs.items()}
    return in_parallel(
        [partial(claim_triples, common, config, stores[name], "data") for name, config in renamed.items()]
    )


def outcome(exchange: InMemoryExchange, config: JobConfig, store: TripleStore) -> int | BaseException:
    """What came of a claim: its number, or the error with which it ended."""
    try:
        return claim_triples(exchange, config, store, "data")
    except (VeilmeansError, KeyboardInterrupt) as error:
        return error


def with_timeout(config: JobConfig, seconds: float) -> JobConfig:
    return config.model_copy(update={"exchange": config.exchange.model_copy(update={"timeout_s": seconds})})


def with_rows(config: JobConfig, rows: int) -> JobConfig:
    return config.model_copy(update={"kmeans": config.required_kmeans.model_copy(update={"rows": rows})})


def in_shards_of(config: JobConfig, rows: int) -> JobConfig:
    return config.model_copy(update={"beam": config.beam.model_copy(update={"rows_per_shard": rows})})


def test_a_store_is_checked_before_a_run(configs: dict[str, JobConfig]) -> None:
    payco = with_rows(configs["payco"], 20)
    assert str(payco.store_folder) in storage_error(lambda: open_store(payco))
    store = make_store(payco.store_folder, Manifest("store", 1, 2, 20, traced_job(payco).digest()))
    assert "has no ledger in" in storage_error(lambda: open_store(payco))
    begin_ledger(payco, store)
    assert open_store(payco) == open_store(payco, iterations=2) == store
    assert "1 more" in storage_error(lambda: open_store(payco, iterations=3))
    assert open_store(in_shards_of(payco, 20)) == store
    assert "another job" in storage_error(lambda: open_store(in_shards_of(payco, 7)))
    assert "(20 rows)" in storage_error(lambda: open_store(with_rows(payco, 21)))
    job = payco.required_kmeans
    features = {**job.features, "carrier": 1}  # type: ignore[dict-item]
    wider = job.model_copy(update={"features": features})
    more = payco.model_copy(update={"parties": (*payco.parties, "carrier"), "kmeans": wider})
    assert "another job" in storage_error(lambda: open_store(more))


def test_parties_claim_the_lowest_number_that_is_free_everywhere(configs: dict[str, JobConfig]) -> None:
    stores = stores_of(configs, [0, 2, 1])
    assert claim_all(configs, stores, "one") == [2, 2, 2]
    assert [store.next_number() for store in stores.values()] == [3, 3, 3]


def test_no_two_runs_get_the_same_number_and_one_that_is_rerun_asks_nobody(configs: dict[str, JobConfig]) -> None:
    stores = stores_of(configs, [0, 2, 0])
    numbers = [claim_all(configs, stores, run) for run in ("one", "two", "three")]
    assert numbers == [[2] * 3, [3] * 3, [4] * 3]
    assert [claim_all(configs, stores, run) for run in ("three", "one", "two")] == [[4] * 3, [2] * 3, [3] * 3]
    silent = InMemoryExchange()
    again = configs["payco"].model_copy(update={"run": "two"})
    assert claim_triples(silent, again, stores["payco"], "data") == 3
    assert not silent.messages


def test_a_party_that_died_before_its_claim_gets_the_number_of_the_others(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, exchange = stores_of(configs, [0, 1, 0]), InMemoryExchange()
    renamed = {name: config.model_copy(update={"run": "one"}) for name, config in configs.items()}
    claim = TripleStore.claim

    def die(store: TripleStore, *arguments: Any) -> StoreRun:
        if store.folder == configs["shop"].store_folder:
            raise KeyboardInterrupt
        return claim(store, *arguments)

    monkeypatch.setattr(TripleStore, "claim", die)
    impatient = {name: with_timeout(config, 0.2) for name, config in renamed.items()}
    outcomes = in_parallel([partial(outcome, exchange, impatient[name], stores[name]) for name in configs])
    assert [type(each) for each in outcomes] == [PeerError, KeyboardInterrupt, PeerError]
    monkeypatch.undo()
    assert claim_all(configs, stores, "one", exchange) == [1, 1, 1]


def test_a_run_that_can_get_no_number_is_refused_before_it_sends_anything(configs: dict[str, JobConfig]) -> None:
    payco, exchange = configs["payco"], InMemoryExchange()
    store = stores_of(configs, [1, 0, 0], runs=1)["payco"]
    for refused in (lambda: check_claim(payco, store, "data"), lambda: claim_triples(exchange, payco, store, "data")):
        assert storage_error(refused).startswith("the store 'store' serves 1 runs and has 0 left")
    assert not exchange.messages
    check_claim(payco.model_copy(update={"run": "earlier"}), store, "data")
    assert "run 'earlier'" in storage_error(
        lambda: check_claim(payco.model_copy(update={"run": "earlier"}), store, "other")
    )


def test_a_number_that_the_store_does_not_have_is_not_claimed(configs: dict[str, JobConfig]) -> None:
    """Shop says that its next number is one that the store does not have."""
    stores, exchange = stores_of(configs, [0, 0, 0], runs=2), InMemoryExchange()
    put_next(exchange, "shop", np.array([2**40], np.uint64))
    put_next(exchange, "bank", np.array([0], np.uint64))
    sentence = storage_error(lambda: claim_triples(exchange, configs["payco"], stores["payco"], "data"))
    assert sentence.startswith(f"number {2**40} of the store 'store'")
    assert stores["payco"].next_number() == 0


@pytest.mark.parametrize("sent", [None, np.zeros(1, np.int64), np.zeros(2, np.uint64), np.zeros((), np.uint64)])
def test_a_peer_that_does_not_send_its_next_number_is_refused(
    configs: dict[str, JobConfig], sent: Array | None
) -> None:
    stores, exchange = stores_of(configs, [0, 0, 0]), InMemoryExchange()
    put_next(exchange, "shop", sent)
    assert error_sentence(
        lambda: claim_triples(exchange, configs["payco"], stores["payco"], "data"), RefusedError
    ).startswith("shop")


def put_next(exchange: InMemoryExchange, sender: str, value: Array | None) -> None:
    where = Address("test", 0, "triples", 0)
    arrays = (
        {"other": np.zeros(1, np.uint8)} if value is None else {"next": value, "remembered": np.zeros(3, np.uint64)}
    )
    exchange.put_all([Outgoing.of(MessageKey(where, sender, "payco"), arrays)])


def test_a_shard_is_checked_before_its_first_round(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    store.write_corrections(0, 0, 0, {"x": np.ones(1, np.uint64)})
    run = StoreRun(store, 0)
    check_shard(run, MANIFEST, 0, 0)
    other_plan = StoreRun(replace(store, manifest=replace(MANIFEST, plan="")), 0)
    for seen in (None, other_plan):
        assert "'october'" in storage_error(lambda seen=seen: check_shard(seen, MANIFEST, 0, 0))
    for iteration, shard in ((0, 1), (1, 0), (2, 0)):
        sentence = storage_error(lambda i=iteration, s=shard: check_shard(run, MANIFEST, i, s))
        assert f"iteration {iteration}, shard {shard}" in sentence


# A store that comes back from a backup.
def restore(folders: Sequence[Path], copies: Path) -> None:
    for number, folder in enumerate(folders):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(copies / str(number), folder)


def back_up(folders: Sequence[Path], copies: Path) -> None:
    for number, folder in enumerate(folders):
        shutil.copytree(folder, copies / str(number))


def test_a_number_is_never_used_again_by_parties_that_restore_their_storage(
    configs: dict[str, JobConfig], tmp_path: Path
) -> None:
    """All parties restore a backup: the ledger beside each storage knows the number, and who was to use it."""
    stores, storages = stores_of(configs, [0, 0, 0]), [config.storage for config in configs.values()]
    assert claim_all(configs, stores, "one") == [0, 0, 0]
    back_up(storages, tmp_path / "backup")
    assert claim_all(configs, stores, "two") == [1, 1, 1]
    restore(storages, tmp_path / "backup")
    for name, config in configs.items():
        ledger = ledger_of(config, stores[name])
        assert f"{ledger.folder} knows that number 1 was used" in storage_error(ledger.check)
    exchange = InMemoryExchange()
    renamed = [config.model_copy(update={"run": "three"}) for config in configs.values()]
    outcomes = in_parallel([partial(outcome, exchange, config, stores[config.party]) for config in renamed])
    assert [type(each) for each in outcomes] == [RefusedError] * 3  # by what the peers remember; the run ends before
    assert [store.next_number() for store in stores.values()] == [1, 1, 1]


def test_a_party_whose_ledger_is_restored_too_is_refused_by_what_its_peers_remember(
    configs: dict[str, JobConfig], tmp_path: Path
) -> None:
    stores = stores_of(configs, [0, 0, 0])
    shop = [configs["shop"].storage, configs["shop"].ledger_folder.path]
    assert claim_all(configs, stores, "one") == [0, 0, 0]
    back_up(shop, tmp_path / "backup")
    assert claim_all(configs, stores, "two") == [1, 1, 1]
    restore(shop, tmp_path / "backup")
    exchange = InMemoryExchange()
    renamed = [config.model_copy(update={"run": "three"}) for config in configs.values()]
    outcomes = in_parallel([partial(outcome, exchange, config, stores[config.party]) for config in renamed])
    assert [type(each) for each in outcomes] == [RefusedError] * 3
    assert "of shop comes from a backup: to it number 1 is free, and" in str(outcomes[1])
    assert [store.next_number() for store in stores.values()] == [2, 1, 2]


def test_the_ledger_gets_a_claim_that_a_failure_kept_from_it(configs: dict[str, JobConfig]) -> None:
    store = stores_of(configs, [0, 0, 0])["payco"]
    ledger = ledger_of(configs["payco"], store)
    store.claim(0, "one", "data")
    ledger.check()
    store.folder.claim(0).unlink()
    assert "number 0 was used" in storage_error(ledger.check)


def test_a_ledger_inside_the_storage_is_refused(configs: dict[str, JobConfig]) -> None:
    payco = configs["payco"]
    raw = payco.model_dump(mode="json")
    raw["triples"]["ledger"] = str(payco.storage / "ledger")
    with pytest.raises(ValidationError, match=r"triples\.ledger: must be outside storage"):
        JobConfig.model_validate(raw)
    raw["triples"]["ledger"] = str(payco.storage.parent / "elsewhere")
    assert JobConfig.model_validate(raw).ledger_folder.path == payco.storage.parent / "elsewhere"
