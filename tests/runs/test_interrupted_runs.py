"""Runs that end in the middle: full disks, messages that are not right, a port that is taken."""

import os
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.flight as flight
import pytest

from support.bad_input import FULL_DISK, check_refusal, full_disk
from support.commands import assert_all_succeeded, at_rename
from support.fault_injection import wait_for
from support.parties import in_parallel
from support.raw_messages import Part, parts_of, raw_client, send_raw
from support.worlds import World, two_companies
from veilmeans.io.exchange.connections import load_identity
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.schemas.address import Address
from veilmeans.schemas.message import Header, MessageKey

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> World:
    return two_companies(tmp_path_factory.mktemp("new"), "vertical", max_iter=1)


@pytest.mark.parametrize("path", ["runs/test/bound.", "checkpoints/1.arrow", "result.json"])
def test_a_run_resumes_when_a_full_disk_has_space_again(tmp_path: Path, new: World, path: str) -> None:
    world = new.copied(tmp_path / "world")
    payco, shop = world.start("payco", full_disk(path)), world.start("shop")
    check_refusal(world, "payco", payco.wait(), (8, ("{folder}/payco/storage", *FULL_DISK)))
    shop.kill()
    assert_all_succeeded(world.train_as_processes())


def test_a_full_disk_under_a_gateway_is_reported_on_both_sides(tmp_path: Path, new: World) -> None:
    """Shop ends: its message was not stored. Payco's log names the disk; it waits for shop, which may be restarted."""
    world = new.copied(tmp_path / "world")
    payco, shop = world.start("payco", full_disk("inbox/")), world.start("shop")
    inbox = "{folder}/payco/storage/inbox"
    check_refusal(world, "shop", shop.wait(), (8, ("gateway of payco", inbox, *FULL_DISK)))
    wait_for(lambda: inbox.format(folder=world.folder) in payco.log.read_text())
    payco.kill()
    assert_all_succeeded(world.train_as_processes())


def message(sender: str = "shop") -> Outgoing:
    key = MessageKey(Address("test", 0, "operand.00.operand", 0), sender, "payco")
    return Outgoing.of(key, {"x": np.arange(9, dtype=np.uint64)})


def truncated() -> list[Part]:
    return parts_of(Outgoing(message().key, message().payload.slice(0, 99)), Header.of(message().payload))


FORGED: Mapping[str, Callable[[], list[Part]]] = {
    "truncated": truncated,
    "notary": lambda: parts_of(message("notary")),
}
"""What payco's error names -> the parts of a message that is not right."""


def test_a_bad_message_to_the_gateway_ends_the_run(tmp_path: Path, new: World) -> None:
    """Shop has died and payco waits; somebody has shop's certificate and a client of their own."""

    def forge(named: str) -> None:
        world = new.copied(tmp_path / named).altered("payco", exchange={"timeout_s": 10})
        shop = world.start("shop", at_rename("bound."))
        payco = world.start("payco")
        assert shop.wait()[0] == -signal.SIGKILL
        client = raw_client(world["payco"], load_identity(world["shop"]))
        with pytest.raises(flight.FlightServerError, match=named):
            send_raw(client, FORGED[named]())
        check_refusal(world, "payco", payco.wait(), (6, ("shop", named, "test/0/operand.00.operand/0")))

    in_parallel([partial(forge, named) for named in FORGED])


@pytest.mark.parametrize("what", ["truncated", "altered", "another's"])
def test_a_bad_message_in_an_outbox_ends_the_run(tmp_path: Path, new: World, what: str) -> None:
    """Shop has died and payco waits; then somebody changes what payco has put into its outbox."""
    world = new.copied(tmp_path / "world", exchange={"kind": "files"})
    payco = world.start("payco")
    assert world.start("shop", at_rename("checkpoints/1.arrow")).wait()[0] == -signal.SIGKILL
    first, second = sorted((world.folder / "payco/outbox/shop/test/0").glob("assign.*/*.msg"))[:2]
    content = first.read_bytes()
    altered = content[:50] + bytes([content[50] ^ 1]) + content[51:]
    changes = {"truncated": content[:-9], "altered": altered, "another's": second.read_bytes()}
    first.write_bytes(changes[what])
    expected = (6, ("payco", f"test/0/{first.parent.name}/"))
    check_refusal(world, "shop", world.start("shop").wait(), expected)
    payco.kill()


def test_a_port_that_is_taken_is_named(tmp_path: Path, new: World) -> None:
    world = new.copied(tmp_path / "world")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = world.start("payco", fields={"listen": address}).wait()
    check_refusal(world, "payco", ended, (8, (address, "port")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, new: World) -> None:
    world = new.copied(tmp_path / "world")
    world.data("payco").chmod(0)
    check_refusal(world, "payco", world.start("payco").wait(), (3, ("{data}", "Permission denied")))
