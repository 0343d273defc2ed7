"""The Arrow Flight gateway: one process per party, through which its peers' messages come in.

Mutual TLS; a connection is accepted only from a pinned certificate. A peer may put messages under its own name and do
nothing else. The party's own workers, who carry its own certificate, may get them and drop them.

Wire form of `do_put`: a stream of record batches with one binary column, at most `PART_SIZE` bytes each. The metadata
of a batch is a JSON object: {"key", "size", "sha256"} opens a message, {} continues it. A message ends with its
announced size. The gateway answers each message, once it is stored, with how many of the stream it has stored so far; a
stream may go on for many rounds (`io.exchange.flight_streams`).
"""

import hashlib
import json
import logging
import threading
import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.exchange import HANDSHAKE, check_size
from veilmeans.io.exchange.flight_streams import PART_SCHEMA, split
from veilmeans.io.exchange.inbox import Incoming, MessageStore
from veilmeans.schemas.errors import RefusedError, VeilmeansError
from veilmeans.schemas.message import Header, MessageKey

LONGEST_WAIT = 10.0
"""Seconds that one `do_get` may wait in the gateway; the client asks again."""
_LOOK_AROUND = 0.25
"""Seconds after which a waiting `do_get` looks whether the gateway is closing."""
_LAST_CALLS = 5.0
"""Seconds that a closing gateway gives to the calls under way."""
_NEWS_OF_DEATH = 0.5
"""Seconds within which gRPC tells that a stream ended because its sender died."""
log = logging.getLogger(__name__)


class Gateway(flight.FlightServerBase):
    """A party's door. `party` owns it; `peers` maps each peer's name to its certificate.

    It is open from the beginning, in threads of Arrow's. `serve` is never called: it would take SIGTERM and SIGINT
    away from the main thread.
    """

    def __init__(
        self, party: str, listen: str, identity: Identity, peers: Mapping[str, bytes], spool: MessageStore, limit: int
    ) -> None:
        self.party, self.spool, self.limit = party, spool, limit
        self._closing = False
        super().__init__(  # serves from here on: a peer may be waiting already, so all fields come before it
            f"grpc+tls://{listen}",
            tls_certificates=[(identity.certificate, identity.key)],
            verify_client=True,
            root_certificates=b"\n".join([identity.certificate, *peers.values()]),
        )

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        last_calls = threading.Thread(target=self.shutdown, name=f"closing-{self.party}", daemon=True)
        last_calls.start()
        last_calls.join(_LAST_CALLS)
        if last_calls.is_alive():
            log.warning("a peer holds a stream open: the gateway of %s closes without waiting for it", self.party)
            _forget_at_exit(self)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        del descriptor
        sender = context.peer_identity().decode()
        intake = _Intake(self, sender)
        try:
            for chunk in reader:
                if intake.take(chunk):
                    writer.write(pa.py_buffer(str(intake.stored).encode()))
            if intake.unfinished and _has_hung_up(context):
                log.warning("%s hung up in the middle of a message: it has to send it again", sender)
                return
            intake.finish()
        except VeilmeansError as error:
            log.error("refused a message of %s: %s", sender, error.sentence)
            raise flight.FlightServerError(str(error)) from None
        finally:
            intake.abandon()

    def do_get(self, context: Any, ticket: Any) -> Any:
        self._owner_only(context, "read messages")
        wanted = json.loads(ticket.ticket)
        key = MessageKey.parse(wanted["key"])
        try:
            payload = self._wait(key, min(float(wanted["wait"]), LONGEST_WAIT))
        except VeilmeansError as error:
            raise flight.FlightServerError(str(error)) from None
        parts = [] if payload is None else list(split(payload))
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(PART_SCHEMA, parts))

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        self._owner_only(context, "drop messages")
        body = json.loads(action.body.to_pybytes())
        if action.type == "collect":
            return [str(self.spool.collect(body["run"], body["before"])).encode()]
        if action.type == "forgive":
            self.spool.forget_refusal(body["run"])
            return [b"0"]
        raise flight.FlightServerError(f"there is no action {action.type!r}")

    def _wait(self, key: MessageKey, seconds: float) -> pa.Buffer | None:
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            payload = self.spool.wait(key, max(0.0, min(left, _LOOK_AROUND)))
            if payload is not None or left <= 0 or self._closing:
                return payload

    def _owner_only(self, context: Any, what: str) -> None:
        caller = context.peer_identity().decode()
        if caller != self.party:
            log.error("refused %s, who wanted to %s", caller, what)
            raise flight.FlightUnauthorizedError(f"{caller} may not {what} at the gateway of {self.party}")


