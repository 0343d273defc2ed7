"""Shell commands as they stand in a document or on a terminal, run in a folder: `veilmeans` ones start at once."""

import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commands import Line
from parties import free_ports

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
