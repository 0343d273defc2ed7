"""Traffic of TCP connections: what was received is counted exactly, and a connection that is gone is noticed."""

import socket
from pathlib import Path

import pytest
from benchmarks.spu.tcp_traffic import connections, received_since


def receive(connection: socket.socket, size: int) -> None:
    while size:
        size -= len(connection.recv(size))


def received(connection: socket.socket) -> int:
    return connections()[f"{connection.getsockname()}-{connection.getpeername()}"]


def test_received_bytes_are_counted_at_each_end_and_a_closed_connection_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            before = {f"{end.getsockname()}-{end.getpeername()}": 0 for end in (near, far)}
            near.sendall(bytes(70_000))
            receive(far, 70_000)
            far.sendall(bytes(300))
            receive(near, 300)
            assert (received(far), received(near)) == (70_000, 300)
            assert received_since(before) >= 70_300  # a connection of another test may still be open
        with pytest.raises(RuntimeError, match="closed before"):
            received_since(before)


def test_other_descriptors_are_no_connections_and_stay_open() -> None:
    left, right = socket.socketpair()
    with left, right, Path(__file__).open() as file, socket.create_server(("127.0.0.1", 0)) as server:
        before = len(list(Path("/proc/self/fd").iterdir()))
        names = connections()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert not any(str(server.getsockname()) in name for name in names)
        left.sendall(b"still open")
        receive(right, 10)
        assert file.read(1) == '"'
