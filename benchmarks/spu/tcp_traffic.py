"""The bytes that this process's TCP connections have received, as Linux counts them: payload, without headers.

Unlike a network interface's counter, this does not count what other processes send.
"""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

_BYTES_RECEIVED = 128
"""Offset of the 64-bit number `tcpi_bytes_received` in Linux's `struct tcp_info`."""


def connections() -> dict[str, int]:
    """What each open connection has received so far, by its two ends."""
    descriptors = [int(file.name) for file in list(Path("/proc/self/fd").iterdir())]
    return dict(each for each in map(_connection, descriptors) if each is not None)


def received_since(before: dict[str, int]) -> int:
    """Sum up what was received since `before`. A connection that is gone would be missing in the sum: that fails."""
    now = connections()
    if gone := before.keys() - now.keys():
        raise RuntimeError(f"closed before their bytes were counted: {', '.join(sorted(gone))}")
    return sum(now.values()) - sum(before.values())


def _connection(descriptor: int) -> tuple[str, int] | None:
    """The ends of a descriptor and the bytes received; None if it is no TCP connection, or was closed meanwhile."""
    with suppress(OSError), _opened_again(descriptor) as connection:
        if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
            ends = f"{connection.getsockname()}-{connection.getpeername()}"
            return ends, int(struct.unpack_from("Q", info, _BYTES_RECEIVED)[0])
    return None


def _opened_again(descriptor: int) -> socket.socket:
    """A socket that can be closed while the descriptor stays open; an OSError if it is no socket."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
