"""`--json` of every command, and `--run` and `--set` of every command with a configuration of a run."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.fixed_values import fix_costs
from support.parties import write_config
from support.worlds import World, blobs, make_world, run_in_threads, tables
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.pipelines import align, gateway, offline, predict
from veilmeans.pipelines.cli import main as cli
from veilmeans.pipelines.cli.app import BRIEF, SECTIONS
from veilmeans.pipelines.local import demo
from veilmeans.pipelines.reveal import run_reveal
from veilmeans.pipelines.session.aligned_config import Alignment
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import PeerError

OF_A_RUN = (
    "inspect", "plan", "train", "results", "offline", "predict", "reveal", "prepare", "status", "report", "gateway",
    "align", "sweep", "config predict", "config words", "audit", "openings", "config token",
)  # fmt: skip
OTHERS = (
    "init", "demo", "version", "invite", "join", "accept", "refuse", "propose", "config set", "config fill",
    "config keys", "config fingerprint",
)  # fmt: skip


@pytest.fixture(autouse=True)
def restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fix_costs(monkeypatch)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level


def facts_of(*arguments: str) -> dict[str, Any]:
    """Run a command with --json; the only line of its standard output, read."""
    result = CliRunner().invoke(cli.app, [*arguments, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert result.stdout.count("\n") == 1
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_every_command_is_one_of_these() -> None:
    below = {f"config {command.name}" for command in cli.config_commands.config_app.registered_commands}
    top = {name for names in SECTIONS.values() for name in names} | set(BRIEF)
    assert {*OF_A_RUN, *OTHERS} == below | top - {"config"}


@pytest.mark.parametrize("command", [*OF_A_RUN, *OTHERS])
def test_every_command_has_the_options(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [*command.split(), "--help"], env={"COLUMNS": "200"}).output
    assert "--json" in shown
    assert ("--set" in shown and "--run" in shown) == (command in OF_A_RUN)


def test_commands_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts_of("version")["command"] == "version"
    made = facts_of("init", "--out", str(tmp_path / "trial"))
    assert all(Path(file).exists() for file in made["configs"])
    keys = facts_of("config", "keys", "--name", "payco", "--out", str(tmp_path / "keys"))
    assert all(Path(keys[each]).exists() for each in ("key", "seed", "certificate"))
    shown = facts_of("config", "fingerprint", keys["certificate"])
    assert shown["text"].split()[-1] in keys["text"]
    changed = facts_of("config", "set", "--config", made["configs"][0], "kmeans.clusters=2")
    assert "clusters: 2" in changed["difference"]
    for file in made["configs"]:
        Path(file).with_name("data.csv").write_text("id,a\n" + "".join(f"{i},{i * i}\n" for i in range(7)))
    every = [part for file in made["configs"] for part in ("--config", file)]
    assert facts_of("config", "fill", *every, "--dry-run")["configs"] == made["configs"]
    monkeypatch.setattr(demo, "run_demo", lambda *_: None)
    assert facts_of("demo", "--folder", str(tmp_path / "demo"))["folder"] == str(tmp_path / "demo")


def test_files_between_companies(tmp_path: Path) -> None:
    own = {name: ["--config", str(tmp_path / name / "config.yaml")] for name in ("payco", "shop")}
    size = ["--rows", "9", "--columns", "2"]
    for name, line in (
        ("payco", ["invite", "--name", "payco", "--with", "shop", "--clusters", "3", "--address", "a:1", *size]),
        ("shop", ["join", str(tmp_path / "payco/payco-invitation.json"), "--address", "b:2", "--yes", *size]),
        ("payco", ["accept", str(tmp_path / "shop/shop-reply.json")]),
        ("payco", ["propose", "kmeans.clusters=4"]),
        ("shop", ["refuse", str(tmp_path / "payco/payco-proposal.json")]),
    ):  # fmt: skip
        facts = facts_of(*line, *own[name])
        assert facts["command"] == line[0]
        assert Path(facts["config"]) == tmp_path / name / "config.yaml"
    words = {facts_of("config", "words", *own[name])["words"] for name in own}
    assert len(words) == 1
    assert facts_of("config", "words", *own["shop"], "--set", "kmeans.clusters=9")["words"] not in words


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two parties after a training that opened something to each."""
    job = {"layout": "vertical", "clusters": 2, "max_iter": 1, "reveal": {"assignments": ["payco", "shop"]}}
    made = make_world(
        tmp_path_factory.mktemp("json"), tables(blobs(12, 2), list("ab"), [1], axis=1), job, kind="files", runs=2
    )
    made.train()
    for name, config in made.parties.items():
        write_config(config, made.folder / f"{name}.yaml")
    return made


def of_run(world: World, *arguments: str, party: str = "payco") -> dict[str, Any]:
    facts = facts_of(*arguments, "--config", str(world.folder / f"{party}.yaml"))
    assert (facts["party"], facts["config"]) == (party, str(world.folder / f"{party}.yaml"))
    return facts


