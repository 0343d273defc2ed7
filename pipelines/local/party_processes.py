"""Start the commands of all parties on this machine, for trials: each has its own process, folder, keys and data.

The commands and configurations are those of real parties; only the launcher differs.
"""

import itertools
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from veilmeans.io.files.atomic_files import make_private_folder
from veilmeans.pipelines.local.fork_server import fork_server
from veilmeans.schemas.errors import VeilmeansError

CONFIG = "config.yaml"
LOG = "log.txt"


class TrialFolder:
    """A new folder that holds the parties' folders.

    A temporary one (`folder` is None) is removed with this object, but not with a copy of it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            self.path = Path(tempfile.mkdtemp(prefix="veilmeans-"))
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        else:
            self.path = new_folder(folder, "fit")

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy_of_trial_folder, (self.path,)


def _copy_of_trial_folder(path: Path) -> TrialFolder:
    copy = TrialFolder.__new__(TrialFolder)
    copy.path = path
    return copy


def new_folder(folder: Path, name: str) -> Path:
    """Make the first of `name-1`, `name-2`, … that does not exist yet."""
    make_private_folder(folder)
    for number in itertools.count(1):
        with suppress(FileExistsError):
            (folder / f"{name}-{number}").mkdir(mode=0o700)
            return folder / f"{name}-{number}"
    raise AssertionError("numbers do not end")


def run_parties(folder: Path, command: str, names: Sequence[str], config: str = CONFIG) -> float:
    """Run one command for every party at the same time, and return the seconds until all have ended.

    If one fails, raise its own error message and end the others. All end when this process ends or is interrupted.
    """
    start = time.perf_counter()
    commands = [([command, "--config", str(folder / name / config)], folder / name / LOG) for name in names]
    with fork_server() as server:
        for number, code in server.run(commands):
            if code:
                raise VeilmeansError(f"{names[number]} ended with {_last_line(commands[number][1]) or f'code {code}'}")
    return time.perf_counter() - start


def _last_line(log: Path) -> str:
    return " ".join(log.read_text().strip().splitlines()[-1:]) if log.exists() else ""


def free_ports(count: int) -> list[int]:
    """Find ports of this machine on which nobody listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def free_addresses(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return, for each member, the changes of its configuration that put everyone on ports that are free now."""
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
    return {
        name: {"listen": own} | {f"peers.{peer}.address": each for peer, each in addresses.items() if peer != name}
        for name, own in addresses.items()
    }