class _Intake:
    """The messages of one `do_put`, in the order of their parts."""

    def __init__(self, gateway: Gateway, sender: str) -> None:
        self._gateway, self._sender = gateway, sender
        self._open: Incoming | None = None
        self.stored = 0
        self._key: MessageKey | None = None

    def take(self, chunk: Any) -> bool:
        """One part; whether it was the last of its message, which is now stored."""
        label = self._label(chunk)
        if label is not None:
            self._commit()
            self._begin(*label)
        if self._open is None:
            raise RefusedError(f"{self._sender} sent a part of a message that it did not open")
        self._refusing(self._write, self._open, chunk)
        if not self._open.complete:
            return False
        self._commit()
        return True

    @property
    def unfinished(self) -> bool:
        """Whether a message was begun and its announced size has not come."""
        return self._open is not None and not self._open.complete

    def finish(self) -> None:
        """The stream has ended: a message that lacks a part is refused."""
        self._commit()

    def abandon(self) -> None:
        """Drop a message that was begun and not stored, if there is one."""
        if self._open is not None:
            self._open.abandon()

    def _label(self, chunk: Any) -> tuple[MessageKey, Header] | None:
        """Key and header, if this part opens a message."""
        try:
            label = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata else {}
            if label == {}:
                return None
            size, digest = label["size"], bytes.fromhex(label["sha256"])
            if type(size) is not int or size < 0 or len(digest) != hashlib.sha256().digest_size:
                raise ValueError
            return MessageKey.parse(label["key"]), Header(size, digest)
        except RefusedError as error:
            raise RefusedError(f"{self._sender} sent a label that is refused: {error.sentence}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RefusedError(f"{self._sender} sent a label that cannot be read: does it run veilmeans?") from None

    def _write(self, message: Incoming, chunk: Any) -> None:
        batch = chunk.data
        try:
            if batch is None or batch.schema != PART_SCHEMA or batch.num_rows != 1 or batch.column(0).null_count:
                raise ValueError
            batch.validate(full=True)  # offsets that point outside would be read from this process's memory
        except (pa.ArrowException, ValueError):
            raise RefusedError(f"{self._sender} sent a record batch that is no part of message {self._key}") from None
        message.write(batch.column(0)[0].as_buffer())

    def _begin(self, key: MessageKey, header: Header) -> None:
        self._key = key
        self._refusing(self._check, key, header)
        self._open = self._gateway.spool.receive(key, header, replaceable=key.address.stage == HANDSHAKE)

    def _check(self, key: MessageKey, header: Header) -> None:
        if key.sender != self._sender:
            raise RefusedError(f"{self._sender} sent message {key} under the name of {key.sender}")
        if key.recipient != self._gateway.party:
            raise RefusedError(f"{self._sender} sent message {key} to the gateway of {self._gateway.party}")
        check_size(key, header.size, self._gateway.limit)

    def _commit(self) -> None:
        if self._open is not None:
            self._refusing(self._open.commit)
            self.stored += 1
        self._open = None

    def _refusing(self, step: Any, *arguments: Any) -> None:
        """Run a step; if it refuses the message, the run it belongs to ends here, too."""
        try:
            step(*arguments)
        except RefusedError as error:
            if self._key is not None:
                self._gateway.spool.refuse(self._key.address.run, error)
            raise


def _has_hung_up(context: Any) -> bool:
    """Whether a stream ended because its sender died: for the reader that looks like any other end."""
    deadline = time.monotonic() + _NEWS_OF_DEATH
    while not context.is_cancelled() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(context.is_cancelled())


def _forget_at_exit(gateway: Gateway) -> None:
    """Arrow would wait at the interpreter's exit until the last stream ends; a peer could make that never."""
    for reference in weakref.getweakrefs(gateway):
        if isinstance(reference.__callback__, weakref.finalize):
            reference.__callback__.atexit = False
