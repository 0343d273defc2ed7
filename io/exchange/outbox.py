"""The messages to one peer that it has not acknowledged yet: kept, and sent again after a broken connection.

What makes a message safe, and against what:

  the peer has acknowledged it     it is with the peer's operating system: it survives the death of any process
  it is in this outbox             it is in this process's memory. It survives the death of the peer's processes and of
                                   the connection: it is sent again, under the same key, and the peer's inbox ignores
                                   what it has already
  this process dies                it resumes from its newest checkpoint and makes the same bytes again (addressed
                                   randomness). So nothing need be written here, as long as a checkpoint counts only
                                   when everything before it is acknowledged: `flush`
  power cut                        checkpoints are synced to disk, messages are not: see docs/operations.md

This holds in the process that resumes, the one that runs the job. A worker in another process commits a bundle, which
is then not run again, so its messages must be with somebody else before: there `put` waits for the acknowledgements
(`late` is False). The peer here may be any gateway that stores before it acknowledges, also the party's own.

Threads share an outbox. `put` writes to the open stream in the caller's thread; if the stream breaks, the thread that
reads its answers connects anew, so that a party that only waits sends again, too. An error that this thread meets is
raised by the next `put`, `flush` or `check`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow.flight as flight

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_streams import STREAM_ERRORS, FlightStream, Messages
from veilmeans.schemas.errors import PeerError, VeilmeansError, recover_error
from veilmeans.schemas.message import Header

_MOST_BYTES = 8 << 20  # unacknowledged bytes above which a put waits
_ASK_BYTES, _ASK_MESSAGES = 4 << 20, 64  # so much is sent before an acknowledgement is asked for
_IDLE = 0.5  # seconds after which an unused stream is ended, so that a gateway that stops need not wait for it
_LONGEST_AGE = 10.0  # seconds after which a stream is replaced: its time limit was set when it was opened


class Gateway(Protocol):
    """The gateway that an outbox sends to."""

    def call(self, call: Callable[[flight.FlightClient], None]) -> None:
        """Call the gateway with a client; while it cannot be reached, retry, then raise one sentence."""

    def trust(self) -> object:
        """The certificates of a connection that is opened now; a CertificateError if the peer is not pinned now."""

    def silence(self) -> PeerError:
        """The sentence for a gateway that does not answer."""

    def translate(self, error: BaseException) -> VeilmeansError:
        """The sentence for an error that the gateway sent."""


class Outbox:
    """The messages to one gateway that are not acknowledged. `alarm` is called when an error is waiting."""

    def __init__(self, gateway: Gateway, timeout: float, late: bool, alarm: Callable[[], None]) -> None:
        self._gateway, self._timeout, self._late, self._alarm = gateway, timeout, late, alarm
        self._age = min(_LONGEST_AGE, timeout / 2)
        self._sending = threading.Lock()  # held while a thread writes or connects
        self._changed = threading.Condition()  # guards all that follows
        self._kept: dict[int, tuple[Outgoing, Header]] = {}  # by a running number
        self._bytes = self._next = self._unasked_bytes = self._unasked = self._acknowledged = 0
        self._stream: FlightStream | None = None
        self._trust: object = None  # the certificates with which the stream was opened
        self._reached = False  # whether the gateway has answered since the last broken connection
        self._error: VeilmeansError | None = None
        self._closed = False
        self._ender: threading.Thread | None = None

    @property
    def failed(self) -> bool:
        """True if an error is waiting to be raised."""
        return self._error is not None

    def put(self, messages: Messages) -> None:
        """Send messages; wait for their acknowledgement only where nobody could make them again."""
        if self._bytes > _MOST_BYTES:
            self._wait(lambda: self._bytes <= _MOST_BYTES)
        with self._sending:
            self.check()
            self._transmit(self._keep(messages), ask=not self._late)
        if not self._late:
            self._wait(lambda: not self._kept)

    def flush(self) -> None:
        """Return when everything is acknowledged."""
        with self._sending:
            self.check()
            if not self._kept:
                return
            self._transmit([], ask=True)
        self._wait(lambda: not self._kept)

    def check(self) -> None:
        """Raise the error that is waiting, if there is one; it is raised once."""
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def forget(self, run: str) -> None:
        """Forget the messages of a run that is rerun: they are made again."""
        with self._changed:
            for number, (message, _) in list(self._kept.items()):
                if message.key.address.run == run:
                    self._remove(number)

    def close(self) -> None:
        """End the stream. What is not acknowledged is given up."""
        self._closed = True
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.finish()
            stream.over.wait(_IDLE)
        with self._changed:
            self._changed.notify_all()

    # what is kept
    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done`, as long as the gateway acknowledges something from time to time."""
        with self._changed:
            before = -1
            while not (done() or self.failed or self._closed) and before != self._acknowledged:
                before = self._acknowledged
                self._changed.wait_for(lambda: done() or self.failed or self._closed, self._timeout)
        self.check()
        if not done():
            raise self._gateway.silence()

    def _keep(self, messages: Messages) -> list[int]:
        """Keep messages and return their numbers; one that is replaceable takes the place of the one before it."""
        with self._changed:
            for message, header in messages:
                if message.replaceable:
                    for number in [n for n, (old, _) in self._kept.items() if old.key == message.key]:
                        self._remove(number)
                self._kept[self._next] = (message, header)
                self._bytes += header.size
                self._next += 1
            return list(range(self._next - len(messages), self._next))

    def _remove(self, number: int) -> None:
        kept = self._kept.pop(number, None)
        self._bytes -= 0 if kept is None else kept[1].size
        self._changed.notify_all()

    # sending; the caller holds `_sending`
    def _transmit(self, numbers: Sequence[int], ask: bool) -> None:
        """Send what has these numbers over the open stream; if it breaks, or there is none, connect first."""
        stream = self._usable_stream()
        if stream is None and not self._reached:
            self._connect()
            return
        try:
            if stream is None:
                self._reached = False  # if it fails, what is kept is in no stream: the next stream must send all of it
                self._gateway.call(self._open)
                self._reached = True
            self._write(numbers, ask)
        except STREAM_ERRORS:
            if stream is not None:
                stream.pending.clear()  # all that is kept is sent again here
            self._connect()

    def _write(self, numbers: Sequence[int], ask: bool) -> None:
        stream = self._stream
        if stream is None:
            raise flight.FlightUnavailableError("the stream has ended")
        with self._changed:
            messages = [self._kept[number] for number in numbers if number in self._kept]
            stream.pending.extend(number for number in numbers if number in self._kept)
            self._unasked_bytes += sum(header.size for _, header in messages)
            self._unasked += len(messages)
            ask = ask or self._unasked_bytes >= _ASK_BYTES or self._unasked >= _ASK_MESSAGES
            if ask:
                self._unasked_bytes = self._unasked = 0
        try:
            stream.write(messages, ask)
        except STREAM_ERRORS:
            stream.over.wait(self._timeout)
            self.check()  # the gateway's own error
            raise

    def _usable_stream(self) -> FlightStream | None:
        """Return the stream, if it is open; end it if it is old, or if a certificate was replaced."""
        stream, trust = self._stream, self._gateway.trust()
        old = stream is not None and time.monotonic() - stream.opened_at > self._age
        if stream is not None and (stream.over.is_set() or old or trust != self._trust):
            stream.finish()
            self._stream = stream = None
        self._trust = trust
        return stream

    def _open(self, client: flight.FlightClient) -> None:
        if self._closed:
            raise self._gateway.silence()
        self._stream = FlightStream(client, self._timeout + self._age, self)
        self._watch()

    def _connect(self) -> None:
        """Open a stream, send all that is kept, and wait for the acknowledgement: the gateway may not be there."""
        self._reached = False
        self._gateway.call(self._send_all)
        self._reached = True

    def _send_all(self, client: flight.FlightClient) -> None:
        self._open(client)
        stream = self._stream
        if stream is None:
            raise flight.FlightUnavailableError("the stream has ended")
        try:
            self._write(list(self._kept), ask=True)
            with self._changed:
                self._changed.wait_for(lambda: not stream.pending or stream.over.is_set())
        except STREAM_ERRORS:
            stream.over.wait(self._timeout)
        if stream.pending:
            stream.pending.clear()
            self.check()
            raise stream.error or flight.FlightUnavailableError("the gateway has ended the stream")

    # called by streams
    def acknowledged(self, stream: FlightStream, stored: int) -> None:
        with self._changed:
            for _ in range(min(stored - stream.answered, len(stream.pending))):
                self._remove(stream.pending.popleft())
            stream.answered = stored
            self._acknowledged += 1
            self._changed.notify_all()

    def ended(self, stream: FlightStream) -> None:
        refused = recover_error(stream.error) if stream.error is not None else None
        with self._changed:
            if refused is not None and stream.error is not None:
                self._error = self._gateway.translate(stream.error)
                self._kept.clear()
                self._bytes = 0
                stream.pending.clear()
            if stream.error is not None:
                self._reached = False
            self._changed.notify_all()
        if refused is not None:
            self._alarm()

    def lost(self, stream: FlightStream) -> None:
        """Send again what this stream has not brought to the gateway."""
        with self._sending:
            numbers = [number for number in stream.pending if number in self._kept]
            if self._stream is stream:
                self._stream = None
            if not numbers or self._closed:
                return
            try:
                if isinstance(stream.error, flight.FlightTimedOutError):
                    raise self._gateway.silence()
                self._transmit(numbers, ask=True)
            except VeilmeansError as error:
                self._error = error
        with self._changed:
            self._changed.notify_all()
        if self.failed:
            self._alarm()

    # streams that nobody uses
    def _watch(self) -> None:
        """Start the thread that ends an idle stream, unless it runs."""
        if self._ender is None:
            self._ender = threading.Thread(target=self._end_idle, name="idle-streams", daemon=True)
            self._ender.start()

    def _end_idle(self) -> None:
        while self._ender is not None:
            time.sleep(_IDLE / 2)
            with self._sending:
                stream = self._stream
                if stream is not None and time.monotonic() - stream.used_at > _IDLE:
                    self._stream = None
                    stream.finish()
                if self._stream is None:
                    self._ender = None
