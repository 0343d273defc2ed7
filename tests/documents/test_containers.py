"""Dockerfile and compose.yaml: linted, and their commands run as processes, each with only what its container has.

No container is run here: images, networks and limits of a container are not tested.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.parties import free_ports

ROOT = Path(__file__).parents[2]
LINTERS = ROOT / ".cache" / "linters" / "bin"
VEILMEANS = [sys.executable, "-m", "veilmeans"]
COMPANIES = ("payco", "shop")
ROWS = 60


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


def test_of_another_company_only_the_gateway_is_on_the_network(services: dict[str, dict[str, Any]]) -> None:
    for name, other in (COMPANIES, COMPANIES[::-1]):
        there = {service for service, each in services.items() if name in each["networks"]}
        assert there == {name, f"{name}-gateway", f"{other}-gateway"}


def test_a_container_has_no_secret_that_it_does_not_need(services: dict[str, dict[str, Any]]) -> None:
    for name, other in (COMPANIES, COMPANIES[::-1]):
        mounted = " ".join(services[f"{name}-gateway"]["volumes"])
        assert f"/{name}/keys/{name}.key:" in mounted
        assert ".seed" not in mounted
        assert not any(
            f"/{other}" in volume for who in (name, f"{name}-gateway") for volume in services[who]["volumes"]
        )


def test_every_target_of_a_service_is_in_the_dockerfile(services: dict[str, dict[str, Any]]) -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert targets == ["build", "party", "gateway", "worker"]
    assert {each["build"]["target"] for each in services.values()} == {"party", "gateway"}


def test_an_image_holds_all_rooms_and_nothing_else() -> None:
    """The context of an image is what .dockerignore admits: what setup.py packs, and no data, key or environment."""
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    rooms = {link.name for link in (ROOT / "src" / "veilmeans").iterdir() if link.is_symlink()}
    assert admitted == {"setup.py", "pyproject.toml", "README.md", "LICENSE", "src", *rooms}


@pytest.mark.containers
@pytest.mark.processes
def test_linters_find_nothing() -> None:
    for command in (
        [LINTERS / "hadolint", "--failure-threshold", "style", "Dockerfile"],
        [LINTERS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def veilmeans(*arguments: str) -> None:
    done = subprocess.run([*VEILMEANS, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_site(folder: Path) -> None:
    """Follow docs/deploy.md up to `docker compose`."""
    veilmeans("init", "--out", str(folder), "--clusters", "2")
    for number, (name, other) in enumerate((COMPANIES, COMPANIES[::-1])):
        rows = "".join(f"{i},{i % 2 * 9 + i / 100},{number - i % 2}\n" for i in range(ROWS))
        (folder / name / "data.csv").write_text(f"id,{name}_a,{name}_b\n{rows}")
        config = str(folder / name / "config.yaml")
        place = [f"listen={name}-gateway:7101", f"peers.{other}.address={other}-gateway:7101"]
        veilmeans("config", "set", "--config", config, "gateway=separate", *place, "kmeans.max_iter=2")
    configs = [word for name in COMPANIES for word in ("--config", str(folder / name / "config.yaml"))]
    veilmeans("config", "fill", *configs)


class Containers:
    """The services of compose.yaml as processes: for each a folder with its mounts, and ports in place of hosts."""

    def __init__(self, site: Path, services: dict[str, dict[str, Any]], folder: Path) -> None:
        self._services, self._folder, self._site = services, folder, site
        self._ports = dict(zip(COMPANIES, free_ports(2), strict=True))

    def start(self, service: str) -> subprocess.Popen[str]:
        """Start a service's command, which sees its mounts only."""
        party = self._folder / service
        for volume in self._services[service]["volumes"]:
            source, target, *_ = volume.replace("${SITE:-./trial}", str(self._site)).split(":")
            self._mount(source, party / target.removeprefix("/party").lstrip("/"))
        config = party / "config.yaml"
        config.write_text(self._reachable(config.read_text(), service))
        words = self._services[service]["command"]
        line = [self._reachable(word.replace("/party", str(party)), service) for word in words]
        return subprocess.Popen([*VEILMEANS, *line], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def _mount(self, source: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not Path(source).is_absolute():
            target.mkdir()
        elif Path(source).is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def _reachable(self, text: str, service: str) -> str:
        for name, port in self._ports.items():
            text = text.replace(f"{name}-gateway:7101", f"127.0.0.1:{port}")
        return text.replace("0.0.0.0:7101", f"127.0.0.1:{self._ports[service.removesuffix('-gateway')]}")

    def clusters(self, name: str) -> str:
        """The clusters that were opened to a party, as CSV."""
        file = self._folder / f"{name}.csv"
        veilmeans("results", "--config", str(self._folder / name / "config.yaml"), "--csv", str(file))
        return file.read_text()


@pytest.mark.containers
@pytest.mark.processes
def test_the_commands_of_the_services_work_together(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    make_site(tmp_path / "site")
    containers = Containers(tmp_path / "site", services, tmp_path / "containers")
    with ExitStack() as running:
        started = {}
        for service in services:  # in the order of the file, gateways before the parties that depend on them
            started[service] = running.enter_context(containers.start(service))
            running.callback(started[service].kill)
        for name in COMPANIES:
            out, _ = started[name].communicate()
            facts = json.loads(out)
            assert (started[name].returncode, facts["ended"]) == (0, True), facts
        for name in COMPANIES:
            started[f"{name}-gateway"].send_signal(signal.SIGTERM)
            assert started[f"{name}-gateway"].wait() == 0
    first, second = (containers.clusters(name) for name in COMPANIES)
    assert first == second
    assert first.count("\n") == ROWS + 1
