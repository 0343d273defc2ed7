"""The handshake: a difference is named at both sides, and a run is bound to what was agreed."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.parties import Board, in_parallel, make_configs
from veilmeans.io.exchange import handshake
from veilmeans.io.exchange.connections import close_exchange, open_exchange
from veilmeans.io.exchange.exchange import HANDSHAKE, Exchange, Outgoing
from veilmeans.io.exchange.handshake import check_bindings, shake_hands
from veilmeans.pipelines import offline, sums
from veilmeans.pipelines.session import agreed_terms as party
from veilmeans.pipelines.session.kmeans_from_config import job_digest
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig, SumsJob
from veilmeans.schemas.errors import HandshakeError, PeerError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.message import MessageKey

TIMEOUT = 10.0
Change = Callable[[JobConfig], JobConfig]


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_GRACE", 0.05)


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, JobConfig]:
    job = {"data": "x.csv", "columns": ["a"], "product": ["payco.a", "shop.a"], "bound": 10}
    return make_configs(tmp_path, kind="files", dealer="notary", triples={"store": "october", "rows": 5}, sums=job)


def said_by(config: JobConfig, rows: int = 5, binding: str = "data") -> dict[str, Terms]:
    """What a party tells the others."""
    assert config.sums is not None
    return sums._terms(config.online(), config.sums, rows, binding)


def shake(exchange: Exchange, config: JobConfig, terms: Mapping[str, Terms], timeout: float = TIMEOUT) -> Any:
    """What the party heard, or the sentence with which it refused."""
    try:
        return shake_hands(exchange, config.party, config.run, terms, config.run_folder, timeout)
    except HandshakeError as error:
        return error.sentence


def shake_all(
    configs: Mapping[str, JobConfig], terms: Mapping[str, Mapping[str, Terms]], exchange: Mapping[str, Exchange]
) -> dict[str, Any]:
    calls = [lambda n=name: shake(exchange[n], configs[n], terms[n]) for name in terms]
    return dict(zip(terms, in_parallel(calls), strict=True))


def on_board(configs: Mapping[str, JobConfig], terms: Mapping[str, Mapping[str, Terms]]) -> dict[str, Any]:
    board = Board()
    return shake_all(configs, terms, dict.fromkeys(terms, board))


def with_job(**fields: Any) -> Change:
    def change(config: JobConfig) -> JobConfig:
        assert isinstance(config.sums, SumsJob)
        return config.model_copy(update={"sums": config.sums.model_copy(update=fields)})

    return change


def with_shards(rows: int) -> Change:
    return lambda config: config.model_copy(
        update={"engine": config.engine.model_copy(update={"rows_per_shard": rows})}
    )


def with_triples(**fields: Any) -> Change:
    return lambda config: config.model_copy(update={"triples": config.required_triples.model_copy(update=fields)})


def with_field(**fields: Any) -> Change:
    return lambda config: config.model_copy(update=fields)


DIFFERENCES: dict[str, tuple[Change, str, str]] = {
    "parties": (with_field(parties=("shop", "payco")), "payco, shop", "shop, payco"),
    "dealer": (with_field(dealer=None), "notary", "not set"),
    "engine.rows_per_shard": (with_shards(7), "65,536", "7"),
    "sums.product": (with_job(product=("shop.a", "payco.a")), "payco.a, shop.a", "shop.a, payco.a"),
    "sums.bound": (with_job(bound=2000), "10", "2,000"),
    "triples.store": (with_triples(store="november"), "october", "november"),
}


def refusal(field: str, here: str, there: str, peer: str) -> str:
    return f"{field} is {here} here and {there} at {peer}: agree on one value, then start both again"


@pytest.mark.parametrize("field", DIFFERENCES)
def test_a_configuration_that_differs_is_refused_at_both_sides(configs: dict[str, JobConfig], field: str) -> None:
    change, here, there = DIFFERENCES[field]
    shop = change(configs["shop"])
    heard = on_board(configs, {"payco": said_by(configs["payco"]), "shop": {"payco": said_by(shop)["payco"]}})
    assert heard["payco"] == refusal(field, here, there, "shop")
    assert heard["shop"] == refusal(field, there, here, "payco")


def test_another_protocol_version_is_refused_at_both_sides(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    payco = said_by(configs["payco"])
    monkeypatch.setattr(party, "PROTOCOL_VERSION", 2)
    heard = on_board(configs, {"payco": payco, "shop": said_by(with_job(bound=99)(configs["shop"]))})
    assert heard["payco"] == refusal("protocol version", "1", "2", "shop")
    assert heard["shop"] == refusal("protocol version", "2", "1", "payco")


def test_another_number_of_rows_is_refused_at_both_sides(configs: dict[str, JobConfig]) -> None:
    heard = on_board(configs, {"payco": said_by(configs["payco"], 10_000), "shop": said_by(configs["shop"], 9_998)})
    assert heard["payco"] == refusal("rows", "10,000", "9,998", "shop")
    assert heard["shop"] == refusal("rows", "9,998", "10,000", "payco")


def test_every_field_that_is_agreed_on_has_its_test(configs: dict[str, JobConfig]) -> None:
    assert set(said_by(configs["payco"])["shop"].agreed) == {*DIFFERENCES, "protocol version", "rows"}


def test_parties_that_agree_hear_what_the_others_announce(tmp_path: Path) -> None:
    job = {"product": ["payco.a", "shop.a"], "bound": 10}
    configs = make_configs(tmp_path, 3, kind="files", triples={"store": "october", "rows": 5}, sums=job)
    terms = {n: said_by(with_job(columns=(n,))(config)) for n, config in configs.items()}
    heard = on_board(configs, terms)
    for name, said in heard.items():
        assert {peer: t.announced["columns"] for peer, t in said.items()} == {p: [p] for p in configs if p != name}


def test_a_run_tells_the_dealer_nothing(configs: dict[str, JobConfig]) -> None:
    assert set(said_by(configs["payco"])) == {"shop"}
    assert set(said_by(configs["shop"])) == {"payco"}


def bound(configs: Mapping[str, JobConfig]) -> dict[str, Mapping[str, Terms]]:
    """Payco and shop have agreed."""
    terms = {name: said_by(configs[name]) for name in ("payco", "shop")}
    assert all(isinstance(heard, dict) for heard in on_board(configs, terms).values())
    return terms


def put_handshake(board: Board, sender: str, recipient: str, terms: Terms) -> None:
    """A handshake as it lies there, in place of an earlier one."""
    key = MessageKey(Address("test", 0, HANDSHAKE, 0), sender, recipient)
    board.messages[key] = handshake._message(key, terms).payload


def put_confirmation(board: Board, sender: str, recipient: str, heard: Terms) -> None:
    """What `sender` says it heard of `recipient`."""
    key = MessageKey(Address("test", 0, HANDSHAKE, 1), sender, recipient)
    board.messages[key] = handshake._confirmation(key, heard).payload


def test_a_bound_run_goes_on_without_its_peers(configs: dict[str, JobConfig]) -> None:
    terms = bound(configs)
    again = shake(Board(), configs["payco"], terms["payco"], timeout=0.0)
    assert again == {"shop": terms["shop"]["payco"]}


def test_an_unbound_run_waits_for_its_peers(configs: dict[str, JobConfig]) -> None:
    with pytest.raises(PeerError, match="from shop to payco"):
        shake(Board(), configs["payco"], said_by(configs["payco"]), timeout=0.0)


def test_a_party_that_died_while_it_was_being_bound_shakes_hands_again(configs: dict[str, JobConfig]) -> None:
    terms = bound(configs)
    (configs["payco"].run_folder / "bound.shop-to-payco.json").unlink()
    board = Board()
    put_handshake(board, "shop", "payco", terms["shop"]["payco"])
    put_confirmation(board, "shop", "payco", terms["payco"]["shop"])
    assert shake(board, configs["payco"], terms["payco"]) == {"shop": terms["shop"]["payco"]}
    assert shake(Board(), configs["payco"], terms["payco"], timeout=0.0) == {"shop": terms["shop"]["payco"]}


@pytest.mark.parametrize(
    ("rows", "binding", "bound_to", "why"),
    [
        (5, "other data", 10, "the data or the job have changed since"),
        (6, "data", 10, "rows is 6 here and 5 at the start of this run"),
        (5, "data", 11, "sums.bound is 11 here and 10 at the start of this run"),
    ],
)
def test_a_run_id_that_comes_back_with_other_data_or_terms_is_refused(
    configs: dict[str, JobConfig], rows: int, binding: str, bound_to: int, why: str
) -> None:
    terms = bound(configs)
    changed = said_by(with_job(bound=bound_to)(configs["payco"]), rows, binding)
    sentence = f"run 'test' was begun before on other terms ({why}): choose a new run id"
    assert shake(Board(), configs["payco"], changed, timeout=0.0) == sentence
    with pytest.raises(HandshakeError, match="choose a new run id"):
        check_bindings(configs["payco"].run_folder, "payco", changed)
    check_bindings(configs["payco"].run_folder, "payco", terms["payco"])


def test_terms_that_were_never_agreed_on_bind_nobody(configs: dict[str, JobConfig]) -> None:
    wrong = said_by(with_job(bound=11)(configs["payco"]))
    on_board(configs, {"payco": wrong, "shop": said_by(configs["shop"])})
    assert not list(configs["payco"].run_folder.glob("bound*"))
    bound(configs)


def test_a_peer_that_heard_other_terms_of_ours_is_noticed(configs: dict[str, JobConfig]) -> None:
    """Shop was bound to what payco announced in an earlier attempt; the agreed fields do not tell."""
    right = {name: said_by(configs[name]) for name in ("payco", "shop")}
    board = Board()
    put_handshake(board, "shop", "payco", right["shop"]["payco"])
    put_confirmation(board, "shop", "payco", said_by(with_job(columns=("b",))(configs["payco"]))["shop"])
    heard = shake(board, configs["payco"], right["payco"])
    assert heard == "shop has begun this run on other terms of ours: choose a new run id"
    assert not list(configs["payco"].run_folder.glob("bound*"))


def test_terms_that_change_before_they_are_confirmed_are_heard_again(configs: dict[str, JobConfig]) -> None:
    """Shop's stale columns are replaced while payco waits for shop's confirmation."""
    right = {name: said_by(configs[name]) for name in ("payco", "shop")}
    board = Board()
    put_handshake(board, "shop", "payco", said_by(with_job(columns=("stale",))(configs["shop"]))["payco"])

    def shop_starts_again() -> None:
        time.sleep(0.3)
        with board.arrived:
            put_handshake(board, "shop", "payco", right["shop"]["payco"])
            put_confirmation(board, "shop", "payco", right["payco"]["shop"])
            board.arrived.notify_all()

    heard, _ = in_parallel([lambda: shake(board, configs["payco"], right["payco"]), shop_starts_again])
    assert heard == {"shop": right["shop"]["payco"]}


@pytest.mark.parametrize("corrected_first", [True, False])
def test_a_corrected_configuration_replaces_the_wrong_one(configs: dict[str, JobConfig], corrected_first: bool) -> None:
    """Through real outboxes, where the handshakes of the first attempt still lie at the second."""
    exchange = {name: open_exchange(configs[name]) for name in ("payco", "shop")}
    right = {name: said_by(configs[name]) for name in exchange}
    wrong = said_by(with_job(bound=11)(configs["payco"]))
    first = shake_all(configs, {**right, "payco": wrong}, exchange)
    assert first["shop"] == refusal("sums.bound", "10", "11", "payco")
    delays = {"payco": 0.0, "shop": 0.5} if corrected_first else {"payco": 0.01, "shop": 0.0}
    second = in_parallel(
        [lambda n=n: (time.sleep(delays[n]), shake(exchange[n], configs[n], right[n]))[1] for n in delays]
    )
    assert second == [{"shop": right["shop"]["payco"]}, {"payco": right["payco"]["shop"]}]
    for name in exchange:
        close_exchange(configs[name])


def test_stale_terms_are_looked_at_again_before_they_are_refused(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shop comes back first, finds payco's old handshake, and waits for the corrected one."""
    monkeypatch.setattr(handshake, "_GRACE", TIMEOUT)
    right = {name: said_by(configs[name]) for name in ("payco", "shop")}
    stale = said_by(with_job(bound=11)(configs["payco"]))["shop"]
    board = Board()
    put_handshake(board, "payco", "shop", stale)
    put_confirmation(board, "payco", "shop", right["shop"]["payco"])
    looked: list[int] = []

    def pause(seconds: float) -> None:
        del seconds
        looked.append(1)
        put_handshake(board, "payco", "shop", right["payco"]["shop"])

    monkeypatch.setattr(handshake.time, "sleep", pause)
    assert shake(board, configs["shop"], right["shop"]) == {"payco": right["payco"]["shop"]}
    assert looked == [1]


