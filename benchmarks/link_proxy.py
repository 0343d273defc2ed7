"""A slow link between two processes on this machine: TCP proxies with a rate and a delay, both ways.

Whatever protocol runs through it is slowed alike. A piece of s bytes that is read at time r at one end is written at
the other end at

  left = max(r, left of the piece before) + s / rate,      arrival = left + round_trip / 2,

so the rate is that of a queue without bursts, and the delay costs no throughput. Each direction of a `SlowLink` has one
such queue for all connections that cross it, whoever opened them. Pieces are at most a millisecond of the rate. Not
simulated: packets' headers, slow start, loss, and the round trip in which a connection is opened.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from queue import Queue
from typing import TypeAlias

from veilmeans.io.exchange.link_shaping import Link

UNSHAPED = Link(rate=inf, round_trip=0.0)
"""A link that only counts."""
_Pieces: TypeAlias = "Queue[tuple[float, bytes]]"
"""Pieces on the way, each with its arrival time."""
_LARGEST_PIECE = 1 << 16
_SMALLEST_PIECE = 1 << 10
_BUFFERED = 8 << 20
"""Bytes on the way that a connection may have; a sender that is faster waits."""


@dataclass
class Direction:
    """One direction of a link: when its queue is empty, and the bytes that entered it."""

    link: Link
    bytes_carried: int = 0
    _empty_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arrival(self, size: int, now: float) -> float:
        """Queue a piece of so many bytes; return the time at which it arrives."""
        with self._lock:
            self.bytes_carried += size
            self._empty_at = max(self._empty_at, now) + size / self.link.rate
            return self._empty_at + self.link.round_trip / 2

    @property
    def piece(self) -> int:
        """The most bytes that are read at a time: a millisecond of the rate."""
        return int(min(_LARGEST_PIECE, max(_SMALLEST_PIECE, self.link.rate / 1000)))


class SlowLink:
    """A link between two hosts; `there` and `back` are its directions, seen from the first."""

    def __init__(self, link: Link) -> None:
        self.there, self.back = Direction(link), Direction(link)

    @property
    def bytes_carried(self) -> int:
        """Bytes of all connections, both ways."""
        return self.there.bytes_carried + self.back.bytes_carried

    @contextmanager
    def between(self, first: int, second: int) -> Iterator[tuple[int, int]]:
        """Listen in front of both hosts' ports on loopback.

        Return the ports to dial instead: one for the first host on the way to `second`, one for the second on the way
        to `first`.
        """
        with ExitStack() as stack:
            to_second = stack.enter_context(_Listener(second, self.there, self.back))
            to_first = stack.enter_context(_Listener(first, self.back, self.there))
            yield to_second.port, to_first.port


class _Listener:
    """Accept connections on a free port of loopback, and join each to a new one to `target`."""

    def __init__(self, target: int, forward: Direction, backward: Direction) -> None:
        self._target, self._directions = target, (forward, backward)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "_Listener":
        _start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            for end in self._open:
                _shut(end, socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:  # closed
                return
            self._join(near)

    def _join(self, near: socket.socket) -> None:
        """Relay both ways. Where nobody listens at the target, the caller's connection is closed, and it may retry."""
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        with self._lock:
            self._open += [near, far]
        _start(lambda: self._carry(near, far))

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Carry bytes both ways until both ends have ended."""
        forward, backward = self._directions
        threads = [thread for each in ((near, far, forward), (far, near, backward)) for thread in _relay(*each)]
        for thread in threads:
            thread.join()
        with self._lock:
            self._open = [end for end in self._open if end not in (near, far)]
        near.close()
        far.close()


def _relay(source: socket.socket, sink: socket.socket, direction: Direction) -> list[threading.Thread]:
    """Carry bytes from `source` to `sink`, in two threads: one that reads, and one that writes at the arrival time."""
    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    on_the_way: _Pieces = Queue(max(1, _BUFFERED // direction.piece))
    return [_start(lambda: _read(source, direction, on_the_way)), _start(lambda: _write(source, sink, on_the_way))]


def _read(source: socket.socket, direction: Direction, on_the_way: _Pieces) -> None:
    """Read until the end, which is an empty piece that arrives like the others."""
    piece = b"-"
    while piece:
        try:
            piece = source.recv(direction.piece)
        except OSError:
            piece = b""
        on_the_way.put((direction.arrival(len(piece), time.monotonic()), piece))


def _write(source: socket.socket, sink: socket.socket, on_the_way: _Pieces) -> None:
    """Write each piece at its arrival time. If the sink is gone, the source's connection ends, too."""
    arrival, piece = on_the_way.get()
    while piece:
        time.sleep(max(0.0, arrival - time.monotonic()))
        try:
            sink.sendall(piece)
        except OSError:
            _shut(source, socket.SHUT_RDWR)
        arrival, piece = on_the_way.get()
    time.sleep(max(0.0, arrival - time.monotonic()))
    _shut(sink, socket.SHUT_WR)


def _shut(end: socket.socket, how: int) -> None:
    with suppress(OSError):  # it has ended already
        end.shutdown(how)


def _start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
