"""Open streams to a gateway, used again and again: a stream of its own for each put would cost 2 to 4 ms a round.

A line is taken from the free ones or opened, and laid back after use. One that has not been used for a moment is
closed, so that a peer's gateway need not wait for us when it ends; an old one is not used again, because a stream's
time limit is set when it is opened.
"""

import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.schemas.errors import RefusedError, recover_error
from veilmeans.schemas.message import Header

PART_SIZE = 4 << 20
PART_SCHEMA = pa.schema([("part", pa.large_binary())])


def split(payload: pa.Buffer) -> "list[pa.RecordBatch]":
    """A payload as record batches of at most PART_SIZE bytes, without copying it."""
    starts = range(0, max(payload.size, 1), PART_SIZE)
    return [_part(payload.slice(start, min(PART_SIZE, payload.size - start))) for start in starts]


def _part(data: pa.Buffer) -> pa.RecordBatch:
    offsets = pa.array([0, data.size], pa.int64()).buffers()[1]
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
    return pa.record_batch([column], schema=PART_SCHEMA)


Batch = Sequence[tuple[Outgoing, Header]]
_IDLE = 0.3
"""Seconds after which an unused line is closed."""


class FlightStream:
    """One stream to a gateway."""

    def __init__(self, client: flight.FlightClient, time_limit: float) -> None:
        options = flight.FlightCallOptions(timeout=time_limit)
        command = flight.FlightDescriptor.for_command(b"put")
        self.opened = self.used = time.monotonic()
        self._writer, self._answers = client.do_put(command, PART_SCHEMA, options)

    def put(self, batch: Batch) -> None:
        """Send all messages; return when each of them is durable there."""
        try:
            for message, header in batch:
                self._write(message, header)
            for message, _ in batch:
                if self._answers.read() is None:
                    raise RefusedError(f"the gateway did not acknowledge {message.key}")
        except (flight.FlightError, pa.ArrowException, OSError, RefusedError):
            self._writer.close()  # raises what the gateway said, if it said why
            raise
        self.used = time.monotonic()

    def _write(self, message: Outgoing, header: Header) -> None:
        label = {"key": message.key.to_json(), "size": header.size, "sha256": header.digest.hex()}
        metadata = json.dumps(label).encode()
        for part in split(message.payload):
            self._writer.write_with_metadata(part, pa.py_buffer(metadata))
            metadata = b"{}"

    def close(self) -> None:
        with suppress(flight.FlightError, pa.ArrowException, OSError):
            self._writer.done_writing()
            self._writer.close()


class FlightStreams:
    """The free lines to one gateway."""

    def __init__(self, time_limit: float) -> None:
        self._time_limit = time_limit
        self._lifetime = min(10.0, time_limit / 2)
        self._free: list[FlightStream] = []
        self._lock = threading.Lock()
        self._sweeper: threading.Thread | None = None

    def put(self, batch: Batch, client: flight.FlightClient) -> None:
        """Over a free line, if there is one that still works; else over a new one."""
        line = self._take()
        if line is None or not _still_works(line, batch):
            line = FlightStream(client, self._time_limit + self._lifetime)
            line.put(batch)
        self._lay_back(line)

    def close(self) -> None:
        with self._lock:
            lines, self._free = self._free, []
        for line in lines:
            line.close()

    def _take(self) -> FlightStream | None:
        """The line used last, closing those that are too old."""
        while True:
            with self._lock:
                line = self._free.pop() if self._free else None
            if line is None or time.monotonic() - line.opened < self._lifetime:
                return line
            line.close()

    def _lay_back(self, line: FlightStream) -> None:
        with self._lock:
            self._free.append(line)
            if self._sweeper is None:
                self._sweeper = threading.Thread(target=self._sweep, name="lines", daemon=True)
                self._sweeper.start()

    def _sweep(self) -> None:
        """Close what is idle, until nothing is left."""
        while True:
            time.sleep(_IDLE / 2)
            now = time.monotonic()
            with self._lock:
                idle = [line for line in self._free if now - line.used > _IDLE]
                self._free = [line for line in self._free if now - line.used <= _IDLE]
            for line in idle:
                line.close()
            with self._lock:
                if not self._free:
                    self._sweeper = None
                    return


def _still_works(line: FlightStream, batch: Batch) -> bool:
    """Send over a line that was laid by; if the peer has closed it or was started again, all is sent again."""
    try:
        line.put(batch)
    except (flight.FlightError, pa.ArrowException, OSError, RefusedError) as error:
        if recover_error(error) is not None and not isinstance(error, RefusedError):
            raise  # the gateway said why
        return False
    return True
