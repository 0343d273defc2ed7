"""`veilmeans inspect`: a party's data as they would be used, on its own terminal and nowhere else."""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import scipy.sparse as sp
from rich.console import Console
from typer.testing import CliRunner

from support.data_files import write_table
from support.parties import make_configs, write_config
from veilmeans.pipelines.cli import main as cli
from veilmeans.pipelines.configure.data_summary import show_data
from veilmeans.pipelines.session.own_data import scan_own_data
from veilmeans.schemas.config import JobConfig

TABLE = pa.table(
    {
        "n": [-2.5, 4, 0, 8],
        "colour": ["red", "blue", "red", None],
        "items": [[0], [1, 2], [], [2]],
        "same": [7, 7, 7, 7],
    }
)


def config_for(folder: Path, data: str, features: int = 7, **job: Any) -> JobConfig:
    kmeans = {"layout": "vertical", "rows": 4, "features": {"payco": features, "shop": 1}, "clusters": 2, **job}
    config = make_configs(folder, kind="files", dealer="notary", kmeans=kmeans)["payco"]
    return JobConfig.model_validate({**config.model_dump(), "kmeans": {**config.model_dump()["kmeans"], "data": data}})


def shown(config: JobConfig) -> list[list[str]]:
    """Show the data of a configuration; the cells of each line."""
    console = Console(width=300)
    with console.capture() as capture:
        console.print(show_data(config, scan_own_data(config, None), None))
    lines = (line.replace("┃", "│").split("│") for line in capture.get().splitlines())
    return [[cell.strip() for cell in line if cell.strip()] for line in lines]


def table_config(folder: Path, **job: Any) -> JobConfig:
    encoded = {"one_hot": ["colour"], "multi_hot": {"items": 3}, "missing": "zero"}
    return config_for(folder, write_table(folder / "t.parquet", TABLE), **{**encoded, **job})


def test_columns_are_shown_with_type_encoding_range_and_scale(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "veilmeans")
    lines = shown(table_config(tmp_path))
    zero = "number, zero for missing values"
    assert ["n", "double", zero, "25.0%", "-2.5", "8", "[-2.5, 8] → [0, 1]"] in lines
    assert ["colour", "string", "2 categories: blue, red", "62.5%", "0", "1", "as it is"] in lines
    assert ["items", "list<element: int64>", "lists of numbers below 3", "66.7%", "0", "1", "as it is"] in lines
    assert ["same", "int64", zero, "0.0%", "7", "7", "constant → 0"] in lines
    assert ["rows", "4, as in kmeans.rows"] in lines
    assert ["columns after encoding", "7, as in kmeans.features"] in lines
    assert ["of them 0 or 1", "5"] in lines
    assert ["integer-valued", "no"] in lines
    assert not caplog.records


def test_differences_from_the_configuration_are_shown_and_are_no_error(tmp_path: Path) -> None:
    lines = shown(table_config(tmp_path, features=3, rows=9))
    assert ["rows", "4, but kmeans.rows is 9: correct it"] in lines
    assert ["columns after encoding", "7, but kmeans.features is 3: correct it"] in lines
    (tmp_path / "new").mkdir()
    out_of_range = shown(table_config(tmp_path / "new", normalise={"method": "none", "bound": 1}))
    assert any(line[0] == "encoding" and "row 1, column 'n'" in line[1] for line in out_of_range)


@pytest.mark.parametrize(("name", "has_indices"), [("s.npz", False), ("s.svm", True)])
def test_only_some_columns_of_a_wide_matrix_are_shown(tmp_path: Path, name: str, has_indices: bool) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(([1.0, 1.0], ([0, 3], [0, 999])), shape=(4, 1000)))
    (tmp_path / "s.svm").write_text("1 1:1\n1\n1\n1 1000:1\n")
    lines = shown(config_for(tmp_path, str(tmp_path / name), 1000))
    assert ["0", "sparse", "number, zeros stay zeros", "75.0%", "0", "1", "as it is"] in lines
    assert ["19", "sparse", "number, zeros stay zeros", "100.0%", "0", "0", "constant → 0"] in lines
    assert ["… and 980 more columns"] in lines
    assert ["20", "sparse"] not in [line[:2] for line in lines]
    assert ["integer-valued", "yes"] in lines
    assert (["svmlight indices", "count from 1"] in lines) == has_indices


def test_an_impossible_scale_is_shown_as_a_sentence(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array([[-1.0], [0], [0], [1]]))
    lines = shown(config_for(tmp_path, str(tmp_path / "s.npz"), 1))
    assert any(line[0] == "encoding" and "s.npz" in line[1] for line in lines)


@pytest.mark.parametrize(
    ("low", "expected"),
    [(0, "1 shards, 0.8 nonzeros"), (1, "kmeans.normalise.ranges"), (-1, "kmeans.normalise.ranges")],
)
def test_ranges_of_a_sparse_matrix_begin_at_0(tmp_path: Path, low: float, expected: str) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array([[1.0], [0], [2], [3]]))
    lines = shown(config_for(tmp_path, str(tmp_path / "s.npz"), 1, normalise={"ranges": {"0": [low, 4]}}))
    assert any(line[0] == "encoding" and expected in line[1] for line in lines)


def test_the_command_prints_it(tmp_path: Path) -> None:
    file = write_config(table_config(tmp_path), tmp_path / "payco.yaml")
    result = CliRunner().invoke(cli.app, ["inspect", "--config", str(file)])
    assert result.exit_code == 0, result.output
    assert "colour" in result.output
