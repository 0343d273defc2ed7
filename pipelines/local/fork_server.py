"""Start `veilmeans` commands as processes without delay: forked from a server that has imported everything.

The server is a separate Python process, so it works from any caller: a notebook, a script without a `__main__` guard, a
test. It has no data and no keys; each fork reads its own configuration, as any party does.

  1. the server reads one line from standard input for each group of commands, and forks a process for each command
  2. it writes the number and the exit code of each process that has ended to standard output
  3. when standard input closes, because the caller has ended in whatever way, all processes end
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
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, NoReturn, cast

import veilmeans
from veilmeans.pipelines.local.malloc_arenas import limit_arenas, share_malloc
from veilmeans.pipelines.local.unused_modules import skip_unused_modules
from veilmeans.schemas.errors import INTERRUPTED, VeilmeansError

PRELOADED = (
    "veilmeans.pipelines.reporting.html_report",
    "veilmeans.pipelines.offline",
    "veilmeans.pipelines.predict",
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
)
"""Modules that the server imports, among them those that commands import only when they need them."""
Command = tuple[Sequence[str], Path]
"""The arguments of `veilmeans`, and the file to which its output is appended."""


class ForkServer:
    """A server and its forks, as the caller sees them: one process group."""

    def __init__(self) -> None:
        home = str(Path(veilmeans.__file__).parents[1])
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
        env = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, start_new_session=True)

    def run(self, commands: Sequence[Command]) -> Iterator[tuple[int, int]]:
        """Start all commands, and yield the number and exit code of each as it ends."""
        request = json.dumps([[list(arguments), str(log)] for arguments, log in commands])
        try:
            print(request, file=cast(IO[str], self._process.stdin), flush=True)
        except BrokenPipeError:
            raise _server_is_gone() from None
        for _ in commands:
            ended = cast(IO[str], self._process.stdout).readline().split()
            if not ended:
                raise _server_is_gone()
            yield int(ended[0]), int(ended[1])

    def close(self) -> None:
        """End the server and all its forks."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


_IDLE: list[ForkServer] = []


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Lend an idle server, or a new one, to this thread alone. A server that was interrupted is not used again."""
    server = _IDLE.pop() if _IDLE else ForkServer()
    try:
        yield server
    except BaseException:
        server.close()
        raise
    _IDLE.append(server)


@atexit.register
def close_idle_servers() -> None:
    """End all idle servers."""
    while _IDLE:
        _IDLE.pop().close()


os.register_at_fork(after_in_child=_IDLE.clear)


def _server_is_gone() -> VeilmeansError:
    return VeilmeansError("the parties' processes were killed from outside: retry")


def serve() -> None:
    """Be the server: read commands, fork, wait, report exit codes. In a fork, run the command."""
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
    """Import all modules, and keep them out of the forks' garbage collection."""
    logging.disable()
    share_malloc()
    limit_arenas()
    skip_unused_modules()
    _console_script()
    for name in PRELOADED:
        import_module(name)
    logging.disable(logging.NOTSET)
    gc.freeze()


def _run(arguments: list[str], log: str) -> NoReturn:
    """Run a command in this fork, with its output in `log`."""
    threading.Thread(target=_end_with_caller, args=(os.dup(0),), daemon=True).start()
    for number, file in enumerate((os.devnull, log, log)):
        opened = os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    logging.getLogger().handlers.clear()  # importing Beam adds a handler, which a new process does not have
    sys.argv = ["veilmeans", *arguments]
    _console_script()()
    raise SystemExit


def _console_script() -> Callable[[], None]:
    """Load the function of the command `veilmeans` from the package's entry point."""
    (script,) = entry_points(group="console_scripts", name="veilmeans")
    loaded: Callable[[], None] = script.load()
    return loaded


def _end_with_caller(pipe: int) -> None:
    """End this process when nobody can write to the pipe any more."""
    poll = select.poll()
    poll.register(pipe, 0)
    poll.poll()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    serve()
