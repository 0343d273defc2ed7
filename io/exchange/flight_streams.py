"""Flight streams to a gateway, kept open between puts: to open one costs 2 to 4 ms, in every round.

A put takes a free stream or opens a new one, and gives it back afterwards. A stream that has not been used for a moment
is closed, so that a peer's gateway need not wait for us when it stops. An old one is not used again, because a stream's
time limit is set when it is opened.

Wire form: a message is a series of record batches with one binary column, at most `PART_SIZE` bytes each (`split`).
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
Messages = Sequence[tuple[Outgoing, Header]]


def split(payload: pa.Buffer) -> "list[pa.RecordBatch]":
    """Split a payload into record batches of at most PART_SIZE bytes, without copying it."""
    starts = range(0, max(payload.size, 1), PART_SIZE)
    return [_part(payload.slice(start, min(PART_SIZE, payload.size - start))) for start in starts]


def _part(data: pa.Buffer) -> pa.RecordBatch:
    offsets = pa.array([0, data.size], pa.int64()).buffers()[1]
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
    return pa.record_batch([column], schema=PART_SCHEMA)


class FlightStream:
    """One open `do_put` stream to a gateway."""

    def __init__(self, client: flight.FlightClient, time_limit: float) -> None:
        options = flight.FlightCallOptions(timeout=time_limit)
        command = flight.FlightDescriptor.for_command(b"put")
        self.opened_at = self.used_at = time.monotonic()
        self._writer, self._answers = client.do_put(command, PART_SCHEMA, options)

    def put(self, messages: Messages) -> None:
        """Send all messages; return when each of them is durable at the gateway."""
        try:
            for message, header in messages:
                self._write(message, header)
            for message, _ in messages:
                if self._answers.read() is None:
                    raise RefusedError(f"the gateway did not acknowledge {message.key}")
        except (flight.FlightError, pa.ArrowException, OSError, RefusedError):
            self._writer.close()  # raises the gateway's own error, if it sent one
            raise
        self.used_at = time.monotonic()

    def _write(self, message: Outgoing, header: Header) -> None:
        label = {"key": message.key.to_json(), "size": header.size, "sha256": header.digest.hex()}
        metadata = json.dumps(label).encode()
        for part in split(message.payload):
            self._writer.write_with_metadata(part, pa.py_buffer(metadata))
            metadata = b"{}"

    def close(self) -> None:
        """End the stream."""
        with suppress(flight.FlightError, pa.ArrowException, OSError):
            self._writer.done_writing()
            self._writer.close()


class FlightStreams:
    """The free streams to one gateway; one that has not been used for `idle` seconds is closed."""

    def __init__(self, time_limit: float, idle: float = 0.3) -> None:
        self._time_limit, self._idle = time_limit, idle
        self._longest_age = min(10.0, time_limit / 2)
        self._free: list[FlightStream] = []
        self._lock = threading.Lock()
        self._closer: threading.Thread | None = None

    def put(self, messages: Messages, client: flight.FlightClient) -> None:
        """Send over a free stream, if one still works; else over a new one."""
        stream = self._take_free()
        if stream is None or not _put_if_open(stream, messages):
            stream = FlightStream(client, self._time_limit + self._longest_age)
            stream.put(messages)
        self._give_back(stream)

    def close(self) -> None:
        """Close all free streams."""
        with self._lock:
            streams, self._free = self._free, []
        for stream in streams:
            stream.close()

    def _take_free(self) -> FlightStream | None:
        """Take the stream used last; close those that are too old."""
        while True:
            with self._lock:
                stream = self._free.pop() if self._free else None
            if stream is None or time.monotonic() - stream.opened_at < self._longest_age:
                return stream
            stream.close()

    def _give_back(self, stream: FlightStream) -> None:
        with self._lock:
            self._free.append(stream)
            if self._closer is None:
                self._closer = threading.Thread(target=self._close_idle, name="idle-streams", daemon=True)
                self._closer.start()

    def _close_idle(self) -> None:
        """Close idle streams until no free one is left."""
        while True:
            time.sleep(self._idle / 2)
            now = time.monotonic()
            with self._lock:
                idle = [stream for stream in self._free if now - stream.used_at > self._idle]
                self._free = [stream for stream in self._free if now - stream.used_at <= self._idle]
            for stream in idle:
                stream.close()
            with self._lock:
                if not self._free:
                    self._closer = None
                    return


def _put_if_open(stream: FlightStream, messages: Messages) -> bool:
    """Send over a stream that was free; False if the peer has closed it: then all messages must be sent again."""
    try:
        stream.put(messages)
    except (flight.FlightError, pa.ArrowException, OSError, RefusedError) as error:
        if recover_error(error) is not None and not isinstance(error, RefusedError):
            raise  # the gateway's own error
        return False
    return True
