"""Hosts of a network, as namespaces of Linux: each has an address, files and processes of its own.

A host sees the operating system and the folders that it is given, nothing else, and it can talk to the other hosts of
its network only. It ends with all its processes. Where namespaces are not permitted, hosts are processes on loopback
that see every file; see `Network.isolated`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.parties import free_ports

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt")
_SPACES = ("--net", "--mount", "--pid")
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""A prefix for commands that end with the process that started them, however that ends."""
_SUBNET = "10.83.0"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FIRST_PORT = 7001
PATIENCE = 3000.0
"""Seconds to wait for a cluster at most: a busy machine starts Java and its jobs slowly."""
_ENTER = """
set -e
root=$1; writable=$2; shift 2
mount -t tmpfs tmpfs "$root"
mkdir -p "$root/proc" "$root/dev" "$root/tmp"
while [ $# -gt "$writable" ]; do
  path=$1; shift
  if [ -h "$path" ]; then cp -d "$path" "$root$path"; continue; fi
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; touch "$root$path"; fi
  mount --rbind "$path" "$root$path"
  mount -o remount,bind,ro "$root$path"
done
for path in "$@"; do
  mkdir -p "$root$path"
  mount --bind "$path" "$root$path"
done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
ip link set lo up
echo ready
exec chroot "$root" sleep infinity
"""
"""Becomes the first process of a host: its root has what was named; the last `writable` folders can be changed."""
_GET = "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=20).read())"


class HostError(Exception):
    """A process on a host did not start."""


