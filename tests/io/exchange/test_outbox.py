"""The outbox: a put returns before it is acknowledged, and nothing is lost or hidden because of that."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from support.fault_injection import (
    PATIENCE,
    ChainWorld,
    chain_message,
    make_chain_world,
    shop_exchange,
    stored_messages,
    wait_for,
)
from veilmeans.io.exchange import outbox
from veilmeans.io.exchange.connections import open_exchange, open_gateway, running_job
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_exchange import FlightExchange
from veilmeans.io.exchange.flight_streams import FlightStream
from veilmeans.io.exchange.inbox import MessageStore, SmallMessage
from veilmeans.schemas.errors import PeerError, RefusedError, StorageError

SHORT = 2.0
OTHER = Outgoing.of(chain_message().key, {"e": np.zeros(3)})
"""A message under the key of another."""


@pytest.fixture
def world(tmp_path: Path) -> ChainWorld:
    return make_chain_world(tmp_path, "gateway")


@pytest.fixture
def shop(world: ChainWorld) -> Iterator[FlightExchange]:
    exchange = shop_exchange(world, late=True)
    yield exchange
    exchange.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FlightStream]:
    """Every stream that is opened from now on."""
    streams: list[FlightStream] = []

    class Recorded(FlightStream):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            streams.append(self)

    monkeypatch.setattr(outbox, "FlightStream", Recorded)
    return streams


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Gateways store no second message of a run until this event is set."""
    event, commit, first = threading.Event(), SmallMessage.commit, chain_message().key

    def wait_then_commit(self: SmallMessage) -> None:
        if self._key != first:
            event.wait(PATIENCE)
        commit(self)

    monkeypatch.setattr(SmallMessage, "commit", wait_then_commit)
    yield event
    event.set()


def kept(exchange: FlightExchange) -> int:
    return len(exchange._outboxes["payco"]._kept)


def stored(world: ChainWorld) -> list[str]:
    return stored_messages(world.configs["payco"].storage_folder.inbox)


# Acknowledgements.
def test_a_put_returns_before_the_message_is_stored_and_flush_afterwards(
    world: ChainWorld, shop: FlightExchange, held: threading.Event
) -> None:
    with open_gateway(world.configs["payco"]), ThreadPoolExecutor(1) as pool:
        shop.put_all([chain_message()])
        shop.put_all([chain_message(number=1)])
        assert kept(shop) == 1
        assert len(stored(world)) == 1
        flushed = pool.submit(shop.flush)
        assert not flushed.done()
        held.set()
        flushed.result(PATIENCE)
        assert kept(shop) == 0
        assert len(stored(world)) == 2


def test_a_worker_beside_the_job_waits_for_the_acknowledgement(world: ChainWorld) -> None:
    exchange = shop_exchange(world)
    with open_gateway(world.configs["payco"]):
        for number in range(3):
            exchange.put_all([chain_message(number=number)])
            assert len(stored(world)) == number + 1
        exchange.close()


def test_only_the_process_of_a_job_continues_before_the_acknowledgement(world: ChainWorld) -> None:
    config = world.configs["shop"]
    with running_job(config):
        exchange = open_exchange(config)
        assert isinstance(exchange, FlightExchange)
        assert exchange._outboxes["payco"]._late
    beside = open_exchange(config)
    assert isinstance(beside, FlightExchange)
    assert not beside._outboxes["payco"]._late