@pytest.mark.parametrize(
    "arrays", [{}, {"other": b"{}"}, {"terms": b"\xff"}, {"terms": b"5"}, {"terms": b'{"agreed": 5}'}], ids=str
)
def test_a_handshake_that_cannot_be_read_is_refused(configs: dict[str, JobConfig], arrays: dict[str, bytes]) -> None:
    board = Board()
    key = MessageKey(Address("test", 0, HANDSHAKE, 0), "shop", "payco")
    board.put_all([Outgoing.of(key, {name: np.frombuffer(text, np.uint8) for name, text in arrays.items()})])
    heard = shake(board, configs["payco"], said_by(configs["payco"]))
    assert heard == "the handshake of shop cannot be read: does it run another veilmeans?"


# The making of a store, with the dealer.
def offline_terms(config: JobConfig) -> dict[str, Terms]:
    """What a member tells the others before a store is made."""
    return offline._terms(config.offline(), job_digest(config))


def agree_offline(
    configs: Mapping[str, JobConfig], board: Board | None = None, timeout: float = TIMEOUT
) -> dict[str, Any]:
    """What each member heard, or the sentence with which it refused."""
    exchange = board or Board()
    calls = [lambda c=config: shake(exchange, c.offline(), offline_terms(c), timeout) for config in configs.values()]
    return dict(zip(configs, in_parallel(calls), strict=True))


