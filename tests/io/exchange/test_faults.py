"""What may happen to messages and processes, and what comes of it: the same result bit for bit, or one sentence."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support.chain_party import read_output
from support.commands import Line
from support.fault_injection import (
    PATIENCE,
    ROUNDS,
    ChaosExchange,
    Moment,
    Party,
    Scene,
    exchange_of_shop,
    files_below,
    in_a_process,
    make_scene,
    message,
    open_exchanges,
    play,
    raw_client,
    send_half,
    wait_for,
)
from support.parties import write_config
from veilmeans.io.exchange import flight_exchange as gateway_exchange
from veilmeans.io.exchange.connections import close_exchange, load_identity, open_exchange, open_gateway
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_gateway import LONGEST_WAIT
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError

KINDS = pytest.mark.parametrize("kind", ["gateway", "files"])
HALVES = pytest.mark.parametrize("half", ["send", "receive"])


# Messages duplicated, delayed, reordered.
@KINDS
def test_messages_twice_late_and_in_any_order_change_nothing(tmp_path: Path, kind: str) -> None:
    scene = make_scene(tmp_path, kind)
    outputs = play(scene, {"payco": lambda e: ChaosExchange(e, 1), "shop": lambda e: ChaosExchange(e, 2)})
    scene.check(outputs)


def test_threads_that_share_an_exchange_survive_a_restart_of_the_peers_gateway(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, "gateway")
    payco, shop = scene.configs.values()
    exchange = open_exchange(shop)
    messages = [message(number=number) for number in range(99)]
    with ThreadPoolExecutor(4) as pool:
        with open_gateway(payco):
            sent = [pool.submit(exchange.put_all, [each]) for each in messages]
            sent[5].result(PATIENCE)
        with open_gateway(payco):
            errors = [future.exception(PATIENCE) for future in sent]
    close_exchange(shop)
    assert errors == [None] * 99
    assert files_below(payco.storage / "inbox") == [each.key.path for each in messages]


def test_a_thread_that_connects_anew_leaves_the_others_their_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(tmp_path, "gateway")
    put, calls, connected_anew = gateway_exchange._put, [], threading.Event()

    def staged(*arguments: object) -> None:
        """The first call has its client and waits; the second fails; the third has connected anew."""
        calls.append(arguments)
        if len(calls) == 1:
            assert connected_anew.wait(PATIENCE)
        elif len(calls) == 2:
            raise flight.FlightUnavailableError("for a test")
        put(*arguments)
        connected_anew.set()

    monkeypatch.setattr(gateway_exchange, "_put", staged)
    with open_exchanges(scene) as exchanges, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(exchanges["shop"].put_all, [message(number=1)])
        wait_for(lambda: len(calls) == 1)
        exchanges["shop"].put_all([message(number=2)])
        assert slow.exception(PATIENCE) is None


# Processes killed and started again.
def outputs_of(scene: Scene) -> list[dict[int, dict[str, np.ndarray]]]:
    return [read_output(config) for config in scene.configs.values()]


def only_farewells_are_left(scene: Scene) -> None:
    for config in scene.configs.values():
        box = tmp_box(scene, config)
        assert files_below(box) == [f"1/farewell/0.{peer}.msg" for peer in sorted(farewell_names(config))], config.party


def tmp_box(scene: Scene, config: JobConfig) -> Path:
    """Where the run's messages lie: the inbox, or what we left in the outbox for our one peer."""
    if config.exchange.kind == "gateway":
        return config.storage / "inbox" / "test"
    return scene.folder / config.party / "outbox" / next(iter(config.peers)) / "test"


def farewell_names(config: JobConfig) -> list[str]:
    if config.exchange.kind == "gateway":
        return [f"{peer}.{config.party}" for peer in config.peers]
    return [f"{config.party}.{peer}" for peer in config.peers]


@KINDS
@HALVES
@pytest.mark.parametrize("number", [0, 3, ROUNDS - 1])
def test_a_party_killed_in_the_first_a_middle_or_the_last_round_goes_on_when_it_is_started_again(
    tmp_path: Path, kind: str, half: str, number: int
) -> None:
    scene = make_scene(tmp_path, kind)
    payco, shop = Party(scene, "payco").start(), Party(scene, "shop", f"--strike={number}:{half}:die")
    assert shop.start().wait() == -signal.SIGKILL
    assert shop.start().wait() == 0, shop.said()
    assert payco.wait() == 0, payco.said()
    scene.check(outputs_of(scene))
    only_farewells_are_left(scene)


