"""`veilmeans` commands as processes, forked from a server that has imported everything: they start at once."""

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from support.fault_injection import PATIENCE, exit_code, start_process
from support.parties import free_ports, write_config
from veilmeans.io.messages.message_log import MessageLog
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import Header, MessageKey

Ended = tuple[int, str]
"""Exit code and output of a process."""


@dataclass(frozen=True)
class Strike:
    """A moment at which a process ends itself with SIGKILL: just before its `number`-th change of a file or folder.

    Only changes whose path contains `path` count, and only those that Python audits as `event` (none: any change).
    With an `error`, the process lives: this change and all later ones that count fail with that error number.
    """

    path: str = ""
    number: int = 1
    event: str = ""
    error: int | None = None

    def counts(self, event: str, details: tuple[Any, ...]) -> bool:
        """Return whether an audited event is one of the changes that this strike counts."""
        known = event == self.event if self.event else event in _CHANGES
        return known and self.path in _changed_path(event, details)


_CHANGES = {"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
"""Every lasting file appears, moves or goes by one of these. (`os.replace` is audited as a rename.)"""


def _changed_path(event: str, details: tuple[Any, ...]) -> str:
    """The path that appears or goes: a rename or a link names it second."""
    return str(details[1 if event in ("os.rename", "os.link") else 0])


def at_rename(path: str, number: int = 1) -> Strike:
    """Strike just before a complete file gets its name."""
    return Strike(path, number, "os.rename")


class CommandProcess:
    """A `veilmeans` command, running in `folder` (none: in ours), that may have to die at a strike."""

    def __init__(
        self, arguments: Sequence[str], log: Path, folder: Path | None = None, strike: Strike | None = None
    ) -> None:
        self.log = log
        self.process: BaseProcess = start_process(_run, list(arguments), log, folder, strike)

    def kill(self) -> None:
        self.process.kill()
        exit_code(self.process, PATIENCE)

    def wait(self, patience: float = PATIENCE) -> Ended:
        """Exit code and output; a process that does not end is killed, and that is an error."""
        code = exit_code(self.process, patience)
        output = self.log.read_text() if self.log.exists() else ""
        if code is None:
            self.kill()
            raise AssertionError(f"still running after {patience:g} s: {output}")
        return code, output


def start_command(
    command: str, config: JobConfig, folder: Path, strike: Strike | None = None, fields: Mapping[str, Any] | None = None
) -> CommandProcess:
    """Start one command with one party's configuration; `fields` go into the YAML file unchecked."""
    file = write_config(config, folder / f"{config.party}.yaml")
    if fields:
        file.write_text(yaml.safe_dump(merged(yaml.safe_load(file.read_text()), fields)))
    log = folder / f"{config.party}-{command}-{time.monotonic_ns()}.log"
    return CommandProcess([command, "--config", str(file)], log, strike=strike)


def run_all(
    command: str, configs: Mapping[str, JobConfig], folder: Path, patience: float = PATIENCE
) -> dict[str, Ended]:
    """Start a command for everyone at once, and wait for all of them."""
    running = {name: start_command(command, config, folder) for name, config in configs.items()}
    return {name: each.wait(patience) for name, each in running.items()}


def assert_all_succeeded(ended: Mapping[str, Ended]) -> None:
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(ended, 0), ended
    assert not [name for name, (_, output) in ended.items() if "Traceback" in output], ended


def merged(old: Any, new: Any) -> Any:
    """Replace fields of a nested mapping; a mapping in `new` replaces fields within a section."""
    if not isinstance(new, Mapping) or not isinstance(old, dict):
        return new
    return {**old, **{name: merged(old.get(name), value) for name, value in new.items()}}


def redirect_output(log: Path) -> None:
    """Send what this process prints to a file."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.getLogger().handlers.clear()  # Beam made one when it was imported; a new process has none


def _run(arguments: list[str], log: Path, folder: Path | None, strike: Strike | None) -> None:
    from veilmeans.pipelines.cli.main import main

    redirect_output(log)
    if strike is not None:
        _strike_self(strike)
    if folder is not None:
        os.chdir(folder)
    sys.argv = ["veilmeans", *arguments]
    main()


def _strike_self(strike: Strike) -> None:
    counted = 0

    def watch(event: str, details: tuple[Any, ...]) -> None:
        nonlocal counted
        if not strike.counts(event, details):
            return
        counted += 1
        if counted >= strike.number:
            if strike.error is not None:
                raise OSError(strike.error, os.strerror(strike.error))
            os.kill(os.getpid(), signal.SIGKILL)

    append = MessageLog.append

    def audited(log: MessageLog, key: MessageKey, header: Header, payload: pa.Buffer) -> None:
        """A message that appears in a log counts as the file of its own that a large one has."""
        sys.audit("os.rename", "", str(log._path.parents[2] / key.path), -1, -1)
        append(log, key, header, payload)

    MessageLog.append = audited  # type: ignore[method-assign]
    sys.addaudithook(watch)


# Scripts of several commands.
PORTS = ("7101", "7102", "7103")
"""The ports that `veilmeans init` writes."""


@dataclass(frozen=True)
class Ran:
    """A command, how it ended and what it printed."""

    command: str
    code: int
    output: str


def commands_in(text: str) -> list[str]:
    """The commands of a script, one for each line, with the content of their heredocs."""
    commands: list[str] = []
    end = ""
    for line in text.splitlines():
        if end:
            commands[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line.strip() and not line.lstrip().startswith("#"):
            commands.append(line.strip())
            heredoc = re.search(r"<<'(\w+)'", line)
            end = heredoc[1] if heredoc else ""
    return commands


def printed_commands(text: str) -> list[str]:
    """The commands among the lines that `veilmeans` printed."""
    return [line.strip() for line in text.splitlines() if re.fullmatch(r" +(veilmeans .*|wait)", line)]


class Shell:
    """A folder in which commands run, on ports that are free instead of those that they name."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self.folder, self.logs = folder, logs
        self.ports = dict(zip(PORTS, map(str, free_ports(3)), strict=True))
        logs.mkdir()

    def run(self, commands: Sequence[str]) -> list[Ran]:
        """Run commands one after the other; those with & run until `wait`."""
        ran: list[Ran] = []
        beside: dict[str, CommandProcess] = {}
        for command in commands:
            if command == "wait":
                ran += [Ran(each, *process.wait()) for each, process in beside.items()]
                beside = {}
            elif command.startswith("veilmeans "):
                process = self._start(command.removesuffix("&"))
                if command.endswith("&"):
                    beside[command] = process
                else:
                    ran.append(Ran(command, *process.wait()))
                    self._use_free_ports()
            else:
                done = subprocess.run(
                    ["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, check=False
                )
                ran.append(Ran(command, done.returncode, done.stdout + done.stderr))
        assert not beside, "a command with & needs a `wait`"
        return ran

    def check(self, commands: Sequence[str]) -> list[str]:
        """Run commands that must all succeed; return their outputs."""
        ran = self.run(commands)
        assert [(each.command, each.output) for each in ran if each.code] == []
        return [each.output for each in ran]

    def _start(self, command: str) -> CommandProcess:
        arguments = shlex.split(_replaced(command, self.ports), comments=True)[1:]
        return CommandProcess(arguments, self.logs / f"{time.monotonic_ns()}", self.folder)

    def _use_free_ports(self) -> None:
        for file in self.folder.glob("*/config.yaml"):
            text = file.read_text()
            if (changed := _replaced(text, self.ports)) != text:
                file.write_text(changed)


def _replaced(text: str, ports: Mapping[str, str]) -> str:
    return re.sub(rf":({'|'.join(PORTS)})\b", lambda port: f":{ports[port[1]]}", text)
