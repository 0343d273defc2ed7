"""Faults of messages, processes and gateways: the same shares bit for bit, or one sentence at every party."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.flight as flight
import pytest

from support.chain_party import read_output
from support.commands import CommandProcess
from support.fault_injection import (
    PATIENCE,
    ROUNDS,
    ActionAtRound,
    ChainWorld,
    DisorderedExchange,
    Fault,
    PartyProcess,
    chain_message,
    files_below,
    make_chain_world,
    open_exchanges,
    run_in_process,
    send_first_part,
    shop_exchange,
    start_process,
    stored_messages,
    wait_for,
)
from support.parties import write_config
from support.raw_messages import parts_of, raw_client, send_raw
from veilmeans.crypto.certificates import make_identity
from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError, RefusedError, VeilmeansError

KINDS = pytest.mark.parametrize("kind", ["gateway", "files"])
HALVES = pytest.mark.parametrize("half", ["send", "receive"])


# Messages.
@KINDS
def test_messages_sent_twice_late_and_in_any_order_change_nothing(tmp_path: Path, kind: str) -> None:
    world = make_chain_world(tmp_path, kind)
    wrappers = {"payco": lambda e: DisorderedExchange(e, 1), "shop": lambda e: DisorderedExchange(e, 2)}
    world.check(run_in_process(world, wrappers))


def test_a_stranger_is_refused_and_the_run_continues(tmp_path: Path) -> None:
    """Its certificate names shop, but it made it itself."""
    world = make_chain_world(tmp_path, "gateway")
    refused: list[Exception] = []

    def intrude(exchange: Exchange, messages: list[Outgoing]) -> None:
        del exchange, messages
        stranger = raw_client(world.configs["payco"], make_identity("shop", 2))
        try:
            send_raw(stranger, parts_of(chain_message(number=4)))
        except flight.FlightUnavailableError as error:
            refused.append(error)

    world.check(run_in_process(world, {"payco": lambda e: ActionAtRound(e, 2, intrude)}))
    assert len(refused) == 1


def test_one_sentence_ends_both_parties_of_a_run(tmp_path: Path) -> None:
    world = make_chain_world(tmp_path, "gateway")
    errors: dict[str, VeilmeansError] = {}

    def contradict(exchange: Exchange, messages: list[Outgoing]) -> None:
        exchange.put_all(messages)
        try:
            exchange.put_all([Outgoing.of(messages[0].key, {"e": np.zeros(1, np.uint64)})])
        except VeilmeansError as error:
            errors["shop"] = error
            raise

    with pytest.raises(RefusedError) as first:
        run_in_process(world, {"shop": lambda e: ActionAtRound(e, 3, contradict)})
    assert errors["shop"].sentence == first.value.sentence
    assert "test/0/chain.03.multiply/0 from shop to payco" in first.value.sentence


# Processes.
def outputs_of(world: ChainWorld) -> list[dict[int, dict[str, np.ndarray]]]:
    return [read_output(config) for config in world.configs.values()]


def check_only_farewells_remain(world: ChainWorld) -> None:
    for config in world.configs.values():
        farewells = [f"1/farewell/0.{names}.msg" for names in sorted(farewell_names(config))]
        assert stored_messages(message_folder(world, config)) == farewells, config.party


def message_folder(world: ChainWorld, config: JobConfig) -> Path:
    """The folder of the run's messages: the inbox, or the outbox for the one peer."""
    if config.exchange.kind == "gateway":
        return config.storage_folder.inbox / "test"
    return world.folder / config.party / "outbox" / next(iter(config.peers)) / "test"


def farewell_names(config: JobConfig) -> list[str]:
    if config.exchange.kind == "gateway":
        return [f"{peer}.{config.party}" for peer in config.peers]
    return [f"{config.party}.{peer}" for peer in config.peers]


@pytest.mark.processes
@KINDS
@HALVES
@pytest.mark.parametrize("number", [0, 3, ROUNDS - 1])
def test_a_party_killed_in_the_first_a_middle_or_the_last_round_resumes_when_it_is_rerun(
    tmp_path: Path, kind: str, half: str, number: int
) -> None:
    world = make_chain_world(tmp_path, kind)
    payco, shop = PartyProcess(world, "payco").start(), PartyProcess(world, "shop", f"--fault={number}:{half}:die")
    assert shop.start().wait() == -signal.SIGKILL
    assert shop.start().wait() == 0, shop.output()
    assert payco.wait() == 0, payco.output()
    world.check(outputs_of(world))
    check_only_farewells_remain(world)


