"""The exchange through gateways: messages are put to the recipient's gateway and read from one's own.

What is put is kept until the peer's gateway has acknowledged it (`io.exchange.outbox`), and sent again after a broken
connection, until the gateway answers or the time is up: the peer may be restarting. The same bytes again are ignored
there. If the own gateway runs in this process, its inbox is read directly.

Certificates are looked at for each put and while a message is waited for: after a change the next message goes over a
new connection, and a peer whose pin was removed or has expired gets no message, and none of it is read.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.flight as flight
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.exchange import Outgoing, check_size, missing
from veilmeans.io.exchange.flight_gateway import DROP_MESSAGES, FORGET_REFUSAL, LONGEST_WAIT
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.exchange.outbox import Outbox
from veilmeans.io.exchange.tls_diagnosis import diagnose
from veilmeans.io.storage.run_token import TOKEN_HEADER, RunToken
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
GatewayCall = Callable[[flight.FlightClient, flight.FlightCallOptions], Result]  # the options limit its time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_CHECK = 0.5  # seconds after which a `get` through the own gateway looks whether a put has failed
_UNREACHABLE = (flight.FlightUnavailableError, flight.FlightCancelledError)  # a gateway is absent or closing
log = logging.getLogger(__name__)


class _BusyError(flight.FlightUnavailableError):
    """A peer does not admit us at present; it may when its run has ended."""


class _RenewedError(flight.FlightUnavailableError):
    """A peer that we have reached before shows, or wants, another certificate: it may be pinned in a moment."""


@dataclass(frozen=True)
class Endpoint:
    """A party's gateway: its address, and the certificate that it must show."""

    name: str
    address: str
    certificate: bytes


class Pins(Protocol):
    """The certificates of a party and its peers as they are now; a CertificateError for one that is not valid."""

    def identity(self) -> Identity:
        """This party's certificate and key."""

    def certificate(self, name: str) -> bytes:
        """The certificate of this party, or the one that is pinned for a peer."""


