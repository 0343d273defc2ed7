"""Streams that are kept open between puts: how many are opened, and when they are replaced."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.flight as flight
import pytest

from support.fault_injection import PATIENCE, ChainWorld, chain_message, make_chain_world, raw_client, wait_for
from veilmeans.io.exchange import flight_streams
from veilmeans.io.exchange.connections import load_identity, open_gateway
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_streams import FlightStream, FlightStreams
from veilmeans.schemas.message import Header

LONG, SHORT = 1000.0, 0.05
"""Seconds after which an idle stream is closed: never in a test, or soon."""


@pytest.fixture
def world(tmp_path: Path) -> ChainWorld:
    return make_chain_world(tmp_path, "gateway")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FlightStream]:
    """Every stream that is opened from now on."""
    streams: list[FlightStream] = []

    class Recorded(FlightStream):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            streams.append(self)

    monkeypatch.setattr(flight_streams, "FlightStream", Recorded)
    return streams


@pytest.fixture
def streams() -> Iterator[FlightStreams]:
    """Streams that do not become idle."""
    streams = FlightStreams(PATIENCE, idle=LONG)
    yield streams
    streams.close()


def put(world: ChainWorld, streams: FlightStreams, *messages: Outgoing) -> None:
    """Put messages of shop to payco's gateway."""
    client = raw_client(world.configs["payco"], load_identity(world.configs["shop"]))
    streams.put([(message, Header.of(message.payload)) for message in messages], client)


def stored(world: ChainWorld) -> int:
    return len(list(world.configs["payco"].storage_folder.inbox.rglob("*.msg")))


def test_puts_one_after_the_other_share_a_stream(
    world: ChainWorld, streams: FlightStreams, opened: list[FlightStream]
) -> None:
    with open_gateway(world.configs["payco"]):
        for number in range(20):
            put(world, streams, chain_message(number=number), chain_message(number=100 + number))
        streams.close()
    assert len(opened) == 1
    assert stored(world) == 40


def test_a_stream_that_was_closed_is_replaced(
    world: ChainWorld, streams: FlightStreams, opened: list[FlightStream]
) -> None:
    with open_gateway(world.configs["payco"]):
        put(world, streams, chain_message(number=0))
        opened[0].close()
        put(world, streams, chain_message(number=1))
        streams.close()
    assert len(opened) == 2
    assert stored(world) == 2


def test_an_idle_stream_is_closed_and_the_gateway_need_not_wait_for_it(
    world: ChainWorld, opened: list[FlightStream], caplog: pytest.LogCaptureFixture
) -> None:
    streams = FlightStreams(PATIENCE, idle=SHORT)
    with open_gateway(world.configs["payco"]):
        for number in range(2):
            put(world, streams, chain_message(number=number))
            wait_for(lambda: not streams._free)
    assert len(opened) == 2
    assert "holds a stream open" not in caplog.text


def test_an_old_stream_is_not_used_again(world: ChainWorld, streams: FlightStreams, opened: list[FlightStream]) -> None:
    with open_gateway(world.configs["payco"]):
        put(world, streams, chain_message(number=1))
        opened[0].opened_at -= 60.0
        put(world, streams, chain_message(number=2))
        streams.close()
    assert len(opened) == 2


def test_a_refusal_over_an_open_stream_is_logged_once_and_ends_the_stream(
    world: ChainWorld, streams: FlightStreams, opened: list[FlightStream], caplog: pytest.LogCaptureFixture
) -> None:
    other = Outgoing.of(chain_message().key, {"e": np.zeros(3)})
    with open_gateway(world.configs["payco"]):
        put(world, streams, chain_message())
        with pytest.raises(flight.FlightServerError, match="two different messages"):
            put(world, streams, other)
        assert caplog.text.count("refused a message of shop") == 1
    assert len(opened) == 1
