"""An S3 bucket on loopback (moto, from PyPI) that can be full, slow, or away for a while.

`veilmeans` reaches it as it would reach Amazon's: by Beam's filesystem and boto3, with their own retries.
"""

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.parties import free_ports

PLACE = "s3://bucket/payco"
_ACCOUNT = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
_FULL = b"<Error><Code>InsufficientStorage</Code><Message>no space left</Message></Error>"


@dataclass
class FaultyBucket:
    """The bucket and its faults. `delay`: seconds before each call; `full`: no object can be written."""

    port: int
    delay: float = 0.0
    full: bool = False
    absences: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    _away: bool = False
    _actions: dict[str, Callable[[], object]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)
    _server: Any = None

    @property
    def flags(self) -> list[str]:
        """Beam's flags for it."""
        account = [f"--s3_{name.removeprefix('aws_')}={value}" for name, value in _ACCOUNT.items()]
        return [f"--s3_endpoint_url=http://127.0.0.1:{self.port}", "--s3_region_name=us-east-1", *account]

    def when_written(self, part: str, action: Callable[[], object]) -> None:
        """Call `action` once, just before an object with `part` in its name is written."""
        self._actions[part] = action

    def fill(self) -> None:
        """Refuse all writing from now on."""
        self.full = True

    def leave(self) -> None:
        """Close the port and all connections until `come_back`."""
        self.absences += 1
        self._away = True
        self._threads.append(threading.Thread(target=self._close))
        self._threads[-1].start()

    def come_back(self) -> None:
        """Be there again after `leave`."""
        self._await_threads()
        self.start()

    def go_away(self, seconds: float) -> None:
        """Leave for some seconds."""
        self.leave()
        threading.Timer(seconds, self.come_back).start()

    def objects(self) -> dict[str, bytes]:
        """All objects of the bucket by their names."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets["bucket"].keys
        return {name: keys[name].value for name in list(keys)}

    def start(self) -> None:
        """Listen and answer, in threads of this process."""
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        inner = DomainDispatcherApplication(create_backend_app)

        def answer(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            return self._answer(inner, environ, start_response)

        self._server = make_server("127.0.0.1", self.port, answer, True, request_handler=MotoRequestHandler)
        self._away = False
        threading.Thread(target=self._server.serve_forever, name="bucket", daemon=True).start()

    def stop(self) -> None:
        """Stop for good."""
        self._await_threads()
        self._close()

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _await_threads(self) -> None:
        for thread in self._threads:
            thread.join()

    def _answer(self, inner: Any, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            self.calls[method] += 1
            due = [part for part in self._actions if method in ("PUT", "POST") and part in path]
            for part in due:
                self._actions.pop(part)()
        time.sleep(self.delay)
        if self._away:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        if self.full and method in ("PUT", "POST"):
            start_response("507 Insufficient Storage", [("Content-Type", "application/xml")])
            return [_FULL]
        answer: Iterable[bytes] = inner(environ, start_response)
        return answer


@contextmanager
def faulty_bucket() -> Iterator[FaultyBucket]:
    """A bucket without faults at first, in this process."""
    from apache_beam.io.filesystems import FileSystems

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
        patch.setattr(FileSystems, "_pipeline_options", None)
        bucket = FaultyBucket(free_ports(1)[0])
        bucket.start()
        try:
            import boto3

            address = f"http://127.0.0.1:{bucket.port}"
            client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **_ACCOUNT)
            client.create_bucket(Bucket="bucket")
            bucket.calls.clear()
            yield bucket
        finally:
            bucket.stop()
            _forget_objects()


def _forget_objects() -> None:
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].reset()
