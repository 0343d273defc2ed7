"""Messages, files and disks that are not right: one sentence that names the peer and the message, at both ends."""

import errno
import json
import signal
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from apache_beam.io.filesystems import FileSystems

from support.fault_injection import (
    PATIENCE,
    At,
    Part,
    Party,
    Scene,
    exchange_of_shop,
    files_below,
    in_a_process,
    label,
    make_scene,
    message,
    open_exchanges,
    parts_of,
    play,
    raw_client,
    send_half,
    send_raw,
    wait_for,
)
from veilmeans.crypto.certificates import make_identity
from veilmeans.crypto.pairwise_encryption import Seal
from veilmeans.io.exchange.connections import close_exchange, load_identity, open_exchange, open_gateway
from veilmeans.io.exchange.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.exchange.file_exchange import FileExchange
from veilmeans.io.exchange.flight_streams import PART_SCHEMA, PART_SIZE
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.schemas.arrays import to_stream, write_stream
from veilmeans.schemas.errors import PeerError, RefusedError, StorageError, VeilmeansError, recover_error
from veilmeans.schemas.message import Header, MessageKey

KINDS = pytest.mark.parametrize("kind", ["gateway", "files"])


# Messages that a gateway refuses. A hostile peer has the right certificate and a client of its own.
@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Three parties with gateways; a message may have at most a million bytes."""
    return make_scene(tmp_path, "gateway", parties=3, timeout=3.0)


@pytest.fixture
def payco(scene: Scene) -> Iterator[Exchange]:
    """Payco's gateway is open; its exchange."""
    config = scene.configs["payco"]
    with open_gateway(config):
        yield open_exchange(config)
        close_exchange(config)


@pytest.fixture
def hostile(scene: Scene, payco: Exchange) -> flight.FlightClient:
    """A client at payco's gateway with shop's certificate."""
    del payco
    return raw_client(scene.configs["payco"], load_identity(scene.configs["shop"]))


def truncated() -> list[Part]:
    sent = message()
    return parts_of(Outgoing(sent.key, sent.payload.slice(0, 100)), Header.of(sent.payload))


def altered() -> list[Part]:
    sent = message()
    flipped = bytearray(sent.payload)
    flipped[-30] ^= 1
    return parts_of(Outgoing(sent.key, pa.py_buffer(bytes(flipped))), Header.of(sent.payload))


def too_long() -> list[Part]:
    sent = message()
    return parts_of(sent, Header(10, Header.of(sent.payload).digest))


def over_the_limit() -> list[Part]:
    return parts_of(Outgoing(message().key, pa.py_buffer(bytes(64_000_001))))[:1]


def contradictory() -> list[Part]:
    other = Outgoing.of(message().key, {"e": np.zeros(40, np.uint64)})
    return [*parts_of(message()), *parts_of(other)]


@pytest.mark.parametrize(
    ("parts", "because"),
    [
        (truncated, "truncated: 100 of"),
        (altered, "its SHA-256 differs"),
        (too_long, "longer than the 10 bytes it announced"),
        (over_the_limit, "64,000,001 bytes and the limit is 64,000,000"),
        (contradictory, "two different messages"),
        (lambda: parts_of(message(sender="bank")), "under the name of bank"),
        (lambda: parts_of(message(to="bank")), "to the gateway of payco"),
    ],
)
def test_a_bad_message_ends_the_run_with_one_sentence_at_both_ends(
    payco: Exchange, hostile: flight.FlightClient, parts: Callable[[], list[Part]], because: str
) -> None:
    """The sentence names the peer and the message, and the receiver does not wait for its time to be up."""
    with pytest.raises(flight.FlightServerError) as refused:
        send_raw(hostile, parts())
    sender = recover_error(str(refused.value).split(". Detail:")[0])
    with pytest.raises(RefusedError) as receiver:
        payco.get(message(number=5).key, timeout=PATIENCE)
    assert isinstance(sender, RefusedError)
    assert sender.sentence == receiver.value.sentence
    assert because in sender.sentence
    assert "shop" in sender.sentence
    assert "test/0/chain.00.multiply/0 from" in sender.sentence