@dataclass
class Host:
    """A host: its address, and a folder of its own, which has the same path outside."""

    name: str
    address: str
    folder: Path
    enter: tuple[str, ...] = ()
    """the command that enters its namespaces"""
    _first: "subprocess.Popen[bytes] | None" = None
    _started: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _ports: Iterator[int] = field(default_factory=lambda: iter(range(_FIRST_PORT, 65536)))

    @property
    def listen(self) -> str:
        """The address for servers that must be reached by this host's address and by localhost."""
        return "0.0.0.0" if self.enter else self.address

    def port(self) -> int:
        """A port that no process of the host uses."""
        return next(self._ports) if self.enter else free_ports(1)[0]

    def start(
        self, command: Sequence[str], log: str, variables: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a process in the host's folder; its output goes to a file there. It inherits no variables."""
        known = {"PATH": _PATH, "HOME": str(self.folder), "TMPDIR": str(self.folder), "LC_ALL": "C.UTF-8"}
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen(
                [*self.enter, *(_WITH_US if self.enter else ()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**known, **(variables or {})},
                cwd=self.folder,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def fetch(self, url: str) -> bytes:
        """GET a page from this host; an OSError if there is none."""
        done = subprocess.run([*self.enter, sys.executable, "-I", "-c", _GET, url], capture_output=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.decode()[-500:])
        return done.stdout

    def listens(self, port: int) -> bool:
        """Return whether a process of the host takes connections on a port."""
        probe = f"import socket; socket.create_connection(({self.address!r}, {port}), timeout=20)"
        command = [*self.enter, sys.executable, "-I", "-c", probe]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def log(self, name: str) -> str:
        """What a process of this host has printed."""
        return (self.folder / name).read_text(errors="replace")

    def kill(self) -> None:
        """End the host at once, with everything that runs on it."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._first is not None:
            self._first.kill()
            self._first.wait()


@dataclass
class Network:
    """A network of hosts; `folder` has a folder for each of them."""

    folder: Path
    switch: "subprocess.Popen[bytes] | None" = None
    hosts: list[Host] = field(default_factory=list)

    @property
    def isolated(self) -> bool:
        """True if hosts are namespaces; False if they are processes on loopback that see everything."""
        return self.switch is not None

    def add(self, name: str, sees: Sequence[Path] = (), owns: Sequence[Path] = ()) -> Host:
        """Add a host that sees the system, the running Python and `sees`, and may change `owns`."""
        folder = self.folder / name
        folder.mkdir()
        alone = self.switch is None
        host = Host(name, "127.0.0.1", folder) if alone else self._add_namespace(name, folder, sees, owns)
        self.hosts.append(host)
        return host

    def _add_namespace(self, name: str, folder: Path, sees: Sequence[Path], owns: Sequence[Path]) -> Host:
        root = self.folder / f"{name}.root"
        root.mkdir()
        seen = {*SYSTEM, sys.base_prefix, sys.prefix, *map(str, sees)}
        visible = sorted(path for path in seen if os.path.lexists(path))  # a folder before what is in it
        inside = _entering(self.switch, "--user") if _user() else []
        owned = [str(folder), *map(str, owns)]
        script = ["sh", "-c", _ENTER, "sh", str(root), str(len(owned)), *visible, *owned]
        first = subprocess.Popen(
            [*_WITH_US, *inside, "unshare", *_SPACES, "--fork", "--kill-child", *script], stdout=subprocess.PIPE
        )
        assert first.stdout is not None
        if first.stdout.readline() != b"ready\n":
            raise HostError(f"the host {name} did not start")
        number = len(self.hosts) + 2
        address, cable = f"{_SUBNET}.{number}", f"veth{number}"
        plug = ["link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(_child(first.pid))]
        for arguments in (plug, ["link", "set", cable, "master", "switch", "up"]):
            subprocess.run([*_entering(self.switch, "--net"), "ip", *arguments], check=True)
        for arguments in (["address", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            subprocess.run([*_entering(first, "--net"), "ip", *arguments], check=True)
        enter = (*_entering(first, *_SPACES, "--root"), "env", "--chdir", str(folder))
        return Host(name, address, folder, enter, first)


@contextmanager
def started_network(folder: Path) -> Iterator[Network]:
    """A network without hosts; its hosts end with it."""
    folder.mkdir(parents=True)
    network = Network(folder, _start_switch() if can_isolate() else None)
    try:
        yield network
    finally:
        for host in network.hosts:
            host.kill()
        if network.switch is not None:
            network.switch.kill()
            network.switch.wait()


@cache
def can_isolate() -> bool:
    """Return whether this machine permits namespaces of networks, files and processes."""
    try:
        switch = _start_switch()
    except (HostError, OSError):
        return False
    switch.kill()
    switch.wait()
    return True


def _start_switch() -> "subprocess.Popen[bytes]":
    """A network namespace with a bridge, which connects hosts and nothing else."""
    bridge = "ip link add switch type bridge && ip link set switch up && echo ready && exec sleep infinity"
    command = [*_WITH_US, "unshare", *_user(), *_SPACES, "--fork", "--kill-child", "sh", "-c", bridge]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        process.wait()
        raise HostError("namespaces are not permitted")
    return process


def _user() -> list[str]:
    """Who is not root becomes it in a namespace of users."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def _entering(holder: "subprocess.Popen[bytes] | None", *spaces: str) -> list[str]:
    assert holder is not None
    user = ["--user"] if _user() and "--user" not in spaces else []
    return ["nsenter", f"--target={_child(holder.pid)}", *user, *spaces, "--"]


def _child(pid: int) -> int:
    """The one child of a process: `unshare` forks it into the new namespaces."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def await_page(process: "subprocess.Popen[bytes]", host: Host, log: str, url: str, content: str = "") -> None:
    """Wait until a page that a process of the host serves has this content."""
    await_true(process, host, log, lambda: content in host.fetch(url).decode())


def await_true(process: "subprocess.Popen[bytes]", host: Host, log: str, done: Callable[[], bool]) -> None:
    """Wait for something that a process of the host does; a HostError with its output if it ends before."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError):
            if done():
                return
        time.sleep(0.5)
    raise HostError(f"{log} of {host.name}: {host.log(log)[-3000:]}")