OFFLINE: dict[str, tuple[Change, str, str]] = {
    "parties": (with_field(parties=("shop", "payco")), "payco, shop", "shop, payco"),
    "dealer": (with_field(dealer="bank"), "notary", "bank"),
    "engine.rows_per_shard": (with_shards(7), "65,536", "7"),
    "triples.rows": (with_triples(rows=6000), "5", "6,000"),
    "triples.runs": (with_triples(runs=3), "1", "3"),
    "triples.iterations": (with_triples(iterations=20), "1", "20"),
}


@pytest.mark.parametrize("field", OFFLINE)
@pytest.mark.parametrize("other", ["notary", "shop"])
def test_a_store_that_is_described_differently_is_refused_at_all_sides(
    configs: dict[str, JobConfig], field: str, other: str
) -> None:
    change, here, there = OFFLINE[field]
    heard = agree_offline({**configs, other: change(configs[other])})
    for name in configs:
        if name == other:
            assert heard[name] == refusal(field, there, here, "payco")
        else:
            assert heard[name] == refusal(field, here, there, other)
    assert not [file for c in configs.values() for file in c.offline().run_folder.glob("bound*")]


def test_another_version_s_work_is_refused(configs: dict[str, JobConfig]) -> None:
    """The same configuration may stand for other rounds in another version of the code."""
    payco = offline_terms(configs["payco"])
    digest = payco["shop"].agreed["work of the job"]
    changed = Terms({**payco["shop"].agreed, "work of the job": "0123456789abcdef"})
    board, config = Board(), configs["payco"].offline()
    for peer in ("shop", "notary"):
        key = MessageKey(Address(config.run, 0, HANDSHAKE, 0), peer, "payco")
        board.put_all([handshake._message(key, changed)])
    assert shake(board, config, payco) == refusal("work of the job", digest, "0123456789abcdef", "shop")


