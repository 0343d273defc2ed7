"""The Arrow Flight gateway: one process per party, through which its peers' messages come in.

Mutual TLS; a connection is accepted only from a pinned certificate. A peer may put messages under its own name and do
nothing else. The party's own workers, who carry its own certificate, may get them and drop them.

Wire form of `do_put`: a stream of record batches with one binary column, at most `PART_SIZE` bytes each. The metadata
of a batch is a JSON object: {"key", "size", "sha256"} opens a message, {} continues it. A message ends with its
announced size. The gateway answers with how many messages it stored, once all of them are.
"""

import json
import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange import HANDSHAKE, check_size
from veilmeans.io.spool import Incoming, Spool
from veilmeans.schemas.errors import RefusedError, VeilmeansError
from veilmeans.schemas.message import Header, Key

PART_SIZE = 4 << 20
PART_SCHEMA = pa.schema([("part", pa.large_binary())])
LONGEST_WAIT = 10.0
"""Seconds that one `do_get` may wait in the gateway; the client asks again."""

log = logging.getLogger(__name__)


class Gateway(flight.FlightServerBase):
    """A party's door. `party` owns it; `peers` maps each peer's name to its certificate."""

    def __init__(
        self, party: str, listen: str, identity: Identity, peers: Mapping[str, bytes], spool: Spool, limit: int
    ) -> None:
        super().__init__(
            f"grpc+tls://{listen}",
            tls_certificates=[(identity.certificate, identity.key)],
            verify_client=True,
            root_certificates=b"\n".join([identity.certificate, *peers.values()]),
        )
        self.party, self.spool, self.limit = party, spool, limit
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Gateway":
        self._thread = threading.Thread(target=self.serve, name=f"gateway-{self.party}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        if self._thread is not None:
            self._thread.join()

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        del descriptor
        sender = context.peer_identity().decode()
        intake = _Intake(self, sender)
        try:
            for chunk in reader:
                intake.take(chunk)
            stored = intake.finish()
        except VeilmeansError as error:
            intake.abandon()
            log.error("refused a message of %s: %s", sender, error.sentence)
            raise flight.FlightServerError(str(error)) from None
        except BaseException:
            intake.abandon()
            raise
        writer.write(pa.py_buffer(str(stored).encode()))

    def do_get(self, context: Any, ticket: Any) -> Any:
        self._owner_only(context, "read messages")
        wanted = json.loads(ticket.ticket)
        key = Key.parse(wanted["key"])
        try:
            payload = self.spool.wait(key, min(float(wanted["wait"]), LONGEST_WAIT))
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
            self.spool.forgive(body["run"])
            return [b"0"]
        raise flight.FlightServerError(f"there is no action {action.type!r}")

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
        self._stored = 0
        self._key: Key | None = None

    def take(self, chunk: Any) -> None:
        label = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata else {}
        if label:
            self._commit()
            self._begin(Key.parse(label["key"]), Header(int(label["size"]), bytes.fromhex(label["sha256"])))
        if self._open is None:
            raise RefusedError(f"{self._sender} sent a part of a message that it did not open")
        self._refusing(self._open.write, chunk.data.column(0)[0].as_buffer())

    def finish(self) -> int:
        self._commit()
        return self._stored

    def abandon(self) -> None:
        if self._open is not None:
            self._open.abandon()

    def _begin(self, key: Key, header: Header) -> None:
        self._key = key
        self._refusing(self._check, key, header)
        self._open = self._gateway.spool.receive(key, header, replaceable=key.address.stage == HANDSHAKE)

    def _check(self, key: Key, header: Header) -> None:
        if key.sender != self._sender:
            raise RefusedError(f"{self._sender} sent message {key} under the name of {key.sender}")
        if key.recipient != self._gateway.party:
            raise RefusedError(f"{self._sender} sent message {key} to {self._gateway.party}")
        check_size(key, header.size, self._gateway.limit)

    def _commit(self) -> None:
        if self._open is not None:
            self._refusing(self._open.commit)
            self._stored += 1
        self._open = None

    def _refusing(self, step: Any, *arguments: Any) -> None:
        """Run a step; if it refuses the message, the run it belongs to ends here, too."""
        try:
            step(*arguments)
        except RefusedError as error:
            if self._key is not None:
                self._gateway.spool.refuse(self._key.address.run, error)
            raise


def split(payload: pa.Buffer) -> "list[pa.RecordBatch]":
    """A payload as record batches of at most PART_SIZE bytes, without copying it."""
    starts = range(0, max(payload.size, 1), PART_SIZE)
    return [_part(payload.slice(start, min(PART_SIZE, payload.size - start))) for start in starts]


def _part(data: pa.Buffer) -> pa.RecordBatch:
    offsets = pa.array([0, data.size], pa.int64()).buffers()[1]
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
    return pa.record_batch([column], schema=PART_SCHEMA)
