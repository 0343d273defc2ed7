"""Two parties' DAGs under `airflow standalone`: a killed training is retried, a wrong configuration is not."""

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from standalone import Airflow, end_all, free_port, running_airflow, running_below, wait_until

ROOT = Path(__file__).parents[2]
VEILMEANS = ROOT / ".venv" / "bin" / "veilmeans"
PARTIES = ("payco", "shop")
SUNDAY, MONDAY = "2026-11-15", "2026-11-16"
ROWS = 400


class Site:
    """The folders of two parties with keys, data of two days and configurations, and ports for their gateways."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = {name: free_port() for name in PARTIES}
        veilmeans("init", "--out", str(folder), "--parties", ",".join(PARTIES), "--clusters", "3")
        for name, other in (PARTIES, PARTIES[::-1]):
            for day in (SUNDAY, MONDAY):
                self._write_data(name, day)
            shutil.copy(self.data(name, SUNDAY), folder / name / "data.csv")
            veilmeans(
                "config", "set", "--config", self.config(name), "gateway=separate", f"listen=127.0.0.1:{ports[name]}",
                f"peers.{other}.address=127.0.0.1:{ports[other]}", "exchange.timeout_s=600", "kmeans.max_iter=6",
                "kmeans.tol=0",
            )  # fmt: skip
        veilmeans("config", "fill", *(word for name in PARTIES for word in ("--config", self.config(name))))
        self.addresses = [f"127.0.0.1:{port}" for port in ports.values()]

    def config(self, name: str) -> str:
        return str(self.folder / name / "config.yaml")

    def data(self, name: str, day: str) -> Path:
        return self.folder / name / "data" / f"{day.replace('-', '')}.csv"

    def _write_data(self, name: str, day: str) -> None:
        chance = random.Random(f"{name} {day}")
        rows = [(i, chance.gauss(i % 3 * 9, 1), chance.gauss(-(i % 3) * 5, 1)) for i in range(ROWS)]
        file = self.data(name, day)
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"id,{name}_a,{name}_b\n" + "".join(f"{i},{a},{b}\n" for i, a, b in rows))

    @contextmanager
    def gateway(self, name: str) -> Iterator[None]:
        """The party's gateway as a separate process."""
        with (self.folder / f"{name}-gateway.log").open("wb") as log:
            process = psutil.Popen([str(VEILMEANS), "gateway", "--config", self.config(name)], stdout=log, stderr=log)
            try:
                yield
            finally:
                end_all([process])

    def clusters(self, name: str, run: str) -> str:
        """The opened clusters of a run as CSV."""
        file = self.folder / f"{name}-{run}.csv"
        veilmeans("results", "--config", self.config(name), "--run", run, "--csv", str(file))
        return file.read_text()


def veilmeans(*arguments: str) -> None:
    done = subprocess.run([str(VEILMEANS), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def airflow(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    folder = tmp_path_factory.mktemp("airflow")
    dags = folder / "dags"
    shutil.copytree(ROOT / "airflow" / "example_dags", dags)
    shutil.copy(Path(__file__).with_name("dags_of_checks.py"), dags)
    environment = {
        "VEILMEANS_COMMAND": str(VEILMEANS),
        "VEILMEANS_PARTIES": ":".join(str(site.folder / name) for name in PARTIES),
        "VEILMEANS_PEERS": ",".join(site.addresses),
        "VEILMEANS_ARTEFACTS": str(folder / "artefacts"),
        "VEILMEANS_RETRY_S": "2",
    }
    with running_airflow(folder / "home", dags, environment) as running:
        yield running
    assert running_below() == []


@pytest.fixture(scope="module")
def trained(site: Site, airflow: Airflow) -> Iterator[None]:
    """Both parties' weekly DAGs, begun while no gateway listens; payco's training is killed once."""
    for name in PARTIES:
        airflow.trigger(f"veilmeans_train_{name}", SUNDAY)
    wait_until(
        "the sensor is deferred",
        lambda: airflow.task("veilmeans_train_payco", SUNDAY, "peers").get("state") == "deferred",
    )
    with ExitStack() as gateways:
        for name in PARTIES:
            gateways.enter_context(site.gateway(name))
        terms = site.folder / "payco" / "storage" / "runs" / "train-20261115"
        wait_until("the training has begun", lambda: any(terms.glob("checkpoints/*")))
        (command,) = airflow.commands("veilmeans train", site.config("payco"))
        os.kill(command.pid, signal.SIGKILL)
        for name in PARTIES:
            assert airflow.outcome(f"veilmeans_train_{name}", SUNDAY) == "success", airflow.log.read_text()[-3000:]
        yield


@pytest.mark.usefixtures("trained")
def test_a_killed_training_is_retried_and_both_have_the_same_result(site: Site, airflow: Airflow) -> None:
    tries = {name: airflow.task(f"veilmeans_train_{name}", SUNDAY, "train")["try_number"] for name in PARTIES}
    assert tries == {"payco": 2, "shop": 1}
    clusters = {site.clusters(name, "train-20261115") for name in PARTIES}
    assert len(clusters) == 1
    assert clusters.pop().count("\n") == ROWS + 1


@pytest.mark.usefixtures("trained")
def test_xcom_has_run_config_and_paths_and_the_report_is_an_artefact(site: Site, airflow: Airflow) -> None:
    for name in PARTIES:
        facts = airflow.xcom(f"veilmeans_train_{name}", SUNDAY, "train")
        results = site.folder / name / "storage" / "runs" / "train-20261115"
        assert (facts["run"], facts["config"]) == ("train-20261115", site.config(name))
        assert (facts["results"], facts["ended"]) == (str(results), True)
        kept = Path(airflow.xcom(f"veilmeans_train_{name}", SUNDAY, "report")["artefact"])
        assert kept.read_text() == (results / "report.html").read_text()
        assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("trained")
def test_the_next_day_is_predicted(site: Site, airflow: Airflow) -> None:
    for name in PARTIES:
        airflow.trigger(f"veilmeans_predict_{name}", MONDAY, rows=ROWS)
    for name in PARTIES:
        assert airflow.outcome(f"veilmeans_predict_{name}", MONDAY) == "success", airflow.log.read_text()[-3000:]
    assert len({site.clusters(name, "day-20261116") for name in PARTIES}) == 1


def test_a_wrong_configuration_fails_at_once(airflow: Airflow) -> None:
    airflow.trigger("wrong_configuration", MONDAY)
    assert airflow.outcome("wrong_configuration", MONDAY) == "failed"
    assert airflow.task("wrong_configuration", MONDAY, "train")["try_number"] == 1
    log: Any = airflow.call(f"dags/wrong_configuration/dagRuns/{MONDAY}/taskInstances/train/logs/1")
    assert "kmeans.clusters" in json.dumps(log)
