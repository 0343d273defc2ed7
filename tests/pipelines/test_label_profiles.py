"""A run as processes with a label at one party: it alone learns the label's rate in each cluster."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from support.commands import assert_all_succeeded
from support.parties import NAMES
from support.worlds import World, blobs, make_world, tables
from veilmeans.io.sources.scan import scan_source
from veilmeans.io.storage.encoded_shards import UNKNOWN
from veilmeans.pipelines.reporting.html_report import write_report
from veilmeans.pipelines.reporting.results_table import show_results, write_profiles_csv
from veilmeans.schemas.errors import InputError

A, B = NAMES[:2]
ROWS, LEAST = 41, 12


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    parts = tables(blobs(ROWS, 4), list("abcd"), [2], axis=1)
    reveal = {"assignments": [A], "profiles": [A, B]}
    job = {"layout": "vertical", "clusters": 3, "max_iter": 2, "reveal": reveal, "profile_minimum": LEAST}
    made = make_world(tmp_path_factory.mktemp("labels"), parts, job, beam={"rows_per_shard": 20})
    labelled = pq.read_table(made.data(A)).append_column("fraud", pa.array(labels(), pa.int8()))
    pq.write_table(labelled, made.data(A))
    made = made.altered(A, kmeans={"label": "fraud"})
    assert_all_succeeded(made.train_as_processes())
    return made


def labels() -> list[int | None]:
    drawn = np.random.default_rng(3).integers(0, UNKNOWN + 1, ROWS).tolist()
    return [None if each == UNKNOWN else each for each in drawn]


@pytest.mark.processes
def test_the_rate_of_the_label_is_opened_to_its_owner(world: World, tmp_path: Path) -> None:
    clusters = pq.read_table(world.run_folder(A).assignments)["cluster"].to_numpy()
    lines = [line for line in pq.read_table(world.run_folder(A).profiles).to_pylist() if line["label"]]
    assert [line["column"] for line in lines] == ["fraud"] * 3
    for line in lines:
        known = [
            each for each, at in zip(labels(), clusters, strict=True) if at == line["cluster"] and each is not None
        ]
        assert line["size"] == np.count_nonzero(clusters == line["cluster"])
        assert line["known"] == (None if line["hidden"] else len(known))
        assert line["mean"] == (None if line["hidden"] or not known else pytest.approx(np.mean(known)))
    sizes = [line["size"] for line in lines]
    assert all(line["hidden"] for line in lines if line["size"] < LEAST)
    assert 0 < sum(line["hidden"] for line in lines) < len(lines), sizes
    others = pq.read_table(world.run_folder(B).profiles)
    assert set(others["column"].to_pylist()) == {"c", "d"}
    assert not any(others["label"].to_pylist())
    write_profiles_csv(world[A], tmp_path / "profiles.csv")
    assert pa.csv.read_csv(tmp_path / "profiles.csv").num_rows == 9


@pytest.mark.processes
def test_profiles_are_in_results_and_report(world: World, tmp_path: Path) -> None:
    console = Console(width=200, record=True)
    assert show_results(world[A], console)["profiles"] == str(world.run_folder(A).profiles)
    assert "profiles of clusters" in console.export_text()
    page = write_report(world[A], tmp_path)
    assert "Profiles of the clusters" in Path(page).read_text()
    assert json.loads(world.run_folder(B).result.read_text())["profiles"] == str(world.run_folder(B).profiles)


@pytest.mark.parametrize(("values", "what"), [([0, 2], "row 2, column 'y'"), (["no", "yes"], "must be 0 or 1")])
def test_other_labels_are_refused(tmp_path: Path, values: list[object], what: str) -> None:
    pq.write_table(pa.table({"x": [0.5, 1.5], "y": values}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=what):
        scan_source(str(tmp_path / "x.parquet"), (), None, label="y")


def test_a_label_is_no_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0.5, 1.5], "y": [True, None]}), tmp_path / "x.parquet")
    assert list(scan_source(str(tmp_path / "x.parquet"), (), None, label="y").columns) == ["x"]
