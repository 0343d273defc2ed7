"""The command line: parsing without running, one sentence and an exit code for every mistake."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.parties import make_configs, mode_of, write_config
from veilmeans import __version__
from veilmeans.crypto.certificates import check_certificate, fingerprint
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.pipelines import offline, sums
from veilmeans.pipelines.cli import main as cli
from veilmeans.pipelines.local import demo
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError

JOB = {"data": "none.csv", "columns": ["a"], "product": ["payco.a", "shop.a"], "bound": 10}
CONFIGURED = [
    "plan",
    "gateway",
    "offline",
    "prepare",
    "inspect",
    "train",
    "predict",
    "reveal",
    "status",
    "sums",
    "fill",
    "results",
    "report",
]
COMMANDS = ["version", "keys", "fingerprint", "init", "set", "fill", "demo", *CONFIGURED]
MODULE = [sys.executable, "-m", "veilmeans"]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command line sets up logging for a process of its own."""
    root, beam = logging.getLogger(), logging.getLogger("apache_beam")
    handlers = {handler: list(handler.filters) for handler in root.handlers}
    before = root.level, list(root.filters), beam.level
    yield
    root.level, root.filters, beam.level = before
    root.handlers = list(handlers)
    for handler, filters in handlers.items():
        handler.filters = filters


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    job = {**JOB, "data": tmp_path / "none.csv"}
    return make_configs(tmp_path, kind="files", dealer="notary", sums=job)["payco"]


@pytest.fixture
def file(tmp_path: Path, config: JobConfig) -> str:
    return str(write_config(config, tmp_path / "payco.yaml"))


def parsed(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["veilmeans", *arguments])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    code = ending.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


def test_help_tells_of_all_commands() -> None:
    output = parsed("--help")
    assert [name for name in COMMANDS if not re.search(rf"^  {name} ", output, re.MULTILINE)] == []
    assert {command.name or command.callback.__name__ for command in cli.app.registered_commands} == {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    output = parsed(command, "--help")
    assert f"{command} [OPTIONS]" in output
    assert len(output.splitlines()) > 4


def test_the_version_is_printed() -> None:
    assert parsed("version") == f"{__version__}\n"


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_command_without_its_configuration_is_a_usage_error(command: str) -> None:
    result = CliRunner().invoke(cli.app, [command])
    assert result.exit_code == 2
    assert "Missing option '--config'" in result.output


@pytest.mark.parametrize("arguments", [["dance"], ["demo", "--rows", "99"], ["demo", "--dance"], ["keys"]])
def test_what_a_command_does_not_know_is_a_usage_error(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli.app, arguments).exit_code == 2


def test_flags_that_are_not_ours_go_to_beam(monkeypatch: pytest.MonkeyPatch, config: JobConfig, file: str) -> None:
    seen: list[JobConfig] = []
    monkeypatch.setattr(sums, "run_sums", lambda settings: seen.append(settings) or Path("sums.json"))
    output = parsed("sums", "--direct_num_workers=2", "--config", file, "--runner", "PrismRunner", "--streaming")
    assert output == "sums.json\n"
    assert seen[0].engine.runner == "PrismRunner"
    assert seen[0].engine.options == ("--direct_num_workers=2", "--streaming")
    assert seen[0].model_copy(update={"engine": config.engine}) == config


def test_what_a_store_serves_is_printed_and_flags_go_to_beam(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    seen: list[JobConfig] = []
    made = Manifest("october", runs=1000, iterations=20, rows=5000, plan="")
    monkeypatch.setattr(offline, "run_offline", lambda settings: seen.append(settings) or made)
    output = parsed("offline", "--config", file, "--runner=PrismRunner", "--streaming")
    assert output == "the store 'october' serves 1,000 runs of 20 iterations, 5,000 rows\n"
    assert (seen[0].engine.runner, seen[0].engine.options) == ("PrismRunner", ("--streaming",))


def test_the_plan_of_a_run_names_its_peers_and_not_the_dealer(tmp_path: Path, config: JobConfig, file: str) -> None:
    (tmp_path / "none.csv").write_text("a\n1\n2\n")
    config.peers["notary"].certificate.unlink()
    output = parsed("sums", "--config", file, "--dry-run")
    assert "payco in run 'test' with shop\n" in output
    assert "sums.01.multiply" in output
    assert not config.storage.exists()


def test_the_defaults_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, int, str]] = []
    monkeypatch.setattr(demo, "run_demo", lambda *arguments: seen.append(arguments))
    parsed("demo")
    parsed("demo", "--rows", "100", "--exchange", "files", "--folder", "x")
    assert seen == [(Path("demo"), 10_000, "gateway"), (Path("x"), 100, "files")]