def test_every_field_of_a_store_that_is_agreed_on_has_its_test(configs: dict[str, JobConfig]) -> None:
    for config in configs.values():
        terms = offline_terms(config)
        assert set(terms) == {*configs} - {config.party}
        for said in terms.values():
            assert set(said.agreed) == {*OFFLINE, "protocol version", "work of the job"}
            assert (said.announced, said.binding) == ({}, "")


def test_members_that_agree_on_a_store_are_bound_to_it_and_need_nobody(configs: dict[str, JobConfig]) -> None:
    heard = agree_offline(configs)
    for name in configs:
        assert heard[name] == {peer: offline_terms(configs[peer])[name] for peer in configs if peer != name}
    for name, config in configs.items():
        assert agree_offline({name: config}, Board(), timeout=0.0) == {name: heard[name]}
        changed = with_triples(runs=2)(config)
        why = "triples.runs is 2 here and 1 at the start of this run"
        sentence = f"run 'store-october' was begun before on other terms ({why}): choose a new triples.store"
        assert agree_offline({name: changed}, Board(), timeout=0.0) == {name: sentence}
        with pytest.raises(HandshakeError, match=r"triples\.runs is 2 here"):
            offline.run_offline(changed)


def test_a_finished_store_is_not_said_to_be_another(configs: dict[str, JobConfig]) -> None:
    agree_offline(configs)
    for config in configs.values():
        (config.offline().run_folder / "farewell").touch()
        assert offline.run_offline(config).runs == 1
        with pytest.raises(HandshakeError, match=r"triples\.runs is 2 here and 1 at the start"):
            offline.run_offline(with_triples(runs=2)(config))


