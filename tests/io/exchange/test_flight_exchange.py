"""The exchange through gateways: retries, restarts, and peers that do not answer."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support.fault_injection import (
    PATIENCE,
    ChainWorld,
    chain_message,
    make_chain_world,
    shop_exchange,
    stored_messages,
)
from support.raw_messages import parts_of, raw_client, send_raw
from veilmeans.io.exchange.connections import close_exchange, load_identity, open_exchange, open_gateway
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_exchange import FlightExchange
from veilmeans.schemas.errors import PeerError, RefusedError
from veilmeans.schemas.message import Header

SHORT = 0.5
"""Seconds that a test waits for a peer that does not come."""


@pytest.fixture
def world(tmp_path: Path) -> ChainWorld:
    return make_chain_world(tmp_path, "gateway")


@pytest.fixture
def shop(world: ChainWorld) -> Iterator[FlightExchange]:
    exchange = shop_exchange(world)
    yield exchange
    exchange.close()


def test_threads_that_share_an_exchange_survive_a_restart_of_the_peers_gateway(
    world: ChainWorld, shop: FlightExchange
) -> None:
    payco = world.configs["payco"]
    messages = [chain_message(number=number) for number in range(99)]
    with ThreadPoolExecutor(4) as pool:
        with open_gateway(payco):
            sent = [pool.submit(shop.put_all, [each]) for each in messages]
            sent[5].result(PATIENCE)
        with open_gateway(payco):
            errors = [future.exception(PATIENCE) for future in sent]
    assert errors == [None] * 99
    assert stored_messages(payco.storage_folder.inbox) == [each.key.path for each in messages]


def test_an_absent_gateway_is_named_after_the_timeout(world: ChainWorld) -> None:
    exchange = shop_exchange(world, timeout=SHORT)
    start = time.monotonic()
    with pytest.raises(PeerError, match=f"payco at {world.configs['payco'].listen}"):
        exchange.put_all([chain_message()])
    assert time.monotonic() - start >= SHORT
    exchange.close()


@pytest.mark.parametrize("embedded", [True, False])
def test_a_silent_peer_is_named_after_the_timeout(world: ChainWorld, embedded: bool) -> None:
    """`embedded`: the inbox is read in this process, and not through the own gateway."""
    config = world.configs["payco"]
    with open_gateway(config) as gateway:
        exchange = open_exchange(config)
        assert isinstance(exchange, FlightExchange)
        exchange._local = gateway.inbox if embedded else None
        start = time.monotonic()
        with pytest.raises(PeerError, match=r"from shop within 0\.5 s"):
            exchange.get(chain_message().key, timeout=SHORT)
        assert time.monotonic() - start >= SHORT
        close_exchange(config)


def test_a_peer_that_left_because_we_refused_its_message_is_not_called_absent(world: ChainWorld) -> None:
    payco, shop = world.configs["payco"], world.configs["shop"]
    sent, answer = chain_message(), chain_message(sender="payco", to="shop")
    short = payco.model_copy(update={"exchange": payco.exchange.model_copy(update={"timeout_s": SHORT})})
    with open_gateway(payco):
        exchange = open_exchange(short)
        with pytest.raises(PeerError, match="gateway of shop"):
            exchange.put_all([answer])
        altered = replace(Header.of(sent.payload), digest=bytes(32))
        with pytest.raises(flight.FlightServerError):
            send_raw(raw_client(payco, load_identity(shop)), parts_of(sent, altered))
        with pytest.raises(RefusedError, match="from shop to payco was altered"):
            exchange.put_all([answer])
        close_exchange(short)


def test_a_message_over_the_limit_is_refused_before_it_is_sent(world: ChainWorld) -> None:
    shop = world.configs["shop"]
    large = Outgoing(chain_message().key, pa.py_buffer(bytes(64_000_001)))
    with open_gateway(world.configs["payco"]) as gateway:
        with pytest.raises(RefusedError, match="from shop to payco has 64,000,001 bytes"):
            open_exchange(shop).put_all([chain_message(number=1), large])
        assert stored_messages(gateway.inbox.folder) == []
    close_exchange(shop)


@pytest.mark.parametrize("embedded", [True, False])
def test_the_owner_reads_and_drops_messages_and_forgets_refusals(
    world: ChainWorld, shop: FlightExchange, embedded: bool
) -> None:
    config = world.configs["payco"]
    with open_gateway(config) as gateway:
        exchange = open_exchange(config)
        assert isinstance(exchange, FlightExchange)
        exchange._local = gateway.inbox if embedded else None
        large = Outgoing.of(chain_message(iteration=1).key, {"e": np.zeros(700_000)})  # more than one part
        shop.put_all([chain_message(), large])
        assert exchange.get(large.key, PATIENCE).equals(large.payload)
        gateway.inbox.refuse("test", RefusedError("a reason"))
        with pytest.raises(RefusedError, match="a reason"):
            exchange.get(large.key, PATIENCE)
        exchange.forget_refusal("test")
        assert exchange.drop_messages("test", before=1) == 1
        assert exchange.get(large.key, PATIENCE).equals(large.payload)
        assert exchange.drop_messages("test") == 1
        close_exchange(config)
