"""The terms of a job: a field that differs between parties is named at all sides, before a training and a store."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.parties import TIMEOUT_S, InMemoryExchange, in_parallel, make_configs
from support.small_kmeans import job_of
from veilmeans.io.exchange.exchange import HANDSHAKE, Exchange
from veilmeans.io.exchange.handshake import exchange_terms, terms_message
from veilmeans.io.sources.scan import Scan
from veilmeans.io.sources.source_files import Source
from veilmeans.pipelines import offline
from veilmeans.pipelines.session import agreed_terms
from veilmeans.pipelines.session.kmeans_from_config import job_digest, requested_engines
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import PROTOCOL_VERSION, Terms
from veilmeans.schemas.message import MessageKey

Change = Callable[[JobConfig], JobConfig]


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, JobConfig]:
    return make_small_configs(tmp_path, 2)


def make_small_configs(folder: Path, parties: int) -> dict[str, JobConfig]:
    """Configurations of a small K-means job whose rows have ids."""
    job = job_of(parties, id="id")
    return make_configs(folder, parties, kind="files", dealer="notary", triples={"store": "october"}, kmeans=job)


def training_terms(config: JobConfig, ids: str = "ids") -> dict[str, Terms]:
    """The terms that a party sends to its peers before a training. `ids`: the digest of its rows' ids."""
    online, zero = config.online(), (0.0,)
    scan = Scan(Source("x.csv", ("x.csv",)), "", "", 5, (), "id", zero, zero, zero, zero, (0,), ids)
    return agreed_terms.train_terms(online, scan, requested_engines(online), "data")


def store_terms(config: JobConfig) -> dict[str, Terms]:
    """The terms that a member sends to the others before a store is made."""
    return offline._terms(config.offline(), job_digest(config))


def handshake(
    exchange: Exchange, config: JobConfig, terms: Mapping[str, Terms], timeout: float = TIMEOUT_S, grace: float = 0.0
) -> Any:
    """Return the peers' terms, or the sentence with which this party refuses them."""
    try:
        return exchange_terms(exchange, config.party, config.run, terms, config.run_folder, timeout, grace=grace)
    except HandshakeError as error:
        return error.sentence


def training_handshake(configs: Mapping[str, JobConfig], terms: Mapping[str, Mapping[str, Terms]]) -> dict[str, Any]:
    """What each party received before a training."""
    exchange = InMemoryExchange()
    calls = [lambda n=name: handshake(exchange, configs[n], terms[n]) for name in terms]
    return dict(zip(terms, in_parallel(calls), strict=True))


def store_handshake(
    configs: Mapping[str, JobConfig],
    exchange: InMemoryExchange | None = None,
    timeout: float = TIMEOUT_S,
    grace: float = 0.0,
) -> dict[str, Any]:
    """What each member received before a store is made."""
    common = exchange or InMemoryExchange()
    calls = [lambda c=c: handshake(common, c.offline(), store_terms(c), timeout, grace) for c in configs.values()]
    return dict(zip(configs, in_parallel(calls), strict=True))


def with_job(**fields: Any) -> Change:
    return lambda config: config.model_copy(update={"kmeans": config.required_kmeans.model_copy(update=fields)})


def with_beam(**fields: int) -> Change:
    return lambda config: config.model_copy(update={"beam": config.beam.model_copy(update=fields)})


def with_link(**fields: float) -> Change:
    return lambda config: config.model_copy(update={"link": config.link.model_copy(update=fields)})


def with_triples(**fields: Any) -> Change:
    return lambda config: config.model_copy(update={"triples": config.required_triples.model_copy(update=fields)})


def with_field(**fields: Any) -> Change:
    return lambda config: config.model_copy(update=fields)


def difference(field: str, here: str, there: str, peer: str) -> str:
    return f"{field} is {here} here and {there} at {peer}"