class FlightExchange:
    """An exchange with peers through gateways.

    `local`: the inbox of the own gateway, if it runs in this process. `late`: this process would make its messages
    again if it died, so a put need not wait for the acknowledgements. `dealer`: this is the dealer, whom parties do not
    admit while they are in a run; so a refused certificate is a busy peer first. `pins`: the certificates as they are
    from now on; without it they stay those of `own`, `peers` and `identity`.
    """

    def __init__(
        self,
        own: Endpoint,
        peers: Mapping[str, Endpoint],
        identity: Identity | RunToken,
        limit: int,
        timeout: float,
        local: MessageStore | None = None,
        late: bool = False,
        dealer: bool = False,
        pins: Pins | None = None,
    ) -> None:
        self._dealer, self._pins = dealer, pins
        self._own, self._peers, self._identity = own, dict(peers), identity
        self._limit, self._timeout, self._local = limit, timeout, local
        self._clients: dict[str, tuple[_Trust, flight.FlightClient]] = {}
        self._reached: set[str] = set()  # the gateways that have answered a call
        self._slice = _CHECK if late else LONGEST_WAIT
        self._last: dict[str, MessageKey] = {}  # the key of the last message to each peer
        self._outboxes = {
            name: Outbox(_PeerGateway(self, peer, timeout), timeout, late, self._wake) for name, peer in peers.items()
        }

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        by_peer: dict[str, list[tuple[Outgoing, Header]]] = {}
        for message in messages:
            check_size(message.key, message.payload.size, self._limit)
            by_peer.setdefault(message.key.recipient, []).append((message, message.header))
        for peer, batch in by_peer.items():
            self._last[peer] = batch[0][0].key
            with self._explained(peer):
                self._outboxes[peer].put(batch)

    def flush(self) -> None:
        for peer, outbox in self._outboxes.items():
            with self._explained(peer):
                outbox.flush()

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        deadline = time.monotonic() + timeout
        self._check_pin(key.sender)
        while (payload := self._read_own(key, max(0.0, min(deadline - time.monotonic(), self._slice)))) is None:
            self._check_pin(key.sender)
            for peer, outbox in self._outboxes.items():
                with self._explained(peer):
                    outbox.check()
            if time.monotonic() >= deadline:
                raise PeerError(
                    f"no message {key.address} came from {key.sender} within {timeout:g} s: {missing(key)}, "
                    f"and can it reach {self._own.address}?"
                )
        return payload

    def drop_messages(self, run: str, before: int | None = None) -> int:
        if self._local is not None:
            return self._local.drop_messages(run, before)
        return self._act(DROP_MESSAGES, {"run": run, "before": before})

    def forget_refusal(self, run: str) -> None:
        for outbox in self._outboxes.values():
            outbox.forget(run)
        if self._local is not None:
            self._local.forget_refusal(run)
        else:
            self._act(FORGET_REFUSAL, {"run": run})

    def close(self) -> None:
        for outbox in self._outboxes.values():
            outbox.close()
        for _, client in self._clients.values():
            client.close()
        self._clients.clear()

    @contextmanager
    def _explained(self, peer: str) -> Iterator[None]:
        """Raise our own refusal of a silent peer's message, if there is one, instead of its silence."""
        try:
            yield
        except PeerError:
            if peer in self._last:
                self._raise_own_refusal(self._last[peer])
            raise

    def _wake(self) -> None:
        """Wake the threads that wait for a message: a put has failed."""
        if self._local is not None:
            self._local.notify()

    def _failed(self) -> bool:
        return any(outbox.failed for outbox in self._outboxes.values())

    def _read_own(self, key: MessageKey, wait: float, timeout: float | None = None) -> pa.Buffer | None:
        """Wait `wait` seconds for the message under `key`; the own gateway may be absent for `timeout` seconds."""
        if self._local is not None:
            return self._local.wait(key, wait, self._failed)
        ticket = flight.Ticket(json.dumps({"key": key.to_json(), "wait": wait}))
        limit = wait + (timeout or self._timeout)
        return _join(self._call(self._own, lambda client, options: client.do_get(ticket, options).read_all(), limit))

    def _raise_own_refusal(self, key: MessageKey) -> None:
        """Raise the refusal of an earlier message of this run, if there is one: then the peer stopped because of it."""
        with suppress(PeerError, CertificateError):
            self._read_own(key, wait=0.0, timeout=_LONGEST_PAUSE)

    def ask_own(self, kind: str, body: Mapping[str, object]) -> bytes:
        """Ask the own gateway for an action, and return its answer."""
        action = flight.Action(kind, json.dumps(body).encode())
        answers = self._call(self._own, lambda client, options: list(client.do_action(action, options)), self._timeout)
        return bytes(answers[0].body)

    def _act(self, kind: str, body: Mapping[str, object]) -> int:
        return int(self.ask_own(kind, body))

    def _call(self, endpoint: Endpoint, call: GatewayCall[Result], timeout: float) -> Result:
        """Call a gateway; while it cannot be reached, retry with growing pauses for `timeout` seconds."""
        pauses, stop = wait_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE), stop_after_delay(timeout)
        retrying = Retrying(retry=retry_if_exception_type(_UNREACHABLE), wait=pauses, stop=stop, reraise=True)
        try:
            return retrying(partial(self._attempt, endpoint, call, time.monotonic() + timeout))
        except _BusyError as busy:
            raise PeerError(str(busy)) from None
        except _RenewedError as renewed:
            raise CertificateError(str(renewed)) from None
        except (*_UNREACHABLE, flight.FlightTimedOutError):
            raise _silence(endpoint, timeout) from None
        except (flight.FlightError, pa.ArrowException) as error:
            raise _refusal(endpoint, error) from None

    def call_peer(self, endpoint: Endpoint, call: Callable[[flight.FlightClient], None], timeout: float) -> None:
        """Call a peer's gateway, as `_call` does; a stream has options of its own."""
        self._call(endpoint, lambda client, _: call(client), timeout)

    def _attempt(self, endpoint: Endpoint, call: GatewayCall[Result], deadline: float) -> Result:
        """Call a gateway once; a CertificateError if it cannot be reached because of a certificate."""
        trust = self.trust(endpoint)
        client = self._client(trust)
        seconds = max(deadline - time.monotonic(), _LONGEST_PAUSE)
        try:
            answer = call(client, flight.FlightCallOptions(timeout=seconds))
        except (*_UNREACHABLE, flight.FlightTimedOutError) as error:
            if self._clients.get(endpoint.name) == (trust, client):  # not closed: another thread may be about to use it
                self._clients.pop(endpoint.name, None)
            if isinstance(error, _UNREACHABLE):
                self._raise_cause(trust, error)
            raise
        self._reached.add(endpoint.name)
        return answer

    def _raise_cause(self, trust: "_Trust", error: Exception) -> None:
        """Raise the cause if certificates are why a gateway cannot be reached."""
        endpoint, identity = trust
        shown = identity if isinstance(identity, Identity) else None
        cause = diagnose(endpoint.name, endpoint.address, endpoint.certificate, shown, str(error))
        if cause is None:
            return
        if cause.not_pinned and self._dealer:
            busy = f"{endpoint.name} is busy with another run, in which it admits no dealer"
            raise _BusyError(f"{busy}; if it is not, {cause.sentence}") from None
        if endpoint.name in self._reached and self._pins is not None:
            log.warning("%s; trying again", cause.sentence)
            raise _RenewedError(cause.sentence) from None
        raise CertificateError(cause.sentence) from None

    def _check_pin(self, peer: str) -> None:
        if self._pins is not None and peer in self._peers:
            self._pins.certificate(peer)

    def trust(self, endpoint: Endpoint) -> "_Trust":
        """Return a gateway with the certificate that it must show now, and what we show it."""
        if self._pins is None:
            return endpoint, self._identity
        return replace(endpoint, certificate=self._pins.certificate(endpoint.name)), self._pins.identity()

    def _client(self, trust: "_Trust") -> flight.FlightClient:
        name = trust[0].name
        known = self._clients.get(name)
        if known is None or known[0] != trust:
            known = self._clients[name] = trust, connect(*trust)
        return known[1]


