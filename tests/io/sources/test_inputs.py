"""A party's columns: staged in shards of exact size, and every bad value named by file, row and column."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilmeans.crypto import ring
from veilmeans.io.sources.inputs import StagedInput, read_shard, stage_columns
from veilmeans.schemas.errors import InputError, StorageError

BOUND = 1000


def stage(source: Path, columns: Sequence[str] = ("a",), rows_per_shard: int = 2) -> StagedInput:
    return stage_columns(source, columns, BOUND, rows_per_shard, source.parent / "staged" / "columns.arrow")


def text(folder: Path, content: str) -> Path:
    file = folder / "data.csv"
    file.write_text(content)
    return file


def table(folder: Path, kind: str, **columns: object) -> Path:
    file = folder / f"data.{kind}"
    made = pa.table(columns)
    if kind == "csv":
        pa.csv.write_csv(made, file)
    else:
        pa.parquet.write_table(made, file, row_group_size=3)
    return file


def shards(staged: StagedInput) -> list[list[list[int]]]:
    return [ring.decode(read_shard(staged.file, i)).tolist() for i in range(staged.shards)]


def mistake(source: Path, columns: Sequence[str] = ("a",)) -> str:
    with pytest.raises(InputError) as raised:
        stage(source, columns)
    assert str(source) in raised.value.sentence
    assert not (source.parent / "staged" / "columns.arrow").exists()
    return raised.value.sentence.replace(str(source), "FILE")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_shards_have_the_exact_size_and_the_last_one_may_have_one_row(tmp_path: Path, kind: str) -> None:
    staged = stage(table(tmp_path, kind, b=[1, 2, 3, 4, 5], x=["u"] * 5, a=[-1, 0, 1000, -1000, 7]), ("a", "b"))
    assert (staged.rows, staged.shards) == (5, 3)
    assert shards(staged) == [[[-1, 1], [0, 2]], [[1000, 3], [-1000, 4]], [[7, 5]]]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(-BOUND, BOUND), min_size=1, max_size=20),
    st.integers(1, 21),
    st.sampled_from(["csv", "parquet"]),
)
def test_all_rows_are_staged_in_order(tmp_path: Path, values: list[int], size: int, kind: str) -> None:
    staged = stage(table(tmp_path, kind, a=values), rows_per_shard=size)
    found = shards(staged)
    assert [value for shard in found for [value] in shard] == values
    assert all(len(shard) == size for shard in found[:-1])
    assert staged.rows == len(values)


def test_rows_of_several_blocks_are_staged_and_counted(tmp_path: Path) -> None:
    values = np.arange(400_000) % 1000
    staged = stage(table(tmp_path, "csv", a=values), rows_per_shard=150_000)
    assert [read_shard(staged.file, i).shape for i in range(3)] == [(150_000, 1), (150_000, 1), (100_000, 1)]
    np.testing.assert_array_equal(np.concatenate([read_shard(staged.file, i) for i in range(3)])[:, 0], values)
    late = text(tmp_path, "a\n" + "1\n" * 600_000 + "1001\n")
    with pytest.raises(InputError, match="row 600,001, column 'a': a value beyond the bound of 1,000"):
        stage(late, rows_per_shard=150_000)


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_a_missing_file_is_told(tmp_path: Path, name: str) -> None:
    assert mistake(tmp_path / name) == "the data file FILE does not exist"


def test_a_missing_column_is_told_with_those_there_are(tmp_path: Path) -> None:
    for kind in ("csv", "parquet"):
        source = table(tmp_path, kind, a=[1], b=[2])
        assert mistake(source, ("a", "c")) == "FILE has no column 'c'; it has a, b"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a,b\n1,2\n3,4\n5,1001\n", "FILE, row 3, column 'b': a value beyond the bound of 1,000"),
        ("a,b\n-1001,2\n", "FILE, row 1, column 'a': a value beyond the bound of 1,000"),
        ("a,b\n1,2\n,4\n", "FILE, row 2, column 'a': no value"),
        ("a,b\n1,2\n1,NaN\n", "FILE, row 2, column 'b': no value"),
        ("a,b\n1,2\n1,null\n", "FILE, row 2, column 'b': no value"),
        ("a,b\n1.5,2\n", "FILE, column 'a' holds double, and whole numbers are needed"),
        ("a,b\n1,x\n", "FILE, column 'b' holds string, and whole numbers are needed"),
        ("a,b\n1,99999999999999999999\n", "FILE, column 'b' holds double, and whole numbers are needed"),
        ("a,b\n,\n", "FILE, column 'a' holds null, and whole numbers are needed"),
        ("a,b,a\n1,2,3\n", "FILE has more than one column 'a'"),
        ("a,b\n", "FILE has no rows"),
        ("", "the data file FILE cannot be read: Empty CSV file"),
        ("a,b\n1,2\n3\n", "FILE, row 2: expected 2 columns, got 1; correct the row"),
    ],
)
def test_bad_csv_is_told_with_file_row_and_column(tmp_path: Path, content: str, sentence: str) -> None:
    assert mistake(text(tmp_path, content), ("a", "b")) == sentence


def test_an_empty_line_is_a_missing_value_where_a_row_has_one_value(tmp_path: Path) -> None:
    assert mistake(text(tmp_path, "a\n1\n\n3\n")) == "FILE, row 2, column 'a': no value"


def test_an_empty_line_is_no_row_where_a_row_has_more_values(tmp_path: Path) -> None:
    assert shards(stage(text(tmp_path, "a,b\n1,2\n\n3,4\n\n"))) == [[[1], [3]]]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (pa.array([1, None]), "FILE, row 2, column 'a': no value"),
        (pa.array([1.0]), "FILE, column 'a' holds double, and whole numbers are needed"),
        (pa.array([float("nan")]), "FILE, column 'a' holds double, and whole numbers are needed"),
        (pa.array([1, 2, 3, 1001]), "FILE, row 4, column 'a': a value beyond the bound of 1,000"),
        (pa.array([5, 2**64 - 1], pa.uint64()), "FILE, row 2, column 'a': a value beyond the bound of 1,000"),
        (pa.array([-(2**63)]), "FILE, row 1, column 'a': a value beyond the bound of 1,000"),
        (pa.array([True]), "FILE, column 'a' holds bool, and whole numbers are needed"),
        (pa.array([], pa.int64()), "FILE has no rows"),
    ],
    ids=str,
)
def test_bad_parquet_is_told_with_file_row_and_column(tmp_path: Path, values: pa.Array, sentence: str) -> None:
    assert mistake(table(tmp_path, "parquet", a=values)) == sentence


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.uint8(), pa.uint32(), pa.uint64()], ids=str)
def test_whole_numbers_of_any_width_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    assert shards(stage(table(tmp_path, "parquet", a=pa.array([0, 1, 100], kind)))) == [[[0], [1]], [[100]]]


def test_what_is_no_parquet_is_told(tmp_path: Path) -> None:
    file = tmp_path / "data.parquet"
    file.write_text("a\n1\n")
    assert mistake(file).startswith("the data file FILE cannot be read: ")


def test_the_digest_changes_with_values_order_columns_and_shards(tmp_path: Path) -> None:
    first = table(tmp_path, "csv", a=[1, 2, 3], b=[1, 2, 3])
    digests = [
        stage(first).digest,
        stage(first, ("b",)).digest,
        stage(first, ("a", "b")).digest,
        stage(first, rows_per_shard=3).digest,
        *(
            stage(table(tmp_path, "csv", a=other)).digest
            for other in ([2, 1, 3], [1, 3, 2], [1, 2, 4], [1, 2], [1, 2, 3, 0])
        ),
    ]
    assert len(set(digests)) == len(digests)


def test_the_digest_is_that_of_the_values_and_not_of_the_file(tmp_path: Path) -> None:
    digests = {
        stage(table(tmp_path, kind, a=[1, 2, 3], b=b)).digest for kind in ("csv", "parquet") for b in ([1] * 3, [2] * 3)
    }
    assert len(digests) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    source = table(tmp_path, "csv", a=[1])
    with pytest.raises(StorageError, match="cannot be written: Not a directory"):
        stage_columns(source, ("a",), BOUND, 2, source / "staged" / "columns.arrow")