# A training.
DIFFERENCES: dict[str, tuple[Change, str, str]] = {
    "parties": (with_field(parties=("shop", "payco")), "payco, shop", "shop, payco"),
    "dealer": (with_field(dealer=None), "notary", "not set"),
    "beam.rows_per_shard": (with_beam(rows_per_shard=7), "65,536", "7"),
    "beam.values_per_column_shard": (with_beam(values_per_column_shard=9), "262,144", "9"),
    "link.rate_mbps": (with_link(rate_mbps=20), "1,000", "20"),
    "link.round_trip_ms": (with_link(round_trip_ms=40), "0.5", "40"),
    "kmeans.id": (with_job(id=None), "set", "not set"),
    "kmeans.clusters": (with_job(clusters=2000), "2", "2,000"),
    "kmeans.assignment": (with_job(assignment="tree"), "auto", "tree"),
    "kmeans.rows": (with_job(rows=9_998), "5", "9,998"),
    "triples.store": (with_triples(store="november"), "october", "november"),
}


@pytest.mark.parametrize("field", DIFFERENCES)
def test_a_field_that_differs_is_named_at_both_parties(configs: dict[str, JobConfig], field: str) -> None:
    change, here, there = DIFFERENCES[field]
    changed = training_terms(change(configs["shop"]))["payco"]
    received = training_handshake(configs, {"payco": training_terms(configs["payco"]), "shop": {"payco": changed}})
    assert received["payco"].startswith(difference(field, here, there, "shop"))
    assert received["shop"].startswith(difference(field, there, here, "payco"))


def test_every_agreed_field_that_differs_is_named_at_both_parties(configs: dict[str, JobConfig]) -> None:
    payco, shop = training_terms(configs["payco"]), training_terms(configs["shop"])["payco"]
    assert {*DIFFERENCES, "protocol version"} < set(shop.agreed)
    for field in shop.agreed:
        changed = replace(shop, agreed={**shop.agreed, field: "another"})
        received = training_handshake(configs, {"payco": payco, "shop": {"payco": changed}})
        assert re.match(rf"{re.escape(field)} is .* and another at shop", received["payco"])
        assert re.match(rf"{re.escape(field)} is another here and .* at payco", received["shop"])


