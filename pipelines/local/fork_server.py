"""`veilmeans` commands as processes that start at once: forked from a server that has imported everything.

The server is a Python process of its own, so nothing depends on what the caller's `__main__` is: a notebook, a script
without a guard, a test. It knows no data and no keys; what it forks reads its own configuration, as any party does.

  1. standard input brings a line for each group of commands; the server forks a process for each of them
  2. standard output tells the number and the exit code of each process that has ended
  3. when standard input closes, because the caller has ended in whatever way, all of them end
"""

import atexit
import gc
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, NoReturn, cast

import numpy as np

import veilmeans
from veilmeans.crypto.ring import DTYPE
from veilmeans.crypto.ring_matmul import matmul
from veilmeans.schemas.errors import VeilmeansError

PRELOADED = (
    "veilmeans.pipelines.reporting.html_report",
    "veilmeans.pipelines.offline",
    "veilmeans.pipelines.predict",
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
)
"""Also what a command imports only when it needs it."""
Command = tuple[Sequence[str], Path]
"""The arguments of `veilmeans`, and the file to which the output is added."""


class ForkServer:
    """The caller's end: a server with its forks, a process group of their own."""

    def __init__(self) -> None:
        home = str(Path(veilmeans.__file__).parents[1])
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def run(self, commands: Sequence[Command]) -> Iterator[tuple[int, int]]:
        """Start all of them; number and exit code of each, as they end."""
        asked = json.dumps([[list(line), str(log)] for line, log in commands])
        with _told():
            print(asked, file=cast(IO[str], self._process.stdin), flush=True)
        for _ in commands:
            ended = cast(IO[str], self._process.stdout).readline().split()
            if not ended:
                raise _lost()
            yield int(ended[0]), int(ended[1])

    def close(self) -> None:
        """End the server and all that it has forked."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


_IDLE: list[ForkServer] = []


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """A server for this thread alone; an idle one, if there is. What was disturbed while at work is not used again."""
    server = _IDLE.pop() if _IDLE else ForkServer()
    try:
        yield server
    except BaseException:
        server.close()
        raise
    _IDLE.append(server)


@atexit.register
def close_idle() -> None:
    """End the servers that have nothing to do."""
    while _IDLE:
        _IDLE.pop().close()


os.register_at_fork(after_in_child=_IDLE.clear)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _lost() from None


def _lost() -> VeilmeansError:
    return VeilmeansError("the processes of the parties have been ended by somebody else: start again")


# The server's end
def serve() -> None:
    """Read, fork, wait, tell; in a fork, run the command."""
    _preload()
    for line in iter(sys.stdin.readline, ""):
        numbers: dict[int, int] = {}
        for number, (arguments, log) in enumerate(json.loads(line)):
            child = os.fork()
            if child == 0:
                _run(arguments, log)
            numbers[child] = number
        while numbers:
            child, status = os.wait()
            print(numbers.pop(child), os.waitstatus_to_exitcode(status), flush=True)


def _preload() -> None:
    """Import, and compile the loops of matrix products; forks need not look at any of it for garbage."""
    logging.disable()
    _console_script()
    for name in PRELOADED:
        import_module(name)
    with suppress(ImportError):
        import_module("IPython")  # where it is, every pipeline of Beam imports it
    logging.disable(logging.NOTSET)
    large = np.zeros((32, 32), DTYPE)
    matmul(large, large)
    matmul(large.T, large)
    gc.freeze()


def _run(arguments: list[str], log: str) -> NoReturn:
    """Be the command."""
    threading.Thread(target=_end_with, args=(os.dup(0),), daemon=True).start()
    for number, file in enumerate((os.devnull, log, log)):
        opened = os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    logging.getLogger().handlers.clear()  # Beam made one when it was imported; a new process has none
    sys.argv = ["veilmeans", *arguments]
    _console_script()()
    raise SystemExit


def _console_script() -> Callable[[], None]:
    """The function behind the command `veilmeans`, as its package declares it."""
    (script,) = entry_points(group="console_scripts", name="veilmeans")
    loaded: Callable[[], None] = script.load()
    return loaded


def _end_with(pipe: int) -> None:
    """Wait until nobody can write to the pipe any more, and end."""
    poll = select.poll()
    poll.register(pipe, 0)
    poll.poll()
    os._exit(130)


if __name__ == "__main__":
    serve()