def test_keys_are_made_once_and_kept_secret(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    output = parsed("keys", "--name", "payco", "--out", str(folder), "--days", "3")
    certificate = (folder / "payco.crt").read_bytes()
    check_certificate(certificate, "payco", "payco.crt")
    assert output == f"send {folder}/payco.crt to your peers; its fingerprint is {fingerprint(certificate)}\n"
    assert {path.name: mode_of(path) for path in folder.iterdir() if path.suffix != ".crt"} == {
        "payco.key": 0o600,
        "payco.seed": 0o600,
    }
    assert len((folder / "payco.seed").read_bytes()) == 32


def test_keys_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed("keys", "--name", "payco", "--out", str(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, said = ended(monkeypatch, capsys, "keys", "--name", "payco", "--out", str(tmp_path))
    assert (code, said.startswith(f"error: {tmp_path}/payco.key exists and is not overwritten")) == (8, True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_name_that_is_a_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended(monkeypatch, capsys, "keys", "--name", "../x", "--out", str(tmp_path / "keys"))
    assert code == 2
    assert said.startswith("error: the party's name is '../x': it must be")
    assert not list(tmp_path.iterdir())


def test_mistakes_end_with_a_sentence_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: JobConfig, file: str
) -> None:
    alone = {"dealer": None, "peers": {"shop": config.peers["shop"]}}
    no_dealer = str(write_config(config.model_copy(update=alone), tmp_path / "no-dealer.yaml"))
    no_job = str(write_config(config.model_copy(update={"sums": None}), tmp_path / "no-job.yaml"))
    for command, code, sentence in (
        (["offline", "-c", file], 2, "payco describes no store of triples: add `triples:`"),
        (["offline", "-c", no_dealer], 2, "payco names no dealer to make the store of triples"),
        (["offline", "-c", no_job], 2, "payco has no job: add `kmeans:` or `sums:`"),
        (["demo", "--exchange", "pigeon"], 2, "--exchange is 'pigeon': it must be gateway or files"),
        (["demo", "--folder", str(tmp_path)], 2, "which no demo wrote: choose another --folder"),
        (["gateway", "-c", str(tmp_path / "none.yaml")], 2, "none.yaml cannot be read: No such file or directory"),
        (["sums", "-c", file, "--dry-run"], 3, "none.csv does not exist"),
    ):
        found, said = ended(monkeypatch, capsys, *command)
        assert found == code, said
        assert re.fullmatch(rf"error: .*{re.escape(sentence)}.*\n", said)


def test_an_interrupted_command_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    monkeypatch.setattr(sums, "run_sums", raising(KeyboardInterrupt()))
    assert ended(monkeypatch, capsys, "sums", "-c", file)[0] == 130


def test_an_error_from_behind_a_runner_ends_with_its_own_sentence_and_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    wrapped = RuntimeError(
        f"Traceback\n  File x\nRefusedError: {RefusedError('shop sent nothing')} [while running 'x']"
    )
    monkeypatch.setattr(sums, "run_sums", raising(wrapped))
    assert ended(monkeypatch, capsys, "sums", "-c", file) == (6, "error: shop sent nothing\n")


def test_what_nobody_expected_is_one_sentence_too_unless_it_is_to_be_debugged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    monkeypatch.setattr(sums, "run_sums", raising(ZeroDivisionError("secret")))
    code, said = ended(monkeypatch, capsys, "sums", "-c", file)
    assert code == 1
    assert said.startswith("error: unexpected ZeroDivisionError; set VEILMEANS_DEBUG=1")
    assert "secret" not in said
    monkeypatch.setenv("VEILMEANS_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main()


def raising(error: BaseException) -> Callable[[JobConfig], Path]:
    def run(settings: JobConfig) -> Path:
        del settings
        raise error

    return run


@pytest.mark.parametrize("missing", ["config", "data"])
def test_a_process_that_misses_a_file_ends_with_one_sentence(tmp_path: Path, file: str, missing: str) -> None:
    wanted = str(tmp_path / "none.yaml") if missing == "config" else file
    done = subprocess.run([*MODULE, "sums", "--config", wanted], capture_output=True, text=True, check=False)
    sentence, code = {
        "config": (f"the configuration {wanted} cannot be read: No such file or directory", 2),
        "data": (f"the data file {tmp_path / 'none.csv'} does not exist", 3),
    }[missing]
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"error: {sentence}\n"


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).parent / "veilmeans"
    done = subprocess.run([script, "version"], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout == f"{__version__}\n"
