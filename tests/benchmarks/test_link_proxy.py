"""The proxy of the benchmarks: bytes arrive unchanged and in order; its arithmetic gives the rate and the delay."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from benchmarks.link_proxy import UNSHAPED, Direction, SlowLink
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.io.exchange.link_shaping import WAN, Link

FAST = Link(rate=1e9, round_trip=2e-3)


@contextmanager
def echo_server() -> Iterator[int]:
    """Serve on a port of loopback, and send back whatever comes, on any number of connections."""

    def echo(connection: socket.socket) -> None:
        with connection:
            while received := connection.recv(1 << 16):
                connection.sendall(received)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def exchange(port: int, sent: bytes) -> bytes:
    """Send everything, end the direction, and read until the other end ends its own."""
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def send() -> None:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        sender.join()
    return received


@pytest.mark.parametrize("link", [UNSHAPED, FAST])
@pytest.mark.parametrize("size", [0, 1, 65_537, 3_000_000])
def test_bytes_arrive_unchanged_and_in_order(link: Link, size: int) -> None:
    sent = np.random.default_rng(size).bytes(size)
    slow = SlowLink(link)
    with echo_server() as first, echo_server() as second, slow.between(first, second) as (to_second, to_first):
        assert exchange(to_second, sent) == sent
        assert (slow.there.bytes_carried, slow.back.bytes_carried) == (size, size)
        assert exchange(to_first, sent) == sent
    assert slow.bytes_carried == 4 * size


def test_connections_do_not_mix() -> None:
    contents = [bytes([number]) * 200_000 for number in range(8)]
    received: dict[int, bytes] = {}
    with echo_server() as port, SlowLink(FAST).between(port, port) as ports:

        def run(number: int) -> None:
            received[number] = exchange(ports[number % 2], contents[number])

        threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [received[number] for number in range(8)] == contents


def test_a_caller_is_refused_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with SlowLink(UNSHAPED).between(port, port) as (dialled, _):
        assert exchange(dialled, b"") == b""


def test_a_host_that_disappears_ends_its_callers_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with SlowLink(UNSHAPED).between(port, port) as (dialled, _):
            caller = socket.create_connection(("127.0.0.1", dialled))
            accepted, _ = server.accept()
            accepted.close()
            assert caller.recv(1) == b""
            caller.close()


@given(
    st.lists(st.tuples(st.floats(0, 0.1), st.integers(1, 1 << 16)), min_size=1, max_size=50),
    st.floats(1e4, 1e9),
    st.floats(0, 1),
)
def test_arrivals_are_those_of_a_queue(pieces: list[tuple[float, int]], rate: float, round_trip: float) -> None:
    """No two pieces overlap, none leaves before it came, and the link is idle only while nothing waits."""
    direction, now, free = Direction(Link(rate, round_trip)), 0.0, 0.0
    for pause, size in pieces:
        now += pause
        left = direction.arrival(size, now) - round_trip / 2
        assert left == pytest.approx(max(now, free) + size / rate, abs=1e-9)
        free = left
    assert direction.bytes_carried == sum(size for _, size in pieces)


def test_a_busy_link_has_its_rate_and_one_delay() -> None:
    direction = Direction(WAN)
    last = [direction.arrival(2_500, 0.0) for _ in range(1_000)][-1]
    assert last == pytest.approx(1.0 + 0.02)


def test_nothing_is_faster_than_the_link() -> None:
    """Only a lower bound is asserted: a busy machine makes it longer, and nothing makes it shorter."""
    with echo_server() as port, SlowLink(Link(rate=1e6, round_trip=0.05)).between(port, port) as (dialled, _):
        start = time.monotonic()
        assert exchange(dialled, bytes(100_000)) == bytes(100_000)
        assert time.monotonic() - start >= 0.1 + 0.05
