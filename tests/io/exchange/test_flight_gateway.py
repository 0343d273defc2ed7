"""The gateway: a peer's bad message ends the run at both sides, and a peer may put messages and nothing else.

A hostile peer has the right certificate and a client of its own.
"""

import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
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
    files_below,
    make_chain_world,
    send_first_part,
    shop_exchange,
    start_process,
    wait_for,
)
from support.raw_messages import Part, label, parts_of, raw_client, send_raw
from veilmeans.io.exchange import connections, inbox
from veilmeans.io.exchange.connections import close_exchange, load_identity, open_exchange, open_gateway
from veilmeans.io.exchange.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.exchange.flight_gateway import LONGEST_WAIT, Gateway
from veilmeans.io.exchange.flight_streams import PART_SCHEMA, PART_SIZE
from veilmeans.schemas.arrays import to_batch, to_stream
from veilmeans.schemas.errors import RefusedError, StorageError, recover_error
from veilmeans.schemas.message import Header

SENT = chain_message()


@pytest.fixture
def world(tmp_path: Path) -> ChainWorld:
    """Three parties with gateways; a message may have at most 64 MB."""
    return make_chain_world(tmp_path, "gateway", parties=3)


@pytest.fixture
def payco(world: ChainWorld) -> Iterator[Exchange]:
    """Payco's exchange, while its gateway is open."""
    config = world.configs["payco"]
    with open_gateway(config):
        yield open_exchange(config)
        close_exchange(config)


@pytest.fixture
def hostile(world: ChainWorld, payco: Exchange) -> flight.FlightClient:
    """A client at payco's gateway with shop's certificate."""
    del payco
    return raw_client(world.configs["payco"], load_identity(world.configs["shop"]))


# Messages that are refused.
def altered() -> list[Part]:
    flipped = bytearray(SENT.payload)
    flipped[-30] ^= 1
    return parts_of(Outgoing(SENT.key, pa.py_buffer(bytes(flipped))), Header.of(SENT.payload))


OVERSIZED = label(SENT.key, Header.of(pa.py_buffer(bytes(PART_SIZE + 1))))
BAD: dict[str, Callable[[], list[Part]]] = {
    "truncated": lambda: parts_of(Outgoing(SENT.key, SENT.payload.slice(0, 100)), Header.of(SENT.payload)),
    "altered": altered,
    "longer than": lambda: parts_of(SENT, Header(10, Header.of(SENT.payload).digest)),
    "64,000,001": lambda: parts_of(Outgoing(SENT.key, pa.py_buffer(bytes(64_000_001))))[:1],
    "a part of more than 4,194,304 bytes": lambda: [
        (pa.record_batch([pa.array([bytes(PART_SIZE + 1)], pa.large_binary())], schema=PART_SCHEMA), OVERSIZED)
    ],
    "two different messages": lambda: [
        *parts_of(SENT),
        *parts_of(Outgoing.of(SENT.key, {"e": np.zeros(40, np.uint64)})),
    ],
    "under the name of bank": lambda: parts_of(chain_message(sender="bank")),
    "to the gateway of payco": lambda: parts_of(chain_message(to="bank")),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_message_ends_the_run_with_one_sentence_at_both_sides(
    payco: Exchange, hostile: flight.FlightClient, reason: str
) -> None:
    """The sentence names the peer and the message, and the receiver does not wait until its time is up."""
    with pytest.raises(flight.FlightServerError) as refused:
        send_raw(hostile, BAD[reason]())
    sender = recover_error(str(refused.value).split(". Detail:")[0])
    with pytest.raises(RefusedError) as receiver:
        payco.get(chain_message(number=5).key, timeout=PATIENCE)
    assert isinstance(sender, RefusedError)
    assert sender.sentence == receiver.value.sentence
    for part in (reason, "shop", "test/0/chain.00.multiply/0 from"):
        assert part in sender.sentence


def pointing_outside() -> pa.RecordBatch:
    offsets = np.array([0, 16])
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(bytes(16))])
    batch = pa.record_batch([column], schema=PART_SCHEMA)
    offsets[1] = 1 << 30  # Arrow has checked the batch by now
    return batch


