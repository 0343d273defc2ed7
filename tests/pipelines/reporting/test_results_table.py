"""Results for people: a CSV file that only its owner reads, and that no spreadsheet computes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from support.parties import file_mode, make_configs
from veilmeans.io.storage.result_files import write_rows
from veilmeans.pipelines.reporting.results_table import write_assignments_csv
from veilmeans.schemas.config import JobConfig

IDS = ["=1+1", "@x", "-2+3", "+cmd|' /C calc'!A0", "\tx", "-12", "+49.5", "c01", "", "a=b"]


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    return make_configs(tmp_path, 2, "files")["payco"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_ids_that_begin_like_formulas_are_escaped(config: JobConfig, tmp_path: Path, kind: pa.DataType) -> None:
    labels = np.arange(len(IDS), dtype=np.int32)
    write_rows(config.run_folder.assignments, "id", [(pa.array(IDS).cast(kind), {"cluster": labels})])
    assert write_assignments_csv(config, tmp_path / "out.csv") == 5
    texts = pa.csv.ConvertOptions(column_types={"id": pa.string()})
    table = pa.csv.read_csv(tmp_path / "out.csv", convert_options=texts)
    assert table["id"].to_pylist() == [f"'{each}" if i < 5 else each for i, each in enumerate(IDS)]
    assert table["cluster"].to_pylist() == labels.tolist()
    assert file_mode(tmp_path / "out.csv") == 0o600


def test_numbers_stay_as_they_are(config: JobConfig, tmp_path: Path) -> None:
    write_rows(config.run_folder.assignments, "id", [(pa.array([-5, 3]), {"cluster": np.zeros(2, np.int32)})])
    assert write_assignments_csv(config, tmp_path / "out.csv") == 0
    assert pa.csv.read_csv(tmp_path / "out.csv")["id"].to_pylist() == [-5, 3]
