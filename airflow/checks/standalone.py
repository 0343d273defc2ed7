"""`airflow standalone` as a process of a test: its settings, its REST interface, and its end without leftovers."""

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

PATIENCE = 900.0
"""Seconds for anything that must happen; a busy machine may be slow."""
_PR_SET_CHILD_SUBREAPER = 36  # orphans of what this process started become its children, so that none is lost
_PAUSE = 1.0


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(what: str, done: Any, patience: float = PATIENCE) -> Any:
    """Ask again and again until the answer is true, and return it."""
    deadline = time.monotonic() + patience
    while not (answer := done()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(_PAUSE)
    return answer


@dataclass(frozen=True)
class Airflow:
    """The REST interface of a running `airflow standalone`."""

    process: psutil.Process
    address: str
    log: Path

    def call(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> Any:
        """Call the interface and return its answer; None while it does not answer."""
        try:
            token = self._open(f"{self.address}/auth/token")["access_token"]
            return self._open(f"{self.address}/api/v2/{path}", body, method, token)
        except (OSError, urllib.error.URLError):
            return None

    def _open(self, url: str, body: Any = None, method: str | None = None, token: str = "") -> Any:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def trigger(self, dag: str, day: str, **conf: Any) -> None:
        """Unpause a DAG and start its run of a day."""
        wait_until(f"{dag} is known", lambda: self.call(f"dags/{dag}"))
        self.call(f"dags/{dag}", {"is_paused": False}, "PATCH")
        body = {"logical_date": f"{day}T03:00:00Z", "dag_run_id": day, "conf": conf}
        wait_until(f"{dag} is triggered", lambda: self.call(f"dags/{dag}/dagRuns", body))

    def state(self, dag: str, day: str) -> str:
        """The state of a run."""
        return str((self.call(f"dags/{dag}/dagRuns/{day}") or {}).get("state"))

    def outcome(self, dag: str, day: str) -> str:
        """Wait for the end of a run: success or failed."""
        return str(
            wait_until(f"{dag} ends", lambda: {"success": "success", "failed": "failed"}.get(self.state(dag, day)))
        )

    def task(self, dag: str, day: str, task: str) -> dict[str, Any]:
        """A task of a run: its state, and how often it was tried."""
        found: dict[str, Any] = self.call(f"dags/{dag}/dagRuns/{day}/taskInstances/{task}") or {}
        return found

    def xcom(self, dag: str, day: str, task: str) -> dict[str, Any]:
        """What a task returned."""
        path = f"dags/{dag}/dagRuns/{day}/taskInstances/{task}/xcomEntries/return_value?deserialize=true"
        value: Any = wait_until(f"{task} has returned", lambda: self.call(path))["value"]
        return dict(value if isinstance(value, dict) else json.loads(value))

    def commands(self, *words: str) -> list[psutil.Process]:
        """The running commands below Airflow whose lines have all these words."""
        found = []
        for process in self.process.children(recursive=True):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if all(word in line for word in words):
                found.append(process)
        return found


@contextmanager
def running_airflow(home: Path, dags: Path, environment: Mapping[str, str]) -> Iterator[Airflow]:
    """Start `airflow standalone` with a database of its own below `home`, and end all that it started."""
    adopt_orphans()
    others = running_below()
    home.mkdir()
    port, bin_folder = free_port(), Path(sys.executable).parent
    address = f"http://127.0.0.1:{port}"
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        **environment,
    }
    log = home / "standalone.log"
    with log.open("wb") as out:
        process = psutil.Popen(
            [str(bin_folder / "airflow"), "standalone"],
            env={**os.environ, **settings},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        airflow = Airflow(psutil.Process(process.pid), address, log)
        try:
            wait_until("Airflow answers", lambda: process.poll() is not None or airflow.call("dags"))
            if process.poll() is not None:
                raise RuntimeError(log.read_text()[-2000:])
            yield airflow
        finally:
            before = {other.pid for other in others}
            while mine := [each for each in running_below() if each.pid not in before]:
                end_all(mine)


def adopt_orphans() -> None:
    """Become the parent of all processes whose parents end, among those that this process started."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def running_below() -> list[psutil.Process]:
    """All processes that this one started, or adopted, and that still run."""
    return [process for process in psutil.Process().children(recursive=True) if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end_all(processes: list[psutil.Process]) -> None:
    """End processes by their ids: by SIGTERM, then by SIGKILL."""
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in filter(_runs, processes):
            with suppress(psutil.NoSuchProcess):
                end(process)
        psutil.wait_procs(processes, timeout=10)