def under_key(*key: object) -> bytes:
    return json.dumps({"key": json.dumps(key), "size": 3, "sha256": "00" * 32}).encode()


SOME = pa.record_batch([pa.array([b"abc"], pa.large_binary())], schema=PART_SCHEMA)
NOTHING = pa.record_batch([pa.array([], pa.large_binary())], schema=PART_SCHEMA)
NULL = pa.record_batch([pa.array([None], pa.large_binary())], schema=PART_SCHEMA)
TWO = pa.record_batch([pa.array([b"a", b"b"], pa.large_binary())], schema=PART_SCHEMA)
GOOD = label(SENT.key, Header(3, bytes(32)))
MALFORMED: dict[str, Part] = {
    "no label": (SOME, None),
    "an empty label": (SOME, b"{}"),
    "no JSON": (SOME, b"{nonsense"),
    "no text": (SOME, b"\xff\xfe"),
    "a list": (SOME, b"[1]"),
    "a number": (SOME, b"7"),
    "null": (SOME, b"null"),
    "a deep nest": (SOME, b"[" * 100_000),
    "no key": (SOME, b'{"size": 3, "sha256": "00"}'),
    "no size": (SOME, label(SENT.key, Header(3, bytes(32))).replace(b"size", b"Size")),
    "a key that is a number": (SOME, label(SENT.key, Header(3, bytes(32)), key=7)),
    "a key that is a list": (SOME, label(SENT.key, Header(3, bytes(32)), key=["test"])),
    "a key in JSON that is a number": (SOME, label(SENT.key, Header(3, bytes(32)), key="7")),
    "a key of five fields": (SOME, under_key("test", 0, "s", 0, "shop")),
    "a run above the inbox": (SOME, under_key("../../x", 0, "s", 0, "shop", "payco")),
    "a run that is the inbox": (SOME, under_key("..", 0, "s", 0, "shop", "payco")),
    "an absolute stage": (SOME, under_key("test", 0, "/tmp/x", 0, "shop", "payco")),
    "a stage with a zero byte": (SOME, under_key("test", 0, "s\0", 0, "shop", "payco")),
    "an iteration that is a path": (SOME, under_key("test", "../../..", "s", 0, "shop", "payco")),
    "a negative shard": (SOME, under_key("test", 0, "s", -1, "shop", "payco")),
    "a true shard": (SOME, under_key("test", 0, "s", True, "shop", "payco")),
    "a negative size": (SOME, label(SENT.key, Header(-3, bytes(32)))),
    "a size in words": (SOME, label(SENT.key, Header(3, bytes(32)), size="three")),
    "half a byte": (SOME, label(SENT.key, Header(3, bytes(32)), size=2.5)),
    "a short digest": (SOME, label(SENT.key, Header(3, bytes(3)))),
    "a digest of other letters": (SOME, label(SENT.key, Header(3, bytes(32)), sha256="xy" * 32)),
    "no rows": (NOTHING, GOOD),
    "a null": (NULL, GOOD),
    "two rows": (TWO, GOOD),
    "numbers": (pa.record_batch({"part": pa.array([1])}), GOOD),
    "text": (pa.record_batch({"part": pa.array(["abc"])}), GOOD),
    "no columns": (pa.record_batch({}), GOOD),
    "offsets that point outside": (pointing_outside(), label(SENT.key, Header(1 << 20, bytes(32)))),
}


def test_malformed_streams_are_refused_and_the_gateway_still_serves(
    world: ChainWorld, payco: Exchange, hostile: flight.FlightClient
) -> None:
    before = files_below(world.folder)
    for what, (batch, metadata) in MALFORMED.items():
        with pytest.raises(flight.FlightError) as refused:
            send_raw(hostile, [(batch, metadata)], batch.schema)
        recovered = recover_error(refused.value)
        assert isinstance(recovered, RefusedError), f"{what}: {refused.value}"
        assert "shop" in recovered.sentence, what
    new = sorted(set(files_below(world.folder)) - set(before))
    assert new == ["payco/storage/inbox/test/REFUSED"]
    payco.forget_refusal("test")
    assert send_raw(hostile, parts_of(SENT)) == 1
    assert payco.get(SENT.key, timeout=PATIENCE).equals(SENT.payload)


