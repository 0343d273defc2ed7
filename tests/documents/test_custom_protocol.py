"""`veilmeans offline` and `veilmeans sums` end to end, each party and the dealer a process of its own."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import run_all
from support.parties import Board, mode_of
from support.sums_world import DATA, members, plain, results, set_up
from veilmeans.crypto import ring
from veilmeans.io.exchange import handshake
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.pipelines import offline, sums
from veilmeans.pipelines.session import session as party
from veilmeans.pipelines.session.kmeans_from_config import store_requirements
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig, TriplesConfig
from veilmeans.schemas.errors import ConfigError, HandshakeError, PeerError, RefusedError, StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.kmeans.column_sums import _add_up, _sum_shard
from veilmeans.transforms.offline import dealer
from veilmeans.transforms.rounds.party_context import PartyContext


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, JobConfig]:
    return set_up(tmp_path, 2, "files", {})


@pytest.mark.parametrize(
    ("parties", "kind", "engines"),
    [
        (2, "gateway", {"payco": {"state": "value"}, "shop": {"state": "scratch", "workers": 2}}),
        (3, "files", {"shop": {"state": "value"}}),
    ],
)
def test_sums_of_separate_processes_equal_plain_arithmetic(
    tmp_path: Path, parties: int, kind: str, engines: dict[str, Any]
) -> None:
    configs = set_up(tmp_path, parties, kind, engines)
    made = run_all("offline", configs, tmp_path)
    assert {name: code for name, (code, _) in made.items()} == dict.fromkeys(configs, 0), made
    for _, output in made.values():
        assert output.splitlines()[-1] == "the store 'october' serves 1 runs of 1 iterations, 5 rows"
    ended = run_all("sums", members(configs), tmp_path)
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(members(configs), 0), ended
    assert results(configs) == dict.fromkeys(list(DATA)[:parties], plain(parties))
    for name in list(DATA)[:parties]:
        assert ended[name][1].splitlines()[-1] == str(configs[name].run_folder / "sums.json")
        assert "Traceback" not in ended[name][1]
        check_report(configs[name], peers=parties - 1)
        assert not list(configs[name].storage.rglob("scratch/**/*.arrow"))
    check_again(tmp_path, configs)


def check_report(config: JobConfig, peers: int) -> None:
    """Three shards and an opening: so many messages of each stage, and their bytes."""
    report = json.loads((config.run_folder / "report.json").read_text())
    assert report["seconds"] > 0
    assert {stage: counts["messages"] for stage, counts in report["stages"].items()} == {
        "sums.00.share": 3 * peers,
        "sums.01.multiply": 3 * peers,
        "sums-opening.00.reveal": peers,
    }
    counted = ("bytes_sent", "bytes_received", "handed_over_us")
    assert all(counts[name] > 0 for counts in report["stages"].values() for name in counted)


def check_again(folder: Path, configs: Mapping[str, JobConfig]) -> None:
    """A finished run says so at once, alone; with other data its name is refused."""
    for command, name, run in (
        ("sums", "payco", "test"),
        ("offline", "notary", "store-october"),
        ("offline", "shop", "store-october"),
    ):
        ended = run_all(command, {name: configs[name]}, folder)[name]
        assert ended[0] == 0, ended
        assert f"run {run} is finished already" in ended[1]
    data = folder / "payco.csv"
    data.write_text(data.read_text().replace("1000", "999"))
    with pytest.raises(HandshakeError, match=r"the data or the job have changed since.*choose a new run id"):
        sums.run_sums(configs["payco"])


def test_a_party_with_other_terms_ends_everyone_with_a_sentence(tmp_path: Path) -> None:
    configs = set_up(tmp_path, 2, "files", {"shop": {"rows_per_shard": 3}})
    ended = run_all("offline", configs, tmp_path)
    assert [code for code, _ in ended.values()] == [4, 4, 4], ended
    assert ended["payco"][1].splitlines()[-1].startswith("error: engine.rows_per_shard is 2 here and 3 at shop")
    assert ended["notary"][1].splitlines()[-1].startswith("error: engine.rows_per_shard is 2 here and 3 at shop")
    assert not any("Traceback" in output for _, output in ended.values())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sums": None}, "has no job"),
        ({"triples": None}, "describes no store of triples"),
        ({"triples": TriplesConfig(store="october")}, r"needs triples\.rows: how many rows the data have"),
        ({"party": "notary"}, "start it with `veilmeans offline`"),
    ],
)
def test_a_configuration_that_does_not_fit_the_job_is_told(
    configs: dict[str, JobConfig], change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        sums.run_sums(configs["payco"].model_copy(update=change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sums": None}, "has no job"),
        ({"dealer": None}, "names no dealer to make the store"),
        ({"triples": None}, "describes no store of triples"),
        ({"triples": TriplesConfig(store="october")}, r"needs triples\.rows: how many rows the data have"),
    ],
)
def test_a_configuration_that_does_not_suffice_for_a_store_is_told(
    configs: dict[str, JobConfig], change: dict[str, Any], sentence: str
) -> None:
    for name in ("payco", "notary"):
        with pytest.raises(ConfigError, match=f"the configuration of {name} {sentence}"):
            offline.run_offline(configs[name].model_copy(update=change))


def test_sums_that_could_wrap_around_are_refused(configs: dict[str, JobConfig]) -> None:
    job = configs["payco"].sums
    assert job is not None
    large = configs["payco"].model_copy(update={"sums": job.model_copy(update={"bound": 2**31})})
    with pytest.raises(ConfigError, match=r"sums\.bound is 2,147,483,648, and 5 products of such values may exceed"):
        sums.run_sums(large)


def test_a_storage_that_cannot_be_used_is_told(tmp_path: Path, configs: dict[str, JobConfig]) -> None:
    for config, run in (
        (configs["payco"], sums.run_sums),
        (configs["payco"], offline.run_offline),
        (configs["notary"], offline.run_offline),
    ):
        with pytest.raises(StorageError, match="cannot be written: Not a directory"):
            run(config.model_copy(update={"storage": tmp_path / "payco.csv"}))  # type: ignore[operator]


class Farewells:
    """Counts what `run_sums` does, without a peer in sight."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        monkeypatch.setattr(sums, "open_session", self.seated)
        monkeypatch.setattr(sums, "_compute", self.compute)
        self.exchange = Board()

    @contextmanager
    def seated(self, config: JobConfig) -> Iterator[Board]:
        config.run_folder.mkdir(parents=True, exist_ok=True)
        self.steps.append("seated")
        yield self.exchange

    def compute(self, exchange: Board, config: JobConfig, *others: object) -> None:
        del exchange, others
        self.steps.append("computed")
        (config.run_folder / "sums.json").write_text("{}")

    def say(self, config: JobConfig, *peers: str) -> None:
        where = Address(config.run, 1, party.FAREWELL, 0)
        for peer in peers:
            self.exchange.put_all([Outgoing.of(MessageKey(where, peer, config.party), {"done": np.ones(1, np.uint8)})])


