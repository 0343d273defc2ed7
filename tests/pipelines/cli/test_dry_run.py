"""`--dry-run` of every command that changes something: it prints what would be done, and refuses the same mistakes."""

import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.fixed_values import fix_costs
from support.parties import make_configs, write_config
from support.worlds import blobs, changed_config, make_world, tables
from veilmeans.pipelines.cli import main as cli
from veilmeans.schemas.config import JobConfig

DRY = (
    "init", "config set", "config fill", "config keys", "config predict", "gateway", "prepare", "offline", "train",
    "predict", "reveal", "report", "demo", "invite", "join", "accept", "refuse", "propose",
)  # fmt: skip
Ended = Callable[..., tuple[int, str]]


def everything(folder: Path) -> dict[str, Any]:
    """All files below a folder, with the times of their last change."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture(autouse=True)
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_costs(monkeypatch)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ended:
    """Run a command in this process; its exit code and standard error."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["veilmeans", *arguments])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        return int(ending.value.code or 0), capfd.readouterr().err

    return run


def dry_run(folder: Path, *arguments: str) -> str:
    """Run a command with --dry-run, which must change nothing; its output."""
    before = everything(folder)
    result = CliRunner().invoke(cli.app, [*arguments, "--dry-run"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert everything(folder) == before
    return result.stdout


def test_every_command_that_changes_something_has_a_dry_run() -> None:
    for command in DRY:
        assert "--dry-run" in CliRunner().invoke(cli.app, [*command.split(), "--help"]).output


# Commands without a configuration.
def test_keys(tmp_path: Path, ended: Ended) -> None:
    line = ["config", "keys", "--name", "payco", "--out", str(tmp_path / "keys"), "--days", "9"]
    output = dry_run(tmp_path, *line)
    assert all(f"{tmp_path}/keys/payco.{end}" in output for end in ("key", "seed", "crt"))
    assert "9 days" in output
    assert ended(*line)[0] == 0
    first, second = ended(*line), ended(*line, "--dry-run")
    assert first == second
    assert first[0] == 8
    wrong = ["config", "keys", "--name", "../x", "--out", str(tmp_path)]
    assert ended(*wrong) == ended(*wrong, "--dry-run")


def test_init(tmp_path: Path, ended: Ended) -> None:
    line = ["init", "--out", str(tmp_path / "trial"), "--parties", "a,b,c"]
    output = dry_run(tmp_path, *line, "--separate")
    assert output.splitlines() == [f"would write {tmp_path}/trial/{name}/config.yaml" for name in "abc"]
    listed = dry_run(tmp_path, *line).splitlines()
    wrong = ["init", "--out", str(tmp_path / "wrong"), "--parties", "a,a"]
    dry = ended(*wrong, "--dry-run")
    assert not (tmp_path / "wrong").exists()
    assert dry == ended(*wrong)
    assert dry[0] == 2
    ended(*line)
    assert listed == sorted(f"would write {file}" for file in (tmp_path / "trial").rglob("*") if file.is_file())
    assert ended(*line) == ended(*line, "--dry-run")


def test_files_between_companies(tmp_path: Path, ended: Ended) -> None:
    own = {name: ["--config", str(tmp_path / name / "config.yaml")] for name in ("payco", "shop")}
    sent = {kind: str(tmp_path / file) for kind, file in (
        ("invitation", "payco/payco-invitation.json"), ("reply", "shop/shop-reply.json"),
        ("proposal", "payco/payco-proposal.json"), ("answer", "shop/shop-answer.json"),
    )}  # fmt: skip
    size = ["--rows", "9", "--columns", "2"]
    for name, line in (
        ("payco", ["invite", "--name", "payco", "--with", "shop", "--clusters", "3", "--address", "a:1", *size]),
        ("shop", ["join", sent["invitation"], "--address", "b:2", "--yes", *size]),
        ("payco", ["accept", sent["reply"]]),
        ("payco", ["propose", "kmeans.clusters=4"]),
        ("shop", ["accept", sent["proposal"], "--yes"]),
        ("payco", ["accept", sent["answer"]]),
        ("shop", ["propose", "kmeans.clusters=2"]),
        ("payco", ["refuse", str(tmp_path / "shop/shop-proposal.json")]),
    ):  # fmt: skip
        assert "would " in dry_run(tmp_path, *line, *own[name])
        assert ended(*line, *own[name])[0] == 0
        if line[0] != "propose" and line[0] != "invite":  # a file is used once
            assert ended(*line, *own[name]) == ended(*line, *own[name], "--dry-run")


def test_set_and_fill(tmp_path: Path, ended: Ended) -> None:
    ended("init", "--out", str(tmp_path))
    files = {name: str(tmp_path / name / "config.yaml") for name in ("payco", "shop")}
    for name in files:
        (tmp_path / name / "data.csv").write_text("id,a\n" + "".join(f"{i},{i * i}\n" for i in range(7)))
    every = [part for file in files.values() for part in ("--config", file)]
    shown = dry_run(tmp_path, "config", "fill", *every)
    assert all(line in shown for line in ("  -  rows: 10000", "  +  rows: 7", "  +  features: {payco: 1, shop: 1}"))
    unchanged = dry_run(tmp_path, "config", "set", "--config", files["payco"], "run=first")
    assert not [line for line in unchanged.splitlines() if line.startswith(("  -", "  +"))]
    wrong = ["config", "set", "--config", files["payco"], "kmeans.clusters=0"]
    assert ended(*wrong, "--dry-run") == ended(*wrong)
    new = ["config", "predict", "--config", files["payco"], "--name", "may", "--data", "may.csv", "--rows", "3"]
    assert dry_run(tmp_path, *new) == f"would write {tmp_path}/payco/may.yaml\n"
    assert ended("report", "-c", files["payco"], "--dry-run") == ended("report", "-c", files["payco"])


def test_demo(tmp_path: Path, ended: Ended) -> None:
    line = ["demo", "--folder", str(tmp_path / "demo"), "--rows", "500"]
    assert "500 synthetic transactions" in dry_run(tmp_path, *line)
    (tmp_path / "demo" / "payco").mkdir(parents=True)
    assert f"would remove the earlier demo in {tmp_path}/demo\n" in dry_run(tmp_path, *line)
    (tmp_path / "demo" / "mine").write_text("x")
    for wrong in (line, [*line, "--exchange", "pigeon"]):
        assert ended(*wrong, "--dry-run") == ended(*wrong)
        assert (tmp_path / "demo" / "mine").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path, ended: Ended) -> None:
    (tmp_path / "file").write_text("")
    code, sentence = ended("config", "keys", "--name", "a", "--out", str(tmp_path / "file" / "keys"), "--dry-run")
    assert (code, str(tmp_path / "file") in sentence) == (8, True)


# Commands of a run.
@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    """A party with its data and a store."""
    parts = tables(blobs(40, 3), list("abc"), [2], axis=1)
    job = {
        "layout": "vertical",
        "clusters": 3,
        "max_iter": 2,
        "reveal": {"assignments": ["shop"], "centroids": ["payco"]},
    }
    return make_world(tmp_path, parts, job, beam={"rows_per_shard": 16}, dealer="notary")["payco"]


def written(config: JobConfig, folder: Path, **fields: Any) -> str:
    return str(write_config(changed_config(config, **fields), folder / "payco.yaml"))


def test_train(tmp_path: Path, config: JobConfig, ended: Ended) -> None:
    file = written(config, tmp_path)
    output = dry_run(tmp_path, "train", "-c", file)
    for part in ("payco in run 'test' with shop", "quotient", "opened at the end: centroids to payco\n"):
        assert part in output
    for fields, code in (
        ({"kmeans": {"data": str(tmp_path / "none.csv")}}, 3),
        ({"kmeans": {"clusters": 4}}, 8),
        ({"triples": {"store": "other"}}, 8),
        ({"peers": {"shop": {"certificate": str(tmp_path / "none.crt")}}}, 7),
    ):
        wrong = written(config, tmp_path, **fields)
        before = everything(tmp_path)
        dry = ended("train", "-c", wrong, "--dry-run")
        assert everything(tmp_path) == before
        assert dry == ended("train", "-c", wrong)
        assert dry[0] == code, dry


def test_a_store_that_is_used_up(tmp_path: Path, config: JobConfig, ended: Ended) -> None:
    file = written(config, tmp_path)
    config.store_folder.claim(0).write_text(json.dumps({"run": "earlier", "binding": "x"}))
    dry = ended("train", "-c", file, "--dry-run")
    assert dry[0] == 8
    assert "'store'" in dry[1]


def test_reveal_of_what_is_not_trained(
    tmp_path: Path, config: JobConfig, ended: Callable[..., tuple[int, str]]
) -> None:
    file = written(config, tmp_path)
    assert ended("reveal", "-c", file, "--dry-run") == ended("reveal", "-c", file)
    nobody = written(config, tmp_path, kmeans={"reveal": {"assignments": [], "centroids": []}})
    assert ended("reveal", "-c", nobody, "--dry-run") == ended("reveal", "-c", nobody)


def test_prepare(tmp_path: Path, config: JobConfig, ended: Ended) -> None:
    file = written(config, tmp_path)
    output = dry_run(tmp_path, "prepare", "-c", file)
    assert "40 rows, 2 columns: a, b; 3 shards" in output
    assert f"files below {config.storage}/prepared\n" in output
    wrong = written(config, tmp_path, kmeans={"rows": 41})
    assert ended("prepare", "-c", wrong, "--dry-run") == ended("prepare", "-c", wrong)


def test_gateway(tmp_path: Path, config: JobConfig, ended: Ended) -> None:
    file = written(config, tmp_path)
    output = dry_run(tmp_path, "gateway", "-c", file)
    assert f"would listen on {config.listen} as payco" in output
    assert "from shop" in output
    host, _, port = (config.listen or "").rpartition(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        code, sentence = ended("gateway", "-c", file, "--dry-run")
    assert code == 8
    assert str(config.listen) in sentence


def test_a_port_that_is_taken(tmp_path: Path, config: JobConfig, ended: Ended) -> None:
    """A command with an embedded gateway refuses the port, too."""
    file = written(config, tmp_path)
    host, _, port = (config.listen or "").rpartition(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        code, sentence = ended("train", "-c", file, "--dry-run")
    assert (code, str(config.listen) in sentence) == (8, True)


@pytest.mark.parametrize("products", ["beaver", "he"])
def test_offline(tmp_path: Path, products: str) -> None:
    job = {"layout": "vertical", "rows": 90, "features": {"payco": 2, "shop": 1}, "clusters": 3, "products": products}
    configs = make_configs(tmp_path, dealer="notary", triples={"store": "october", "runs": 2}, kmeans=job)
    outputs = {
        name: dry_run(tmp_path, "offline", "-c", str(write_config(config, tmp_path / f"{name}.yaml")))
        for name, config in configs.items()
    }
    assert f"below {configs['payco'].store_folder}, with a seed" in outputs["payco"]
    assert ("ciphertexts" in outputs["shop"]) == (products == "he")
    got = {name: outputs[name].split("would get from notary: ")[1].split(" (")[0] for name in ("payco", "shop")}
    for name, amount in got.items():
        assert f"would send {name}: {amount} (" in outputs["notary"]


@pytest.mark.parametrize("provider", ["ot", "iknp"])
def test_offline_without_a_dealer(tmp_path: Path, provider: str) -> None:
    job = {"layout": "vertical", "rows": 90, "features": {"payco": 2, "shop": 1}, "clusters": 3, "products": "beaver"}
    configs = make_configs(tmp_path, triples={"store": "october", "provider": provider}, kmeans=job)
    outputs = {
        name: dry_run(tmp_path, "offline", "-c", str(write_config(config, tmp_path / f"{name}.yaml")))
        for name, config in configs.items()
    }
    sent, received = (
        re.search(r"would send (.*) and get (.*) in [57] rounds", outputs[name]) for name in ("payco", "shop")
    )
    assert sent is not None
    assert received is not None
    assert sent.groups() == received.groups()[::-1]
    for name, config in configs.items():
        assert f"made by themselves ({provider}) for payco, shop" in outputs[name]
        assert f"below {config.store_folder}, with a seed" in outputs[name]
        assert ("trees: " in outputs[name]) == (provider == "ot")


def test_offline_with_mistakes(tmp_path: Path, ended: Ended) -> None:
    config = make_configs(tmp_path, dealer="notary", triples={"store": "october"})["payco"]
    file = str(write_config(config, tmp_path / "payco.yaml"))
    dry = ended("offline", "-c", file, "--dry-run")
    assert dry == ended("offline", "-c", file)
    assert dry[0] == 2
