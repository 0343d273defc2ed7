"""Tables read in batches: every format, globs, Beam filesystems, and errors that name file, row and column."""

import gzip
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.data_files import FORMATS, SMALL, MemoryFileSystem, input_error, write_table
from veilmeans.io.sources.source_files import Source, find_files
from veilmeans.io.sources.tables import TableBatch, table_batches, table_columns
from veilmeans.schemas.errors import InputError


def small_batches(source: str, columns: Sequence[str], **options: Any) -> list[TableBatch]:
    return list(table_batches(Source(source, find_files(source), SMALL), columns, **options))


def read(source: str, columns: Sequence[str] = ("a", "b"), **options: Any) -> pa.Table:
    return pa.Table.from_batches([batch.rows for batch in small_batches(source, columns, **options)])


def mistake(source: str, columns: Sequence[str] = ("a",), **options: Any) -> str:
    return input_error(lambda: read(source, columns, **options), Path(source).parent)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("remote", [False, True], ids=["local", "beam"])
def test_columns_come_in_the_given_order_in_batches_of_bounded_size(
    tmp_path: Path, kind: str, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"b": list(range(20)), "x": ["u"] * 20, "a": [i / 4 for i in range(20)]})
    source = write_table(tmp_path / f"t.{kind}", table)
    if remote:
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://t.{kind}", Path(source).read_bytes())
        source = f"mem://t.{kind}"
    assert table_columns(source) == ["b", "x", "a"]
    assert read(source).equals(table.select(["a", "b"]))
    batches = small_batches(source, ["a", "b"])
    assert len(batches) > 3
    assert max(batch.rows.num_rows for batch in batches) <= 4
    assert [each.start for each in batches] == [sum(b.rows.num_rows for b in batches[:i]) for i in range(len(batches))]
    assert batches[1].place(1, "a") == f"{source}, row {batches[1].start + 2}, column 'a'"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=8), min_size=1, max_size=4),
    st.sampled_from(FORMATS),
    st.integers(1, 9),
)
def test_files_of_a_glob_are_one_table(tmp_path: Path, lists: list[list[int]], kind: str, rows: int) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    for i, values in enumerate(lists):
        write_table(tmp_path / f"part-{i}.{kind}", pa.table({"a": values, "b": values}), rows)
    batches = small_batches(f"{tmp_path}/part-*.{kind}", ["a"])
    assert [value for batch in batches for value in batch.rows.column("a").to_pylist()] == list(chain(*lists))
    assert {batch.file for batch in batches if batch.start == 0} == {
        f"{tmp_path}/part-{i}.{kind}" for i in range(len(lists))
    }


def test_a_glob_is_sorted_here_and_on_beam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["c.csv", "a.csv", "b.csv"]
    for name in names:
        (tmp_path / name).write_text("a\n1\n")
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://folder/{name}", b"a\n1\n")
    assert find_files(f"{tmp_path}/*.csv") == tuple(f"{tmp_path}/{name}" for name in sorted(names))
    assert find_files("mem://folder/*.csv") == tuple(f"mem://folder/{name}" for name in sorted(names))
    monkeypatch.chdir(tmp_path)
    assert find_files("?.csv") == find_files(f"{tmp_path}/*.csv")
    assert find_files("a.csv") == ("a.csv",)
    assert find_files(f"file://{tmp_path}/a.csv") == (f"{tmp_path}/a.csv",)


def test_a_file_whose_name_looks_like_a_glob_is_itself(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text("a\n1\n")
    assert find_files(f"{tmp_path}/a[1].csv") == (f"{tmp_path}/a[1].csv",)


@pytest.mark.parametrize("source", ["none.csv", "none*.csv", "mem://none.csv", "mem://none*.csv", "what://none.csv"])
def test_a_source_that_does_not_exist_is_named(source: str) -> None:
    with pytest.raises(InputError, match=re.escape(source)):
        find_files(source)


@pytest.mark.parametrize("file", ["/nowhere/gone.csv", "mem://gone.csv"])
def test_a_file_that_was_deleted_is_named(file: str) -> None:
    with pytest.raises(InputError, match=f"{file} does not exist"):
        list(table_batches(Source(file, (file,)), ["a"]))


def test_a_folder_and_an_unknown_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path} is a folder"):
        find_files(str(tmp_path))
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(InputError, match=r"a\.xlsx .*\.parquet, \.csv"):
        find_files(f"{tmp_path}/a.xlsx")


def test_files_of_two_formats_are_named(tmp_path: Path) -> None:
    write_table(tmp_path / "p.csv", pa.table({"a": [1]}))
    write_table(tmp_path / "p.parquet", pa.table({"a": [1]}))
    assert mistake(f"{tmp_path}/p.*").startswith("p.csv and p.parquet")


