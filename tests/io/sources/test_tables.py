"""Tables read block by block: every format, globs, Beam filesystems, and sentences about what cannot be read."""

import gzip
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

from support.data_files import FORMATS, MemoryFileSystem, small_blocks, write
from veilmeans.io.sources.source_files import digest_of, find_files
from veilmeans.io.sources.tables import columns_of, table_batches
from veilmeans.schemas.errors import InputError


def read(source: str, columns: Sequence[str] = ("a", "b"), **options: Any) -> pa.Table:
    return pa.Table.from_batches([block.rows for block in table_batches(find_files(source), columns, **options)])


def mistake(source: str, columns: Sequence[str] = ("a",), **options: Any) -> str:
    with pytest.raises(InputError) as raised:
        read(source, columns, **options)
    return raised.value.sentence.replace(str(Path(source).parent) + "/", "")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("remote", [False, True], ids=["local", "beam"])
def test_columns_come_in_the_order_asked_for(
    tmp_path: Path, kind: str, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch)
    table = pa.table({"b": list(range(20)), "x": ["u"] * 20, "a": [i / 4 for i in range(20)]})
    source = write(tmp_path / f"t.{kind}", table)
    if remote:
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://t.{kind}", Path(source).read_bytes())
        source = f"mem://t.{kind}"
    assert columns_of(source) == ["b", "x", "a"]
    assert read(source).equals(table.select(["a", "b"]))
    found = list(table_batches([source], ["a", "b"]))
    assert len(found) > 3
    assert max(block.rows.num_rows for block in found) <= 4
    assert [block.start for block in found] == [sum(b.rows.num_rows for b in found[:i]) for i in range(len(found))]
    assert found[1].place(1, "a") == f"{source}, row {found[1].start + 2}, column 'a'"


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
        write(tmp_path / f"part-{i}.{kind}", pa.table({"a": values, "b": values}), rows)
    found = list(table_batches(find_files(f"{tmp_path}/part-*.{kind}"), ["a"]))
    assert [value for block in found for value in block.rows.column("a").to_pylist()] == list(chain(*lists))
    assert {block.file for block in found if block.start == 0} == {
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


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("none.csv", "the data file none.csv does not exist"),
        ("none*.csv", "no file matches none*.csv"),
        ("mem://none.csv", "the data file none.csv does not exist"),
        ("mem://none*.csv", "no file matches none*.csv"),
        ("what://none.csv", "the data file none.csv cannot be read: Unable to get filesystem"),
    ],
)
def test_a_source_that_is_not_there_is_told(source: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        find_files(source)
    assert raised.value.sentence.replace("mem://", "").replace("what://", "").startswith(sentence)


def test_a_file_that_went_away_is_told(tmp_path: Path) -> None:
    assert mistake_of_files([f"{tmp_path}/gone.csv"]) == f"the data file {tmp_path}/gone.csv does not exist"
    assert mistake_of_files(["mem://gone.csv"]) == "the data file mem://gone.csv does not exist"


def mistake_of_files(files: list[str]) -> str:
    with pytest.raises(InputError) as raised:
        list(table_batches(files, ["a"]))
    return raised.value.sentence


def test_a_folder_and_an_unknown_format_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder: name a file, or a glob such as .*/\*\.parquet$"):
        find_files(str(tmp_path))
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(
        InputError, match=r"a\.xlsx has an unknown format: its name must end in one of \.parquet, \.csv"
    ):
        find_files(f"{tmp_path}/a.xlsx")


def test_files_of_two_formats_are_told(tmp_path: Path) -> None:
    write(tmp_path / "p.csv", pa.table({"a": [1]}))
    write(tmp_path / "p.parquet", pa.table({"a": [1]}))
    assert mistake(f"{tmp_path}/p.*").startswith("p.csv and ")
    assert "p.parquet are not of one format" in mistake(f"{tmp_path}/p.*")


def test_files_with_different_columns_are_told(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", pa.table({"a": [1], "b": [1]}))
    write(tmp_path / "2.csv", pa.table({"b": [1], "a": [2]}))
    assert read(f"{tmp_path}/*.csv", ["a"])["a"].to_pylist() == [1, 2]
    write(tmp_path / "3.csv", pa.table({"a": [1], "c": [1]}))
    assert mistake(f"{tmp_path}/*.csv") == (
        f"1.csv and {tmp_path}/3.csv do not have the same columns: only one of them has 'b'"
    ).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_name_with_a_dot_is_no_nested_column(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path / f"t.{kind}", pa.table({"a": [1], "a.b": [2]}))
    assert read(source, ["a"]).to_pydict() == {"a": [1]}
    assert read(source, ["a.b"]).to_pydict() == {"a.b": [2]}


@pytest.mark.parametrize("kind", FORMATS)
def test_missing_and_double_columns_are_told(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path / f"t.{kind}", pa.table([[1], [2], [3]], ["a", "b", "b"]))
    assert mistake(source, ["a", "c"]) == f"t.{kind} has no column 'c'; it has a, b, b"
    assert mistake(source, ["a", "b"]) == f"t.{kind} has more than one column 'b'"
    assert mistake(source, ["a"], id="c") == f"t.{kind} has no column 'c'; it has a, b, b"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather", "ipc", "csv.gz"])
@pytest.mark.parametrize("content", [b"", b"a\n1\n", b"ARROW1 but no more than this"])
def test_what_is_no_such_file_is_told(tmp_path: Path, kind: str, content: bytes) -> None:
    file = tmp_path / f"t.{kind}"
    file.write_bytes(content)
    assert mistake(str(file)).startswith(f"the data file t.{kind} cannot be read: ")


def test_a_cut_archive_is_told(tmp_path: Path) -> None:
    file = Path(write(tmp_path / "t.csv.gz", pa.table({"a": list(range(1000))})))
    file.write_bytes(file.read_bytes()[:-20])
    assert mistake(str(file)).startswith("the data file t.csv.gz cannot be read: ")


LATE = "correct it, or give the data as Parquet, which has types"


@pytest.mark.parametrize(
    ("late", "numbers", "sentence"),
    [
        ("1,2.5", False, f"t.csv, row 41, column 'b': cannot be read as int64, the type of the first rows; {LATE}"),
        ("1,secret", True, f"t.csv, row 41, column 'b': cannot be read as double, the type of the first rows; {LATE}"),
        ("secret", True, "t.csv, row 41: expected 2 columns, got 1; correct the row"),
        ("1,2,secret", False, "t.csv, row 41: expected 2 columns, got 3; correct the row"),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_late_csv_row_of_another_kind_is_told_without_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str, numbers: bool, sentence: str, ending: str
) -> None:
    small_blocks(monkeypatch)
    content = "a,b\n" + "1,2\n\n" * 40 + late + "\n" + "1,2\n" * 9
    file = tmp_path / f"t.csv{ending}"
    file.write_bytes(gzip.compress(content.encode()) if ending else content.encode())
    assert mistake(str(file), ["b", "a"], numbers=numbers).replace(".gz", "") == sentence


def test_with_numbers_a_fraction_may_come_late_in_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "0,\n" * 40 + "0.5,0.5\n")
    assert read(str(file), numbers=True).slice(40).to_pylist() == [{"a": 0.5, "b": 0.5}]


def test_an_id_in_csv_is_text(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id,a\n007,1\nNA,2\n2020-01-01,3\n")
    assert read(str(file), ["a"], id="id")["id"].to_pylist() == ["007", "NA", "2020-01-01"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather", "ipc"])
def test_dictionaries_and_views_are_read_as_plain_values(tmp_path: Path, kind: str) -> None:
    words = pa.array(["u", "v", "u", "w"])
    table = pa.table({"a": words.dictionary_encode(), "b": words.cast(pa.string_view())})
    found = read(write(tmp_path / f"t.{kind}", table))
    assert found.schema.field("a").type == pa.string()
    assert found.to_pydict() == {"a": words.to_pylist(), "b": words.to_pylist()}


def test_the_digest_is_that_of_the_bytes_and_of_the_files_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {"1.csv": b"ab", "2.csv": b"c", "3.csv": b"a", "4.csv": b"bc"}.items():
        (tmp_path / name).write_bytes(content)
    files = [f"{tmp_path}/{i}.csv" for i in range(1, 5)]
    lists = [files[:2], files[2:], files[1::-1], files[:1], files[:3]]
    assert len({digest_of(each) for each in lists}) == len(lists)
    monkeypatch.setitem(MemoryFileSystem.files, "mem://t.csv.gz", b"ab")
    assert digest_of(["mem://t.csv.gz"]) == digest_of(files[:1])
