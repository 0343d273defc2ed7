"""The inbox: a message is stored completely or not at all, and two different ones never under one key."""

import errno
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from support.fault_injection import PATIENCE, chain_message, stored_messages
from veilmeans.io.exchange.exchange import HANDSHAKE, Outgoing
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import Header, MessageKey

SENT = chain_message()


def receive(inbox: MessageStore, sent: Outgoing, header: Header | None = None, replaceable: bool = False) -> None:
    """Receive a message in one part."""
    incoming = inbox.receive(sent.key, header or Header.of(sent.payload), replaceable)
    try:
        incoming.write(sent.payload)
        incoming.commit()
    finally:
        incoming.abandon()


def other(value: int) -> Outgoing:
    """Another message under the same key."""
    return Outgoing.of(SENT.key, {"e": np.full(3, value, np.uint64)})


@pytest.fixture
def inbox(tmp_path: Path) -> MessageStore:
    return MessageStore(tmp_path / "inbox")


def test_a_message_is_found_once_it_is_committed(inbox: MessageStore) -> None:
    assert inbox.find(SENT.key) is None
    assert inbox.wait(SENT.key, 0) is None
    incoming = inbox.receive(SENT.key, Header.of(SENT.payload), replaceable=False)
    incoming.write(SENT.payload.slice(0, 100))
    assert not incoming.complete
    assert inbox.find(SENT.key) is None
    incoming.write(SENT.payload.slice(100))
    assert incoming.complete
    incoming.commit()
    payload = inbox.find(SENT.key)
    assert payload is not None
    assert payload.equals(SENT.payload)
    assert stored_messages(inbox.folder) == [SENT.key.path]


def test_a_thread_that_waits_is_woken_by_a_message_and_by_a_refusal(inbox: MessageStore) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(inbox.wait, SENT.key, PATIENCE)
        receive(inbox, SENT)
        assert waiting.result(PATIENCE).equals(SENT.payload)
        refused = pool.submit(inbox.wait, chain_message(number=1).key, PATIENCE)
        inbox.refuse("test", RefusedError("a reason"))
        assert isinstance(refused.exception(PATIENCE), RefusedError)


@pytest.mark.parametrize("size", [len(SENT.payload.to_pybytes()) - 1, 10])
def test_a_message_longer_than_announced_is_refused(inbox: MessageStore, size: int) -> None:
    with pytest.raises(RefusedError, match="longer than"):
        receive(inbox, SENT, Header(size, Header.of(SENT.payload).digest))
    assert stored_messages(inbox.folder) == []


def test_a_truncated_or_altered_message_is_refused(inbox: MessageStore) -> None:
    half = Outgoing(SENT.key, SENT.payload.slice(0, 100))
    for message, header in ((half, Header.of(SENT.payload)), (SENT, Header(SENT.payload.size, bytes(32)))):
        with pytest.raises(RefusedError, match="from shop to payco"):
            receive(inbox, message, header)
    assert stored_messages(inbox.folder) == []


def test_the_same_message_again_is_ignored_and_another_is_refused_unless_it_is_replaceable(inbox: MessageStore) -> None:
    receive(inbox, SENT)
    receive(inbox, SENT)
    with pytest.raises(RefusedError, match="shop sent two different messages"):
        receive(inbox, other(1))
    replaceable = Outgoing.of(replace(SENT.key, address=replace(SENT.key.address, stage=HANDSHAKE)), {"e": np.zeros(1)})
    for value in (1, 2):
        receive(inbox, replace(other(value), key=replaceable.key), replaceable=True)
    assert inbox.header(replaceable.key) == Header.of(other(2).payload)