def test_what_a_job_computes_with_a_store_is_no_matter_of_the_dealer_s(configs: dict[str, JobConfig]) -> None:
    """Bound and columns may change from run to run: what is needed of the store does not depend on them."""
    dealer = with_job(bound=11, product=("payco.b", "shop.b"))(configs["notary"])
    assert all(isinstance(heard, dict) for heard in agree_offline({**configs, "notary": dealer}).values())


def test_members_that_disagreed_on_rows_are_not_bound_to_them(configs: dict[str, JobConfig]) -> None:
    board = Board()
    heard = agree_offline({**configs, "shop": with_triples(rows=13)(configs["shop"])}, board)
    assert heard["notary"] == refusal("triples.rows", "5", "13", "shop")
    assert all(isinstance(heard, dict) for heard in agree_offline(configs, board).values())


def test_a_product_of_columns_that_nobody_has_is_refused_before_the_run_is_bound(configs: dict[str, JobConfig]) -> None:
    payco = with_job(product=("payco.a", "shop.z"))(configs["payco"])
    assert payco.sums is not None
    terms = said_by(payco)
    board = Board()
    put_handshake(board, "shop", "payco", Terms(terms["shop"].agreed, {"columns": ["a"]}))
    with pytest.raises(HandshakeError, match=r"names 'shop\.z', and the parties have payco\.a, shop\.a"):
        sums._agree(board, payco.online(), payco.sums, terms)
    assert not list(payco.run_folder.glob("bound*"))
