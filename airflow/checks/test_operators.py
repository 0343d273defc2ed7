"""Operators, trigger and package where only Airflow is installed: no scheduler and no veilmeans takes part."""

import asyncio
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from standalone import free_port, wait_until
from veilmeans_airflow.operators import VeilmeansOperator, VeilmeansPredictOperator
from veilmeans_airflow.sensors import VeilmeansPeerSensor
from veilmeans_airflow.triggers import GatewaysListenTrigger


def stand_in(folder: Path, body: str) -> str:
    """A program in the place of `veilmeans`: only its exit code and output matter here."""
    file = folder / "veilmeans"
    file.write_text(f"#!{sys.executable}\nimport os, sys, json, time, signal\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def operator(program: str, **options: Any) -> VeilmeansOperator:
    return VeilmeansOperator(task_id="t", command="train", config="/c.yaml", veilmeans=program, **options)


def test_neither_beam_nor_veilmeans_is_installed_here() -> None:
    assert importlib.util.find_spec("apache_beam") is None
    assert importlib.util.find_spec("veilmeans") is None


@pytest.mark.parametrize("code", [2, 3, 4, 6, 7])
def test_a_mistake_fails_at_once_with_its_sentence(tmp_path: Path, code: int) -> None:
    body = f"print(json.dumps({{'error': 'kmeans.clusters: wrong', 'code': {code}}})); sys.exit({code})"
    with pytest.raises(AirflowFailException, match=r"kmeans\.clusters: wrong"):
        operator(stand_in(tmp_path, body)).execute({})


@pytest.mark.parametrize("ending", ["sys.exit(1)", "sys.exit(5)", "sys.exit(8)", "os.kill(os.getpid(), 9)"])
def test_what_may_pass_is_retried(tmp_path: Path, ending: str) -> None:
    with pytest.raises(AirflowException) as raised:
        operator(stand_in(tmp_path, ending)).execute({})
    assert not isinstance(raised.value, AirflowFailException)
    assert "resumes" in str(raised.value)


def test_the_command_line_and_what_goes_to_xcom(tmp_path: Path) -> None:
    body = "print(json.dumps({'run': 'r', 'config': '/c.yaml', 'results': '/r', 'inertia': 4.5, 'text': sys.argv[1:]}))"
    made = operator(stand_in(tmp_path, body), run="r", fields={"kmeans.rows": "5"}, flags=["--runner", "PrismRunner"])
    assert made.command_line()[1:] == [
        "train", "--config", "/c.yaml", "--run", "r", "--set", "kmeans.rows=5", "--json", "--runner", "PrismRunner",
    ]  # fmt: skip
    assert made.execute({}) == {"run": "r", "config": "/c.yaml", "results": "/r"}


def test_a_prediction_changes_the_fields_of_its_training() -> None:
    made = VeilmeansPredictOperator(task_id="p", config="/c.yaml", run="day-1", model="train-1", rows="7", data="a.csv")
    changes = made.changes()
    assert changes["kmeans.predict.model"] == '"train-1"'
    assert (changes["triples.store"], changes["kmeans.rows"], changes["kmeans.data"]) == ('"day-1"', "7", "a.csv")


def test_a_command_ends_with_its_task_however_that_is_killed(tmp_path: Path) -> None:
    program = stand_in(tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    task = f"from veilmeans_airflow.command_process import CommandProcess as C; C([{program!r}], {{}}, print).wait()"
    with subprocess.Popen([sys.executable, "-c", task]) as parent:
        wait_until("the command runs", lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60)
        command = psutil.Process(int((tmp_path / "pid").read_text()))
        os.kill(parent.pid, signal.SIGKILL)
    wait_until("the command has ended", lambda: not command.is_running() or command.status() == "zombie", 60)


def test_a_task_that_is_ended_by_hand_ends_its_command(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    ignoring = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(begun)!r}, 'w'); time.sleep(600)"
    made = operator(stand_in(tmp_path, ignoring), grace=0.2)

    def end_by_hand() -> None:
        wait_until("the command runs", begun.exists, 60)
        made.on_kill()

    person = threading.Thread(target=end_by_hand)
    person.start()
    with pytest.raises(AirflowException, match="SIGKILL"):
        made.execute({})
    person.join()


def test_the_sensor_defers_to_the_trigger() -> None:
    with pytest.raises(TaskDeferred) as deferred:
        VeilmeansPeerSensor(task_id="s", addresses=["127.0.0.1:1"]).execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == "veilmeans_airflow.triggers.GatewaysListenTrigger"
    assert GatewaysListenTrigger(**arguments).addresses == ["127.0.0.1:1"]


def test_the_trigger_fires_when_the_last_gateway_listens() -> None:
    ports = [free_port(), free_port()]
    opened = []

    async def listen_later() -> Any:
        servers = []
        for port in ports:
            await asyncio.sleep(0.2)
            servers.append(await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port))
            opened.append(time.monotonic())
        return servers

    async def fired() -> Any:
        trigger = GatewaysListenTrigger([f"127.0.0.1:{port}" for port in ports], interval=0.05)
        servers = asyncio.ensure_future(listen_later())
        event = await anext(trigger.run())
        assert len(opened) == 2
        for server in await servers:
            server.close()
        return event.payload

    assert asyncio.run(fired()) == {"addresses": [f"127.0.0.1:{port}" for port in ports]}
