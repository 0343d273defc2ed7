"""The side of a party's gateway that its own workers see: they share nothing with it but a token.

A worker on another host has no key, no certificate and no address of a peer. It puts its messages here, the gateway
forwards them to the peers, and acknowledges them when the peers have; it reads here what peers have sent; it gets the
keys of its run's files here; and what it sends and receives is recorded here, in the transcript of the run. TLS with
the party's certificate, which is in the token; every call shows the token.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.exchange import Exchange, Outgoing, check_size
from veilmeans.io.exchange.flight_exchange import FlightExchange
from veilmeans.io.exchange.flight_gateway import GatewayServer, KnownCalls, PutStream
from veilmeans.io.exchange.inbox import IncomingMessage, MessageStore
from veilmeans.io.messages.transcript import Transcript, open_transcript
from veilmeans.io.storage.run_token import TOKEN_HEADER, RunToken
from veilmeans.schemas.address import NAME, checked_name
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError, VeilmeansError
from veilmeans.schemas.message import Header, MessageKey

KEYS, RECORD, SYNC = "keys", "record", "sync"  # the actions that a worker may ask for
_FORWARD_BYTES = 32 << 20  # messages are forwarded when this much has gathered, and before any is acknowledged
log = logging.getLogger(__name__)


class Secrets(Protocol):
    """The secrets that workers may ask the gateway for."""

    def check(self, token: RunToken) -> None:
        """Refuse a token that this party has not made."""

    def keys(self, run: str, binding: str) -> dict[str, str]:
        """The seed of a run and the key of shared files, in hexadecimal."""


class WorkerGateway(GatewayServer):
    """The gateway of a party for its workers. `exchange` forwards to the peers and waits for their acknowledgements."""

    def __init__(
        self,
        config: JobConfig,
        listen: str,
        identity: Identity,
        inbox: MessageStore,
        exchange: Exchange,
        secrets: Secrets,
    ) -> None:
        self.exchange, self.peers, self._secrets = exchange, tuple(config.peers), secrets
        self._storage, self._keep = config.storage_folder, config.audit.keep
        super().__init__(
            config.party,
            inbox,
            config.max_message_bytes,
            listen,
            tls_certificates=[(identity.certificate, identity.key)],
            middleware={"calls": KnownCalls(), "token": _TokenCheck(secrets)},
        )

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        self.exchange.close()

    def do_put(self, context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        """Forward the messages of a worker's stream."""
        stream = _WorkerStream(self, _token_of(context))
        with self.counted("workers"):
            self.receive(context, stream, f"a worker of {self.party}", reader, writer)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Wait for a message of a peer and return it in parts; no part if it did not arrive in time."""
        request = json.loads(ticket.ticket)
        key = MessageKey.parse(request["key"])
        _require(_token_of(context), key.address.run)
        return self.read(key, float(request["wait"]))

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Give keys, or record messages in a transcript."""
        body = json.loads(action.body.to_pybytes())
        token = _token_of(context)
        _require(token, body["run"])
        try:
            if action.type == KEYS:
                return [json.dumps(self._secrets.keys(body["run"], body["binding"])).encode()]
            if action.type == RECORD:
                self._record(token, body)
                return [b"0"]
            if action.type == SYNC:
                Transcript(self._transcript(body), body["run"]).sync(int(body["iteration"]))
                return [b"0"]
        except VeilmeansError as error:
            raise flight.FlightServerError(str(error)) from None
        raise flight.FlightServerError(f"there is no action {action.type!r} for workers")

    def _record(self, token: RunToken, body: Mapping[str, Any]) -> None:
        writer = open_transcript(self._transcript(body), self._keep)
        for text, size, digest in body["messages"]:
            key, header = MessageKey.parse(text), Header(int(size), bytes.fromhex(digest))
            _require(token, key.address.run)
            payload = self.inbox.find(key) if self._keep and key.recipient == self.party else None
            if payload is not None:
                writer.received(key, payload, bool(body["broadcast"]))
            else:
                writer.record([(key, header)], bool(body["broadcast"]))

    def _transcript(self, body: Mapping[str, Any]) -> Path:
        opening = body["opening"] and checked_name("the opening", body["opening"])
        return self._storage.run(body["run"]).transcript(opening)