@KINDS
def test_both_parties_killed_in_every_round_go_on(tmp_path: Path, kind: str) -> None:
    scene = make_scene(tmp_path, kind)
    parties = [
        Party(scene, "payco", *(f"--strike={number}:send:die" for number in range(ROUNDS))),
        Party(scene, "shop", *(f"--strike={number}:receive:die" for number in range(ROUNDS)), "--chaos=3"),
    ]

    def until_done(party: Party) -> list[int]:
        codes = [party.start().wait()]
        while codes[-1] == -signal.SIGKILL:
            codes.append(party.start().wait())
        return codes

    with ThreadPoolExecutor(2) as pool:
        for codes in pool.map(until_done, parties):
            assert codes == [-signal.SIGKILL] * ROUNDS + [0], [party.said() for party in parties]
    scene.check(outputs_of(scene))


@KINDS
def test_pipelines_killed_failing_and_disturbed_give_the_same_result(tmp_path: Path, kind: str) -> None:
    """On Beam: shop is killed and started again; payco's DoFns fail twice, and its messages go astray."""
    scene = make_scene(tmp_path, kind)
    on_beam = ("--executor=beam", "--chaos=4", "--strike=1:send:fail", "--strike=3:receive:fail")
    payco = Party(scene, "payco", *on_beam).start()
    in_threads = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    shop = Party(scene, "shop", "--executor=beam", "--strike=2:receive:die", *in_threads)
    assert shop.start().wait() == -signal.SIGKILL
    assert shop.start().wait() == 0, shop.said()
    assert payco.wait() == 0, payco.said()
    for moment in (Moment(1, "send", "fail"), Moment(3, "receive", "fail")):
        assert moment.mark(scene.configs["payco"].storage).exists()
    scene.check(outputs_of(scene))
    only_farewells_are_left(scene)


# The gateway as a process of its own.
@contextmanager
def gateway_process(config_file: Path) -> Iterator[Line]:
    log = config_file.with_suffix(f".{time.monotonic_ns()}.log")
    gateway = Line(["gateway", "--config", str(config_file)], log)
    try:
        yield gateway
    finally:
        gateway.kill()


def test_a_separate_gateway_killed_in_the_middle_and_started_again_loses_nothing(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, "gateway", gateway="separate", timeout=60.0)
    config = scene.configs["payco"]
    embedded = scene.configs["shop"].model_copy(update={"gateway": "embedded"})
    write_config(embedded, scene.file("shop"))
    payco, shop = Party(scene, "payco", "--strike=3:send:hold").start(), Party(scene, "shop").start()
    with gateway_process(scene.file("payco")) as first:
        wait_for(Moment(3, "send", "hold").mark(config.storage).exists)
        first.kill()
    (config.storage / "go-on").touch()
    with gateway_process(scene.file("payco")) as second:
        assert (payco.wait(), shop.wait()) == (0, 0), payco.said() + shop.said()
        second.process.terminate()
        assert second.wait()[0] == 0
    scene.check(outputs_of(scene))
    only_farewells_are_left(scene)


def test_a_frozen_gateway_is_reported_after_the_timeout(tmp_path: Path) -> None:
    """The connection stands and nobody answers. (The put has a thread of its own: if it hung, the test would not.)"""
    scene = make_scene(tmp_path, "gateway")
    exchange = exchange_of_shop(scene, timeout=2.0)
    with ThreadPoolExecutor(1) as pool, gateway_process(scene.file("payco")) as gateway:
        exchange_of_shop(scene, timeout=PATIENCE).put_all([message()])
        exchange.put_all([message()])
        os.kill(gateway.process.pid or 0, signal.SIGSTOP)
        error = pool.submit(exchange.put_all, [message(number=1)]).exception(PATIENCE)
        assert isinstance(error, PeerError)
        assert "the gateway of payco at" in error.sentence
        assert "did not answer within 2 s" in error.sentence
        os.kill(gateway.process.pid or 0, signal.SIGCONT)
        exchange_of_shop(scene, timeout=PATIENCE).put_all([message(number=1)])


