"""The configuration of a prediction as it is written out of a trained one: what differs is changed, all else stays."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from veilmeans.pipelines.cli.main import app
from veilmeans.pipelines.configure.config_template import Example, write_examples
from veilmeans.pipelines.configure.predict_config import write_prediction
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return write_examples(tmp_path, Example())[0]


def test_only_what_differs_is_changed(trained: Path, tmp_path: Path) -> None:
    data = tmp_path / "payco" / "march rows.csv"
    said = write_prediction(trained, "march", str(data), "500", None)
    file = trained.with_name("march.yaml")
    assert str(file) in said
    before, after = (each.read_text().splitlines() for each in (trained, file))
    assert [line for line in after if line not in before] == [
        "run: march # a new name for new data or a changed configuration",
        "  store: march",
        "  predict: {model: first}",
        f"  data: {data} # CSV, Parquet or Arrow; a file or a glob",
        "  rows: 500",
        "    centroids: []",
        "    inertia: []",
    ]
    assert len(after) == len(before) + 1
    config = load_config(file)
    assert config.run == config.required_triples.store == "march"
    job, old = config.required_kmeans, load_config(trained).required_kmeans
    assert (job.data, job.rows, job.reveal.assignments) == (str(data), 500, old.reveal.assignments)
    assert job.predict is not None
    assert (job.predict.model, job.predict.margin, job.predict.outside) == ("first", 1.0, "error")


def test_a_dealer_and_horizontal_parties(tmp_path: Path) -> None:
    files = write_examples(tmp_path, Example(layout="horizontal"))
    for file in files:
        write_prediction(file, "march", None if file.parent.name == "dealer" else "march.csv", "5, 6", None)
    jobs = [load_config(file.with_name("march.yaml")).required_kmeans for file in files]
    assert [job.rows for job in jobs] == [{"payco": 5, "shop": 6}] * 3
    assert jobs[2].data is None


def test_the_command(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths on the command line are the shell's; in the file they are relative to it."""
    monkeypatch.chdir(trained.parents[1])
    arguments = ["predict", "-c", str(trained), "--new", "may", "--data", "payco/may.csv", "--rows", "7"]
    result = CliRunner().invoke(app, [*arguments, "--write", "payco/p.yaml"])
    assert result.exit_code == 0, result.output
    assert "veilmeans offline --config payco/p.yaml" in result.output
    assert yaml.safe_load((trained.parent / "p.yaml").read_text())["kmeans"]["data"] == "may.csv"
    result = CliRunner().invoke(app, ["predict", "-c", str(trained), "--rows", "7"])
    assert isinstance(result.exception, ConfigError)


def test_what_is_refused(trained: Path, tmp_path: Path) -> None:
    def refused(name: str, data: str | None, rows: str | None, file: Path | None = None) -> str:
        with pytest.raises(ConfigError) as error:
            write_prediction(trained, name, data, rows, file)
        return error.value.sentence

    assert refused("new", None, "5") == "--data: say where our new rows are"
    assert refused("new", "a.csv", None).startswith("--rows: say how many")
    assert refused("new", "a.csv", "5,6").startswith("--rows: '5,6' must be one number")
    assert refused("new", "a.csv", "many").startswith("--rows: 'many' must be one number")
    assert "must lie beside" in refused("new", "a.csv", "5", tmp_path / "new.yaml")
    assert "exists already" in refused("config", "a.csv", "5")
    assert "must differ from run" in refused("first", "a.csv", "5")
    assert not trained.with_name("first.yaml").exists()
