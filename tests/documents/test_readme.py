"""The commands of README.md and docs/commands.md, run on the example configurations (on free ports)."""

import re
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from support.commands import CommandProcess
from support.parties import free_ports

ROOT = Path(__file__).parents[2]
PORTS = ("7001", "7002")


def commands_of(page: str) -> list[str]:
    """The commands of a page, without their comments."""
    lines = (ROOT / page).read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.startswith("veilmeans ")]


def verbs(page: str) -> list[str]:
    """The verb of each command; those of `veilmeans config` have two words."""
    return [" ".join(command.split()[1 : 3 if " config " in command else 2]) for command in commands_of(page)]


def done(folder: Path, command: str, names: Sequence[str] = ("payco",)) -> list[str]:
    """Run a command for each of the parties at the same time; their outputs."""
    logs = folder.parent / "logs"
    logs.mkdir(exist_ok=True)
    lines = [
        CommandProcess(shlex.split(command.replace("payco", name))[1:], logs / f"{name}-{time.monotonic_ns()}", folder)
        for name in names
    ]
    ended = [line.wait() for line in lines]
    assert [code for code, _ in ended] == [0] * len(lines), ended
    return [output for _, output in ended]


def _read(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def example(name: str, folder: Path) -> Path:
    """Copy an example, and change its ports to free ones."""
    copied = folder / name
    shutil.copytree(ROOT / "examples" / name, copied)
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    for file in copied.glob("*.yaml"):
        file.write_text(re.sub("|".join(PORTS), lambda found: str(ports[found[0]]), file.read_text()))
    return copied


BOTH = ("payco", "shop")


def test_the_pages_have_the_commands_that_are_run_here() -> None:
    assert verbs("docs/commands.md") == [
        "init", "init", "config keys", "config fingerprint", "inspect", "config set", "prepare", "plan", "offline",
        "train", "train", "status", "openings", "results", "report", "plan", "config predict", "predict", "reveal",
        "gateway",
    ]  # fmt: skip
    assert verbs("README.md") == ["init", "inspect", "plan", "train", "results"]


@pytest.mark.processes
def test_the_commands_run_on_the_example_of_k_means(tmp_path: Path) -> None:
    folder = example("kmeans", tmp_path)
    trial, separate, keys, fingerprint, inspect, *others = commands_of("docs/commands.md")
    change, prepare, plan, offline, dry_run, train, status, openings, results, report, *others = others
    compare, new, predict, reveal, gateway = others
    for init, name in ((trial, "trial"), (separate, "separate")):
        done(folder, init)
        assert {file.parent.name for file in (folder / name).rglob("config.yaml")} == {*BOTH}
    assert [len(list((folder / name).rglob("*.key"))) for name in ("trial", "separate")] == [2, 0]
    made = [output.partition("fingerprint is ")[2] for output in done(folder, keys, BOTH)]
    assert [output.partition("fingerprint is ")[2] for output in done(folder, fingerprint, BOTH)] == made
    assert "kmeans.features.payco=3" in done(folder, inspect)[0]
    before = (folder / "payco.yaml").read_text()
    done(folder, change)
    assert (folder / "payco.yaml").read_text() == before
    done(folder, prepare)
    assert "payco distance" in done(folder, plan)[0]
    served = "the store 'example' serves 2 runs of 10 iterations, 60 rows"
    assert all(served in output for output in done(folder, offline, BOTH))
    assert "opened at the end: centroids to payco\n" in done(folder, dry_run)[0]
    assert all("results: " in output for output in done(folder, train, BOTH))
    assert "example-1" in done(folder, status)[0]
    assert "centroids" in done(folder, openings)[0]
    assert [each in done(folder, results)[0] for each in ("our rows in it", "amount", "visits")] == [True, True, False]
    results = {name: folder / f"storage/{name}/runs/example-1" for name in BOTH}
    assert "report.html" in done(folder, report)[0]
    assert "payco in run 'example-1', 3 iterations: planned, measured" in done(folder, compare)[0]
    found = {name: parquet.read_table(next(each.rglob("assignments.parquet"))) for name, each in results.items()}
    assert found["payco"] == found["shop"]
    assert (found["payco"].num_rows, len(set(found["payco"]["cluster"].to_pylist()))) == (60, 3)
    assert [bool(list(each.rglob("centroids.parquet"))) for each in results.values()] == [True, False]
    for name in BOTH:
        file = folder / f"{name}.yaml"
        file.write_text(file.read_text().replace("centroids: [payco]", "centroids: [payco, shop]"))
    done(folder, reveal, BOTH)
    running = CommandProcess(shlex.split(gateway)[1:], folder.parent / "gateway", folder)
    while "gateway of payco listens on port" not in _read(running.log):
        assert running.process.is_alive(), _read(running.log)
        time.sleep(0.05)
    running.process.terminate()
    assert running.wait()[0] == 0
    assert [bool(list(each.rglob("centroids.parquet"))) for each in results.values()] == [True, True]
    done(folder, new, BOTH)
    done(folder, predict, BOTH)
    known = dict(zip(*(found["payco"][name].to_pylist() for name in ("customer", "cluster")), strict=True))
    opened = [parquet.read_table(folder / f"storage/{name}/runs/may/assignments.parquet") for name in BOTH]
    assert opened[0] == opened[1]
    assert opened[0]["cluster"].to_pylist() == [known[each] for each in ("1001", "1060", "1020", "1040")]


def test_the_example_has_a_configuration_for_each_party() -> None:
    assert {file.stem for file in (ROOT / "examples/kmeans").glob("*.yaml")} == {*BOTH}