def test_acknowledgements_come_from_time_to_time_without_a_flush(
    world: ChainWorld, shop: FlightExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_ASK_MESSAGES", 10)
    with open_gateway(world.configs["payco"]):
        for number in range(25):
            shop.put_all([chain_message(number=number)])
        wait_for(lambda: kept(shop) <= 10)


def test_a_put_waits_while_too_much_is_not_acknowledged(
    world: ChainWorld, shop: FlightExchange, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_MOST_BYTES", 0)
    with open_gateway(world.configs["payco"]), ThreadPoolExecutor(1) as pool:
        shop.put_all([chain_message()])
        shop.put_all([chain_message(number=1)])
        waiting = pool.submit(shop.put_all, [chain_message(number=2)])
        assert not waiting.done()
        held.set()
        shop.flush()
        waiting.result(PATIENCE)


# Streams.
def test_puts_one_after_the_other_share_a_stream(
    world: ChainWorld, shop: FlightExchange, opened: list[FlightStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_IDLE", 1000.0)
    with open_gateway(world.configs["payco"]):
        for number in range(20):
            shop.put_all([chain_message(number=number), chain_message(number=100 + number)])
        shop.flush()
        assert len(stored(world)) == 40
        shop.close()
    assert len(opened) == 1


def test_an_idle_stream_is_ended_and_the_gateway_need_not_wait_for_it(
    world: ChainWorld,
    shop: FlightExchange,
    opened: list[FlightStream],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(outbox, "_IDLE", 0.05)
    with open_gateway(world.configs["payco"]):
        for number in range(3):
            shop.put_all([chain_message(number=number)])
            wait_for(lambda: shop._outboxes["payco"]._stream is None)
        wait_for(lambda: kept(shop) == 0)  # the end of a stream is acknowledged, too
    assert len(opened) == 3
    assert "holds a stream open" not in caplog.text


def test_an_old_stream_is_replaced(world: ChainWorld, shop: FlightExchange, opened: list[FlightStream]) -> None:
    with open_gateway(world.configs["payco"]):
        shop.put_all([chain_message(number=1)])
        opened[0].opened_at -= 1000.0
        shop.put_all([chain_message(number=2)])
        shop.flush()
        shop.close()
    assert len(opened) == 2
    assert len(stored(world)) == 2


# Broken connections.
def test_what_was_not_acknowledged_is_sent_again_to_a_gateway_that_restarts(
    world: ChainWorld, shop: FlightExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first gateway takes a message and loses it: it is closed before it has stored it. Shop only waits."""
    payco, began, lose = world.configs["payco"], threading.Event(), SmallMessage.commit

    def die(self: SmallMessage) -> None:
        if self._key == chain_message(number=1).key and not began.is_set():
            began.set()
            raise OSError("the gateway is killed here")
        lose(self)

    monkeypatch.setattr(SmallMessage, "commit", die)
    with open_gateway(payco):
        shop.put_all([chain_message()])
        shop.put_all([chain_message(number=1)])
        assert began.wait(PATIENCE)
    with open_gateway(payco):
        wait_for(lambda: len(stored(world)) == 2)
        shop.flush()
        assert kept(shop) == 0


def test_a_gateway_that_never_comes_back_is_named_by_flush_and_by_a_put(world: ChainWorld) -> None:
    shop = shop_exchange(world, timeout=SHORT, late=True)
    with open_gateway(world.configs["payco"]):
        shop.put_all([chain_message()])
        shop.flush()
        wait_for(lambda: shop._outboxes["payco"]._stream is None)  # ended as idle: the next put opens another
    for call in (lambda: shop.put_all([chain_message(number=1)]) or shop.flush(), shop.flush):
        with pytest.raises(PeerError, match="gateway of payco"):
            call()
    with open_gateway(world.configs["payco"]):
        wait_for(lambda: flushed(shop))  # it has kept the message; on a busy machine a short time is too short
        assert len(stored(world)) == 2
    shop.close()


def flushed(exchange: FlightExchange) -> bool:
    try:
        exchange.flush()
    except PeerError:
        return False
    return True


def test_a_rerun_forgets_what_an_earlier_attempt_could_not_deliver(world: ChainWorld) -> None:
    shop = shop_exchange(world, timeout=SHORT, late=True)
    shop._local = MessageStore(world.folder / "inbox")
    with pytest.raises(PeerError):
        shop.put_all([chain_message(), chain_message(run="another")])
    shop.forget_refusal("test")
    assert kept(shop) == 1
    shop.close()


# Refusals.
@pytest.mark.parametrize("embedded", [True, False])
def test_a_get_that_waits_notices_that_the_put_before_it_was_refused(
    world: ChainWorld, shop: FlightExchange, embedded: bool
) -> None:
    """Its own time is not up. `embedded`: the inbox is in this process."""
    with open_gateway(world.configs["payco"]), open_gateway(world.configs["shop"]) as own:
        shop._local = own.inbox if embedded else None
        shop.put_all([chain_message()])
        shop.put_all([OTHER])
        with pytest.raises(RefusedError, match="two different messages"):
            shop.get(chain_message(sender="payco", to="shop").key, timeout=PATIENCE)


@pytest.mark.parametrize("call", ["put", "flush"])
def test_a_refusal_is_raised_once_by_the_next_call(world: ChainWorld, shop: FlightExchange, call: str) -> None:
    with open_gateway(world.configs["payco"]), open_gateway(world.configs["shop"]):
        shop.put_all([chain_message()])
        shop.put_all([OTHER])
        wait_for(lambda: shop._outboxes["payco"].failed)
        calls = {
            "put": lambda: shop.put_all([chain_message(number=1)]),
            "flush": shop.flush,
        }
        with pytest.raises(RefusedError, match="two different messages"):
            calls[call]()
        shop.flush()


def test_a_full_disk_at_the_peer_is_raised_by_flush(
    world: ChainWorld, shop: FlightExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_gateway(world.configs["payco"]):
        shop.put_all([chain_message()])
        monkeypatch.setattr(MessageStore, "store", _full)
        with pytest.raises(StorageError, match="gateway of payco cannot store messages"):
            shop.put_all([chain_message(number=1)]) or shop.flush()


def _full(*_: object) -> None:
    raise StorageError("the disk is full")


def test_threads_that_share_an_outbox_lose_nothing_over_many_restarts(world: ChainWorld, shop: FlightExchange) -> None:
    messages = [chain_message(number=number) for number in range(99)]
    with ThreadPoolExecutor(4) as pool:
        with open_gateway(world.configs["payco"]):
            sent = [pool.submit(shop.put_all, [each]) for each in messages]
            sent[5].result(PATIENCE)
        with open_gateway(world.configs["payco"]):
            sent[50].result(PATIENCE)
        with open_gateway(world.configs["payco"]):
            assert [future.exception(PATIENCE) for future in sent] == [None] * 99
            shop.flush()
            assert stored(world) == sorted(each.key.path for each in messages)
