"""The exchange through files: files that the storage changed, or that somebody else made, are refused."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.io.filesystems import FileSystems

from support.fault_injection import PATIENCE, chain_message, make_chain_world, open_exchanges
from veilmeans.crypto.certificates import make_identity
from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.io.exchange.file_exchange import FileExchange
from veilmeans.schemas.errors import PeerError, RefusedError, StorageError

THIS_MESSAGE = r"chain\.00\.multiply/0 from shop to payco"


@contextmanager
def two_files(tmp_path: Path) -> Iterator[tuple[Exchange, dict[int, Path]]]:
    """Payco's exchange, and two messages in shop's outbox."""
    with open_exchanges(make_chain_world(tmp_path, "files")) as exchanges:
        sent = {number: chain_message(number=number) for number in (0, 1)}
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
    "change",
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
def test_a_file_that_the_storage_changed_is_refused(
    tmp_path: Path, change: Callable[[dict[int, Path]], object]
) -> None:
    with two_files(tmp_path) as (payco, files):
        second = chain_message(number=1)
        assert payco.get(second.key, timeout=PATIENCE).equals(second.payload)
        change(files)
        with pytest.raises(RefusedError, match=THIS_MESSAGE):
            payco.get(chain_message().key, timeout=PATIENCE)


def test_a_file_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with two_files(tmp_path) as (payco, files):
        with files[0].open("r+b") as file:
            file.truncate(1 << 40)  # sparse; to read it would take a terabyte of memory
        with pytest.raises(RefusedError, match=rf"{THIS_MESSAGE} .* 64,000,000"):
            payco.get(chain_message().key, timeout=PATIENCE)


@pytest.mark.parametrize(
    "put",
    [os.mkfifo, lambda file: file.symlink_to("/dev/zero"), lambda file: file.symlink_to(__file__), Path.mkdir],
    ids=["a pipe", "a link to a device", "a link to a file", "a folder"],
)
def test_what_is_not_a_regular_file_is_not_read(tmp_path: Path, put: Callable[[Path], object]) -> None:
    """A pipe would never end, and so would an endless device."""
    with two_files(tmp_path) as (payco, files):
        files[0].unlink()
        put(files[0])
        with pytest.raises(StorageError, match=f"{THIS_MESSAGE} cannot be read from the outbox of shop"):
            payco.get(chain_message().key, timeout=PATIENCE)


def test_stray_files_in_an_outbox_stay_until_the_run_ends(tmp_path: Path) -> None:
    with open_exchanges(make_chain_world(tmp_path, "files")) as exchanges:
        exchanges["shop"].put_all([chain_message(iteration=i) for i in (0, 1)])
        run = tmp_path / "shop/outbox/payco" / chain_message().key.address.run
        for stray in (run / "notes.txt", run / "old/x/y.msg", run / "0/deeper/x/y/z.msg"):
            stray.parent.mkdir(parents=True, exist_ok=True)
            stray.write_text("stray")
        assert exchanges["shop"].drop_messages("test", before=1) == 1
        assert exchanges["shop"].drop_messages("test") == 4


def test_a_message_over_the_limit_is_refused_before_it_is_written(tmp_path: Path) -> None:
    large = Outgoing(chain_message().key, pa.py_buffer(bytes(64_000_001)))
    with open_exchanges(make_chain_world(tmp_path, "files")) as exchanges:
        with pytest.raises(RefusedError, match=THIS_MESSAGE):
            exchanges["shop"].put_all([large])
        assert not (tmp_path / "shop/outbox/payco" / large.key.path).exists()


def test_a_file_of_a_stranger_is_refused(tmp_path: Path) -> None:
    world = make_chain_world(tmp_path, "files")
    stranger = make_identity("shop", 2)
    ciphers = {"payco": PairwiseCipher(stranger, world.configs["payco"].certificate.read_bytes())}
    FileExchange(str(tmp_path / "shop/outbox"), {}, ciphers, 1 << 20).put_all([chain_message()])
    with open_exchanges(world) as exchanges, pytest.raises(RefusedError, match="not made by shop"):
        exchanges["payco"].get(chain_message().key, timeout=PATIENCE)


def test_a_message_in_the_outbox_is_not_overwritten_by_another(tmp_path: Path) -> None:
    with open_exchanges(make_chain_world(tmp_path, "files")) as exchanges:
        exchanges["shop"].put_all([chain_message()])
        with pytest.raises(RefusedError, match=THIS_MESSAGE):
            exchanges["shop"].put_all([Outgoing.of(chain_message().key, {"e": np.zeros(1, np.uint64)})])
        assert exchanges["payco"].get(chain_message().key, timeout=PATIENCE).equals(chain_message().payload)


def test_a_full_disk_under_an_outbox_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_exchanges(make_chain_world(tmp_path, "files")) as exchanges:
        monkeypatch.setattr(FileSystems, "create", lambda *_, **__: open("/dev/full", "wb"))  # noqa: PTH123, SIM115
        with pytest.raises(StorageError, match=f"{tmp_path}/shop/outbox"):
            exchanges["shop"].put_all([chain_message()])


def test_a_silent_peer_is_named_after_the_timeout(tmp_path: Path) -> None:
    with open_exchanges(make_chain_world(tmp_path, "files")) as exchanges:
        start = time.monotonic()
        with pytest.raises(PeerError, match=f"from shop within 0.5 s.*{tmp_path}/shop/outbox"):
            exchanges["payco"].get(chain_message().key, timeout=0.5)
        assert time.monotonic() - start >= 0.5
