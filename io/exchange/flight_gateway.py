"""The Arrow Flight gateway: the process of a party that receives its peers' messages.

Mutual TLS; a connection is accepted only from a pinned certificate. A peer may put messages under its own name and do
nothing else. The party's own workers, who have its own certificate, may read them and delete them.

Wire form of `do_put`: a stream of record batches with one binary column, at most `PART_SIZE` bytes each. The metadata
of a batch is a JSON object: {"key", "size", "sha256"} begins a message, {} continues it. A message ends with its
announced size. Where a label has "acknowledge": true (it may stand alone, with no batch), and at the end of the stream,
the gateway answers with how many messages of the stream it has stored so far; a stream may last for many rounds
(`io.exchange.flight_streams`).
"""

import hashlib
import json
import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight
from tenacity import wait_fixed

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.connection_guard import ConnectionGuard
from veilmeans.io.exchange.exchange import HANDSHAKE, check_size, poll
from veilmeans.io.exchange.flight_streams import ACKNOWLEDGE, PART_SCHEMA, PART_SIZE, split
from veilmeans.io.exchange.inbox import UNEXPECTED, IncomingMessage, MessageStore
from veilmeans.schemas.address import STORE_RUN
from veilmeans.schemas.errors import RefusedError, VeilmeansError
from veilmeans.schemas.message import Header, MessageKey

DROP_MESSAGES, FORGET_REFUSAL = "drop-messages", "forget-refusal"  # the actions that the owner may ask for
MOST_STREAMS = 512  # streams that may be open at once; each has a thread
STREAMS_OF_A_PEER = 128  # so many of them may be one peer's, so that it does not keep the others out
LONGEST_WAIT = 10.0  # seconds that one `do_get` may wait in the gateway; the client asks again
_CLOSING_CHECK = 0.25  # seconds after which a waiting `do_get` checks whether the gateway is closing
_UNFINISHED_TIME = 2.0  # seconds in which a message that has begun may still arrive at a closing gateway
_CLOSING_TIME = 5.0  # seconds that a closing gateway gives to calls under way
_CANCEL_NOTICE = 0.5  # seconds within which gRPC reports that a stream ended because its sender died
log = logging.getLogger(__name__)