def test_files_with_different_columns_are_named(tmp_path: Path) -> None:
    write_table(tmp_path / "1.csv", pa.table({"a": [1], "b": [1]}))
    write_table(tmp_path / "2.csv", pa.table({"b": [1], "a": [2]}))
    assert read(f"{tmp_path}/*.csv", ["a"])["a"].to_pylist() == [1, 2]
    write_table(tmp_path / "3.csv", pa.table({"a": [1], "c": [1]}))
    sentence = mistake(f"{tmp_path}/*.csv")
    assert sentence.startswith("1.csv and 3.csv")
    assert "'b'" in sentence


@pytest.mark.parametrize("kind", FORMATS)
def test_a_name_with_a_dot_is_no_nested_column(tmp_path: Path, kind: str) -> None:
    source = write_table(tmp_path / f"t.{kind}", pa.table({"a": [1], "a.b": [2]}))
    assert read(source, ["a"]).to_pydict() == {"a": [1]}
    assert read(source, ["a.b"]).to_pydict() == {"a.b": [2]}


@pytest.mark.parametrize("kind", FORMATS)
def test_missing_and_repeated_columns_are_named(tmp_path: Path, kind: str) -> None:
    source = write_table(tmp_path / f"t.{kind}", pa.table([[1], [2], [3]], ["a", "b", "b"]))
    assert mistake(source, ["a", "c"]) == f"t.{kind} has no column 'c'; it has a, b, b"
    assert mistake(source, ["a", "b"]) == f"t.{kind} has more than one column 'b'"
    assert mistake(source, ["a"], id_column="c") == f"t.{kind} has no column 'c'; it has a, b, b"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather", "ipc", "csv.gz"])
@pytest.mark.parametrize("content", [b"", b"a\n1\n", b"ARROW1 but no more than this"])
def test_a_file_of_another_format_than_its_name_states_is_named(tmp_path: Path, kind: str, content: bytes) -> None:
    file = tmp_path / f"t.{kind}"
    file.write_bytes(content)
    assert f"t.{kind} cannot be read" in mistake(str(file))


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    file = Path(write_table(tmp_path / "t.csv.gz", pa.table({"a": list(range(1000))})))
    file.write_bytes(file.read_bytes()[:-20])
    assert "t.csv.gz cannot be read" in mistake(str(file))


@pytest.mark.parametrize(
    ("late", "numbers", "place"),
    [
        ("1,2.5", False, "row 41, column 'b': cannot be read as int64"),
        ("1,secret", True, "row 41, column 'b': cannot be read as double"),
        ("secret", True, "row 41: expected 2 columns, got 1"),
        ("1,2,secret", False, "row 41: expected 2 columns, got 3"),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_late_csv_row_of_another_type_is_named_and_not_shown(
    tmp_path: Path, late: str, numbers: bool, place: str, ending: str
) -> None:
    content = "a,b\n" + "1,2\n\n" * 40 + late + "\n" + "1,2\n" * 9
    file = tmp_path / f"t.csv{ending}"
    file.write_bytes(gzip.compress(content.encode()) if ending else content.encode())
    sentence = mistake(str(file), ["b", "a"], numbers=numbers)
    assert sentence.startswith(f"t.csv{ending}, {place}")
    assert "secret" not in sentence


def test_with_numbers_a_fraction_may_come_late_in_csv(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "0,\n" * 40 + "0.5,0.5\n")
    assert read(str(file), numbers=True).slice(40).to_pylist() == [{"a": 0.5, "b": 0.5}]


def test_an_id_in_csv_is_text(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id,a\n007,1\nNA,2\n2020-01-01,3\n")
    assert read(str(file), ["a"], id_column="id")["id"].to_pylist() == ["007", "NA", "2020-01-01"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather", "ipc"])
def test_dictionaries_and_views_are_read_as_plain_values(tmp_path: Path, kind: str) -> None:
    words = pa.array(["u", "v", "u", "w"])
    table = pa.table({"a": words.dictionary_encode(), "b": words.cast(pa.string_view())})
    found = read(write_table(tmp_path / f"t.{kind}", table))
    assert found.schema.field("a").type == pa.string()
    assert found.to_pydict() == {"a": words.to_pylist(), "b": words.to_pylist()}


@pytest.mark.parametrize("ending", ["", "\n"])
def test_the_names_of_a_long_csv_file_are_read_from_its_first_batch(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "1,2\n" * 1000 + "3,4" + ending)
    assert table_columns(str(file), SMALL) == ["a", "b"]
    assert read(str(file)).num_rows == 1001
