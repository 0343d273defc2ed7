"""Connections that the guard of a gateway closes: strangers that are idle or too many, parts without end."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.fault_injection import PATIENCE, chain_message, make_chain_world, wait_for
from support.raw_messages import parts_of, raw_client, send_raw
from veilmeans.io.exchange import connection_guard
from veilmeans.io.exchange.connection_guard import ConnectionGuard, parse_remote
from veilmeans.io.exchange.connections import load_identity, open_gateway

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the guard needs Linux")
SOME = bytes(1 << 20)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed a connection over which nothing was sent."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


@contextmanager
def strangers_at(port: int, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)) for _ in range(count)
        ]


@pytest.mark.parametrize("limit", ["STRANGERS", "STRANGERS_OF_ADDRESS"])
def test_of_too_many_strangers_the_oldest_are_cut_off_and_peers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(connection_guard, limit, 3)
    monkeypatch.setattr(connection_guard, "HANDSHAKE_TIME", PATIENCE)
    world = make_chain_world(tmp_path, "gateway")
    with open_gateway(world.configs["payco"]) as gateway:
        peer = raw_client(world.configs["payco"], load_identity(world.configs["shop"]))
        assert send_raw(peer, parts_of(chain_message(number=1))) == 1
        with strangers_at(gateway.port, 10) as strangers:
            wait_for(lambda: sum(map(is_closed, strangers)) == 7)
            assert not is_closed(strangers[-1])
            assert send_raw(peer, parts_of(chain_message(number=2))) == 1


def test_a_handshake_that_takes_too_long_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC alone waits two minutes; a peer's connection lasts longer than that."""
    monkeypatch.setattr(connection_guard, "HANDSHAKE_TIME", 0.5)
    world = make_chain_world(tmp_path, "gateway")
    with open_gateway(world.configs["payco"]) as gateway:
        peer = raw_client(world.configs["payco"], load_identity(world.configs["shop"]))
        assert send_raw(peer, parts_of(chain_message(number=1))) == 1
        with strangers_at(gateway.port, 1) as strangers:
            wait_for(lambda: is_closed(strangers[0]), 60)
        assert send_raw(peer, parts_of(chain_message(number=2))) == 1


@pytest.fixture
def connected() -> Iterator[tuple[ConnectionGuard, socket.socket, socket.socket]]:
    """A guard, a peer's socket and the other end, which the guard watches; the guard looks when it is called."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        guard = ConnectionGuard(_port=server.getsockname()[1])
        with socket.create_connection(server.getsockname(), timeout=PATIENCE) as peer:
            here, _ = server.accept()
            with here:
                guard.look()
                yield guard, peer, here


def send(peer: socket.socket, here: socket.socket, count: int) -> None:
    """Send so many MiB, and receive them as gRPC would, into memory."""
    for _ in range(count):
        peer.sendall(SOME)
        left = len(SOME)
        while left:
            left -= len(here.recv(left))


def test_a_part_without_end_is_cut_off(
    connected: tuple[ConnectionGuard, socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_guard, "ARRIVING", 4 << 20)
    guard, peer, here = connected
    guard.admit("ipv4:{}:{}".format(*peer.getsockname()), "shop")
    send(peer, here, 3)
    guard.look()
    assert not is_closed(peer)
    send(peer, here, 2)
    guard.look()
    assert is_closed(peer)


def test_parts_that_arrive_are_accounted_for(
    connected: tuple[ConnectionGuard, socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many bytes as before, in parts that we received; what was received more than once gives no credit."""
    monkeypatch.setattr(connection_guard, "ARRIVING", 4 << 20)
    guard, peer, here = connected
    remote = guard.admit("ipv4:{}:{}".format(*peer.getsockname()), "shop")
    for _ in range(6):
        send(peer, here, 1)
        guard.look()
        guard.arrived(remote, len(SOME))
        guard.arrived(remote, len(SOME))
    assert not is_closed(peer)
    send(peer, here, 5)
    guard.look()
    assert is_closed(peer)


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[::ffff:10.0.0.1]:4711", "10.0.0.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::1"),
    ],
)
def test_addresses_are_read_as_grpc_writes_them(written: str, address: str) -> None:
    assert parse_remote(written) == (address, 4711)
