"""A simulated link, on a simulated clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from support.parties import InMemoryExchange, make_configs
from veilmeans.io.exchange import link_shaping
from veilmeans.io.exchange.connections import close_exchange, open_exchange
from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.io.exchange.link_shaping import ASSUMED_LINK, LAN, WAN, Link, ShapedExchange
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import LinkConfig, LinkShape
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import MessageKey

START = 1000.0


@dataclass
class Clock:
    """A stand-in for the module `time`, whose clock is moved on by sleeping."""

    now: float = START

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@dataclass
class Delivery(InMemoryExchange):
    """An exchange that records when messages are put."""

    clock: Clock
    at: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        self.at.append((self.clock.now, len(messages)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(link_shaping, "time", clock)
    return clock


def message(size: int, shard: int = 0) -> Outgoing:
    return Outgoing(MessageKey(Address("run", 0, "stage", shard), "payco", "shop"), pa.py_buffer(bytes(size)))


def test_the_links_are_those_of_the_paper() -> None:
    assert Link(rate=10e9 / 8, round_trip=0.02e-3) == LAN
    assert Link(rate=20e6 / 8, round_trip=40e-3) == WAN


def test_a_configuration_gives_megabits_and_milliseconds() -> None:
    assert Link.from_config(LinkShape(rate_mbps=40, round_trip_ms=80)) == Link(5e6, 0.08)
    assert Link.from_config(LinkConfig()) == ASSUMED_LINK == Link(125e6, 0.0005)


@pytest.mark.parametrize("link", [LAN, WAN, Link(1.0, 0.0)], ids=["LAN", "WAN", "slow"])
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_message_takes_bytes_divided_by_rate_and_half_a_round_trip(
    tmp_path: Path, clock: Clock, link: Link, size: int
) -> None:
    """The acknowledgement, for which `flush` waits, takes the other half."""
    inner = Delivery(clock)
    shaped = ShapedExchange(inner, link, tmp_path / "clock")
    shaped.put_all([message(size)])
    shaped.flush()
    arrival = START + size / link.rate + link.round_trip / 2
    assert inner.at == [(pytest.approx(arrival, abs=1e-9), 1)]
    assert clock.now == pytest.approx(arrival + link.round_trip / 2, abs=1e-9)


def test_a_sender_does_not_wait_until_its_message_arrives(tmp_path: Path) -> None:
    """On the machine's own clock: the message would arrive after an hour."""
    inner = InMemoryExchange()
    ShapedExchange(inner, Link(rate=1e9, round_trip=7200.0), tmp_path / "clock").put_all([message(5)])
    assert inner.messages == {}


def test_a_worker_beside_the_job_waits_for_the_acknowledgement(tmp_path: Path, clock: Clock) -> None:
    inner = Delivery(clock)
    ShapedExchange(inner, WAN, tmp_path / "clock", late=False).put_all([message(1)])
    assert len(inner.at) == 1


def test_a_sender_of_many_bytes_waits_until_all_but_a_buffer_have_left(tmp_path: Path, clock: Clock) -> None:
    shaped = ShapedExchange(Delivery(clock), Link(rate=1e6, round_trip=0.0), tmp_path / "clock")
    shaped.put_all([message(10_000_000)])
    assert clock.now >= START + 10 - link_shaping._BUFFER / 1e6


def test_an_error_of_a_message_on_its_way_is_raised_by_flush(tmp_path: Path, clock: Clock) -> None:
    del clock
    inner = InMemoryExchange()
    shaped = ShapedExchange(inner, WAN, tmp_path / "clock")
    shaped.put_all([message(5)])
    shaped.put_all([message(6)])
    with pytest.raises(RefusedError, match="two different messages"):
        shaped.flush()
    shaped.flush()


def test_messages_of_one_put_take_one_round_trip(tmp_path: Path, clock: Clock) -> None:
    inner = Delivery(clock)
    shaped = ShapedExchange(inner, WAN, tmp_path / "clock")
    shaped.put_all([message(25_000, shard) for shard in range(10)])
    shaped.flush()
    assert inner.at == [(pytest.approx(START + 0.1 + 0.02), 10)]


def test_two_workers_share_one_link(tmp_path: Path, clock: Clock) -> None:
    one, other = (ShapedExchange(Delivery(clock), WAN, tmp_path / "clock") for _ in range(2))
    assert one._reserve(2_500_000) == pytest.approx(START + 1)
    assert other._reserve(2_500_000) == pytest.approx(START + 2)
    assert one._reserve(2_500_000) == pytest.approx(START + 3)
    clock.now += 10
    assert other._reserve(2_500_000) == pytest.approx(START + 11)


def test_two_parties_have_a_link_each(tmp_path: Path, clock: Clock) -> None:
    links = [ShapedExchange(Delivery(clock), WAN, tmp_path / name / "clock") for name in ("payco", "shop")]
    assert [link._reserve(2_500_000) for link in links] == [pytest.approx(START + 1)] * 2


def test_nothing_to_send_takes_no_time(tmp_path: Path, clock: Clock) -> None:
    inner = Delivery(clock)
    ShapedExchange(inner, WAN, tmp_path / "clock").put_all([])
    assert clock.now == START
    assert inner.at == []


def test_a_shaped_exchange_returns_the_messages_of_the_inner_one(tmp_path: Path, clock: Clock) -> None:
    shaped = ShapedExchange(InMemoryExchange(), WAN, tmp_path / "clock")
    assert isinstance(shaped, Exchange)
    shaped.put_all([message(5)])
    assert shaped.get(message(5).key, 1000.0).size == 5
    shaped.flush()
    sent = clock.now
    assert shaped.get(message(5).key, 1.0).size == 5
    assert clock.now == sent


def test_an_exchange_is_shaped_as_its_configuration_says(tmp_path: Path) -> None:
    shape = {"shape": {"rate_mbps": 20, "round_trip_ms": 40}}
    config = make_configs(tmp_path, kind="files", exchange=shape)["payco"]
    exchange = open_exchange(config)
    close_exchange(config)
    assert isinstance(exchange, ShapedExchange)
    np.testing.assert_allclose([exchange._link.rate, exchange._link.round_trip], [WAN.rate, WAN.round_trip])
