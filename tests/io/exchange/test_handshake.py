"""The handshake: a difference is named at both sides, and a run is bound to the terms that were agreed on."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.fault_injection import PATIENCE
from support.parties import InMemoryExchange, in_parallel, make_configs
from veilmeans.io.exchange import handshake
from veilmeans.io.exchange.connections import close_exchange, open_exchange
from veilmeans.io.exchange.exchange import HANDSHAKE, Exchange, Outgoing
from veilmeans.io.exchange.handshake import check_bound_terms, exchange_terms
from veilmeans.io.files.atomic_files import write_json
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import HandshakeError, PeerError
from veilmeans.schemas.handshake_terms import IDS, Terms
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import RunFolder

NAMES = ("payco", "shop", "bank")
Sent = Mapping[str, Mapping[str, Terms]]
"""Sender -> recipient -> terms."""


def terms(name: str, rows: int = 5, columns: str = "a", binding: str = "data", parties: int = 2) -> dict[str, Terms]:
    """The terms that a party sends to each of its peers."""
    peers = [peer for peer in NAMES[:parties] if peer != name]
    return {peer: Terms({"clusters": 3, "rows": rows}, {"columns": f"{name}.{columns}"}, binding) for peer in peers}


def all_terms(parties: int = 2) -> Sent:
    return {name: terms(name, parties=parties) for name in NAMES[:parties]}


class Party:
    """One party's side of handshakes, in a folder of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, RunFolder(folder / name / "test")

    def handshake(
        self,
        exchange: Exchange,
        sent: Mapping[str, Terms],
        timeout: float = PATIENCE,
        grace: float = 0.0,
        **options: Any,
    ) -> Any:
        """Return the peers' terms, or the sentence with which this party refuses them."""
        try:
            return exchange_terms(exchange, self.name, "test", sent, self.folder, timeout, grace=grace, **options)
        except HandshakeError as error:
            return error.sentence

    @property
    def is_bound(self) -> bool:
        return bool(list(self.folder.path.glob("bound*")))


@pytest.fixture
def parties(tmp_path: Path) -> dict[str, Party]:
    return {name: Party(name, tmp_path) for name in NAMES}


def handshake_of_all(
    parties: Mapping[str, Party], sent: Sent, exchanges: Mapping[str, Exchange] | None = None, grace: float = 0.0
) -> dict[str, Any]:
    """Run a handshake of all parties in `sent`; what each of them received."""
    exchanges = exchanges or dict.fromkeys(sent, InMemoryExchange())
    calls = [lambda n=name: parties[n].handshake(exchanges[n], sent[n], grace=grace) for name in sent]
    return dict(zip(sent, in_parallel(calls), strict=True))


def put_terms(exchange: InMemoryExchange, sender: str, recipient: str, sent: Terms) -> None:
    """Store terms in place of earlier ones."""
    key = MessageKey(Address("test", 0, HANDSHAKE, 0), sender, recipient)
    exchange.messages[key] = handshake.terms_message(key, sent).payload


def put_confirmation(exchange: InMemoryExchange, sender: str, recipient: str, received: Terms) -> None:
    """Store the confirmation of `sender` that it received these terms of `recipient`."""
    key = MessageKey(Address("test", 0, HANDSHAKE, 1), sender, recipient)
    exchange.messages[key] = handshake.confirmation(key, received).payload


class ChangingExchange(InMemoryExchange):
    """An exchange that calls `change` just before a message is read for the `number`-th time."""

    def __init__(self, part: int, number: int, change: Callable[["ChangingExchange"], None]) -> None:
        super().__init__()
        self.part, self.number, self.change, self.reads = part, number, change, 0

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        self.reads += key.address.shard == self.part
        if self.reads == self.number and key.address.shard == self.part:
            self.change(self)
        return super().get(key, timeout)


# Agreement.
def test_parties_that_agree_receive_each_others_terms(parties: dict[str, Party]) -> None:
    sent = all_terms(3)
    for name, received in handshake_of_all(parties, sent).items():
        assert received == {peer: sent[peer][name] for peer in NAMES if peer != name}
        assert parties[name].is_bound


def test_a_difference_is_named_at_both_sides_and_binds_nobody(parties: dict[str, Party]) -> None:
    received = handshake_of_all(parties, {"payco": terms("payco", rows=10_000), "shop": terms("shop", rows=9_998)})
    assert received["payco"].startswith("rows is 10,000 here and 9,998 at shop")
    assert received["shop"].startswith("rows is 9,998 here and 10,000 at payco")
    assert not parties["payco"].is_bound
    handshake_of_all(parties, all_terms())
    assert parties["payco"].is_bound


def test_terms_that_a_check_refuses_bind_nobody(parties: dict[str, Party]) -> None:
    def refuse(received: Mapping[str, Terms]) -> None:
        raise HandshakeError(f"refused {received['shop'].announced['columns']}")

    exchange = InMemoryExchange()
    put_terms(exchange, "shop", "payco", terms("shop")["payco"])
    assert parties["payco"].handshake(exchange, terms("payco"), check=refuse) == "refused shop.a"
    assert not parties["payco"].is_bound


def test_a_party_waits_for_its_peers(parties: dict[str, Party]) -> None:
    with pytest.raises(PeerError, match="from shop to payco"):
        parties["payco"].handshake(InMemoryExchange(), terms("payco"), timeout=0.0)


