"""Close connections at a gateway that gRPC would keep: it has no settings for them in Python.

Several times a second the guard looks at the process's own descriptors (Linux: /proc/self/fd). A connection to the
gateway's port belongs to a stranger until a call has come over it (`admit`): only who has a pinned certificate gets so
far. The guard shuts down

  - a stranger's connection, `HANDSHAKE_TIME` seconds after it was seen first (gRPC waits two minutes);
  - the oldest strangers, where there are more than `STRANGERS`, or more than `STRANGERS_OF_ADDRESS` of one address;
  - a peer's connection on which more than `ARRIVING` bytes have come in that no part of a message has brought to us: a
    part is larger than any may be, and gRPC would hold all of it in memory before anybody can refuse it.

Bytes are the kernel's count for the connection (TCP_INFO). A part accounts for its own size and what TLS, HTTP/2 and
Flight add to it (`_overhead`). Who is cut off and means no harm connects again, and sends the same again.
"""

import logging
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

HANDSHAKE_TIME = 20.0
STRANGERS, STRANGERS_OF_ADDRESS = 256, 64
ARRIVING = 128 << 20
_PAUSE, _SHORT_PAUSE = 0.2, 0.02  # seconds between two looks; short while a connection brings much
_MUCH = 8 << 20
_CALL = 2048  # bytes that a call has before its first part: headers, a descriptor, a schema, a ticket
_DESCRIPTORS = "/proc/self/fd"
_SOCKET, _NOT_A_NUMBER = "socket:[", "socket:[]"  # how the kernel names the socket of a descriptor
_BYTES_RECEIVED = struct.Struct("@128xQ")  # tcpi_bytes_received within Linux's struct tcp_info
Remote = tuple[str, int]
"""Address and port of the other side of a connection."""
log = logging.getLogger(__name__)


@dataclass
class _Connection:
    """One connection to the gateway; `number`: a later one's is higher; `received`: bytes at the last look."""

    remote: Remote
    since: float
    number: int
    received: int = 0


@dataclass
class ConnectionGuard:
    """The guard of one gateway."""

    _port: int = 0
    _peers: dict[Remote, str] = field(default_factory=dict)
    _arriving: Counter[Remote] = field(default_factory=Counter)  # bytes that came in and belong to no part yet
    _connections: dict[str, _Connection] = field(default_factory=dict)  # by the name that the kernel gives a socket
    _others: set[str] = field(default_factory=set)  # sockets that are none of this gateway's connections
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def admit(self, call_from: str, peer: str) -> Remote:
        """Note that a call of `peer` has come over the connection from this address, as gRPC writes it."""
        remote = parse_remote(call_from)
        with self._lock:
            self._peers[remote] = peer
        self.arrived(remote, _CALL)
        return remote

    def arrived(self, remote: Remote, size: int) -> None:
        """Note that a part of `size` bytes, with its label, has been received over a connection."""
        with self._lock:
            self._arriving[remote] = max(0, self._arriving[remote] - size - _overhead(size))

    def start(self, port: int) -> None:
        """Look at the connections to `port` again and again, in a thread, until `stop`."""
        self._port = port
        if Path(_DESCRIPTORS).is_dir():
            self._thread = threading.Thread(target=self._watch, name=f"guard-{port}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        spare = os.open(os.devnull, os.O_RDONLY)  # to be able to look when all descriptors are used up
        pause = _PAUSE
        while not self._ended.wait(pause):
            os.close(spare)
            with suppress(OSError):
                self.look()
            spare = _reopen(self._ended)
            pause = _SHORT_PAUSE if any(size > _MUCH for size in self._arriving.values()) else _PAUSE
        os.close(spare)

    def look(self) -> None:
        """Find all connections, and shut down those that must end."""
        now, found = time.monotonic(), dict(_sockets())
        with self._lock:
            self._forget_closed(found)
            for name, descriptor in found.items():
                if name not in self._others:
                    with suppress(OSError):  # gRPC may close it meanwhile
                        self._look_at(name, descriptor, now)
            strangers = [each for each in self._connections.items() if each[1].remote not in self._peers]
            for name, connection in _to_close(strangers, now):
                _shut_down(found[name])
                log.info("closed a connection from %s that made no call", connection.remote[0])

    def _look_at(self, name: str, descriptor: int, now: float) -> None:
        with _duplicate(descriptor) as connection:
            known = self._connections.get(name)
            if known is None:
                remote = _remote_of(connection, self._port)
                if remote is None:
                    self._others.add(name)
                    return
                known = self._connections[name] = _Connection(remote, now, int(name.strip(_NOT_A_NUMBER)))
            received = _bytes_received(connection)
            if known.remote in self._peers:
                self._arriving[known.remote] += received - known.received
                if self._arriving[known.remote] > ARRIVING:
                    connection.shutdown(socket.SHUT_RDWR)
                    del self._arriving[known.remote]
                    log.error(
                        "closed a connection of %s: it sent a part of more than %d bytes of a message",
                        self._peers[known.remote],
                        ARRIVING,
                    )
            known.received = received

    def _forget_closed(self, found: dict[str, int]) -> None:
        for name in self._connections.keys() - found.keys():
            remote = self._connections.pop(name).remote
            self._peers.pop(remote, None)
            self._arriving.pop(remote, None)
        self._others &= found.keys()


def parse_remote(text: str) -> Remote:
    """Parse an address as gRPC writes it: ipv4:10.0.0.1:4711, ipv6:%5B::1%5D:4711."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _overhead(size: int) -> int:
    """Bytes that a part has on the wire beside its own, at most: TLS, HTTP/2, gRPC and Flight."""
    return 1024 + size // 50


def _to_close(strangers: "list[tuple[str, _Connection]]", now: float) -> "list[tuple[str, _Connection]]":
    """Choose the strangers whose time is up, and the oldest of too many."""
    newest_first = sorted(strangers, key=lambda each: (each[1].since, each[1].number), reverse=True)
    seen: Counter[str] = Counter()
    chosen = []
    for name, connection in newest_first:
        host = connection.remote[0]
        late = now - connection.since > HANDSHAKE_TIME
        if late or seen.total() >= STRANGERS or seen[host] >= STRANGERS_OF_ADDRESS:
            chosen.append((name, connection))
        else:
            seen[host] += 1
    return chosen


def _sockets() -> Iterator[tuple[str, int]]:
    """The sockets of this process: the kernel's name and the descriptor of each."""
    for number in os.listdir(_DESCRIPTORS):  # noqa: PTH208 (a few times faster, and done several times a second)
        with suppress(OSError):
            name = os.readlink(f"{_DESCRIPTORS}/{number}")  # noqa: PTH115
            if name.startswith(_SOCKET):
                yield name, int(number)


@contextmanager
def _duplicate(descriptor: int) -> Iterator[socket.socket]:
    """A socket of our own for a descriptor of gRPC's, which may be closed at any moment."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection


def _remote_of(connection: socket.socket, port: int) -> Remote | None:
    """The other side of a connection to this port; None for any other socket."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        local, remote = connection.getsockname(), connection.getpeername()
    except OSError:
        return None  # it listens, or has been closed
    return (_plain(remote[0]), remote[1]) if local[1] == port else None


def _bytes_received(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
    return int(_BYTES_RECEIVED.unpack(info)[0]) if len(info) == _BYTES_RECEIVED.size else 0


def _shut_down(descriptor: int) -> None:
    with suppress(OSError), _duplicate(descriptor) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _reopen(ended: threading.Event) -> int:
    while True:
        try:
            return os.open(os.devnull, os.O_RDONLY)
        except OSError:
            ended.wait(_SHORT_PAUSE)