_Trust = tuple[Endpoint, Identity | RunToken]
"""A gateway with the certificate that it must show, and what we show it."""


def connect(endpoint: Endpoint, identity: Identity | RunToken) -> flight.FlightClient:
    """Connect to a gateway: with the party's certificate, or as one of its workers with a token."""
    shown: dict[str, Any]
    if isinstance(identity, RunToken):
        shown = {"middleware": [_TokenHeader(identity)]}
    else:
        shown = {"cert_chain": identity.certificate, "private_key": identity.key}
    return flight.FlightClient(
        f"grpc+tls://{endpoint.address}",
        tls_root_certs=endpoint.certificate,
        override_hostname=endpoint.name,
        **shown,
    )


class _TokenHeader(flight.ClientMiddlewareFactory):
    """Put a token into the header of every call."""

    def __init__(self, token: RunToken) -> None:
        super().__init__()
        self._header = {TOKEN_HEADER: replace(token, certificate="").encode()}

    def start_call(self, _info: Any) -> "_Header":
        return _Header(self._header)


class _Header(flight.ClientMiddleware):
    def __init__(self, header: dict[str, str]) -> None:
        super().__init__()
        self._header = header

    def sending_headers(self) -> dict[str, str]:
        return self._header


def _join(table: pa.Table) -> pa.Buffer | None:
    parts = [chunk[0].as_buffer() for chunk in table.column(0).chunks if len(chunk)]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


def _silence(endpoint: Endpoint, timeout: float) -> PeerError:
    return PeerError(
        f"the gateway of {endpoint.name} at {endpoint.address} did not answer within {timeout:g} s: "
        "is it running, and does the firewall let us through?"
    )


def _refusal(endpoint: Endpoint, error: BaseException) -> VeilmeansError:
    """A gateway's answer as our own error; a full disk is reported as the gateway's."""
    debug_context = r"\. (?:gRPC client debug context|Client context|Detail):"  # appended by gRPC and Arrow
    answer = re.split(debug_context, str(error).splitlines()[0])[0]
    recovered = recover_error(answer)
    if isinstance(recovered, StorageError):
        return StorageError(f"the gateway of {endpoint.name} cannot store messages: {recovered.sentence}")
    return recovered or RefusedError(f"the gateway of {endpoint.name} refused: {answer}")


@dataclass(frozen=True)
class _PeerGateway:
    """A peer's gateway as its outbox sees it."""

    exchange: FlightExchange
    endpoint: Endpoint
    timeout: float

    def call(self, call: Callable[[flight.FlightClient], None]) -> None:
        self.exchange.call_peer(self.endpoint, call, self.timeout)

    def trust(self) -> object:
        return self.exchange.trust(self.endpoint)

    def silence(self) -> PeerError:
        return _silence(self.endpoint, self.timeout)

    def translate(self, error: BaseException) -> VeilmeansError:
        return _refusal(self.endpoint, error)