class _TokenCheck(flight.ServerMiddlewareFactory):
    """Refuse a call without a token that this party has made."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def start_call(self, _info: Any, headers: Mapping[str, Sequence[str | bytes]]) -> "_Checked":
        shown = next(iter(headers.get(TOKEN_HEADER, ())), "")
        try:
            token = RunToken.parse(shown if isinstance(shown, str) else shown.decode(), "a call at the gateway")
            self._secrets.check(token)
        except VeilmeansError as error:
            log.error("refused a worker: %s", error.sentence)
            raise flight.FlightUnauthenticatedError(str(error)) from None
        return _Checked(token)


class _Checked(flight.ServerMiddleware):
    """The token of a call."""

    def __init__(self, token: RunToken) -> None:
        super().__init__()
        self.token = token


def _token_of(context: Any) -> RunToken:
    token: RunToken = context.get_middleware("token").token
    return token


def _require(token: RunToken, run: str) -> None:
    if not NAME.fullmatch(run) or not token.admits(run):
        error = ConfigError(f"the worker's token is for run {token.run!r} and not for {run!r}: give it a token of that")
        raise flight.FlightUnauthorizedError(str(error))


class _WorkerStream(PutStream):
    """The messages of a worker, which are forwarded in its party's name."""

    def __init__(self, gateway: WorkerGateway, token: RunToken) -> None:
        super().__init__(f"a worker of {gateway.party}")
        self._gateway, self._token = gateway, token
        self._gathered: list[Outgoing] = []

    def check_sender(self) -> None:
        """Do nothing: the token was checked when the stream began."""

    def begin(self, key: MessageKey, header: Header) -> IncomingMessage:
        _require(self._token, key.address.run)
        if key.sender != self._gateway.party or key.recipient not in self._gateway.peers:
            raise RefusedError(f"{self._sender} sent message {key}, which is not from {self._gateway.party} to a peer")
        check_size(key, header.size, self._gateway.limit)
        if sum(each.payload.size for each in self._gathered) > _FORWARD_BYTES:
            self.complete_forwarding()
        return _ForwardedMessage(key, header, self._gathered.append)

    def refused(self, run: str, error: RefusedError) -> None:
        """Do nothing: the worker hears it, and with it its run."""

    def complete_forwarding(self) -> None:
        """Forward what has gathered, and wait until the peers have acknowledged it."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            self._gateway.exchange.put_all(gathered)


class _ForwardedMessage(IncomingMessage):
    """A message in memory until it is complete."""

    def __init__(self, key: MessageKey, header: Header, accepted: Callable[[Outgoing], None]) -> None:
        super().__init__(key, header)
        self._parts: list[bytes] = []
        self._accepted = accepted

    def abandon(self) -> None:
        self._parts.clear()

    def _keep(self, part: pa.Buffer) -> None:
        self._parts.append(part.to_pybytes())

    def _accept(self) -> None:
        self._accepted(Outgoing(self._key, pa.py_buffer(b"".join(self._parts))))


class WorkerTranscript:
    """The transcript of a run as a worker writes it: through its gateway."""

    def __init__(self, exchange: FlightExchange, run: str, opening: str) -> None:
        self._exchange, self._of = exchange, {"run": run, "opening": opening}

    def record(self, messages: Sequence[tuple[MessageKey, Header]], broadcast: bool) -> None:
        """Record messages that are sent."""
        listed = [(key.to_json(), header.size, header.digest.hex()) for key, header in messages]
        self._exchange.ask_own(RECORD, {**self._of, "messages": listed, "broadcast": broadcast})

    def received(self, key: MessageKey, payload: pa.Buffer, broadcast: bool) -> None:
        """Record a message of a peer."""
        self.record([(key, Header.known(payload))], broadcast)

    def sync(self, iteration: int) -> None:
        """Return when the lines of an iteration survive a power cut."""
        self._exchange.ask_own(SYNC, {**self._of, "iteration": iteration})