def in_a_stream(batch: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def payloads_without_arrays() -> dict[str, pa.Buffer]:
    """Payloads whose envelope is right, but which do not hold arrays."""
    honest = to_stream({"e": np.arange(40, dtype=np.uint64)}).to_pybytes()
    before, between, after = honest.split(struct.pack("<q", 320))  # the sizes of the body and of its one buffer
    size, less = struct.pack("<q", 320), struct.pack("<q", 8)
    return {
        "a buffer shorter than its array": pa.py_buffer(before + size + between + less + after),
        "a body shorter than its buffer": pa.py_buffer(before + less + between + size + after),
        "compressed by zstd": in_a_stream(to_batch({"e": np.zeros(1 << 20)}), "zstd"),
        "compressed by lz4": in_a_stream(to_batch({"e": np.zeros(1 << 20)}), "lz4"),
        "half": pa.py_buffer(honest[: len(honest) // 2]),
        "text": in_a_stream(pa.record_batch({"e": ["abc"]})),
        "nothing": pa.py_buffer(b""),
        "nonsense": pa.py_buffer(b"nothing of the kind"),
    }


@pytest.mark.parametrize("what", payloads_without_arrays())
def test_a_payload_that_holds_no_arrays_is_refused(payco: Exchange, hostile: flight.FlightClient, what: str) -> None:
    sent = Outgoing(SENT.key, payloads_without_arrays()[what])
    assert send_raw(hostile, parts_of(sent)) == 1
    with pytest.raises(RefusedError, match="from shop to payco"):
        get_arrays(payco, sent.key, PATIENCE)


def test_a_sender_without_a_limit_of_its_own_is_refused_by_the_gateway(world: ChainWorld, payco: Exchange) -> None:
    exchange = shop_exchange(world)
    large = Outgoing(SENT.key, pa.py_buffer(bytes(64_000_001)))
    for call in (lambda: exchange.put_all([large]), lambda: payco.get(SENT.key, timeout=PATIENCE)):
        with pytest.raises(RefusedError, match="from shop to payco has 64,000,001 bytes"):
            call()
    exchange.close()


def test_a_peer_may_neither_read_nor_delete_messages(payco: Exchange, hostile: flight.FlightClient) -> None:
    assert send_raw(hostile, parts_of(SENT)) == 1
    ticket = flight.Ticket(json.dumps({"key": SENT.key.to_json(), "wait": 0}))
    with pytest.raises(flight.FlightUnauthorizedError, match="shop may not read"):
        hostile.do_get(ticket).read_all()
    for kind in ("drop-messages", "forget-refusal", "anything"):
        with pytest.raises(flight.FlightUnauthorizedError, match="shop may not drop"):
            list(hostile.do_action(flight.Action(kind, json.dumps({"run": "test", "before": None}).encode())))
    assert payco.get(SENT.key, timeout=PATIENCE).equals(SENT.payload)


def test_messages_of_runs_that_were_not_begun_are_limited(
    payco: Exchange, hostile: flight.FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run ends because of them, and a run that is begun takes all its messages."""
    monkeypatch.setattr(inbox, "UNEXPECTED", 3)

    def send(run: str, shard: int = 0) -> int:
        key = replace(SENT.key, address=replace(SENT.key.address, run=run, shard=shard))
        return send_raw(hostile, parts_of(Outgoing(key, SENT.payload)))

    assert [send(f"unknown{i}") for i in range(3)] == [1, 1, 1]
    for run in ("unknown0", "unknown3", "test"):
        with pytest.raises(flight.FlightUnavailableError, match="shop has sent"):
            send(run)
    payco.forget_refusal("test")
    assert [send("test", shard) for shard in range(5)] == [1] * 5
    assert payco.get(SENT.key, timeout=PATIENCE).equals(SENT.payload)


DESCRIPTOR = flight.FlightDescriptor.for_command(b"x")
OTHER_CALLS: dict[str, Callable[[flight.FlightClient], object]] = {
    "list_flights": lambda client: list(client.list_flights()),
    "list_actions": lambda client: list(client.list_actions()),
    "get_flight_info": lambda client: client.get_flight_info(DESCRIPTOR),
    "get_schema": lambda client: client.get_schema(DESCRIPTOR),
    "do_exchange": lambda client: client.do_exchange(DESCRIPTOR)[1].read_chunk(),
}


@pytest.mark.parametrize("call", OTHER_CALLS.values(), ids=OTHER_CALLS)
def test_a_call_that_a_gateway_does_not_have_is_refused_without_a_traceback(
    hostile: flight.FlightClient, call: Callable[[flight.FlightClient], object]
) -> None:
    with pytest.raises((flight.FlightUnauthorizedError, OSError), match="a peer may put messages") as refused:
        call(hostile)
    assert "Traceback" not in str(refused.value)


# Senders and disks that fail.
@pytest.mark.processes
def test_a_sender_that_dies_in_the_middle_of_a_message_does_not_end_the_run(world: ChainWorld, payco: Exchange) -> None:
    """The sender is restarted and sends the message again: nobody has lied."""
    sent = Outgoing(SENT.key, pa.py_buffer(np.arange(PART_SIZE // 4, dtype=np.uint64)))
    shop, inbox = world.configs["shop"], world.configs["payco"].storage_folder.inbox
    sender = start_process(
        send_first_part, world.file("payco"), world.file("shop"), sent.key, sent.payload.to_pybytes()
    )
    wait_for(lambda: any(name.endswith(".part") for name in files_below(inbox)))
    sender.kill()
    sender.join(PATIENCE)
    wait_for(lambda: files_below(inbox) == [])
    open_exchange(shop).put_all([sent])
    close_exchange(shop)
    assert payco.get(sent.key, timeout=PATIENCE).equals(sent.payload)


def test_a_full_disk_under_a_gateway_is_reported_at_both_sides(
    world: ChainWorld, payco: Exchange, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Small messages go to a log, large ones to files."""
    exchange = shop_exchange(world)
    open_path, full_device = Path.open, os.open("/dev/full", os.O_RDWR)

    def full(self: Path, mode: str = "r", *others: object) -> object:
        return open_path(Path("/dev/full") if self.suffix == ".part" else self, mode, *others)

    write = os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        patched.setattr(os, "pwrite", lambda _, *arguments: write(full_device, *arguments))
        for size in (100, 1_000_000):
            with pytest.raises(StorageError, match=r"gateway of payco .* is full"):
                exchange.put_all([Outgoing(SENT.key, pa.py_buffer(bytes(size)))])
    assert "is full" in caplog.text
    exchange.put_all([SENT])
    assert payco.get(SENT.key, timeout=PATIENCE).equals(SENT.payload)
    exchange.close()


# Opening and closing.
def test_a_message_that_arrives_while_the_gateway_is_being_built_is_stored(
    world: ChainWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow serves before the constructor of its base class returns, so no field may be set after that."""

    class Slow(Gateway):
        def __setattr__(self, name: str, value: object) -> None:
            time.sleep(0.3)
            super().__setattr__(name, value)

    monkeypatch.setattr(connections, "Gateway", Slow)
    exchange = shop_exchange(world)
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(exchange.put_all, [SENT])
        with open_gateway(world.configs["payco"]) as gateway:
            sending.result(PATIENCE)
            assert gateway.inbox.find(SENT.key) is not None
    exchange.close()


def test_a_closing_gateway_does_not_wait_for_calls_that_wait(
    world: ChainWorld, caplog: pytest.LogCaptureFixture
) -> None:
    config = world.configs["payco"]
    ticket = flight.Ticket(json.dumps({"key": SENT.key.to_json(), "wait": LONGEST_WAIT}))
    with ThreadPoolExecutor(1) as pool, open_gateway(config) as gateway:
        client, called = raw_client(config, load_identity(config)), threading.Event()
        wait = gateway.inbox.wait
        gateway.inbox.wait = lambda *arguments: (called.set(), wait(*arguments))[1]  # type: ignore[method-assign]
        answer = pool.submit(lambda: client.do_get(ticket).read_all())
        assert called.wait(PATIENCE)
        gateway.__exit__(None, None, None)
        assert answer.result(PATIENCE).num_rows == 0
    assert "holds a stream open" not in caplog.text