@pytest.mark.processes
@pytest.mark.parametrize("half", ["arrive", "store"])
@pytest.mark.parametrize("number", [0, 3, ROUNDS - 1])
def test_a_recipient_killed_before_it_acknowledges_a_message_gets_it_again(
    tmp_path: Path, half: str, number: int
) -> None:
    """It dies before it has stored the message, or after: payco, which continues meanwhile, is not rerun."""
    world = make_chain_world(tmp_path, "gateway")
    payco, shop = PartyProcess(world, "payco").start(), PartyProcess(world, "shop", f"--fault={number}:{half}:die")
    assert shop.start().wait() == -signal.SIGKILL
    assert shop.start().wait() == 0, shop.output()
    assert payco.wait() == 0, payco.output()
    world.check(outputs_of(world))
    check_only_farewells_remain(world)


@pytest.mark.processes
@KINDS
def test_both_parties_killed_in_every_round_resume(tmp_path: Path, kind: str) -> None:
    world = make_chain_world(tmp_path, kind)
    parties = [
        PartyProcess(world, "payco", *(f"--fault={number}:send:die" for number in range(ROUNDS))),
        PartyProcess(world, "shop", *(f"--fault={number}:receive:die" for number in range(ROUNDS)), "--disorder=3"),
    ]

    def until_done(party: PartyProcess) -> list[int]:
        codes = [party.start().wait()]
        while codes[-1] == -signal.SIGKILL:
            codes.append(party.start().wait())
        return codes

    with ThreadPoolExecutor(2) as pool:
        for codes in pool.map(until_done, parties):
            assert codes == [-signal.SIGKILL] * ROUNDS + [0], [party.output() for party in parties]
    world.check(outputs_of(world))


@pytest.mark.processes
@KINDS
def test_pipelines_that_are_killed_fail_and_are_disturbed_give_the_same_result(tmp_path: Path, kind: str) -> None:
    """On Beam: shop is killed and rerun; payco's DoFns fail twice, and its messages are disordered."""
    world = make_chain_world(tmp_path, kind)
    on_beam = ("--executor=beam", "--disorder=4", "--fault=1:send:fail", "--fault=3:receive:fail")
    payco = PartyProcess(world, "payco", *on_beam).start()
    in_threads = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    shop = PartyProcess(world, "shop", "--executor=beam", "--fault=2:receive:die", *in_threads)
    assert shop.start().wait() == -signal.SIGKILL
    assert shop.start().wait() == 0, shop.output()
    assert payco.wait() == 0, payco.output()
    for fault in (Fault(1, "send", "fail"), Fault(3, "receive", "fail")):
        assert fault.mark(world.configs["payco"].storage).exists()
    world.check(outputs_of(world))
    check_only_farewells_remain(world)


