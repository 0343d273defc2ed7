"""All parties on this machine, to try things out: each has its own process, folder, keys, data and store.

What runs is what real parties run: their commands, with their configurations. Only who starts them is another.
"""

import itertools
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import yaml

from veilmeans.io.storage.atomic_files import private_folder, write_text
from veilmeans.pipelines.local.fork_server import fork_server
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import VeilmeansError

CONFIG = "config.yaml"
LOG = "log.txt"


class TrialFolder:
    """A new folder for the parties' folders; a temporary one is removed with this object, but not with a copy of it."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            self.path = Path(tempfile.mkdtemp(prefix="veilmeans-"))
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        else:
            self.path = new_folder(folder, "fit")

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (self.path,)


def _copied(path: Path) -> TrialFolder:
    place = TrialFolder.__new__(TrialFolder)
    place.path = path
    return place


def new_folder(folder: Path, name: str) -> Path:
    """`name-1`, `name-2`, …: the first that nobody has."""
    private_folder(folder)
    for number in itertools.count(1):
        with suppress(FileExistsError):
            (folder / f"{name}-{number}").mkdir(mode=0o700)
            return folder / f"{name}-{number}"
    raise AssertionError("numbers do not end")


def run_parties(folder: Path, command: str, names: Sequence[str], config: str = CONFIG) -> float:
    """Start everyone as a real party would; if one fails, its own sentence is raised. Seconds until all ended.

    Those that still run then are ended, and so are all when this process ends or is interrupted.
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


def change_config(file: Path, fields: Mapping[str, Any], to: Path | None = None) -> None:
    """Write a configuration with other fields, to its own file or another in its folder.

    A mapping replaces field by field, anything else replaces the whole; None takes the field out.
    """
    target = to or file
    write_text(target, yaml.safe_dump(_merged(yaml.safe_load(file.read_text()), fields), sort_keys=False))
    load_config(target)


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(new, Mapping):
        return new
    known = old if isinstance(old, dict) else {}
    changed = {**known, **{name: _merged(known.get(name), value) for name, value in new.items()}}
    return {name: value for name, value in changed.items() if value is not None}


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def fresh_ports(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Fields of everyone's configuration that put all of them on ports that are free now."""
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
    return {
        name: {"listen": here, "peers": {peer: {"address": at} for peer, at in addresses.items() if peer != name}}
        for name, here in addresses.items()
    }
