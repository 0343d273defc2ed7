"""Streams to a gateway that are used again: how many are opened, and what happens when they no longer work."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from support.fault_injection import Scene, make_scene, message, wait_for
from veilmeans.io.exchange import connections as connect
from veilmeans.io.exchange import flight_streams as line
from veilmeans.io.exchange.connections import close_exchange, open_exchange, open_gateway
from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.io.exchange.flight_gateway import Gateway
from veilmeans.schemas.errors import RefusedError


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path, "gateway", timeout=8.0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[line.FlightStream]:
    """Every line that is opened."""
    lines: list[line.FlightStream] = []

    class Noted(line.FlightStream):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            lines.append(self)

    monkeypatch.setattr(line, "FlightStream", Noted)
    return lines


@pytest.fixture
def shop(scene: Scene, opened: list[line.FlightStream]) -> Iterator[Exchange]:
    """Shop's exchange, which sends to payco."""
    del opened
    yield open_exchange(scene.configs["shop"])
    close_exchange(scene.configs["shop"])


def put(exchange: Exchange, *numbers: int) -> None:
    exchange.put_all([message(number=number) for number in numbers])


def stored(scene: Scene) -> int:
    return len(list((scene.configs["payco"].storage / "inbox").rglob("*.msg")))


def test_rounds_one_after_the_other_share_a_line(scene: Scene, shop: Exchange, opened: list[line.FlightStream]) -> None:
    with open_gateway(scene.configs["payco"]):
        for number in range(20):
            put(shop, number, 100 + number)
    assert len(opened) == 1
    assert stored(scene) == 40


def test_a_gateway_that_was_started_again_is_reached_over_a_new_line(
    scene: Scene, shop: Exchange, opened: list[line.FlightStream]
) -> None:
    for number in range(3):
        with open_gateway(scene.configs["payco"]):
            put(shop, number)
    assert len(opened) >= 3
    assert stored(scene) == 3


def test_a_message_that_comes_while_the_gateway_is_being_built_is_stored(
    scene: Scene, shop: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow serves before the constructor of its base class returns, so no field may be set after that."""

    class Slow(Gateway):
        def __setattr__(self, name: str, value: object) -> None:
            time.sleep(0.3)
            super().__setattr__(name, value)

    monkeypatch.setattr(connect, "Gateway", Slow)
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(put, shop, 1)
        with open_gateway(scene.configs["payco"]):
            sending.result()
    assert stored(scene) == 1


def test_an_idle_line_is_closed_and_the_gateway_need_not_wait_for_it(
    scene: Scene, shop: Exchange, opened: list[line.FlightStream], caplog: pytest.LogCaptureFixture
) -> None:
    with open_gateway(scene.configs["payco"]):
        put(shop, 1)
        lines = shop._lines["payco"]  # type: ignore[attr-defined]
        wait_for(lambda: not lines._free)
        put(shop, 2)
        wait_for(lambda: not lines._free)
    assert len(opened) == 2
    assert "holds a stream open" not in caplog.text


def test_an_old_line_is_not_used_again(
    scene: Scene, shop: Exchange, opened: list[line.FlightStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_gateway(scene.configs["payco"]):
        put(shop, 1)
        later = time.monotonic() + 5.0  # its lifetime is half the time-out, and at most ten seconds
        monkeypatch.setattr(line.time, "monotonic", lambda: later)
        put(shop, 2)
    assert len(opened) == 2


def test_a_refusal_over_a_used_line_is_told_once_and_ends_the_line(
    scene: Scene, shop: Exchange, opened: list[line.FlightStream], caplog: pytest.LogCaptureFixture
) -> None:
    with open_gateway(scene.configs["payco"]):
        put(shop, 1)
        with pytest.raises(RefusedError, match="two different messages"):
            shop.put_all([Outgoing.of(message(number=1).key, {"e": np.zeros(3)})])
        assert caplog.text.count("refused a message of shop") == 1
    assert len(opened) == 1
