"""Parties on hosts of their own: a copy of a world, each member on a host that sees its own folder only."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.cluster.hosts import PATIENCE, Host, Network, await_true
from support.parties import write_config
from support.worlds import World

REPOSITORY = Path(__file__).parents[3]
CODE = tuple(REPOSITORY / name for name in ("src", "crypto", "io", "pipelines", "schemas", "transforms"))
"""What an installation in development mode reads."""
TESTS = REPOSITORY / "tests"


@dataclass(frozen=True)
class PartiesOnHosts:
    """A world whose parties have hosts; every party has started its gateway there, or does so with its commands."""

    world: World
    hosts: Mapping[str, Host]

    def start(
        self, party: str, command: str, flags: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command of a party on its host; it prints to COMMAND.log."""
        host = self.hosts[party]
        file = write_config(self.world[party], self.world.folder / party / "config.yaml")
        program = [sys.executable, "-m", "veilmeans", "-v", command, "--config", str(file), *flags]
        return host.start(program, f"{command}.log", {"OPENBLAS_NUM_THREADS": "1", **(variables or {})})

    def call(self, party: str, action: str, variables: Mapping[str, str], result: str = "") -> str:
        """Do something with a party's shared files on its host (see shared_shares.py); return its result."""
        host = self.hosts[party]
        file = write_config(self.world[party], self.world.folder / party / "config.yaml")
        place = [str(host.folder / result)] if result else []
        module = [sys.executable, "-m", "support.cluster.shared_shares", action, str(file), *place]
        process = host.start(module, f"{action}.log", {"PYTHONPATH": str(TESTS), **variables})
        assert process.wait(PATIENCE) == 0, host.log(f"{action}.log")
        return (host.folder / result).read_text() if result else ""

    def start_gateway(self, party: str, variables: Mapping[str, str] | None = None) -> None:
        """Start a party's separate gateway."""
        host = self.hosts[party]
        process = self.start(party, "gateway", variables=variables)
        port = int((self.world[party].listen or "").rpartition(":")[2])
        await_true(process, host, "gateway.log", lambda: host.listens(port))

    def check_success(self, command: str, processes: Mapping[str, "subprocess.Popen[bytes]"]) -> dict[str, str]:
        """Wait for a command of several parties; return what they printed."""
        codes = {name: process.wait(PATIENCE) for name, process in processes.items()}
        said = {name: self.hosts[name].log(f"{command}.log") for name in processes}
        assert codes == dict.fromkeys(processes, 0), "\n".join(f"{name}: {text[-4000:]}" for name, text in said.items())
        return said


def place(network: Network, world: World, name: str) -> PartiesOnHosts:
    """Copy a world into the network's folder, with a new host for each of its parties."""
    copied = world.copied(network.folder / name)
    certificates = [config.certificate for config in copied.configs.values()]
    hosts = {
        party: network.add(f"{name.replace('/', '-')}-{party}", [*CODE, TESTS, *certificates], [copied.folder / party])
        for party in copied.parties
    }
    addresses = {party: f"{host.address}:{host.port()}" for party, host in hosts.items()}
    for party in hosts:
        peers = {peer: {"address": addresses[peer]} for peer in hosts if peer != party}
        copied = copied.altered(party, listen=addresses[party], peers=peers)
    return PartiesOnHosts(copied, hosts)


def copy_checkout(folder: Path) -> Path:
    """Copy what a package is built from, as in a fresh clone; return its setup.py."""
    folder.mkdir()
    for path in (*CODE, *(REPOSITORY / name for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"))):
        if path.is_dir():
            left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(path, folder / path.name, symlinks=True, ignore=left_out)
        else:
            shutil.copy(path, folder)
    return folder / "setup.py"