def test_a_party_that_has_its_sums_comes_back_for_its_peers_until_all_have_said_farewell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = set_up(tmp_path, 3, "files", {})
    exchange = configs["payco"].exchange.model_copy(update={"timeout_s": 0.01})
    config = configs["payco"].model_copy(update={"exchange": exchange})
    made_store(config)
    watched = Farewells(monkeypatch)
    sums.run_sums(config)
    watched.say(config, "shop")
    sums.run_sums(config)
    watched.say(config, "bank")
    sums.run_sums(config)
    sums.run_sums(config)
    assert watched.steps == ["seated", "computed", "seated", "seated"]


# What the dealer dealt.
def made_store(config: JobConfig) -> TripleStore:
    """A complete store as `veilmeans offline` leaves it at a party that gets no corrections."""
    store = TripleStore.create(
        config.store_folder, offline.manifest_of(config, store_requirements(config), ()), bytes(32)
    )
    store.complete()
    return store


NAME = "sums.01.multiply:mul.c"
SEED = {"seed": np.arange(32, dtype=np.uint8)}
CORRECTION = {NAME: np.ones((2, 1), ring.DTYPE)}


def dealt(
    configs: Mapping[str, JobConfig], seed: Arrays, correction: Arrays, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Shop, the last party, takes what lies there for it."""
    shop, board = configs["shop"].offline(), Board()
    board.put_all([Outgoing.of(MessageKey(Address(shop.run, 0, "offline.seed", 0), "notary", "shop"), seed)])
    for shard in range(3):
        where = Address(shop.run, 0, "offline.0", shard)
        size = {name: array[: 1 if shard == 2 else 2] for name, array in correction.items()}
        board.put_all([Outgoing.of(MessageKey(where, "notary", "shop"), size)])
    plan = store_requirements(shop)
    manifest = Manifest("october", 1, 1, 5, plan.digest())
    monkeypatch.setattr(dealer, "open_exchange", lambda _: board)
    return lambda: offline._take_in(board, shop, plan, manifest)


def test_what_the_dealer_dealt_is_kept_and_fetched_once(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    dealt(configs, SEED, CORRECTION, monkeypatch)()
    store = PartyContext(configs["shop"], "", store_number=0).open().triples
    assert store is not None
    assert store.seed == bytes(range(32))
    for shard, rows in enumerate((2, 2, 1)):
        assert store.correction(Address("test", 0, "sums.01.multiply", shard), "mul.c").tolist() == [[1]] * rows
    again = Board()
    key = MessageKey(Address("store-october", 0, "offline.seed", 0), "notary", "shop")
    again.put_all([Outgoing.of(key, SEED)])
    monkeypatch.setattr(dealer, "open_exchange", lambda _: again)
    shop, plan = configs["shop"].offline(), store_requirements(configs["shop"])
    offline._take_in(again, shop, plan, store.store.manifest)  # nothing but the seed lies there


@pytest.mark.parametrize(
    ("seed", "correction", "sentence"),
    [
        ({}, CORRECTION, r"notary sent nothing as 'seed' where uint8 \(32,\) was due"),
        ({"seed": np.zeros(16, np.uint8)}, CORRECTION, r"notary sent uint8 \(16,\) as 'seed'"),
        (SEED, {}, rf"notary sent nothing as '{NAME}' where uint64 \(2, 1\) was due"),
        (
            SEED,
            {NAME: np.ones((1, 1), ring.DTYPE)},
            rf"notary sent uint64 \(1, 1\) as '{NAME}' where uint64 \(2, 1\)",
        ),
        (SEED, {NAME: np.ones((2, 1))}, rf"notary sent float64 \(2, 1\) as '{NAME}'"),
    ],
)
def test_what_the_dealer_should_not_have_dealt_is_refused(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch, seed: Arrays, correction: Arrays, sentence: str
) -> None:
    with pytest.raises(RefusedError, match=sentence):
        dealt(configs, seed, correction, monkeypatch)()
    with pytest.raises(StorageError, match="there is no complete triple store"):
        TripleStore.open(configs["shop"].store_folder)


def test_a_dealer_started_again_deals_the_same(configs: dict[str, JobConfig]) -> None:
    notary = configs["notary"].offline()
    notary.run_folder.mkdir(parents=True)
    first, second = (offline._seeds(notary) for _ in range(2))
    assert first == second
    assert len({*first, (notary.run_folder / "dealer.seed").read_bytes()}) == 3
    assert mode_of(notary.run_folder / "dealer.seed") == 0o600
    other = notary.model_copy(update={"run": "store-november"})
    other.run_folder.mkdir(parents=True)
    assert not set(offline._seeds(other)) & set(first)


def test_who_waits_in_vain_ends_with_the_name_of_who_is_missing(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_GRACE", 0.0)
    exchange = configs["payco"].exchange.model_copy(update={"timeout_s": 0.01})
    alone = configs["payco"].model_copy(update={"exchange": exchange})
    with pytest.raises(PeerError, match="came from shop within"):
        offline.run_offline(alone)
    made_store(alone)
    with pytest.raises(PeerError, match="came from shop within"):
        sums.run_sums(alone)


# The sums of the sums.
def test_sums_of_shards_add_up_mod_2_64_and_none_of_them_is_zero() -> None:
    parts = [np.array([[2**63, 1], [2**63, 2]], ring.DTYPE), np.array([[5, 2**64 - 1]], ring.DTYPE)]
    shards = [_sum_shard(i, Shard(arrays={"x": part})) for i, part in enumerate(parts)]
    assert _add_up(shards).arrays["x"].tolist() == [5, 2]
    assert _add_up([_add_up([]), *shards]).arrays["x"].tolist() == [5, 2]
    assert _add_up([]).arrays["x"].tolist() == [0]


def test_the_binding_changes_with_data_job_and_seed_and_tells_neither(configs: dict[str, JobConfig]) -> None:
    bindings = [
        party.binding_of(configs["payco"], b"data", "job"),
        party.binding_of(configs["payco"], b"other", "job"),
        party.binding_of(configs["payco"], b"data", "other"),
        party.binding_of(configs["shop"], b"data", "job"),
    ]
    assert len(set(bindings)) == len(bindings)
    assert all(len(binding) == 64 for binding in bindings)