def test_commands_that_show_something(world: World) -> None:
    config = world["payco"]
    assert of_run(world, "inspect")["rows"] == 12
    assert of_run(world, "plan")["steps"]
    assert of_run(world, "plan", "--compare", ".")["iterations"] == 1
    shown = of_run(world, "results", "--csv", str(world.folder / "rows.csv"))
    assert sum(shown["rows_in_clusters"]) == 12
    assert shown["csv_escaped"] == 0
    state = of_run(world, "status")
    assert (state["iterations"], state["ended"], state["store"]["runs_left"]) == (1, True, 1)
    assert state["files"] == [str(config.run_folder.assignments)]
    assert of_run(world, "report")["report"] == str(config.run_folder.html_report)
    assert "12 rows" in of_run(world, "prepare")["text"]
    assert "would listen" in of_run(world, "gateway", "--dry-run")["text"]


def test_commands_of_a_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    config = world["payco"]
    trained = of_run(world, "train")
    assert (trained["results"], trained["ended"]) == (str(config.run_folder.path), True)
    assert trained["report"] == str(config.run_folder.html_report)
    assert of_run(world, "train", "--run", "other", "--dry-run")["run"] == "other"
    made = Manifest("october", runs=1000, iterations=20, rows=5000, plan="")
    monkeypatch.setattr(offline, "run_offline", lambda _: made)
    assert of_run(world, "offline")["runs"] == 1000
    monkeypatch.setattr(predict, "run_predict", lambda settings: settings.run_folder.path)
    assert of_run(world, "predict")["results"] == trained["results"]
    found = Alignment(rows=12, order="", file="rows.parquet", ids={"payco": 14, "shop": 15}, source=[])
    monkeypatch.setattr(align, "run_align", lambda _: found)
    assert of_run(world, "align")["rows"] == 12
    assert set(of_run(world, "sweep", "--clusters", "2-3", "--dry-run")["trainings"]) == {"2", "3"}
    monkeypatch.setattr(gateway, "run_gateway", lambda _: None)
    assert of_run(world, "gateway")["listen"] == config.listen


def test_an_opening_by_set_alone(world: World) -> None:
    """Both parties open the centroids of the finished run, and no file of theirs says so."""
    run_in_threads(
        run_reveal,
        {name: _with_centroids(config) for name, config in world.parties.items()},
    )
    opened = of_run(world, "reveal", "--set", "kmeans.reveal.centroids=[payco]")
    assert opened["opened"]["centroids"] == str(world["payco"].run_folder.centroids)
    assert load_config(world.folder / "payco.yaml").required_kmeans.reveal.centroids == ()


def _with_centroids(config: JobConfig) -> JobConfig:
    job = config.required_kmeans
    reveal = job.reveal.model_copy(update={"centroids": ("payco",)})
    return config.model_copy(update={"kmeans": job.model_copy(update={"reveal": reveal})})


def test_run_and_set_change_one_command_and_no_file(world: World) -> None:
    file = world.folder / "payco.yaml"
    before = file.read_text()
    planned = of_run(world, "plan", "--run", "20261118", "--set", "kmeans.clusters=3", "--set", "kmeans.max_iter=7")
    assert (planned["run"], planned["job"]["clusters"]) == ("20261118", 3)
    written = of_run_predict(file)
    assert (written.run, written.required_kmeans.predict.model) == ("may", "20261118")  # type: ignore[union-attr]
    assert written.required_kmeans.max_iter == 7
    assert file.read_text() == before


def of_run_predict(file: Path) -> JobConfig:
    line = ["config", "predict", "--config", str(file), "--run", "20261118", "--set", "kmeans.max_iter=7"]
    facts = facts_of(*line, "--name", "may", "--data", "may.csv", "--rows", "3")
    assert facts["run"] == "may"
    return load_config(Path(facts["config"]))


def test_the_next_command_repeats_the_options(world: World) -> None:
    result = CliRunner().invoke(
        cli.app, ["train", "--config", str(world.folder / "payco.yaml"), "--set", "exchange.timeout_s=9"]
    )
    assert "payco.yaml --set exchange.timeout_s=9` shows them" in result.stdout


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--set", "kmeans.clusters=0"], 2, "kmeans.clusters"),
        (["--set", "kmeans.clusters"], 2, "FIELD=VALUE"),
        (["--run", "../x"], 2, "run"),
        (["--run", "a", "--set", "run=b"], 2, "twice"),
        (["--set", "kmeans.data=none.csv", "--run", "new"], 3, "none.csv"),
    ],
)
def test_mistakes_are_json_too(world: World, options: list[str], code: int, named: str) -> None:
    result = CliRunner().invoke(cli.app, ["train", "--config", str(world.folder / "payco.yaml"), *options, "--json"])
    facts = json.loads(result.stdout)
    assert (facts["command"], facts["code"]) == ("train", code)
    assert named in facts["error"]


def test_an_unexpected_error_is_json_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((PeerError("shop is busy with another run"), 5), (ZeroDivisionError("secret"), 1)):

        def fail(_: JobConfig, error: Exception = error) -> Path:
            raise error

        monkeypatch.setattr(predict, "run_predict", fail)
        result = CliRunner().invoke(cli.app, ["predict", "--config", str(world.folder / "payco.yaml"), "--json"])
        facts = json.loads(result.stdout)
        assert facts["code"] == code
        assert "secret" not in facts["error"]