def test_a_peer_that_left_because_we_refused_its_message_is_not_called_absent(
    payco: Exchange, hostile: flight.FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payco, "_timeout", 1.0)
    with pytest.raises(PeerError, match="the gateway of shop at"):
        payco.put_all([message(sender="payco", to="shop")])
    with pytest.raises(flight.FlightServerError):
        send_raw(hostile, altered())
    with pytest.raises(RefusedError, match="its SHA-256 differs"):
        payco.put_all([message(sender="payco", to="shop")])


def test_the_same_sentence_ends_both_parties_of_a_run(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, "gateway")

    def contradict(exchange: Exchange, messages: list[Outgoing]) -> None:
        exchange.put_all(messages)
        exchange.put_all([Outgoing.of(messages[0].key, {"e": np.zeros(1, np.uint64)})])

    endings: dict[str, VeilmeansError] = {}

    class Noting(At):
        def put_all(self, messages: list[Outgoing]) -> None:
            try:
                super().put_all(messages)
            except VeilmeansError as error:
                endings["shop"] = error
                raise

    with pytest.raises(RefusedError) as first:
        play(scene, {"shop": lambda e: Noting(e, 3, contradict)})
    assert endings["shop"].sentence == first.value.sentence
    assert "two different messages as test/0/chain.03.multiply/0 from shop to payco" in first.value.sentence


@KINDS
def test_processes_end_with_code_6_and_one_line_when_a_party_contradicts_itself(tmp_path: Path, kind: str) -> None:
    """Shop starts again with other data: what it says now is not what it said before."""
    scene = make_scene(tmp_path, kind, timeout=4.0)
    payco, shop = Party(scene, "payco"), Party(scene, "shop", "--strike=3:receive:die")
    payco.start()
    assert shop.start().wait() == -signal.SIGKILL
    for file in scene.configs["shop"].storage.glob("input-*.arrow"):
        flipped = bytearray(file.read_bytes())
        flipped[-60:-20] = bytes(40)
        file.write_bytes(flipped)
    assert shop.start().wait() == RefusedError.code
    assert payco.wait() == (RefusedError.code if kind == "gateway" else PeerError.code)
    for party in (payco, shop):
        errors = [line for line in party.said().splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert "Traceback" not in party.said()
        assert "shop" in errors[0]
        assert "chain.0" in errors[0]


def test_two_different_messages_at_the_same_instant_are_not_both_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = MessageStore(tmp_path)
    found = MessageStore.header

    def slow(self: MessageStore, key: MessageKey) -> Header | None:
        result = found(self, key)
        time.sleep(0.2)
        return result

    monkeypatch.setattr(MessageStore, "header", slow)

    def put(value: int) -> str:
        sent = Outgoing.of(message().key, {"e": np.full(3, value, np.uint64)})
        incoming = spool.receive(sent.key, Header.of(sent.payload), replaceable=False)
        incoming.write(sent.payload)
        try:
            incoming.commit()
        except RefusedError:
            return "refused"
        return "stored"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(put, [1, 2])) == ["refused", "stored"]


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
GOOD = label(message().key, Header(3, bytes(32)))
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
    "no size": (SOME, label(message().key, Header(3, bytes(32))).replace(b"size", b"Size")),
    "a key that is a number": (SOME, label(message().key, Header(3, bytes(32)), key=7)),
    "a key that is a list": (SOME, label(message().key, Header(3, bytes(32)), key=["test"])),
    "a key in JSON that is a number": (SOME, label(message().key, Header(3, bytes(32)), key="7")),
    "a key of five fields": (SOME, under_key("test", 0, "s", 0, "shop")),
    "a run above the inbox": (SOME, under_key("../../x", 0, "s", 0, "shop", "payco")),
    "a run that is the inbox": (SOME, under_key("..", 0, "s", 0, "shop", "payco")),
    "an absolute stage": (SOME, under_key("test", 0, "/tmp/x", 0, "shop", "payco")),
    "a stage with a zero byte": (SOME, under_key("test", 0, "s\0", 0, "shop", "payco")),
    "an iteration that is a path": (SOME, under_key("test", "../../..", "s", 0, "shop", "payco")),
    "a negative shard": (SOME, under_key("test", 0, "s", -1, "shop", "payco")),
    "a true shard": (SOME, under_key("test", 0, "s", True, "shop", "payco")),
    "a negative size": (SOME, label(message().key, Header(-3, bytes(32)))),
    "a size in words": (SOME, label(message().key, Header(3, bytes(32)), size="three")),
    "half a byte": (SOME, label(message().key, Header(3, bytes(32)), size=2.5)),
    "a short digest": (SOME, label(message().key, Header(3, bytes(3)))),
    "a digest of other letters": (SOME, label(message().key, Header(3, bytes(32)), sha256="xy" * 32)),
    "no rows": (NOTHING, GOOD),
    "a null": (NULL, GOOD),
    "two rows": (TWO, GOOD),
    "numbers": (pa.record_batch({"part": pa.array([1])}), GOOD),
    "text": (pa.record_batch({"part": pa.array(["abc"])}), GOOD),
    "no columns": (pa.record_batch({}), GOOD),
    "offsets that point outside": (pointing_outside(), label(message().key, Header(1 << 20, bytes(32)))),
}


