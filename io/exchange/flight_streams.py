"""A Flight stream to a gateway that stays open for many puts: to open one costs 2 to 4 ms, in every round.

Wire form: a message is a series of record batches with one binary column, at most `PART_SIZE` bytes each (`split`). The
sender continues without waiting; where it asks for an acknowledgement (`ACKNOWLEDGE`), and at the end of a stream, the
gateway answers how many messages of the stream it has stored. A thread of its own reads the answers, and notices at
once that the gateway has refused a message or is gone.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.schemas.message import Header

PART_SIZE = 4 << 20
PART_SCHEMA = pa.schema([("part", pa.large_binary())])
ACKNOWLEDGE = "acknowledge"  # the field of a label that asks for an answer
Messages = Sequence[tuple[Outgoing, Header]]
STREAM_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


def split(payload: pa.Buffer) -> "list[pa.RecordBatch]":
    """Split a payload into record batches of at most PART_SIZE bytes, without copying it."""
    starts = range(0, max(payload.size, 1), PART_SIZE)
    return [_part(payload.slice(start, min(PART_SIZE, payload.size - start))) for start in starts]


def _part(data: pa.Buffer) -> pa.RecordBatch:
    offsets = pa.py_buffer((0).to_bytes(8, "little") + data.size.to_bytes(8, "little"))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
    return pa.RecordBatch.from_arrays([column], schema=PART_SCHEMA)


class StreamOwner(Protocol):
    """The owner of a stream, called in the stream's own thread."""

    def acknowledged(self, stream: "FlightStream", stored: int) -> None:
        """The gateway has stored so many messages of the stream."""

    def ended(self, stream: "FlightStream") -> None:
        """The stream has ended, and its `error` is known; must not wait."""

    def lost(self, stream: "FlightStream") -> None:
        """After `ended`: time to send again what was not acknowledged."""


class FlightStream:
    """One open `do_put` stream to a gateway."""

    def __init__(self, client: flight.FlightClient, time_limit: float, owner: StreamOwner) -> None:
        options = flight.FlightCallOptions(timeout=time_limit)
        self.opened_at = self.used_at = time.monotonic()
        self.pending: deque[int] = deque()  # the owner's numbers of what was sent and is not acknowledged
        self.answered = 0  # how many messages were acknowledged
        self.error: BaseException | None = None  # why the stream has ended, if we did not end it
        self.over = threading.Event()
        self._owner = owner
        self._writing = threading.Lock()
        self._finished = False
        self._writer, self._answers = client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA, options)
        threading.Thread(target=self._read_answers, name="acknowledgements", daemon=True).start()

    def write(self, messages: Messages, acknowledge: bool) -> None:
        """Send messages; if `acknowledge`, ask for an acknowledgement of all so far."""
        last = len(messages) - 1
        with self._writing:
            for number, (message, header) in enumerate(messages):
                self._write(message, header, acknowledge and number == last)
            if acknowledge and not messages:
                self._writer.write_metadata(pa.py_buffer(json.dumps({ACKNOWLEDGE: True}).encode()))
        self.used_at = time.monotonic()

    def finish(self) -> None:
        """Send nothing more. The gateway acknowledges what it has stored."""
        with self._writing, suppress(*STREAM_ERRORS):
            if not self._finished:
                self._finished = True
                self._writer.done_writing()

    def _write(self, message: Outgoing, header: Header, acknowledge: bool) -> None:
        label = {"key": message.key.to_json(), "size": header.size, "sha256": header.digest.hex()}
        metadata = json.dumps({**label, ACKNOWLEDGE: True} if acknowledge else label).encode()
        for part in split(message.payload):
            self._writer.write_with_metadata(part, pa.py_buffer(metadata))
            metadata = b"{}"

    def _read_answers(self) -> None:
        """Pass on the gateway's answers until the stream ends, then find out why it did."""
        try:
            while (answer := self._answers.read()) is not None:
                self._owner.acknowledged(self, int(answer.to_pybytes()))
        except (*STREAM_ERRORS, ValueError) as error:
            self.error = error
        with self._writing:
            self._finished = True
            try:
                self._writer.close()  # raises the gateway's own error, if it sent one
            except STREAM_ERRORS as error:
                self.error = error
        self._owner.ended(self)
        self.over.set()
        self._owner.lost(self)
