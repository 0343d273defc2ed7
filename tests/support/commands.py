"""`veilmeans` commands as processes, forked from a server that has imported everything: they start at once."""

import logging
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from support.fault_injection import PATIENCE, in_a_process
from support.parties import free_ports, write_config
from veilmeans.schemas import layout
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import VALUES_PER_COLUMN_SHARD


class Line:
    """A command line, running in a folder (none: in ours), with so many values in a shard of columns."""

    def __init__(
        self, arguments: Sequence[str], log: Path, folder: Path | None = None, cells: int = VALUES_PER_COLUMN_SHARD
    ) -> None:
        self.log = log
        self.process: BaseProcess = in_a_process(_run, list(arguments), log, folder, cells)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def wait(self, patience: float = PATIENCE) -> tuple[int, str]:
        """Exit code and output; a process that does not end is killed, and that is an error."""
        self.process.join(patience)
        code = self.process.exitcode
        output = self.log.read_text() if self.log.exists() else ""
        if code is None:
            self.kill()
            raise AssertionError(f"still running after {patience:g} s: {output}")
        return code, output


class Command(Line):
    """One command with one party's configuration, running."""

    def __init__(self, command: str, config: JobConfig, folder: Path, cells: int = VALUES_PER_COLUMN_SHARD) -> None:
        file = write_config(config, folder / f"{config.party}.yaml")
        log = folder / f"{config.party}-{command}-{time.monotonic_ns()}.log"
        super().__init__([command, "--config", str(file)], log, cells=cells)


def run_all(
    command: str,
    configs: Mapping[str, JobConfig],
    folder: Path,
    cells: int = VALUES_PER_COLUMN_SHARD,
    patience: float = PATIENCE,
) -> dict[str, tuple[int, str]]:
    """Start everyone at once; exit code and output of each."""
    running = {name: Command(command, config, folder, cells) for name, config in configs.items()}
    return {name: each.wait(patience) for name, each in running.items()}


def _run(arguments: list[str], log: Path, folder: Path | None, cells: int = VALUES_PER_COLUMN_SHARD) -> None:
    from veilmeans.pipelines.cli.main import main

    layout.VALUES_PER_COLUMN_SHARD = cells
    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if folder is not None:
        os.chdir(folder)
    logging.getLogger().handlers.clear()  # Beam made one when it was imported; a new process has none
    sys.argv = ["veilmeans", *arguments]
    main()


PORTS = ("7101", "7102", "7103")
"""Those that `veilmeans init` writes."""


@dataclass(frozen=True)
class Ran:
    """A command, how it ended and what it printed."""

    command: str
    code: int
    output: str


def commands_in(text: str) -> list[str]:
    """The commands of a script, one for each line, with what a heredoc holds."""
    found: list[str] = []
    end = ""
    for line in text.splitlines():
        if end:
            found[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line.strip() and not line.lstrip().startswith("#"):
            found.append(line.strip())
            heredoc = re.search(r"<<'(\w+)'", line)
            end = heredoc[1] if heredoc else ""
    return found


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
        """One after the other; those with & go on until `wait`. What each printed, in order."""
        ran: list[Ran] = []
        beside: dict[str, Line] = {}
        for command in commands:
            if command == "wait":
                ran += [Ran(each, *line.wait()) for each, line in beside.items()]
                beside = {}
            elif command.startswith("veilmeans "):
                line = self._start(command.removesuffix("&"))
                if command.endswith("&"):
                    beside[command] = line
                else:
                    ran.append(Ran(command, *line.wait()))
                    self._use_free_ports()
            else:
                done = subprocess.run(
                    ["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, check=False
                )
                ran.append(Ran(command, done.returncode, done.stdout + done.stderr))
        assert not beside, "nobody waits for them"
        return ran

    def check(self, commands: Sequence[str]) -> list[str]:
        """The same where every command must end well; what each printed."""
        ran = self.run(commands)
        assert [(each.command, each.output) for each in ran if each.code] == []
        return [each.output for each in ran]

    def _start(self, command: str) -> Line:
        arguments = shlex.split(_replaced(command, self.ports), comments=True)[1:]
        return Line(arguments, self.logs / f"{time.monotonic_ns()}", self.folder)

    def _use_free_ports(self) -> None:
        for file in self.folder.glob("*/config.yaml"):
            text = file.read_text()
            if (changed := _replaced(text, self.ports)) != text:
                file.write_text(changed)


def _replaced(text: str, ports: Mapping[str, str]) -> str:
    return re.sub(rf":({'|'.join(PORTS)})\b", lambda found: f":{ports[found[1]]}", text)
