"""Disturb payco's gateway while two parties train: does the run end right, and how much longer does it take?

  idle connections    1,200 TCP connections of a stranger without a certificate; closed ones are opened again
  half-open streams   600 streams under shop's certificate that begin a call and send nothing more
  strange messages    10,000 messages of one byte, of runs that nobody has begun, under shop's certificate
  resent messages     shop sends everything twice, and all messages of an iteration once more in the next

The same folders, copied for each run: the opened results must be the same bytes. The attacker has its share of the
machine's processors, too.
"""

import json
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import Shape, run_command, write_inputs
from benchmarks.world_copies import Results, copy_world, train_both
from veilmeans.io.exchange.connections import load_identity
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_exchange import FlightExchange
from veilmeans.io.exchange.flight_streams import PART_SCHEMA, split
from veilmeans.pipelines.cli.main import run as run_veilmeans
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import load_config
from veilmeans.schemas.message import Header, MessageKey

CONNECTIONS, STREAMS, MESSAGES = 1_200, 600, 10_000
_SHAPE = Shape(rows=100_000, features=2, clusters=5, iterations=10)
_PAUSE = 0.05
Attack = Callable[[Path, threading.Event], int]
"""Disturbs payco's gateway until the event is set; returns how often it did."""


# Attacks.
def open_connections(folder: Path, ended: threading.Event) -> int:
    """Keep connections open that say nothing."""
    address, opened = _payco(folder), 0
    idle: list[socket.socket] = []
    while not ended.wait(1.0 if idle else _PAUSE):
        idle = [each for each in idle if not _is_closed(each)]
        with suppress(OSError):
            while len(idle) < CONNECTIONS and not ended.is_set():
                idle.append(socket.create_connection(address, timeout=1))
                idle[-1].setblocking(False)
                opened += 1
    for each in idle:
        each.close()
    return opened


def open_streams(folder: Path, ended: threading.Event) -> int:
    """Begin calls, and send nothing more."""
    client, streams = _shop_client(folder), list[Any]()
    while not ended.wait(_PAUSE):
        with suppress(flight.FlightError, pa.ArrowException):
            while len(streams) < STREAMS and not ended.is_set():
                streams.append(client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA))
    return len(streams)


def send_strange_messages(folder: Path, ended: threading.Event) -> int:
    """Send messages of runs that nobody has begun, over new streams when one is refused."""
    client, sent = _shop_client(folder), 0
    payload = pa.py_buffer(b"x")
    (part,) = split(payload)
    header = Header.of(payload)
    while sent < MESSAGES and not ended.is_set():
        with suppress(flight.FlightError, pa.ArrowException, OSError):
            writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA)
            with writer:
                while sent < MESSAGES and not ended.is_set():
                    key = MessageKey(Address(f"strange-{sent}", 0, "assign.00.open", 0), "shop", "payco")
                    label = {"key": key.to_json(), "size": header.size, "sha256": header.digest.hex()}
                    writer.write_with_metadata(part, pa.py_buffer(json.dumps(label).encode()))
                    sent += 1
    return sent


def _payco(folder: Path) -> tuple[str, int]:
    host, _, port = (load_config(folder / "payco" / "config.yaml").listen or "").rpartition(":")
    return host, int(port)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _shop_client(folder: Path) -> flight.FlightClient:
    identity = load_identity(load_config(folder / "shop" / "config.yaml"))
    host, port = _payco(folder)
    return flight.FlightClient(
        f"grpc+tls://{host}:{port}",
        tls_root_certs=(folder / "payco" / "keys" / "payco.crt").read_bytes(),
        cert_chain=identity.certificate,
        private_key=identity.key,
        override_hostname="payco",
    )


def resend_everything() -> None:
    """Make the exchange of this process send each message twice, and old iterations again."""
    put_all, sent = FlightExchange.put_all, dict[tuple[str, int], list[Outgoing]]()

    def resending(self: FlightExchange, messages: Sequence[Outgoing]) -> None:
        put_all(self, messages)
        put_all(self, messages)
        for message in messages:
            where = message.key.address
            put_all(self, sent.pop((where.run, where.iteration - 1), []))
            sent.setdefault((where.run, where.iteration), []).append(message)

    FlightExchange.put_all = resending  # type: ignore[method-assign]


# Runs.
def prepared(folder: Path) -> Path:
    """Both parties' folders, with their triples."""
    write_inputs(folder, _SHAPE)
    run_command(folder, "offline", _SHAPE.members)
    return folder


@contextmanager
def copied(before: Path) -> Iterator[Path]:
    """A copy of the folders, for one run."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-hostile-") as name:
        yield copy_world(before, Path(name) / "world")


def train_under(attack: Attack, folder: Path) -> tuple[float, Results, int]:
    """Train while an attack continues in another process; return also how often it happened."""
    ended, done = threading.Event(), []
    attacker = threading.Thread(target=lambda: done.append(attack(folder, ended)))
    attacker.start()
    try:
        seconds, results = train_both(folder, {})
    finally:
        ended.set()
        attacker.join()
    return seconds, results, done[0]


ATTACKS: dict[str, Attack] = {
    "idle connections": open_connections,
    "half-open streams": open_streams,
    "strange messages": send_strange_messages,
}


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="veilmeans-hostile-") as name:
        before = prepared(Path(name) / "before")
        with copied(before) as folder:
            usual, expected = train_both(folder, {})
        figures = [Figure("undisturbed run", usual, "s")]
        for what, attack in ATTACKS.items():
            with copied(before) as folder:
                seconds, results, count = train_under(attack, folder)
            figures += _compared(f"{count:,} {what}", seconds - usual, results == expected)
        with copied(before) as folder:
            seconds, results = train_both(folder, {"shop": ("-m", "benchmarks.hostile", "--resend")})
        return [*figures, *_compared("resent messages", seconds - usual, results == expected)]


def _compared(what: str, longer: float, same: bool) -> list[Figure]:
    return [Figure(f"{what}: longer by", longer, "s"), Figure.at_least(f"{what}: same results", float(same), "", 1.0)]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--resend", type=Path, help="be the party of this configuration that sends everything twice")
    chosen = arguments.parse_args()
    if chosen.resend is not None:
        resend_everything()
        sys.argv = ["veilmeans", "train", "--config", str(chosen.resend)]
        run_veilmeans()
    publish(measure(), chosen.json)


if __name__ == "__main__":
    main()