class GatewayServer(flight.FlightServerBase):
    """A gateway for peers or for workers: streams of messages in, stored messages out.

    It serves from its construction on, in threads of Arrow's. `serve` is never called: it would take SIGTERM and SIGINT
    away from the main thread.
    """

    def __init__(self, party: str, inbox: MessageStore, limit: int, listen: str, **options: Any) -> None:
        self.party, self.inbox, self.limit = party, inbox, limit
        self._closing: float | None = None  # when it began to close
        self._open_streams, self._counting = Counter[str](), threading.Lock()
        super().__init__(f"grpc+tls://{listen}", **options)  # serves from here on: all fields come before it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = time.monotonic()
        closing = threading.Thread(target=self.shutdown, name=f"closing-{self.party}", daemon=True)
        closing.start()
        closing.join(_CLOSING_TIME)
        if closing.is_alive():
            log.warning("a peer holds a stream open: the gateway of %s closes without waiting for it", self.party)
            _skip_shutdown_at_exit(self)

    @contextmanager
    def counted(self, sender: str) -> Iterator[None]:
        """Count the open streams of a peer; it opens one more when another has ended."""
        with self._counting:
            if self._open_streams[sender] >= STREAMS_OF_A_PEER:
                raise flight.FlightUnavailableError(f"{sender} has {STREAMS_OF_A_PEER} open streams at this gateway")
            self._open_streams[sender] += 1
        try:
            yield
        finally:
            with self._counting:
                self._open_streams[sender] -= 1

    def receive(self, context: Any, stream: "PutStream", sender: str, reader: Any, writer: Any) -> None:
        """Take the messages of a stream and acknowledge them."""
        try:
            for chunk in reader:
                wanted, must_end = stream.receive(chunk), self._must_end(stream)
                if wanted or must_end:  # at the end even unasked: the sender cannot ask later
                    stream.complete_forwarding()
                    writer.write(pa.py_buffer(str(stream.stored).encode()))
                if must_end:
                    raise flight.FlightUnavailableError("the gateway is closing")
            if stream.unfinished and _was_cancelled(context):
                log.warning("the connection to %s ended in the middle of a message: it has to send it again", sender)
                return
            stream.commit()
            stream.complete_forwarding()
            writer.write(pa.py_buffer(str(stream.stored).encode()))
        except VeilmeansError as error:
            log.error("refused a message of %s: %s", sender, error.sentence)
            raise flight.FlightServerError(str(error)) from None
        finally:
            stream.abandon()

    def _must_end(self, stream: "PutStream") -> bool:
        """Return whether a stream has to end because the gateway closes: with its message, or soon.

        A stream that outlives the gateway would run Python code while the interpreter ends, which aborts the process.
        """
        if self._closing is None:
            return False
        return not stream.unfinished or time.monotonic() - self._closing > _UNFINISHED_TIME

    def read(self, key: MessageKey, wait: float) -> Any:
        """Wait for a message and return it in parts; no part if it did not arrive in time."""
        try:
            payload = self._wait(key, min(wait, LONGEST_WAIT))
        except VeilmeansError as error:
            raise flight.FlightServerError(str(error)) from None
        parts = [] if payload is None else list(split(payload))
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(PART_SCHEMA, parts))

    def _wait(self, key: MessageKey, seconds: float) -> pa.Buffer | None:
        deadline = time.monotonic() + seconds
        while True:
            remaining = deadline - time.monotonic()
            payload = self.inbox.wait(key, max(0.0, min(remaining, _CLOSING_CHECK)))
            if payload is not None or remaining <= 0 or self._closing is not None:
                return payload


