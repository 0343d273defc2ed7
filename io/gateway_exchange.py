"""The exchange through gateways: puts go to the recipient's gateway, gets to one's own.

A put is retried until the peer's gateway answers or the time is up: the peer may just be starting again. What is sent
again is the same bytes, and ignored there. Where a gateway lives in this very process, gets read its spool directly.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange import Outgoing, check_size
from veilmeans.io.gateway import LONGEST_WAIT, PART_SCHEMA, split
from veilmeans.io.spool import Spool
from veilmeans.io.tls import diagnose
from veilmeans.schemas.errors import CertificateError, PeerError, RefusedError, recall
from veilmeans.schemas.message import Header, Key

Result = TypeVar("Result")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True)
class Door:
    """Where a party's gateway is, and the certificate it must show."""

    name: str
    address: str
    certificate: bytes


class GatewayExchange:
    """A party's side of the gateways. `local` is the spool of a gateway in this process, if there is one."""

    def __init__(
        self,
        own: Door,
        peers: Mapping[str, Door],
        identity: Identity,
        limit: int,
        timeout: float,
        local: Spool | None = None,
    ) -> None:
        self._own, self._peers, self._identity = own, dict(peers), identity
        self._limit, self._timeout, self._local = limit, timeout, local
        self._clients: dict[str, flight.FlightClient] = {}

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        by_peer: dict[str, list[tuple[Outgoing, Header]]] = {}
        for message in messages:
            check_size(message.key, message.payload.size, self._limit)
            by_peer.setdefault(message.key.recipient, []).append((message, Header.of(message.payload)))
        for peer, batch in by_peer.items():
            self._patiently(self._peers[peer], partial(_put, messages=batch), self._timeout)

    def get(self, key: Key, timeout: float) -> pa.Buffer:
        deadline = time.monotonic() + timeout
        while (payload := self._ask(key, deadline)) is None:
            if time.monotonic() >= deadline:
                raise PeerError(
                    f"no message {key.address} came from {key.sender} within {timeout:g} s: is its pipeline running, "
                    f"and can it reach {self._own.address}?"
                )
        return payload

    def collect(self, run: str, before: int | None = None) -> int:
        if self._local is not None:
            return self._local.collect(run, before)
        return self._act("collect", {"run": run, "before": before})

    def forgive(self, run: str) -> None:
        if self._local is not None:
            self._local.forgive(run)
        else:
            self._act("forgive", {"run": run})

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _ask(self, key: Key, deadline: float) -> pa.Buffer | None:
        wait = max(0.0, min(deadline - time.monotonic(), LONGEST_WAIT))
        if self._local is not None:
            return self._local.wait(key, wait)
        ticket = flight.Ticket(json.dumps({"key": key.to_json(), "wait": wait}))
        parts = self._patiently(self._own, lambda client: client.do_get(ticket).read_all(), self._timeout)
        return _join(parts)

    def _act(self, kind: str, body: Mapping[str, object]) -> int:
        action = flight.Action(kind, json.dumps(body).encode())
        answers = self._patiently(self._own, lambda client: list(client.do_action(action)), self._timeout)
        return int(answers[0].body.to_pybytes())

    def _patiently(self, door: Door, call: Callable[[flight.FlightClient], Result], timeout: float) -> Result:
        """Call a gateway; while it cannot be reached, try again with growing pauses."""
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            try:
                return call(self._client(door))
            except flight.FlightUnavailableError as error:
                self._forget(door)
                reason = diagnose(door.name, door.address, door.certificate, self._identity, str(error))
                if reason is not None:
                    raise CertificateError(reason) from None
                if time.monotonic() >= deadline:
                    raise PeerError(
                        f"the gateway of {door.name} at {door.address} did not answer within {timeout:g} s: "
                        "is it running, and does the firewall let us through?"
                    ) from None
            except (flight.FlightError, pa.ArrowException) as error:
                unnamed = RefusedError(f"the gateway of {door.name} refused: {_first_line(error)}")
                raise recall(error) or unnamed from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _client(self, door: Door) -> flight.FlightClient:
        if door.name not in self._clients:
            self._clients[door.name] = flight.FlightClient(
                f"grpc+tls://{door.address}",
                tls_root_certs=door.certificate,
                cert_chain=self._identity.certificate,
                private_key=self._identity.key,
                override_hostname=door.name,
            )
        return self._clients[door.name]

    def _forget(self, door: Door) -> None:
        client = self._clients.pop(door.name, None)
        if client is not None:
            client.close()


def _put(client: flight.FlightClient, messages: Sequence[tuple[Outgoing, Header]]) -> None:
    """One stream for all messages, one answer when they are durable."""
    writer, answers = client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA)
    with writer:
        for message, header in messages:
            label = {"key": message.key.to_json(), "size": header.size, "sha256": header.digest.hex()}
            metadata = json.dumps(label).encode()
            for part in split(message.payload):
                writer.write_with_metadata(part, pa.py_buffer(metadata))
                metadata = b"{}"
        writer.done_writing()
        answer = answers.read()
    if answer is None or int(answer.to_pybytes()) != len(messages):
        raise RefusedError(f"the gateway did not acknowledge {messages[0][0].key} and what was sent with it")


def _join(table: pa.Table) -> pa.Buffer | None:
    parts = [chunk[0].as_buffer() for chunk in table.column(0).chunks if len(chunk)]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0].split(". gRPC client debug context")[0].split(". Client context")[0]
