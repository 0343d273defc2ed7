"""Results for people: a CSV file that only its owner reads, and that no spreadsheet computes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from support.parties import file_mode, make_configs
from support.worlds import changed_config
from veilmeans.io.storage.result_files import write_rows
from veilmeans.pipelines.reporting.results_table import write_assignments_csv, write_outliers_csv
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import InputError

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


def with_data(config: JobConfig, file: Path, id_column: str | None) -> JobConfig:
    job = {"data": str(file), "id": id_column, "layout": "vertical", "rows": 3, "features": {"payco": 1, "shop": 1}}
    return changed_config(config, kmeans={**job, "clusters": 2, "max_iter": 1})


def test_clusters_and_outliers_stand_beside_our_columns(config: JobConfig, tmp_path: Path) -> None:
    """Rows are found by their ids: all of them, or the outliers among them, each with its own values."""
    (tmp_path / "data.csv").write_text("x,id,cluster,note\n007,c2,old,=1+1\n8,c1,,b\n9,c3,new,c\n")
    config = with_data(config, tmp_path / "data.csv", "id")
    for file, ids in ((config.run_folder.assignments, ["c2", "c1", "c3"]), (config.run_folder.outliers, ["c1", "c3"])):
        write_rows(file, "id", [(pa.array(ids), {"cluster": np.arange(len(ids), dtype=np.int32)})])
    assert write_assignments_csv(config, tmp_path / "all.csv", with_columns=True) == 1
    assert (tmp_path / "all.csv").read_text().splitlines() == [
        '"id","cluster","x","cluster_","note"',
        '"c2",0,"007","old","\'=1+1"',
        '"c1",1,"8","","b"',
        '"c3",2,"9","new","c"',
    ]
    assert write_outliers_csv(config, tmp_path / "outliers.csv", with_columns=True) == 0
    assert (tmp_path / "outliers.csv").read_text().splitlines()[1:] == ['"c1",0,"8","","b"', '"c3",1,"9","new","c"']


def test_rows_without_ids_are_found_by_their_numbers(config: JobConfig, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("x\n5\n6\n7\n")
    config = with_data(config, tmp_path / "data.csv", None)
    write_rows(config.run_folder.outliers, "row", [(pa.array([0, 2]), {"score": np.array([0.5, 1.5])})])
    write_outliers_csv(config, tmp_path / "outliers.csv", with_columns=True)
    assert (tmp_path / "outliers.csv").read_text() == '"row","score","x"\n0,0.5,"5"\n2,1.5,"7"\n'


@pytest.mark.parametrize("text", ["id,x\nc1,1\nc9,2\n", "id,x\nc2,2\nc1,1\n", "id,x\nc1,1\nc2,2\nc2,3\n", "id,x\n"])
def test_data_that_were_changed_since_are_refused(config: JobConfig, tmp_path: Path, text: str) -> None:
    (tmp_path / "data.csv").write_text(text)
    config = with_data(config, tmp_path / "data.csv", "id")
    write_rows(config.run_folder.assignments, "id", [(pa.array(["c1", "c2"]), {"cluster": np.zeros(2, np.int32)})])
    with pytest.raises(InputError, match="does not have the rows of the result, each once"):
        write_assignments_csv(config, tmp_path / "all.csv", with_columns=True)
    assert not (tmp_path / "all.csv").exists()


def test_matrices_have_no_columns_with_names(config: JobConfig, tmp_path: Path) -> None:
    config = with_data(config, tmp_path / "data.npz", None)
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 1)))
    write_rows(config.run_folder.assignments, "row", [(pa.array([0, 1, 2]), {"cluster": np.zeros(3, np.int32)})])
    with pytest.raises(InputError, match="has no columns with names: leave out --with-columns"):
        write_assignments_csv(config, tmp_path / "all.csv", with_columns=True)
