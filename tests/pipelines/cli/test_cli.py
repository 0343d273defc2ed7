"""The command line: parsing without running, one screen of help, one sentence and an exit code for every mistake."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.parties import file_mode, make_configs, write_config
from support.small_kmeans import job_of
from veilmeans import __version__
from veilmeans.crypto.certificates import check_certificate, fingerprint
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.pipelines import offline, train
from veilmeans.pipelines.cli import main as cli
from veilmeans.pipelines.cli.app import BRIEF, EXIT_CODES, SECTIONS, config_app
from veilmeans.pipelines.local import demo
from veilmeans.schemas import errors
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError

SHOWN = [name for names in SECTIONS.values() for name in names]
TOP_LEVEL = [*SHOWN, *BRIEF]
CONFIG_COMMANDS = ["set", "fill", "keys", "fingerprint", "predict", "words", "token"]
COMMANDS = [[name] for name in TOP_LEVEL] + [["config", name] for name in CONFIG_COMMANDS]
WITHOUT_CONFIG = (["init"], ["demo"], ["version"], ["config"], ["config", "keys"], ["config", "fingerprint"])
CONFIG_BY_DEFAULT = (["invite"], ["join"], ["accept"], ["refuse"], ["propose"], ["config", "words"])
MODULE = [sys.executable, "-m", "veilmeans"]


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Undo what the command line does to this process's logging."""
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
    job = job_of(2, data=str(tmp_path / "none.csv"))
    return make_configs(tmp_path, kind="files", dealer="notary", kmeans=job)["payco"]


@pytest.fixture
def file(tmp_path: Path, config: JobConfig) -> str:
    return str(write_config(config, tmp_path / "payco.yaml"))


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


Ended = Callable[..., tuple[int, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """Run a command in this process; its exit code and standard error."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["veilmeans", *arguments])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        assert isinstance(ending.value.code, int)
        return ending.value.code, capsys.readouterr().err

    return run


def test_help_is_one_screen_with_the_main_commands_first() -> None:
    lines = output_of("--help").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    named = [found[1] for line in lines if (found := re.match(r"  (\w+) {2,}\S", line))]
    assert named[:7] == ["init", "invite", "join", "inspect", "plan", "train", "results"]
    assert named == SHOWN
    assert f"  {', '.join(BRIEF)}" in lines
    assert any("--install-completion" in line for line in lines)


def test_every_command_is_in_the_help() -> None:
    registered = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    assert registered | {"config"} == {*TOP_LEVEL}
    below = {command.name or command.callback.__name__ for command in config_app.registered_commands}
    assert below == {*CONFIG_COMMANDS}
    assert "..." not in output_of("config", "--help").partition("Commands:")[2]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_explains_itself(command: list[str]) -> None:
    output = output_of(*command, "--help")
    assert f"{' '.join(command)} [OPTIONS]" in output
    assert len(output.splitlines()) > 4


def test_the_exit_codes_in_the_help_are_those_of_the_errors() -> None:
    assert EXIT_CODES in " ".join(output_of("train", "--help").split())
    assert {int(code) for code in re.findall(r"\d+", EXIT_CODES)} == {0, *errors._BY_CODE, errors.INTERRUPTED}


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands(shell: str) -> None:
    """Ask for the completion as a shell would; typer's own look for the running shell finds none in a CI."""
    environment = {
        **os.environ,
        "_VEILMEANS_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "veilmeans tr",
        "COMP_CWORD": "1",
    }
    environment |= {"_TYPER_COMPLETE_ARGS": "veilmeans tr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    program = [sys.executable, "-c", "from veilmeans.pipelines.cli.main import app; app(prog_name='veilmeans')"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert "train" in done.stdout


def test_the_version_is_printed() -> None:
    assert output_of("version") == f"{__version__}\n"


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each not in (*WITHOUT_CONFIG, *CONFIG_BY_DEFAULT)], ids=" ".join
)
def test_a_command_without_its_configuration_is_a_usage_error(command: list[str]) -> None:
    result = CliRunner().invoke(cli.app, [*command, *(["run=x"] if command[-1] == "set" else [])])
    assert result.exit_code == 2
    assert "'--config'" in result.output


@pytest.mark.parametrize("arguments", [["dance"], ["demo", "--rows", "99"], ["demo", "--dance"], ["config", "keys"]])
def test_unknown_commands_and_options_are_usage_errors(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli.app, arguments).exit_code == 2


def test_unknown_flags_go_to_beam(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    given: list[JobConfig] = []
    made = Manifest("october", runs=1000, iterations=20, rows=5000, plan="")
    monkeypatch.setattr(offline, "run_offline", lambda settings: given.append(settings) or made)
    output = output_of("offline", "--direct_num_workers=2", "--config", file, "--runner", "PrismRunner", "--streaming")
    assert all(part in output for part in ("'october'", "1,000 runs", "20 iterations", "5,000 rows"))
    assert given[0].beam.runner == "PrismRunner"
    assert given[0].beam.options == ("--direct_num_workers=2", "--streaming")


def test_the_defaults_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Path, int, str]] = []
    monkeypatch.setattr(demo, "run_demo", lambda *arguments: given.append(arguments))
    output_of("demo")
    output_of("demo", "--rows", "100", "--exchange", "files", "--folder", "x")
    assert given == [(Path("demo"), 10_000, "gateway"), (Path("x"), 100, "files")]