class Gateway(GatewayServer):
    """The gateway of `party`; `peers` maps each peer's name to its certificate. `dealer`: takes no part in runs.

    `check_pin`, called for each part of a message, raises a CertificateError for a peer whose certificate is no longer
    pinned, or no longer valid.
    """

    def __init__(
        self,
        party: str,
        listen: str,
        identity: Identity,
        peers: Mapping[str, bytes],
        inbox: MessageStore,
        limit: int,
        dealer: str | None = None,
        check_pin: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.dealer, self.check_pin, self._guard = dealer, check_pin, ConnectionGuard()
        self.beside: GatewayServer | None = None  # the side for this party's workers: it closes with this one
        super().__init__(
            party,
            inbox,
            limit,
            listen,
            tls_certificates=[(identity.certificate, identity.key)],
            verify_client=True,
            root_certificates=b"\n".join([identity.certificate, *peers.values()]),
            middleware={"calls": KnownCalls()},
        )

    def __enter__(self) -> Self:
        self._guard.start(self.port)
        return self

    def __exit__(self, *details: object) -> None:
        self._guard.stop()
        if self.beside is not None:
            self.beside.__exit__(*details)
        super().__exit__(*details)

    def do_put(self, context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        """Store the messages of a peer's stream and acknowledge each."""
        sender = context.peer_identity().decode()
        remote = self._guard.admit(context.peer(), sender)
        stream = PeerStream(self, sender, partial(self._guard.arrived, remote))
        with self.counted(sender):
            self.receive(context, stream, sender, reader, writer)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Wait for a message and return it in parts; no part if it did not arrive in time."""
        self._require_owner(context, "read messages")
        request = json.loads(ticket.ticket)
        return self.read(MessageKey.parse(request["key"]), float(request["wait"]))

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Delete messages, or forget a refusal."""
        self._require_owner(context, "drop messages")
        body = json.loads(action.body.to_pybytes())
        if action.type == DROP_MESSAGES:
            return [str(self.inbox.drop_messages(body["run"], body["before"])).encode()]
        if action.type == FORGET_REFUSAL:
            self.inbox.forget_refusal(body["run"])
            return [b"0"]
        raise flight.FlightServerError(f"there is no action {action.type!r}")

    def _require_owner(self, context: Any, what: str) -> None:
        caller = context.peer_identity().decode()
        self._guard.admit(context.peer(), caller)
        if caller != self.party:
            log.error("refused %s, who wanted to %s", caller, what)
            raise flight.FlightUnauthorizedError(f"{caller} may not {what} at the gateway of {self.party}")


class KnownCalls(flight.ServerMiddlewareFactory):
    """Refuse calls that a gateway does not have, before pyarrow answers them with a traceback, and too many streams.

    A stream has a thread from here on, also while its sender sends nothing; whose it is, is not known yet.
    """

    _KNOWN = (flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_GET, flight.FlightMethod.DO_ACTION)

    def __init__(self) -> None:
        super().__init__()
        self._streams = threading.Semaphore(MOST_STREAMS)

    def start_call(self, info: Any, _headers: Any) -> "_Stream | None":
        if info.method not in self._KNOWN:
            raise flight.FlightUnauthorizedError("a peer may put messages at a gateway, and nothing else")
        if info.method != flight.FlightMethod.DO_PUT:
            return None
        if not self._streams.acquire(blocking=False):
            raise flight.FlightUnavailableError(f"{MOST_STREAMS} streams are open at this gateway")
        return _Stream(self._streams.release)


class _Stream(flight.ServerMiddleware):
    """A stream that counts until it is completed."""

    def __init__(self, completed: Callable[[], None]) -> None:
        super().__init__()
        self._completed = completed

    def call_completed(self, _exception: Any) -> None:
        self._completed()


class PutStream(ABC):
    """The messages of one `do_put`, in the order of their parts."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._message: IncomingMessage | None = None
        self.stored = 0
        self._key: MessageKey | None = None
        self._asked = False  # whether the message that has begun is to be acknowledged

    @abstractmethod
    def check_sender(self) -> None:
        """Refuse a sender that is no longer admitted."""

    @abstractmethod
    def begin(self, key: MessageKey, header: Header) -> IncomingMessage:
        """Begin to receive a message, or refuse it."""

    @abstractmethod
    def refused(self, run: str, error: RefusedError) -> None:
        """End a run of which a message was refused."""

    def receive(self, chunk: Any) -> bool:
        """Receive one part, and store its message if it is the last; return whether the sender wants an answer now."""
        self.check_sender()
        label = self._parse_label(chunk)
        asked = label.pop(ACKNOWLEDGE, False) is True
        if asked and not label and chunk.data is None:
            return True
        if label:
            self.commit()
            self._key, header = self._parse_key(label)
            self._message = self.begin(self._key, header)
            self._asked = asked
        if self._message is None:
            raise RefusedError(f"{self._sender} sent a part of a message that it did not begin")
        self._end_run_if_refused(self._write, self._message, chunk)
        if not self._message.complete:
            return False
        self.commit()
        return self._asked

    @property
    def unfinished(self) -> bool:
        """True if a message was begun and its announced size has not arrived."""
        return self._message is not None and not self._message.complete

    def commit(self) -> None:
        """Store the message that was begun, if there is one; refuse it if it lacks a part."""
        if self._message is not None:
            self._end_run_if_refused(self._message.commit)
            self.stored += 1
        self._message = None

    def complete_forwarding(self) -> None:
        """Do what must be done before messages are acknowledged: nothing, a stored message is durable."""
        return

    def abandon(self) -> None:
        """Delete a message that was begun and not stored, if there is one."""
        if self._message is not None:
            self._message.abandon()

    def _parse_label(self, chunk: Any) -> dict[str, Any]:
        try:
            label = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata else {}
            if not isinstance(label, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise self._unreadable() from None
        return label

    def _parse_key(self, label: Mapping[str, Any]) -> tuple[MessageKey, Header]:
        """Return key and header of the message that begins with this label."""
        try:
            size, digest = label["size"], bytes.fromhex(label["sha256"])
            if type(size) is not int or size < 0 or len(digest) != hashlib.sha256().digest_size:
                raise ValueError
            return MessageKey.parse(label["key"]), Header(size, digest)
        except RefusedError as error:
            raise RefusedError(f"{self._sender} sent a malformed label: {error.sentence}") from None
        except (ValueError, KeyError, TypeError):
            raise self._unreadable() from None

    def _unreadable(self) -> RefusedError:
        return RefusedError(f"{self._sender} sent a label that cannot be read: does it run veilmeans?")

    def _write(self, message: IncomingMessage, chunk: Any) -> None:
        batch = chunk.data
        try:
            if batch is None or batch.schema != PART_SCHEMA or batch.num_rows != 1 or batch.column(0).null_count:
                raise ValueError
            batch.validate(full=True)  # offsets that point outside would be read from this process's memory
            if len(batch.column(0)[0].as_buffer()) > PART_SIZE:
                raise RefusedError(
                    f"{self._sender} sent a part of more than {PART_SIZE:,} bytes of message {self._key}"
                )
        except (pa.ArrowException, ValueError):
            raise RefusedError(f"{self._sender} sent a record batch that is no part of message {self._key}") from None
        message.write(batch.column(0)[0].as_buffer())

    def _end_run_if_refused(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step; if it refuses the message, end the run to which the message belongs, here too."""
        try:
            step(*arguments)
        except RefusedError as error:
            if self._key is not None:
                self.refused(self._key.address.run, error)
            raise


class PeerStream(PutStream):
    """The messages of a peer: under its own name, for this party's inbox."""

    def __init__(self, gateway: Gateway, sender: str, arrived: Callable[[int], None]) -> None:
        super().__init__(sender)
        self._gateway, self._arrived = gateway, arrived

    def receive(self, chunk: Any) -> bool:
        self._arrived(_size(chunk))
        return super().receive(chunk)

    def check_sender(self) -> None:
        self._gateway.check_pin(self._sender)

    def begin(self, key: MessageKey, header: Header) -> IncomingMessage:
        if self._sender == self._gateway.dealer and not key.address.run.startswith(STORE_RUN):
            raise RefusedError(f"{self._sender} is the dealer and takes no part in run {key.address.run!r}")
        self._end_run_if_refused(self._check, key, header)
        if not self._gateway.inbox.admits(key):
            raise flight.FlightUnavailableError(
                f"{self._sender} has sent {UNEXPECTED} messages of runs that {self._gateway.party} has not begun"
            )
        return self._gateway.inbox.receive(key, header, replaceable=key.address.stage == HANDSHAKE)

    def refused(self, run: str, error: RefusedError) -> None:
        self._gateway.inbox.refuse(run, error)

    def _check(self, key: MessageKey, header: Header) -> None:
        if key.sender != self._sender:
            raise RefusedError(f"{self._sender} sent message {key} under the name of {key.sender}")
        if key.recipient != self._gateway.party:
            raise RefusedError(f"{self._sender} sent message {key} to the gateway of {self._gateway.party}")
        check_size(key, header.size, self._gateway.limit)


def _size(chunk: Any) -> int:
    """The bytes of a part and of its label; of a part that is too large, those that it may have."""
    part = 0 if chunk.data is None else chunk.data.get_total_buffer_size()
    return min(part, PART_SIZE) + (chunk.app_metadata.size if chunk.app_metadata else 0)


def _was_cancelled(context: Any) -> bool:
    """Return whether a stream ended because its sender died: for the reader it looks like any other end."""
    return poll(context.is_cancelled, _CANCEL_NOTICE, wait_fixed(0.01))


def _skip_shutdown_at_exit(gateway: GatewayServer) -> None:
    """Keep Arrow from waiting at the interpreter's exit until the last stream ends: a peer could make that never."""
    for reference in weakref.getweakrefs(gateway):
        if isinstance(reference.__callback__, weakref.finalize):
            reference.__callback__.atexit = False