def test_sigterm_ends_a_gateway_though_a_peer_holds_a_stream(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, "gateway")
    with gateway_process(scene.file("payco")) as gateway:
        exchange_of_shop(scene, timeout=PATIENCE).put_all([message()])
        sent = Outgoing.of(message(number=1).key, {"e": np.zeros(700_000)})  # more than one part
        peer = in_a_process(send_half, scene.file("payco"), scene.file("shop"), sent.key, sent.payload.to_pybytes())
        inbox = scene.configs["payco"].storage / "inbox"
        wait_for(lambda: any(name.endswith(".part") for name in files_below(inbox)))
        gateway.process.terminate()
        code, said = gateway.wait()
        assert code == 0
        assert "a peer holds a stream open" in said
        peer.kill()
        peer.join(PATIENCE)


def test_a_closing_gateway_does_not_wait_for_those_who_wait(tmp_path: Path) -> None:
    config = make_scene(tmp_path, "gateway").configs["payco"]
    ticket = flight.Ticket(json.dumps({"key": message().key.to_json(), "wait": LONGEST_WAIT}))
    answer: list[pa.Table] = []
    with open_gateway(config):
        client = raw_client(config, load_identity(config))
        waiting = threading.Thread(target=lambda: answer.append(client.do_get(ticket).read_all()))
        waiting.start()
        time.sleep(0.5)
        start = time.monotonic()
    assert time.monotonic() - start < LONGEST_WAIT / 2
    waiting.join(PATIENCE)
    assert answer[0].num_rows == 0


# Peers who are not there.
@KINDS
def test_a_silent_peer_is_reported_after_the_timeout(tmp_path: Path, kind: str) -> None:
    with open_exchanges(make_scene(tmp_path, kind, timeout=1.0)) as exchanges:
        start = time.monotonic()
        with pytest.raises(PeerError, match=r"no message test/0/chain.00.multiply/0 came from shop within 1 s"):
            exchanges["payco"].get(message().key, timeout=1.0)
        assert 1.0 <= time.monotonic() - start < PATIENCE


def test_an_absent_gateway_is_reported_after_the_timeout(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, "gateway", timeout=1.0)
    exchange = open_exchange(scene.configs["shop"])
    address = scene.configs["payco"].listen
    start = time.monotonic()
    with pytest.raises(PeerError, match=f"the gateway of payco at {address} did not answer within 1 s"):
        exchange.put_all([message()])
    assert 1.0 <= time.monotonic() - start < PATIENCE
    close_exchange(scene.configs["shop"])


@KINDS
def test_a_party_whose_peer_never_comes_ends_with_code_5(tmp_path: Path, kind: str) -> None:
    scene = make_scene(tmp_path, kind, timeout=2.0)
    payco = Party(scene, "payco").start()
    assert payco.wait() == PeerError.code
    assert "shop" in payco.said()
    assert payco.said().count("error: ") == 1


# What is left behind.
@KINDS
@pytest.mark.parametrize("run", ["test", "1", "handshake"])
def test_collect_drops_finished_iterations_only(tmp_path: Path, kind: str, run: str) -> None:
    """A run may be called like an iteration or a stage."""
    scene = make_scene(tmp_path, kind)
    with open_exchanges(scene) as exchanges:
        messages = [message(r, i, n) for r in (run, "other") for i in (0, 1, 2) for n in (0, 1)]
        exchanges["shop"].put_all(messages)
        collector = exchanges["payco" if kind == "gateway" else "shop"]
        box = tmp_path / ("payco/storage/inbox" if kind == "gateway" else "shop/outbox/payco")
        assert files_below(box) == sorted(m.key.path for m in messages)
        assert collector.collect(run, before=2) == 4
        kept = [m for m in messages if m.key.address.run == "other" or m.key.address.iteration == 2]
        assert files_below(box) == sorted(m.key.path for m in kept)
        assert collector.collect(run, before=2) == 0
        assert collector.collect(run) == 2
        assert files_below(box) == sorted(m.key.path for m in kept if m.key.address.run == "other")
        assert collector.collect("never heard of") == 0