def test_keys_are_made_once_and_kept_secret(tmp_path: Path, ended: Ended) -> None:
    folder = tmp_path / "keys"
    line = ("config", "keys", "--name", "payco", "--out", str(folder))
    output = output_of(*line, "--days", "3")
    certificate = (folder / "payco.crt").read_bytes()
    check_certificate(certificate, "payco", "payco.crt")
    assert f"{folder}/payco.crt" in output
    assert fingerprint(certificate) in output
    assert {path.name: file_mode(path) for path in folder.iterdir() if path.suffix != ".crt"} == {
        "payco.key": 0o600,
        "payco.seed": 0o600,
    }
    assert len((folder / "payco.seed").read_bytes()) == 32
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, sentence = ended(*line)
    assert code == 8
    assert f"{folder}/payco.key" in sentence
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_name_that_is_a_path_is_refused(tmp_path: Path, ended: Ended) -> None:
    code, sentence = ended("config", "keys", "--name", "../x", "--out", str(tmp_path / "keys"))
    assert code == 2
    assert "'../x'" in sentence
    assert not list(tmp_path.iterdir())


def test_mistakes_end_with_a_sentence_and_a_code(tmp_path: Path, config: JobConfig, file: str, ended: Ended) -> None:
    no_job = str(write_config(config.model_copy(update={"kmeans": None}), tmp_path / "no-job.yaml"))
    for command, code, named in (
        (["offline", "-c", file], 2, "`triples:`"),
        (["offline", "-c", no_job], 2, "`kmeans:`"),
        (["demo", "--exchange", "pigeon"], 2, "'pigeon'"),
        (["demo", "--folder", str(tmp_path)], 2, "--folder"),
        (["gateway", "-c", str(tmp_path / "none.yaml")], 2, "none.yaml"),
        (["inspect", "-c", file], 3, "none.csv"),
    ):
        found, sentence = ended(*command)
        assert found == code, sentence
        assert re.fullmatch(rf"error: .*{re.escape(named)}.*\n", sentence)


def raising(error: BaseException) -> Callable[[JobConfig], Path]:
    def run(settings: JobConfig) -> Path:
        del settings
        raise error

    return run


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch, ended: Ended, file: str) -> None:
    monkeypatch.setattr(train, "run_train", raising(KeyboardInterrupt()))
    assert ended("train", "-c", file)[0] == 130


def test_an_error_from_behind_a_runner_ends_with_its_own_sentence_and_code(
    monkeypatch: pytest.MonkeyPatch, ended: Ended, file: str
) -> None:
    wrapped = RuntimeError(
        f"Traceback\n  File x\nRefusedError: {RefusedError('shop sent nothing')} [while running 'x']"
    )
    monkeypatch.setattr(train, "run_train", raising(wrapped))
    assert ended("train", "-c", file) == (6, "error: shop sent nothing\n")


def test_an_unexpected_error_is_one_sentence_without_its_message(
    monkeypatch: pytest.MonkeyPatch, ended: Ended, file: str
) -> None:
    monkeypatch.setattr(train, "run_train", raising(ZeroDivisionError("secret")))
    code, sentence = ended("train", "-c", file)
    assert code == 1
    assert "ZeroDivisionError" in sentence
    assert "secret" not in sentence
    monkeypatch.setenv("VEILMEANS_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.processes
@pytest.mark.parametrize(("missing", "code"), [("none.yaml", 2), ("none.csv", 3)])
def test_a_process_that_misses_a_file_ends_with_one_sentence(
    tmp_path: Path, file: str, missing: str, code: int
) -> None:
    config = str(tmp_path / missing) if missing.endswith("yaml") else file
    done = subprocess.run([*MODULE, "inspect", "--config", config], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(rf"error: .*{re.escape(str(tmp_path / missing))}.*\n", done.stderr)


@pytest.mark.processes
def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).parent / "veilmeans"
    done = subprocess.run([script, "version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{__version__}\n"
