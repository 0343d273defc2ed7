"""The README's commands and the example configurations, run as they stand (on free ports)."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parties import free_ports

ROOT = Path(__file__).parent.parent
PORTS = ("7001", "7002", "7003")


def readme_commands() -> list[str]:
    lines = (ROOT / "README.md").read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.startswith("veilmeans ")]


def veilmeans(command: str, folder: Path) -> "subprocess.Popen[str]":
    words = shlex.split(command)[1:]
    return subprocess.Popen(
        [sys.executable, "-m", "veilmeans.pipelines.cli", *words],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def done(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The examples with keys of their own, on ports that are free."""
    example = tmp_path / "sums"
    shutil.copytree(ROOT / "examples" / "sums", example)
    for name in ("shop", "dealer"):
        done(veilmeans(f"veilmeans keys --name {name} --out keys", example))
    ports = dict(zip(PORTS, free_ports(3), strict=True))
    for file in example.glob("*.yaml"):
        file.write_text(re.sub("|".join(PORTS), lambda found: str(ports[found[0]]), file.read_text()))
    return example


def test_the_readme_names_the_commands_that_are_run_here() -> None:
    assert [command.split()[1] for command in readme_commands()] == [
        "keys",
        "offline",
        "sums",
        "sums",
        "sums",
        "gateway",
    ]


def test_the_readme_s_commands_run_on_the_examples(folder: Path) -> None:
    keys, offline, sums, dry_run, _on_flink, _gateway = readme_commands()
    assert "fingerprint" in done(veilmeans(keys, folder))
    assert "sums.01.multiply" in done(veilmeans(dry_run, folder))
    for process in [veilmeans(offline.replace("payco", name), folder) for name in ("payco", "shop", "dealer")]:
        assert "the store 'october' serves 1 runs of 1 iterations, 5 rows" in done(process)
    for process in [veilmeans(sums.replace("payco", name), folder) for name in ("payco", "shop")]:
        done(process)
    plain = {"payco.amount_cents": 260849, "payco.chargebacks": 3, "shop.visits": 50, "shop.items": 9}
    product = {"payco.amount_cents · shop.items": 12050 * 3 + 999 + 240000 + 6000 * 2 + 1800 * 2}
    for name in ("payco", "shop"):
        result = json.loads((folder / f"storage/{name}/runs/october/sums.json").read_text())
        assert result == plain | product