def test_of_two_different_messages_at_the_same_time_one_is_refused(
    inbox: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there were no lock, both would see that the place is free: each waits until the other has looked, too."""
    looked = threading.Barrier(2)
    header = MessageStore.header

    def slow(self: MessageStore, key: MessageKey) -> Header | None:
        stored = header(self, key)
        with suppress(threading.BrokenBarrierError):
            looked.wait(1.0)
        return stored

    monkeypatch.setattr(MessageStore, "header", slow)

    def put(value: int) -> str:
        try:
            receive(inbox, other(value))
        except RefusedError:
            return "refused"
        return "stored"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(put, [1, 2])) == ["refused", "stored"]


LARGE = Outgoing.of(SENT.key, {"e": np.arange(100_000, dtype=np.uint64)})


@pytest.mark.parametrize("keep", [0, 30, 100])
def test_a_large_message_torn_by_a_power_cut_is_refused_until_it_is_sent_again(inbox: MessageStore, keep: int) -> None:
    receive(inbox, LARGE)
    file = inbox.folder / LARGE.key.path
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(RefusedError, match="truncated"):
        inbox.find(LARGE.key)
    receive(inbox, LARGE)
    assert inbox.find(LARGE.key) is not None


def test_a_small_message_that_the_disk_has_altered_is_refused_until_it_is_sent_again(inbox: MessageStore) -> None:
    receive(inbox, SENT)
    inbox.find(SENT.key)  # from now on it is read from the log
    log = next(inbox.folder.rglob("*.log"))
    damaged = bytearray(log.read_bytes())
    damaged[-20] ^= 1
    log.write_bytes(damaged)
    with pytest.raises(RefusedError, match="altered"):
        inbox.find(SENT.key)
    receive(inbox, SENT)
    for _ in range(2):
        assert inbox.find(SENT.key) == SENT.payload


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_a_process_killed_while_it_writes_leaves_all_complete_messages(numbers: list[int], data: st.DataObject) -> None:
    """The log is cut at any byte; the next process finds what is complete and appends behind it."""
    with tempfile.TemporaryDirectory() as folder:
        inbox = MessageStore(Path(folder))
        ends = {}
        for number in dict.fromkeys(numbers):
            receive(inbox, chain_message(number=number))
            log = next(Path(folder).rglob("*.log"))
            ends[number] = log.stat().st_size
        cut = data.draw(st.integers(0, log.stat().st_size))
        os.truncate(log, cut)
        again = MessageStore(Path(folder))
        for number, end in ends.items():
            found = again.find(chain_message(number=number).key)
            assert (found is not None) == (end <= cut)
        for number in ends:
            receive(again, chain_message(number=number))
        last = MessageStore(Path(folder))
        for number in ends:
            assert last.find(chain_message(number=number).key) == chain_message(number=number).payload


def test_a_shorter_message_leaves_nothing_of_the_one_that_a_killed_process_had_begun(inbox: MessageStore) -> None:
    """Else the rest of a peer's payload could be read as a record of another sender."""
    receive(inbox, SENT)
    log = next(inbox.folder.rglob("*.log"))
    with log.open("ab") as file:
        file.write(log.read_bytes() * 3)
    os.truncate(log, log.stat().st_size - 1)
    again = MessageStore(inbox.folder)
    short = Outgoing.of(chain_message(number=7).key, {"e": np.zeros(1, np.uint64)})
    receive(again, short)
    assert stored_messages(inbox.folder) == sorted([SENT.key.path, short.key.path])
    assert MessageStore(inbox.folder).find(short.key) == short.payload


def test_unread_messages_beyond_the_memory_for_them_are_read_from_the_log(
    inbox: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox._unread, "_limit", 3000)
    messages = [chain_message(number=number) for number in range(20)]
    for each in messages:
        receive(inbox, each)
    assert inbox._unread._size <= 3000
    for each in messages * 2:
        assert inbox.find(each.key) == each.payload
    assert inbox._unread._size == 0


def test_a_thread_that_waits_can_be_interrupted(inbox: MessageStore) -> None:
    interrupted = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inbox.wait, SENT.key, PATIENCE, interrupted.is_set)
        interrupted.set()
        inbox.notify()
        assert waiting.result(PATIENCE) is None


def test_a_refusal_ends_a_run_until_it_is_forgotten(inbox: MessageStore) -> None:
    receive(inbox, SENT)
    inbox.refuse("test", RefusedError("a reason"))
    with pytest.raises(RefusedError, match="a reason"):
        inbox.find(SENT.key)
    inbox.forget_refusal("test")
    assert inbox.find(SENT.key) is not None


def test_messages_of_finished_iterations_are_dropped(inbox: MessageStore) -> None:
    messages = [chain_message(iteration=i, number=n) for i in (0, 1, 2) for n in (0, 1)]
    for each in messages:
        receive(inbox, each)
    assert inbox.drop_messages("test", before=2) == 4
    assert stored_messages(inbox.folder) == sorted(each.key.path for each in messages[4:])
    assert inbox.drop_messages("test", before=None) == 2
    assert inbox.drop_messages("unknown", before=None) == 0


@pytest.mark.parametrize("sent", [SENT, LARGE], ids=["small", "large"])
def test_a_message_that_arrives_while_its_iteration_is_dropped_is_accepted_and_forgotten(
    inbox: MessageStore, sent: Outgoing
) -> None:
    """A peer that was restarted sends old messages again: that ends neither side."""
    receive(inbox, chain_message(number=7))
    incoming = inbox.receive(sent.key, Header.of(sent.payload), replaceable=False)
    incoming.write(sent.payload)
    assert inbox.drop_messages("test", before=1) == 1
    incoming.commit()
    incoming.abandon()
    inbox.drop_messages("test", before=1)
    assert stored_messages(inbox.folder) == []


def test_messages_may_be_dropped_while_a_peer_sends_them_again(inbox: MessageStore) -> None:
    def resend() -> None:
        for number in range(60):
            large = replace(LARGE, key=replace(LARGE.key, address=replace(LARGE.key.address, shard=1000 + number)))
            for sent in (large, chain_message(number=number)):
                receive(inbox, sent)

    with ThreadPoolExecutor(2) as pool:
        peers = [pool.submit(resend) for _ in range(2)]
        while not all(peer.done() for peer in peers):
            inbox.drop_messages("test", before=1)
    for peer in peers:
        peer.result()
    inbox.drop_messages("test", before=None)
    assert list(inbox.folder.iterdir()) == []


@pytest.mark.parametrize("sent", [SENT, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("step", ["mkdir", "open", "replace"])
def test_a_disk_full_at_any_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, sent: Outgoing
) -> None:
    inbox = MessageStore(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, step, fail)
        full.setattr(os, {"mkdir": "mkdir", "open": "open", "replace": "pwrite"}[step], fail)
        with pytest.raises(StorageError, match=f"{tmp_path} is full"):
            receive(inbox, sent)
        with pytest.raises(StorageError, match="is full"):
            inbox.refuse("test", RefusedError("a reason"))
    inbox.forget_refusal("test")
    receive(inbox, sent)
    assert inbox.find(sent.key) == sent.payload


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=f"{tmp_path}/file/inbox"):
        MessageStore(tmp_path / "file/inbox")
