"""A command of veilmeans as a process that ends with its task, and what its exit code means for a scheduler.

It imports nothing of Airflow.
"""

import ctypes
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

NEEDS_A_PERSON = {2: "configuration", 3: "input data", 4: "handshake", 6: "a message was refused", 7: "certificate"}
"""Exit codes after which the same command would fail again."""
WORTH_A_RETRY = {1: "unexpected", 5: "a peer is absent or busy with another run", 8: "storage"}
"""Exit codes after which the same command may succeed; so may one that was ended by a signal."""
_PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: by that signal), and the facts that `--json` printed."""

    code: int
    facts: Mapping[str, Any]

    @property
    def retry(self) -> bool:
        """True if a rerun may succeed without a person's help."""
        return self.code not in NEEDS_A_PERSON

    @property
    def sentence(self) -> str:
        """Why it failed, and what follows."""
        if self.code < 0:
            said, kind = f"ended by {signal.Signals(-self.code).name}", "a signal"
        else:
            said = str(self.facts.get("error") or f"ended with code {self.code}")
            kind = {**NEEDS_A_PERSON, **WORTH_A_RETRY}.get(self.code, "unknown")
        follows = "a rerun resumes where it stopped" if self.retry else "a person must act first"
        return f"{said} (code {self.code}, {kind}: {follows})"


class CommandProcess:
    """A running command, in a session of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Callable[[str], None]) -> None:
        self._log = log
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `wait`)
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()),
        )

    def wait(self) -> Ended:
        """Log standard error as it comes, and return how the command ended."""
        if self._process.stderr is not None:
            for line in self._process.stderr:
                self._log(line.decode(errors="replace").rstrip("\n"))
        code = self._process.wait()
        with self._out:
            self._out.seek(0)
            return Ended(code, _last_object(self._out.read().decode(errors="replace")))

    def stop(self, grace: float) -> None:
        """End the command and all that it started: by SIGTERM, and after `grace` seconds by SIGKILL."""
        if self._process.poll() is not None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)


def _end_with(parent: int) -> Callable[[], None]:
    """Make a child end when its parent does, however the parent is killed.

    A command without its task would hold the party's port, and the task's retry could not listen there.
    """

    def prepare_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before the line above
            os._exit(1)

    return prepare_child


def _last_object(text: str) -> Mapping[str, Any]:
    """Read the JSON object in the last line of a command's standard output; nothing if it printed none."""
    try:
        found = json.loads(text.rstrip("\n").rpartition("\n")[2])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
