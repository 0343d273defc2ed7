"""Beam workers as on hosts of their own: of a world of parties they see nothing but a token and what is outside it.

`python -m support.isolated_workers PORT threads|processes` starts a worker pool: all workers in one process that
stays, or a process for each pipeline, which then looks for its token anew.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from support.fault_injection import wait_for
from support.parties import free_ports, listens
from veilmeans.io.storage.run_token import TOKEN, TOKEN_FILE

_NAMESPACES = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])
_HIDE = 'mount -t tmpfs tmpfs "$0" && exec "$@"'


@cache
def namespace() -> Sequence[str] | None:
    """The command that makes a mount namespace here; None where none is permitted."""
    for command in _NAMESPACES if shutil.which("unshare") else ():
        if not subprocess.run(
            [*command, "sh", "-c", "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False
        ).returncode:
            return command
    return None


ISOLATED = pytest.mark.skipif(namespace() is None, reason="mount namespaces are not permitted here")


@contextmanager
def isolated_workers(
    hidden: Path, token: str | Path | None, log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[list[str]]:
    """Start workers that do not see `hidden`; yield Beam's flags for them.

    `token`: what they have of a party; a file is read anew by the workers of each pipeline.
    """
    isolate = namespace()
    assert isolate is not None
    (port,) = free_ports(1)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VEILMEANS_")}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(log.parent), **(variables or {})}
    if token is not None:
        environment[TOKEN_FILE if isinstance(token, Path) else TOKEN] = str(token)
    pool_of = "processes" if isinstance(token, Path) else "threads"
    pool_command = [sys.executable, "-m", "support.isolated_workers", str(port), pool_of]
    command = [*isolate, "sh", "-c", _HIDE, str(hidden), *pool_command]
    with log.open("wb") as output:
        pool = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd="/")
        try:
            wait_for(lambda: pool.poll() is not None or listens(port))
            environment_flags = ["--environment_type=EXTERNAL", f"--environment_config=127.0.0.1:{port}"]
            yield ["--runner=PortableRunner", "--job_endpoint=embed", *environment_flags]
        finally:
            pool.communicate()  # its standard input ends, and with it the pool
    assert pool.returncode == 0, log.read_text()


def _serve(port: int, in_processes: bool) -> None:
    from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    _, server = BeamFnExternalWorkerPoolServicer.start(use_process=in_processes, port=port)
    sys.stdin.read()
    server.stop(0)
    os._exit(0)


if __name__ == "__main__":
    threading.current_thread().name = "pool"
    _serve(int(sys.argv[1]), sys.argv[2] == "processes")