@pytest.mark.long
@pytest.mark.processes
@KINDS
def test_processes_end_with_code_6_and_one_line_when_a_party_contradicts_itself(tmp_path: Path, kind: str) -> None:
    """Shop is rerun with other data: its messages are not those that it sent before.

    Payco may be sending to shop, or learn nothing of it (files): it waits until its time is up.
    """
    world = make_chain_world(tmp_path, kind, timeout=10.0)
    payco, shop = PartyProcess(world, "payco"), PartyProcess(world, "shop", "--fault=3:receive:die")
    payco.start()
    assert shop.start().wait() == -signal.SIGKILL
    for file in world.configs["shop"].storage.glob("input-*.arrow"):
        changed = bytearray(file.read_bytes())
        changed[-60:-20] = bytes(40)
        file.write_bytes(changed)
    assert shop.start().wait() == RefusedError.code
    assert payco.wait() == (RefusedError.code if kind == "gateway" else PeerError.code)
    for party in (payco, shop):
        errors = [line for line in party.output().splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert "Traceback" not in party.output()
        assert "shop" in errors[0]
        assert "chain.0" in errors[0]


@pytest.mark.processes
@KINDS
def test_a_party_whose_peer_never_comes_ends_with_code_5(tmp_path: Path, kind: str) -> None:
    world = make_chain_world(tmp_path, kind, timeout=0.5)
    payco = PartyProcess(world, "payco").start()
    assert payco.wait() == PeerError.code
    assert "shop" in payco.output()
    assert payco.output().count("error: ") == 1


# The gateway as a process of its own.
@contextmanager
def gateway_process(config_file: Path) -> Iterator[CommandProcess]:
    log = config_file.with_suffix(f".{time.monotonic_ns()}.log")
    gateway = CommandProcess(["gateway", "--config", str(config_file)], log)
    try:
        yield gateway
    finally:
        gateway.kill()


@pytest.mark.processes
def test_a_separate_gateway_that_is_killed_and_restarted_loses_nothing(tmp_path: Path) -> None:
    world = make_chain_world(tmp_path, "gateway", gateway="separate")
    config = world.configs["payco"]
    embedded = world.configs["shop"].model_copy(update={"gateway": "embedded"})
    write_config(embedded, world.file("shop"))
    payco, shop = PartyProcess(world, "payco", "--fault=3:send:hold").start(), PartyProcess(world, "shop").start()
    with gateway_process(world.file("payco")) as first:
        wait_for(Fault(3, "send", "hold").mark(config.storage).exists)
        first.kill()
    (config.storage / "continue").touch()
    with gateway_process(world.file("payco")) as second:
        assert (payco.wait(), shop.wait()) == (0, 0), payco.output() + shop.output()
        second.process.terminate()
        assert second.wait()[0] == 0
    world.check(outputs_of(world))
    check_only_farewells_remain(world)


@pytest.mark.processes
def test_a_frozen_gateway_is_named_after_the_timeout(tmp_path: Path) -> None:
    """The connection exists and nobody answers. (The put has a thread of its own: if it hung, the test would not.)"""
    world = make_chain_world(tmp_path, "gateway")
    exchange, patient = shop_exchange(world, timeout=1.0), shop_exchange(world)
    with ThreadPoolExecutor(1) as pool, gateway_process(world.file("payco")) as gateway:
        patient.put_all([chain_message()])
        os.kill(gateway.process.pid or 0, signal.SIGSTOP)
        error = pool.submit(exchange.put_all, [chain_message(number=1)]).exception(PATIENCE)
        assert isinstance(error, PeerError)
        assert "payco" in error.sentence
        os.kill(gateway.process.pid or 0, signal.SIGCONT)
        patient.put_all([chain_message(number=1)])


@pytest.mark.processes
def test_sigterm_ends_a_gateway_though_a_peer_holds_a_stream(tmp_path: Path) -> None:
    world = make_chain_world(tmp_path, "gateway")
    with gateway_process(world.file("payco")) as gateway:
        shop_exchange(world).put_all([chain_message()])
        sent = Outgoing.of(chain_message(number=1).key, {"e": np.zeros(700_000)})  # more than one part
        files = world.file("payco"), world.file("shop")
        peer = start_process(send_first_part, *files, sent.key, sent.payload.to_pybytes())
        inbox = world.configs["payco"].storage_folder.inbox
        wait_for(lambda: any(name.endswith(".part") for name in files_below(inbox)))
        gateway.process.terminate()
        code, output = gateway.wait()
        assert code == 0
        assert "holds a stream open" in output
        peer.kill()
        peer.join(PATIENCE)


# Messages that are dropped.
@KINDS
@pytest.mark.parametrize("run", ["test", "1", "handshake"])
def test_only_messages_of_finished_iterations_are_dropped(tmp_path: Path, kind: str, run: str) -> None:
    """A run may have the name of an iteration or of a stage."""
    world = make_chain_world(tmp_path, kind)
    with open_exchanges(world) as exchanges:
        messages = [chain_message(r, i, n) for r in (run, "other") for i in (0, 1, 2) for n in (0, 1)]
        exchanges["shop"].put_all(messages)
        owner = exchanges["payco" if kind == "gateway" else "shop"]
        folder = tmp_path / ("payco/storage/inbox" if kind == "gateway" else "shop/outbox/payco")
        assert stored_messages(folder) == sorted(m.key.path for m in messages)
        assert owner.drop_messages(run, before=2) == 4
        remaining = [m for m in messages if m.key.address.run == "other" or m.key.address.iteration == 2]
        assert stored_messages(folder) == sorted(m.key.path for m in remaining)
        assert owner.drop_messages(run, before=2) == 0
        assert owner.drop_messages(run) == 2
        assert stored_messages(folder) == sorted(m.key.path for m in remaining if m.key.address.run == "other")
        assert owner.drop_messages("unknown") == 0
