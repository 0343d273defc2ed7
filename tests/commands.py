"""`veilmeans` commands as processes, forked from a server that has imported everything: they start at once."""

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from chaos import PATIENCE, in_a_process
from parties import write_config
from veilmeans.schemas import layout
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import CELLS


class Line:
    """A command line, running in a folder (none: in ours), with so many values in a shard of columns."""

    def __init__(self, arguments: Sequence[str], log: Path, folder: Path | None = None, cells: int = CELLS) -> None:
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

    def __init__(self, command: str, config: JobConfig, folder: Path, cells: int = CELLS) -> None:
        file = write_config(config, folder / f"{config.party}.yaml")
        log = folder / f"{config.party}-{command}-{time.monotonic_ns()}.log"
        super().__init__([command, "--config", str(file)], log, cells=cells)


def run_all(
    command: str, configs: Mapping[str, JobConfig], folder: Path, cells: int = CELLS, patience: float = PATIENCE
) -> dict[str, tuple[int, str]]:
    """Start everyone at once; exit code and output of each."""
    running = {name: Command(command, config, folder, cells) for name, config in configs.items()}
    return {name: each.wait(patience) for name, each in running.items()}


def _run(arguments: list[str], log: Path, folder: Path | None, cells: int = CELLS) -> None:
    from veilmeans.pipelines.cli import main

    layout.CELLS = cells
    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if folder is not None:
        os.chdir(folder)
    logging.getLogger().handlers.clear()  # Beam made one when it was imported; a new process has none
    sys.argv = ["veilmeans", *arguments]
    main()
