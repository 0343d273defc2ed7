"""The exchange through gateways: puts go to the recipient's gateway, gets to one's own.

A put is retried until the peer's gateway answers or the time is up: the peer may just be starting again. What is sent
again is the same bytes, and ignored there. Where a gateway lives in this very process, gets read its spool directly.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.exchange import Outgoing, check_size
from veilmeans.io.exchange.flight_gateway import LONGEST_WAIT
from veilmeans.io.exchange.flight_streams import Batch, FlightStreams
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.exchange.tls_diagnosis import diagnose
from veilmeans.schemas.errors import (
    CertificateError,
    PeerError,
    RefusedError,
    StorageError,
    VeilmeansError,
    recover_error,
)
from veilmeans.schemas.message import Header, MessageKey

Result = TypeVar("Result")
Call = Callable[[flight.FlightClient, flight.FlightCallOptions], Result]
"""One attempt at a gateway; the options say how long it may take."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True)
class Endpoint:
    """Where a party's gateway is, and the certificate it must show."""

    name: str
    address: str
    certificate: bytes


class FlightExchange:
    """A party's side of the gateways. `local` is the spool of a gateway in this process, if there is one."""

    def __init__(
        self,
        own: Endpoint,
        peers: Mapping[str, Endpoint],
        identity: Identity,
        limit: int,
        timeout: float,
        local: MessageStore | None = None,
    ) -> None:
        self._own, self._peers, self._identity = own, dict(peers), identity
        self._limit, self._timeout, self._local = limit, timeout, local
        self._clients: dict[str, flight.FlightClient] = {}
        self._lines = {name: FlightStreams(timeout) for name in peers}

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        by_peer: dict[str, list[tuple[Outgoing, Header]]] = {}
        for message in messages:
            check_size(message.key, message.payload.size, self._limit)
            by_peer.setdefault(message.key.recipient, []).append((message, Header.of(message.payload)))
        for peer, batch in by_peer.items():
            try:
                self._patiently(self._peers[peer], partial(_put, self._lines[peer], batch), self._timeout)
            except PeerError:
                self._check_refusals(batch[0][0].key)
                raise

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        deadline = time.monotonic() + timeout
        while (payload := self._ask(key, max(0.0, min(deadline - time.monotonic(), LONGEST_WAIT)))) is None:
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

    def forget_refusal(self, run: str) -> None:
        if self._local is not None:
            self._local.forget_refusal(run)
        else:
            self._act("forgive", {"run": run})

    def close(self) -> None:
        for lines in self._lines.values():
            lines.close()
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _ask(self, key: MessageKey, wait: float, patience: float | None = None) -> pa.Buffer | None:
        """The payload under `key` if it comes within `wait` seconds; our own gateway may be absent for `patience`."""
        if self._local is not None:
            return self._local.wait(key, wait)
        ticket = flight.Ticket(json.dumps({"key": key.to_json(), "wait": wait}))
        parts = self._patiently(self._own, partial(_read, ticket), wait + (patience or self._timeout))
        return _join(parts)

    def _check_refusals(self, key: MessageKey) -> None:
        """A peer that left because we refused its message is not called absent: our own gateway knows why."""
        with suppress(PeerError, CertificateError):
            self._ask(key, wait=0.0, patience=_LONGEST_PAUSE)

    def _act(self, kind: str, body: Mapping[str, object]) -> int:
        action = flight.Action(kind, json.dumps(body).encode())
        answers = self._patiently(self._own, partial(_act, action), self._timeout)
        return int(answers[0].body.to_pybytes())

    def _patiently(self, door: Endpoint, call: Call[Result], timeout: float) -> Result:
        """Call a gateway; while it cannot be reached, try again with growing pauses."""
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            client = self._client(door)
            left = max(deadline - time.monotonic(), _LONGEST_PAUSE)
            try:
                return call(client, flight.FlightCallOptions(timeout=left))
            except (flight.FlightUnavailableError, flight.FlightCancelledError) as error:  # absent, or just closing
                self._forget(door, client)
                reason = diagnose(door.name, door.address, door.certificate, self._identity, str(error))
                if reason is not None:
                    raise CertificateError(reason) from None
                if time.monotonic() >= deadline:
                    raise _no_answer(door, timeout) from None
            except flight.FlightTimedOutError:
                self._forget(door, client)
                raise _no_answer(door, timeout) from None
            except (flight.FlightError, pa.ArrowException) as error:
                raise _refusal(door, error) from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _client(self, door: Endpoint) -> flight.FlightClient:
        if door.name not in self._clients:
            self._clients[door.name] = flight.FlightClient(
                f"grpc+tls://{door.address}",
                tls_root_certs=door.certificate,
                cert_chain=self._identity.certificate,
                private_key=self._identity.key,
                override_hostname=door.name,
            )
        return self._clients[door.name]

    def _forget(self, door: Endpoint, client: flight.FlightClient) -> None:
        """Connect anew next time. The client is not closed: another thread may be about to use it."""
        if self._clients.get(door.name) is client:
            self._clients.pop(door.name, None)


def _put(lines: FlightStreams, batch: Batch, client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    del options  # a line has its own
    lines.put(batch, client)


def _read(ticket: flight.Ticket, client: flight.FlightClient, options: flight.FlightCallOptions) -> pa.Table:
    return client.do_get(ticket, options).read_all()


def _act(action: flight.Action, client: flight.FlightClient, options: flight.FlightCallOptions) -> list[flight.Result]:
    return list(client.do_action(action, options))


def _join(table: pa.Table) -> pa.Buffer | None:
    parts = [chunk[0].as_buffer() for chunk in table.column(0).chunks if len(chunk)]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


def _no_answer(door: Endpoint, timeout: float) -> PeerError:
    return PeerError(
        f"the gateway of {door.name} at {door.address} did not answer within {timeout:g} s: "
        "is it running, and does the firewall let us through?"
    )


def _refusal(door: Endpoint, error: BaseException) -> VeilmeansError:
    """What a gateway answered, as our own error; a disk is said to be whose it is."""
    said = _without_context(error)
    known = recover_error(said)
    if isinstance(known, StorageError):
        return StorageError(f"the gateway of {door.name} cannot store messages: {known.sentence}")
    return known or RefusedError(f"the gateway of {door.name} refused: {said}")


def _without_context(error: BaseException) -> str:
    """The first line of an error, up to what gRPC and Arrow write behind it."""
    return re.split(r"\. (?:gRPC client debug context|Client context|Detail):", str(error).splitlines()[0])[0]