def test_another_protocol_version_is_named_before_any_other_difference(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    payco = training_terms(configs["payco"])
    monkeypatch.setattr(agreed_terms, "PROTOCOL_VERSION", 99)
    shop = training_terms(with_job(clusters=99)(configs["shop"]))
    received = training_handshake(configs, {"payco": payco, "shop": shop})
    assert received["payco"].startswith(difference("protocol version", str(PROTOCOL_VERSION), "99", "shop"))
    assert received["shop"].startswith(difference("protocol version", "99", str(PROTOCOL_VERSION), "payco"))


def test_a_digest_of_the_ids_is_announced_to_each_peer_under_another_key(tmp_path: Path) -> None:
    configs = make_small_configs(tmp_path, 3)
    terms = {name: training_terms(configs[name]) for name in ("payco", "shop", "bank")}
    for name, received in training_handshake(configs, terms).items():
        announced = {peer: received[peer].announced["ids"] for peer in received}
        assert announced == {peer: terms[peer][name].announced["ids"] for peer in terms if peer != name}
    assert len({each.announced["ids"] for sent in terms.values() for each in sent.values()}) == 3  # one for each pair


def test_a_training_sends_nothing_to_the_dealer(configs: dict[str, JobConfig]) -> None:
    assert set(training_terms(configs["payco"])) == {"shop"}
    assert set(training_terms(configs["shop"])) == {"payco"}


# A triple store, with the dealer.
STORE: dict[str, tuple[Change, str, str]] = {
    "parties": (with_field(parties=("shop", "payco")), "payco, shop", "shop, payco"),
    "dealer": (with_field(dealer="bank"), "notary", "bank"),
    "beam.rows_per_shard": (with_beam(rows_per_shard=7), "65,536", "7"),
    "beam.values_per_column_shard": (with_beam(values_per_column_shard=9), "262,144", "9"),
    "link.rate_mbps": (with_link(rate_mbps=20), "1,000", "20"),
    "link.round_trip_ms": (with_link(round_trip_ms=40), "0.5", "40"),
    "kmeans.rows": (with_job(rows=6000), "5", "6,000"),
    "kmeans.sweep": (with_job(sweep=(2, 3)), "not set", "2, 3"),
    "triples.rows": (with_triples(rows=6000), "not set", "6,000"),
    "triples.runs": (with_triples(runs=3), "1", "3"),
    "triples.iterations": (with_triples(iterations=20), "1", "20"),
    "triples.provider": (with_triples(provider="iknp"), "dealer", "iknp"),
}


@pytest.mark.parametrize("field", STORE)
@pytest.mark.parametrize("other", ["notary", "shop"])
def test_a_field_of_a_store_that_differs_is_named_at_all_members(
    configs: dict[str, JobConfig], field: str, other: str
) -> None:
    change, here, there = STORE[field]
    received = store_handshake({**configs, other: change(configs[other])})
    for name in configs:
        if name == other:
            assert received[name].startswith(difference(field, there, here, "payco"))
        else:
            assert received[name].startswith(difference(field, here, there, other))
    assert not [file for c in configs.values() for file in c.offline().run_folder.path.glob("bound*")]


def test_the_work_of_another_version_is_refused(configs: dict[str, JobConfig]) -> None:
    """The same configuration may mean other rounds in another version of the code."""
    payco = store_terms(configs["payco"])
    digest = payco["shop"].agreed["work of the job"]
    changed = Terms({**payco["shop"].agreed, "work of the job": "0123456789abcdef"})
    exchange, config = InMemoryExchange(), configs["payco"].offline()
    for peer in ("shop", "notary"):
        key = MessageKey(Address(config.run, 0, HANDSHAKE, 0), peer, "payco")
        exchange.put_all([terms_message(key, changed)])
    sentence = handshake(exchange, config, payco)
    assert sentence.startswith(difference("work of the job", digest, "0123456789abcdef", "shop"))


def test_every_agreed_field_of_a_store_has_its_test(configs: dict[str, JobConfig]) -> None:
    for config in configs.values():
        terms = store_terms(config)
        assert set(terms) == {*configs} - {config.party}
        for sent in terms.values():
            assert set(sent.agreed) == {*STORE, "protocol version", "work of the job"}
            assert (sent.announced, sent.binding) == ({}, "")


def test_members_that_agree_on_a_store_are_bound_to_it_and_need_nobody(configs: dict[str, JobConfig]) -> None:
    received = store_handshake(configs)
    for name in configs:
        assert received[name] == {peer: store_terms(configs[peer])[name] for peer in configs if peer != name}
    for name, config in configs.items():
        assert store_handshake({name: config}, InMemoryExchange(), timeout=0.0) == {name: received[name]}
        changed = with_triples(runs=2)(config)
        sentence = store_handshake({name: changed}, InMemoryExchange(), timeout=0.0)[name]
        for part in ("run 'store-october'", "triples.runs is 2 here and 1 at", "triples.store"):
            assert part in sentence
        with pytest.raises(HandshakeError, match=r"triples\.runs is 2 here"):
            offline.run_offline(changed)


def test_a_finished_store_is_not_made_again_for_other_terms(configs: dict[str, JobConfig]) -> None:
    store_handshake(configs)
    for config in configs.values():
        config.offline().run_folder.farewell.touch()
        assert offline.run_offline(config).runs == 1
        with pytest.raises(HandshakeError, match=r"triples\.runs is 2 here and 1 at"):
            offline.run_offline(with_triples(runs=2)(config))


def test_the_dealer_need_not_know_fields_on_which_the_store_does_not_depend(configs: dict[str, JobConfig]) -> None:
    init = configs["notary"].required_kmeans.init.model_copy(update={"indices": (0, 1)})
    dealer = with_job(init=init, id=None)(configs["notary"])
    assert all(isinstance(received, dict) for received in store_handshake({**configs, "notary": dealer}).values())


def test_members_that_disagreed_on_rows_are_not_bound_to_them(configs: dict[str, JobConfig]) -> None:
    exchange = InMemoryExchange()
    received = store_handshake({**configs, "shop": with_job(rows=13)(configs["shop"])}, exchange)
    assert received["notary"].startswith(difference("kmeans.rows", "5", "13", "shop"))
    again = store_handshake(configs, exchange, grace=TIMEOUT_S)  # the others may still read the earlier terms
    assert all(isinstance(each, dict) for each in again.values())
