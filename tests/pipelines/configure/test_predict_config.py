"""The configuration of a prediction is that of the training with some fields changed."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from veilmeans.pipelines.cli.main import app
from veilmeans.pipelines.configure.config_template import TemplateValues, write_configs
from veilmeans.pipelines.configure.predict_config import write_predict_config
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return write_configs(tmp_path, TemplateValues())[0]


def test_only_the_fields_that_differ_are_changed(trained: Path, tmp_path: Path) -> None:
    data = tmp_path / "payco" / "march rows.csv"
    output = write_predict_config(trained, "march", str(data), "500", None)
    file = trained.with_name("march.yaml")
    assert str(file) in output
    before, after = (each.read_text().splitlines() for each in (trained, file))
    changed = [line.partition("#")[0].rstrip() for line in after if line not in before]
    assert changed == [
        "run: march",
        "  store: march",
        "  predict: {model: first}",
        f"  data: {data}",
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
    assert (job.predict.model, job.predict.margin, job.predict.out_of_range) == ("first", 1.0, "error")


def test_a_dealer_and_horizontal_parties(tmp_path: Path) -> None:
    files = write_configs(tmp_path, TemplateValues(layout="horizontal", dealer="dealer"))
    for file in files:
        data = None if file.parent.name == "dealer" else "march.csv"
        assert "veilmeans offline --config" in write_predict_config(file, "march", data, "5, 6", None)
    jobs = [load_config(file.with_name("march.yaml")).required_kmeans for file in files]
    assert [job.rows for job in jobs] == [{"payco": 5, "shop": 6}] * 3
    assert jobs[2].data is None


def test_paths_of_the_command_are_relative_to_the_current_folder(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.parents[1])
    line = ["config", "predict", "-c", str(trained), "--name", "may", "--data", "payco/may.csv", "--rows", "7"]
    result = CliRunner().invoke(app, [*line, "--write", "payco/p.yaml"])
    assert result.exit_code == 0, result.output
    assert "veilmeans predict --config payco/p.yaml" in result.output
    assert "veilmeans offline" not in result.output
    assert yaml.safe_load((trained.parent / "p.yaml").read_text())["kmeans"]["data"] == "may.csv"


def test_a_wrong_prediction_is_refused(trained: Path, tmp_path: Path) -> None:
    def refused(name: str, data: str | None, rows: str, file: Path | None = None) -> str:
        with pytest.raises(ConfigError) as error:
            write_predict_config(trained, name, data, rows, file)
        return error.value.sentence

    assert "--data" in refused("new", None, "5")
    assert "--rows is '5,6'" in refused("new", "a.csv", "5,6")
    assert "--rows is 'many'" in refused("new", "a.csv", "many")
    assert str(tmp_path / "new.yaml") in refused("new", "a.csv", "5", tmp_path / "new.yaml")
    assert "config.yaml exists" in refused("config", "a.csv", "5")
    assert "kmeans.predict.model" in refused("first", "a.csv", "5")
    assert not trained.with_name("first.yaml").exists()
    write_predict_config(trained, "march", "a.csv", "5", None)
    with pytest.raises(ConfigError, match="'march'"):
        write_predict_config(trained.with_name("march.yaml"), "april", "a.csv", "5", None)