@pytest.mark.parametrize(
    "arrays",
    [{}, {"other": b"{}"}, *({"terms": text} for text in (b"\xff", b"5", b'{"agreed": 5}', b"[" * 100_000))],
    ids=["nothing", "another name", "no text", "a number", "no terms", "nested"],
)
def test_a_handshake_that_cannot_be_read_is_refused(parties: dict[str, Party], arrays: dict[str, bytes]) -> None:
    exchange = InMemoryExchange()
    key = MessageKey(Address("test", 0, HANDSHAKE, 0), "shop", "payco")
    exchange.put_all([Outgoing.of(key, {name: np.frombuffer(text, np.uint8) for name, text in arrays.items()})])
    assert "handshake of shop" in parties["payco"].handshake(exchange, terms("payco"))


# A bound run.
def test_a_bound_run_is_rerun_without_its_peers(parties: dict[str, Party]) -> None:
    handshake_of_all(parties, all_terms())
    received = parties["payco"].handshake(InMemoryExchange(), terms("payco"), timeout=0.0)
    assert received == {"shop": terms("shop")["payco"]}


def test_a_party_that_died_while_it_was_being_bound_repeats_the_handshake(parties: dict[str, Party]) -> None:
    handshake_of_all(parties, all_terms())
    parties["payco"].folder.terms("shop", "payco").unlink()
    exchange = InMemoryExchange()
    put_terms(exchange, "shop", "payco", terms("shop")["payco"])
    put_confirmation(exchange, "shop", "payco", terms("payco")["shop"])
    for each in (exchange, InMemoryExchange()):
        assert parties["payco"].handshake(each, terms("payco"), timeout=0.0) == {"shop": terms("shop")["payco"]}


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"binding": "other data"}, "data or the job"), ({"rows": 6}, "rows is 6 here and 5")],
    ids=["data", "terms"],
)
def test_a_run_id_that_comes_back_with_other_data_or_terms_is_refused(
    parties: dict[str, Party], changed: dict[str, Any], why: str
) -> None:
    handshake_of_all(parties, all_terms())
    payco, other = parties["payco"], terms("payco", **changed)
    sentence = payco.handshake(InMemoryExchange(), other, timeout=0.0)
    assert sentence.startswith("run 'test'")
    assert why in sentence
    with pytest.raises(HandshakeError, match="run 'test'"):
        check_bound_terms(payco.folder, "payco", other)
    check_bound_terms(payco.folder, "payco", terms("payco"))


def test_a_run_is_not_bound_to_a_digest_that_changes_with_a_renewed_key(parties: dict[str, Party]) -> None:
    def with_ids(digest: str) -> dict[str, Terms]:
        return {peer: Terms({"rows": 5}, {IDS: digest, "columns": "a"}, "data") for peer in ("shop",)}

    folder = parties["payco"].folder
    write_json(folder.terms("payco", "shop"), with_ids("old key")["shop"].to_dict())
    check_bound_terms(folder, "payco", with_ids("new key"))
    with pytest.raises(HandshakeError, match="run 'test'"):
        check_bound_terms(folder, "payco", {"shop": Terms({"rows": 5}, {IDS: "old key", "columns": "b"}, "data")})


# Messages of an earlier attempt.
def test_a_peer_that_confirms_other_terms_of_ours_is_named(parties: dict[str, Party]) -> None:
    """Shop was bound to what payco announced in an earlier attempt; the agreed fields do not differ."""
    exchange = InMemoryExchange()
    put_terms(exchange, "shop", "payco", terms("shop")["payco"])
    put_confirmation(exchange, "shop", "payco", terms("payco", columns="b")["shop"])
    assert parties["payco"].handshake(exchange, terms("payco")).startswith("shop has begun this run on other terms")
    assert not parties["payco"].is_bound


def test_terms_that_change_before_they_are_confirmed_are_received_again(parties: dict[str, Party]) -> None:
    """Shop's old columns are replaced while payco waits for shop's confirmation."""

    def shop_is_rerun(exchange: InMemoryExchange) -> None:
        put_terms(exchange, "shop", "payco", terms("shop")["payco"])
        put_confirmation(exchange, "shop", "payco", terms("payco")["shop"])

    exchange = ChangingExchange(part=1, number=1, change=shop_is_rerun)
    put_terms(exchange, "shop", "payco", terms("shop", columns="old")["payco"])
    assert parties["payco"].handshake(exchange, terms("payco")) == {"shop": terms("shop")["payco"]}


def test_old_terms_are_read_again_before_they_are_refused(parties: dict[str, Party]) -> None:
    """Shop is rerun first, reads payco's old terms, and waits for the corrected ones."""

    def payco_is_rerun(exchange: InMemoryExchange) -> None:
        put_terms(exchange, "payco", "shop", terms("payco")["shop"])

    exchange = ChangingExchange(part=0, number=3, change=payco_is_rerun)
    put_terms(exchange, "payco", "shop", terms("payco", rows=11)["shop"])
    put_confirmation(exchange, "payco", "shop", terms("shop")["payco"])
    received = parties["shop"].handshake(exchange, terms("shop"), grace=PATIENCE)
    assert received == {"payco": terms("payco")["shop"]}


def test_corrected_terms_replace_the_wrong_ones_in_outboxes(parties: dict[str, Party], tmp_path: Path) -> None:
    """The messages of the first attempt still lie there at the second."""
    configs = make_configs(tmp_path, kind="files")
    exchanges = {name: open_exchange(config) for name, config in configs.items()}
    first = handshake_of_all(parties, {**all_terms(), "payco": terms("payco", rows=11)}, exchanges)
    assert first["shop"].startswith("rows is 5 here and 11 at payco")
    second = handshake_of_all(parties, all_terms(), exchanges, grace=PATIENCE)
    assert second == {"payco": {"shop": terms("shop")["payco"]}, "shop": {"payco": terms("payco")["shop"]}}
    for config in configs.values():
        close_exchange(config)