def test_a_malformed_stream_is_refused_with_a_sentence_and_the_gateway_goes_on(
    scene: Scene, payco: Exchange, hostile: flight.FlightClient
) -> None:
    before = files_below(scene.folder)
    for what, (batch, metadata) in MALFORMED.items():
        with pytest.raises(flight.FlightError) as refused:
            send_raw(hostile, [(batch, metadata)], batch.schema)
        known = recover_error(refused.value)
        assert isinstance(known, RefusedError), f"{what}: {refused.value}"
        assert "shop" in known.sentence, what
    new = sorted(set(files_below(scene.folder)) - set(before))
    assert new == ["payco/storage/inbox/test/REFUSED"]
    payco.forget_refusal("test")
    assert send_raw(hostile, parts_of(message())) == 1
    assert payco.get(message().key, timeout=PATIENCE).equals(message().payload)


def in_a_stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    write_stream(batch, sink)
    return sink.getvalue()


def lying_payloads() -> dict[str, pa.Buffer]:
    """Payloads whose envelope is right, and which hold no arrays such as ours."""
    honest = to_stream({"e": np.arange(40, dtype=np.uint64)}).to_pybytes()
    before, between, after = honest.split(struct.pack("<q", 320))  # the sizes of the body and of its one buffer
    size, less = struct.pack("<q", 320), struct.pack("<q", 8)
    text = pa.record_batch({"e": ["abc"]})
    return {
        "a buffer shorter than its array": pa.py_buffer(before + size + between + less + after),
        "a body shorter than its buffer": pa.py_buffer(before + less + between + size + after),
        "half": pa.py_buffer(honest[: len(honest) // 2]),
        "text": in_a_stream(text),
        "nothing": pa.py_buffer(b""),
        "nonsense": pa.py_buffer(b"nothing of the kind"),
    }


@pytest.mark.parametrize("what", lying_payloads())
def test_a_payload_that_holds_no_arrays_is_refused(payco: Exchange, hostile: flight.FlightClient, what: str) -> None:
    sent = Outgoing(message().key, lying_payloads()[what])
    assert send_raw(hostile, parts_of(sent)) == 1
    with pytest.raises(RefusedError, match="from shop to payco holds no arrays"):
        get_arrays(payco, sent.key, PATIENCE)


def test_a_sender_that_dies_in_the_middle_of_a_message_ends_nothing(scene: Scene, payco: Exchange) -> None:
    """It is started again and sends the whole message: nobody has lied."""
    sent = Outgoing(message().key, pa.py_buffer(np.arange(PART_SIZE // 4, dtype=np.uint64)))
    shop = scene.configs["shop"]
    inbox = scene.configs["payco"].storage / "inbox"
    sender = in_a_process(send_half, scene.file("payco"), scene.file("shop"), sent.key, sent.payload.to_pybytes())
    wait_for(lambda: any(name.endswith(".part") for name in files_below(inbox)))
    sender.kill()
    sender.join(PATIENCE)
    wait_for(lambda: files_below(inbox) == [])
    exchange = open_exchange(shop)
    exchange.put_all([sent])
    close_exchange(shop)
    assert payco.get(sent.key, timeout=PATIENCE).equals(sent.payload)


def test_a_message_torn_by_a_power_cut_is_healed_when_it_is_sent_again(
    scene: Scene, payco: Exchange, hostile: flight.FlightClient
) -> None:
    sent = message()
    file = scene.configs["payco"].storage / "inbox" / sent.key.path
    for keep in (0, 30, 100):
        send_raw(hostile, parts_of(sent))
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(RefusedError, match="truncated"):
            payco.get(sent.key, timeout=PATIENCE)
        assert send_raw(hostile, parts_of(sent)) == 1
        assert payco.get(sent.key, timeout=PATIENCE).equals(sent.payload)


@KINDS
def test_a_message_over_the_limit_is_refused_before_it_is_sent(tmp_path: Path, kind: str) -> None:
    scene = make_scene(tmp_path, kind)
    exchange = open_exchange(scene.configs["shop"])
    big = Outgoing(message().key, pa.py_buffer(bytes(64_000_001)))
    with pytest.raises(RefusedError, match=r"from shop to payco has 64,000,001 bytes and the limit is 64,000,000"):
        exchange.put_all([message(number=1), big])
    close_exchange(scene.configs["shop"])
    assert not (tmp_path / "shop" / "outbox" / "payco" / big.key.path).exists()


def test_a_sender_with_a_higher_limit_is_refused_by_the_gateway(scene: Scene, payco: Exchange) -> None:
    exchange = exchange_of_shop(scene)
    with pytest.raises(RefusedError, match=r"from shop to payco has 64,000,001 bytes and the limit is 64,000,000"):
        exchange.put_all([Outgoing(message().key, pa.py_buffer(bytes(64_000_001)))])
    with pytest.raises(RefusedError, match=r"from shop to payco has 64,000,001 bytes"):
        payco.get(message().key, timeout=PATIENCE)
    exchange.close()


# Strangers, and peers who want to read.
def test_a_stranger_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    """Its certificate is made out to shop, by itself."""
    scene = make_scene(tmp_path, "gateway")
    refused: list[Exception] = []

    def intrude(exchange: Exchange, messages: list[Outgoing]) -> None:
        del exchange, messages
        stranger = raw_client(scene.configs["payco"], make_identity("shop", 2))
        try:
            send_raw(stranger, parts_of(message(number=4)))
        except flight.FlightUnavailableError as error:
            refused.append(error)

    scene.check(play(scene, {"payco": lambda e: At(e, 2, intrude)}))
    assert len(refused) == 1


def test_a_peer_may_neither_read_nor_drop_messages(payco: Exchange, hostile: flight.FlightClient) -> None:
    assert send_raw(hostile, parts_of(message())) == 1
    ticket = flight.Ticket(json.dumps({"key": message().key.to_json(), "wait": 0}))
    with pytest.raises(flight.FlightUnauthorizedError, match="shop may not read messages at the gateway of payco"):
        hostile.do_get(ticket).read_all()
    for kind in ("collect", "forgive", "anything"):
        with pytest.raises(flight.FlightUnauthorizedError, match="shop may not drop messages"):
            list(hostile.do_action(flight.Action(kind, json.dumps({"run": "test", "before": None}).encode())))
    for call in (hostile.list_flights, hostile.list_actions):
        with pytest.raises((NotImplementedError, flight.FlightError, pa.ArrowException)):
            list(call())
    assert payco.get(message().key, timeout=PATIENCE).equals(message().payload)


# Files that storage changed.
@contextmanager
def two_files(tmp_path: Path) -> Iterator[tuple[Exchange, dict[int, Path]]]:
    """Payco's exchange, and two messages in shop's outbox."""
    scene = make_scene(tmp_path, "files", timeout=3.0)
    with open_exchanges(scene) as exchanges:
        sent = {number: message(number=number) for number in (0, 1)}
        exchanges["shop"].put_all(list(sent.values()))
        yield exchanges["payco"], {n: tmp_path / "shop/outbox/payco" / m.key.path for n, m in sent.items()}


def flip(files: dict[int, Path]) -> None:
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 1
    files[0].write_bytes(data)


def swap(files: dict[int, Path]) -> None:
    first, second = (files[number].read_bytes() for number in (0, 1))
    files[0].write_bytes(second)
    files[1].write_bytes(first)


@pytest.mark.parametrize(
    "harm",
    [
        lambda files: files[0].write_bytes(files[0].read_bytes()[:-1]),
        lambda files: files[0].write_bytes(files[0].read_bytes()[:20]),
        lambda files: files[0].write_bytes(b""),
        lambda files: files[0].write_bytes(files[0].read_bytes() + b"more"),
        flip,
        swap,
        lambda files: files[0].write_bytes(files[1].read_bytes()),
    ],
    ids=["one byte short", "nothing but a nonce", "empty", "longer", "flipped", "swapped", "copied"],
)
def test_a_file_that_storage_changed_is_refused(tmp_path: Path, harm: Callable[[dict[int, Path]], object]) -> None:
    with two_files(tmp_path) as (payco, files):
        assert payco.get(message(number=1).key, timeout=PATIENCE).equals(message(number=1).payload)
        harm(files)
        with pytest.raises(RefusedError, match=r"chain.00.multiply/0 from shop to payco is truncated, altered or not"):
            payco.get(message().key, timeout=PATIENCE)


def test_a_file_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with two_files(tmp_path) as (payco, files):
        with files[0].open("r+b") as file:
            file.truncate(1 << 40)  # sparse; to read it would take a terabyte of memory
        with pytest.raises(RefusedError, match=r"from shop to payco has [0-9,]+ bytes and the limit is 64,000,000"):
            payco.get(message().key, timeout=PATIENCE)


def test_a_file_sealed_by_a_stranger_is_refused(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, "files")
    stranger = make_identity("shop", 2)
    seals = {"payco": Seal(stranger, scene.configs["payco"].certificate.read_bytes())}
    FileExchange(str(tmp_path / "shop/outbox"), {}, seals, 1 << 20).put_all([message()])
    with open_exchanges(scene) as exchanges, pytest.raises(RefusedError, match="not made by shop"):
        exchanges["payco"].get(message().key, timeout=PATIENCE)


def test_an_outbox_that_holds_another_message_is_not_overwritten(tmp_path: Path) -> None:
    with open_exchanges(make_scene(tmp_path, "files")) as exchanges:
        exchanges["shop"].put_all([message()])
        with pytest.raises(RefusedError, match=r"holds a different message test/0/chain.00.multiply/0 from shop to"):
            exchanges["shop"].put_all([Outgoing.of(message().key, {"e": np.zeros(1, np.uint64)})])
        assert exchanges["payco"].get(message().key, timeout=PATIENCE).equals(message().payload)


# Full disks.
def test_a_full_disk_under_a_gateway_is_told_to_both_sides(
    scene: Scene, payco: Exchange, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = exchange_of_shop(scene)
    whole = Path.open

    def full(self: Path, mode: str = "r", *others: object) -> object:
        return whole(Path("/dev/full") if self.suffix == ".part" else self, mode, *others)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        for size in (100, 1_000_000):
            with pytest.raises(StorageError, match=r"gateway of payco cannot store messages: the disk of .* is full"):
                exchange.put_all([Outgoing(message().key, pa.py_buffer(bytes(size)))])
    assert "is full" in caplog.text
    exchange.put_all([message()])
    assert payco.get(message().key, timeout=PATIENCE).equals(message().payload)
    exchange.close()


@pytest.mark.parametrize("step", ["mkdir", "open", "replace"])
def test_a_disk_full_at_any_step_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    spool, sent = MessageStore(tmp_path), message()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, step, fail)
    with pytest.raises(StorageError, match=f"the disk of {tmp_path} is full"):
        put_into(spool, sent)
    with pytest.raises(StorageError, match="is full"):
        spool.refuse("test", RefusedError("for a test"))


def put_into(spool: MessageStore, sent: Outgoing) -> None:
    incoming = spool.receive(sent.key, Header.of(sent.payload), replaceable=False)
    incoming.write(sent.payload)
    incoming.commit()


def test_a_full_disk_under_an_outbox_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_exchanges(make_scene(tmp_path, "files")) as exchanges:
        monkeypatch.setattr(FileSystems, "create", lambda *_, **__: open("/dev/full", "wb"))  # noqa: PTH123, SIM115
        with pytest.raises(StorageError, match=r"the outbox .* cannot be written: .*No space left on device"):
            exchanges["shop"].put_all([message()])
