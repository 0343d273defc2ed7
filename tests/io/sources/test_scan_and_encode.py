"""A party's rows: scanned, normalised, encoded in shards; every mistake named, and no work done twice."""

import errno
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.data_files import FORMATS, MemoryFileSystem, small_blocks, write
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.sources import row_batches as values
from veilmeans.io.sources.encode import encode_source
from veilmeans.io.sources.scaling import Method, Scaling, scaling_of
from veilmeans.io.sources.scan import Scan, raw_rows, scan_source
from veilmeans.io.storage import encoded_shards as prepared_files
from veilmeans.io.storage.encoded_shards import EncodedData, load_encoded_data, read_ids, read_rows
from veilmeans.schemas.errors import InputError, StorageError

NONE = (-1e6, 1e6)
LEAVE = "correct it, or leave it out of the columns; `veilmeans inspect` tells how"
NO_VALUE = "no value; fill it in, or let kmeans.missing (zero, mean) stand for it"
numbers = st.floats(-1000, 1000).map(lambda x: round(x, 3))
tables = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=20)
)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def scaling(scan: Scan, method: Method = "none") -> Scaling:
    return scaling_of(method, scan.low, scan.high, scan.mean, scan.deviation)


def dense(prepared: EncodedData) -> NDArray[np.float64]:
    return np.concatenate([fixed.decode(read_rows(prepared.folder, i).toarray()) for i in range(prepared.shards)])


def ids(prepared: EncodedData) -> list[Any]:
    return [value for i in range(prepared.shards) for value in read_ids(prepared.folder, i).to_pylist()]


def parts(folder: Path, kind: str, table: pa.Table, cuts: Sequence[int]) -> str:
    """The table as several files, cut at some rows."""
    place = folder / uuid4().hex
    place.mkdir()
    ends = sorted({0, table.num_rows, *(cut for cut in cuts if cut < table.num_rows)})
    for i, (start, end) in enumerate(pairwise(ends)):
        write(place / f"{i:02d}.{kind}", table.slice(start, end - start), rows=2)
    return f"{place}/*.{kind}"


def named(rows: Sequence[Sequence[float]]) -> pa.Table:
    columns = np.array(rows, np.float64).T
    return pa.table({"id": [f"r{i}" for i in range(len(rows))]} | {f"c{i}": c for i, c in enumerate(columns)})


def mistake(folder: Path, table: pa.Table | str, columns: Sequence[str] = ("a",), id: str | None = None) -> str:  # noqa: A002
    source = table if isinstance(table, str) else write(folder / "t.parquet", table)
    with pytest.raises(InputError) as raised:
        scan_source(source, columns, id, folder / "kept")
    assert not list((folder / "kept").rglob("*.json"))
    return raised.value.sentence.replace(f"{folder}/", "")


@quick
@given(tables, st.sets(st.integers(1, 19), max_size=3), st.sampled_from(FORMATS), st.integers(1, 21))
def test_a_table_in_any_files_and_blocks_is_the_same_table(
    tmp_path: Path, rows: list[list[float]], cuts: set[int], kind: str, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, size=100, cells=6)
        scan = scan_source(parts(tmp_path, kind, named(rows), sorted(cuts)), (), "id", tmp_path)
        values = np.array(rows)
        assert (scan.rows, scan.columns) == (len(rows), tuple(f"c{i}" for i in range(len(rows[0]))))
        assert scan.low == tuple(values.min(axis=0))
        assert scan.high == tuple(values.max(axis=0))
        np.testing.assert_allclose(scan.mean, values.mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(scan.deviation, values.std(axis=0), atol=1e-9)
        prepared = encode_source(scan, scaling(scan), NONE, size, tmp_path)
    np.testing.assert_array_equal(dense(prepared), np.rint(values * 2**20) / 2**20)
    assert ids(prepared) == [f"r{i}" for i in range(len(rows))]
    heights = [read_rows(prepared.folder, i).shape[0] for i in range(prepared.shards)]
    assert all(height == size for height in heights[:-1])
    assert 1 <= heights[-1] <= size
    assert [len(read_ids(prepared.folder, i)) for i in range(prepared.shards)] == heights


@quick
@given(tables, st.sampled_from(["minmax", "zscore", "none"]))
def test_values_are_normalised_and_brought_back(tmp_path: Path, rows: list[list[float]], method: Method) -> None:
    values = np.array(rows)
    scan = scan_source(parts(tmp_path, "arrow", named(rows), ()), (), "id", tmp_path)
    made = scaling(scan, method)
    prepared = encode_source(scan, made, {"minmax": (0, 1), "zscore": (-16, 16), "none": NONE}[method], 7, tmp_path)
    shift, width = {
        "minmax": (values.min(axis=0), np.ptp(values, axis=0)),
        "zscore": (values.mean(axis=0), values.std(axis=0)),
        "none": (0.0, np.ones(len(rows[0]))),
    }[method]
    constant = (np.ptp(values, axis=0) == 0) & (method != "none")
    plain = np.where(constant, 0, (values - shift) / np.where(constant, 1, width))
    np.testing.assert_allclose(dense(prepared), plain, atol=2**-20)
    np.testing.assert_allclose(made.original(made.normalise(values)), values, atol=1e-6)


def test_a_constant_column_becomes_zero_and_comes_back(tmp_path: Path) -> None:
    table = pa.table({"a": [0.1] * 1001, "b": [0.0] * 1000 + [1.0]})
    scan = scan_source(write(tmp_path / "t.parquet", table, rows=100), (), None, tmp_path)
    assert (scan.mean[0], scan.deviation[0]) == (0.1, 0.0)
    for method in ("minmax", "zscore"):
        made = scaling(scan, method)  # type: ignore[arg-type]
        assert made.factor[0] == 0
        assert made.normalise(np.array([[0.1, 1], [7, 0]]))[:, 0].tolist() == [0, 0]
        assert made.original(np.array([[0.0, 0.0], [5.0, 0.0]]))[:, 0].tolist() == [0.1, 0.1]
    assert scaling_of("minmax", [0.0], [5e-324], [0.0], [0.0]).factor == (0.0,)


def test_scaling_looks_at_its_own_statistics_only() -> None:
    assert scaling_of("minmax", [1], [3], [math.nan], [math.nan]) == Scaling((1.0,), (0.5,))
    assert scaling_of("zscore", [math.nan], [math.nan], [1], [4]) == Scaling((1.0,), (0.25,))
    assert scaling_of("none", [1, 2], [3, 4], [2, 3], [1, 1]) == Scaling((0.0, 0.0), (1.0, 1.0))


def test_shards_are_sparse_exact_and_the_last_may_have_one_row(tmp_path: Path) -> None:
    table = pa.table({"a": [0, 1, 0, 0, -2], "b": [0, 3, 0, 0, 0]})
    scan = scan_source(write(tmp_path / "t.parquet", table), (), None, tmp_path)
    prepared = encode_source(scan, scaling(scan), (-16, 16), 2, tmp_path)
    assert (prepared.rows, prepared.columns, prepared.rows_per_shard) == (5, ("a", "b"), 2)
    assert (prepared.nonzeros, prepared.shards) == ((2, 0, 1), 3)
    found = [read_rows(prepared.folder, i) for i in range(3)]
    assert [each.shape for each in found] == [(2, 2), (2, 2), (1, 2)]
    assert [each.nnz for each in found] == [2, 0, 1]
    assert {(each.dtype.name, each.indices.dtype.name) for each in found} == {("uint64", "int32")}
    assert found[2].toarray().tolist() == [[2**64 - 2 * 2**20, 0]]
    assert not found[0].data.flags.owndata
    assert ids(prepared) == [0, 1, 2, 3, 4]
    assert read_ids(prepared.folder, 2).type == pa.int64()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False, True]),
        pa.array([1, 0, 1], pa.uint8()),
        pa.array([1, 0, 1], pa.float16()),
        pa.array([1, 0, 1], pa.decimal128(9, 3)),
        pa.array([1, 0, 1], pa.decimal256(60, 3)),
        pa.array([1, 0, 1]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type)[:10],
)
def test_numbers_of_any_type_are_read(tmp_path: Path, values: pa.Array) -> None:
    scan = scan_source(write(tmp_path / "t.arrow", pa.table({"a": values})), (), None, tmp_path)
    assert dense(encode_source(scan, scaling(scan), (0, 1), 9, tmp_path)).tolist() == [[1], [0], [1]]


def test_whole_numbers_beyond_53_bits_are_rounded(tmp_path: Path) -> None:
    scan = scan_source(write(tmp_path / "t.arrow", pa.table({"a": [2**62 + 1, 2**62 + 3]})), (), None, tmp_path)
    assert scan.high == (2.0**62,)


def test_csv_reads_truth_values_and_late_fractions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "0,true\n" * 30 + "0.5,false\n")
    scan = scan_source(str(file), (), None, tmp_path)
    assert (scan.low, scan.high) == ((0, 0), (0.5, 1))
    np.testing.assert_array_equal(np.concatenate(list(raw_rows(scan))), [[0, 1]] * 30 + [[0.5, 0]])


def test_ids_keep_their_type_and_are_alike_as_text_and_number(tmp_path: Path) -> None:
    expected = hashlib.sha256(b"".join(len(x).to_bytes(8, "little") + x for x in (b"7", b"-10", b"123"))).hexdigest()
    for kind in (pa.int8(), pa.int64(), pa.string(), pa.large_string()):
        table = pa.table({"id": pa.array(["7", "-10", "123"]).cast(kind), "a": [1, 2, 3]})
        scan = scan_source(write(tmp_path / "t.parquet", table), (), "id", tmp_path)
        assert scan.ids == expected
        prepared = encode_source(scan, scaling(scan), (0, 4), 2, tmp_path)
        assert read_ids(prepared.folder, 0).type == kind
        assert [str(value) for value in ids(prepared)] == ["7", "-10", "123"]
    assert scan_source(write(tmp_path / "t.csv", table), (), "id", tmp_path).ids == expected


def test_other_ids_have_another_digest(tmp_path: Path) -> None:
    lists = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab", "c", "d"], ["ä", "c"]]
    found = {
        scan_source(write(tmp_path / "t.csv", pa.table({"id": each, "a": [1] * len(each)})), (), "id", tmp_path).ids
        for each in lists
    }
    assert len(found) == len(lists)
    assert scan_source(write(tmp_path / "t.csv", pa.table({"a": [1]})), (), None, tmp_path).ids == ""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (pa.array([1.0, None]), f"t.parquet, row 2, column 'a': {NO_VALUE}"),
        (pa.array([1.0, 2.0, 3.0, math.nan]), "t.parquet, row 4, column 'a': no finite number"),
        (pa.array([math.inf]), "t.parquet, row 1, column 'a': no finite number"),
        (
            pa.array(["1"]),
            "t.parquet, column 'a' holds string, and numbers are needed: " + LEAVE,
        ),
        (
            pa.array([1], pa.timestamp("s")),
            "t.parquet, column 'a' holds timestamp[ms], and numbers are needed: " + LEAVE,
        ),
        (pa.array([], pa.float64()), "t.parquet has no rows"),
        (
            pa.array([1e300, -1e300]),
            "t.parquet, column 'a': values are too large to be squared and summed; rescale them",
        ),
        (
            pa.array([1e308] * 9),
            "t.parquet, column 'a': values are too large to be squared and summed; rescale them",
        ),
    ],
    ids=str,
)
def test_bad_values_are_told_with_file_row_and_column(tmp_path: Path, values: pa.Array, sentence: str) -> None:
    assert mistake(tmp_path, pa.table({"a": values})) == sentence


def test_rows_are_counted_in_their_own_file_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    for kind in FORMATS:
        write(tmp_path / f"1.{kind}", pa.table({"a": [0.5] * 50}))
        write(tmp_path / f"2.{kind}", pa.table({"a": [0.5] * 41 + [None] + [0.5] * 20}))
        assert mistake(tmp_path, f"{tmp_path}/*.{kind}") == f"2.{kind}, row 42, column 'a': {NO_VALUE}"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (pa.array([1, None]), "t.parquet, row 2, column 'id': no id"),
        (pa.array(["x", ""]), "t.parquet, row 2, column 'id': no id"),
        (pa.array([None, "x"]), "t.parquet, row 1, column 'id': no id"),
        (pa.array([1.5, 2]), "t.parquet, column 'id' holds double, and an id must be a whole number or text"),
    ],
    ids=str,
)
def test_bad_ids_are_told(tmp_path: Path, found: pa.Array, sentence: str) -> None:
    assert mistake(tmp_path, pa.table({"id": found, "a": [1, 2]}), (), "id") == sentence


def test_columns_that_cannot_be_are_told(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "a": [1]})
    assert mistake(tmp_path, table, ("b",)) == "t.parquet has no column 'b'; it has id, a"
    assert mistake(tmp_path, table, (), "b") == "t.parquet has no column 'b'; it has id, a"
    assert mistake(tmp_path, table, ("a", "id"), "id") == (
        "t.parquet, column 'id' is the id and cannot be one of the columns, too"
    )
    assert mistake(tmp_path, table.select(["id"]), (), "id") == "t.parquet has no column but the id"
    assert mistake(tmp_path, pa.table([[1], [2]], ["a", "a"]), ()) == "t.parquet has more than one column 'a'"
    assert mistake(tmp_path, f"{tmp_path}/none.csv") == "the data file none.csv does not exist"
    assert mistake(tmp_path, f"{tmp_path}/none*") == "no file matches none*"


def test_an_id_of_two_types_is_told_with_both_files(tmp_path: Path) -> None:
    write(tmp_path / "1.arrow", pa.table({"id": [1], "a": [1]}))
    write(tmp_path / "2.arrow", pa.table({"id": ["x"], "a": [1]}))
    assert mistake(tmp_path, f"{tmp_path}/*.arrow", (), "id") == (
        "the id 'id' is int64 in 1.arrow and string in 2.arrow: give it one type"
    )


DO = "raise kmeans.normalise.bound, or give wider kmeans.normalise.ranges"


@pytest.mark.parametrize(
    ("value", "place", "side"), [(5.5, "row 42", "above 5"), (-4.5, "row 42", "below -4"), (9.0, "row 42", "above 5")]
)
def test_a_value_beyond_the_interval_is_told_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, place: str, side: str
) -> None:
    small_blocks(monkeypatch)
    source = write(tmp_path / "t.csv", pa.table({"a": [1.5] * 50, "b": [0.5] * 41 + [value] + [0.5] * 8}))
    scan = scan_source(source, (), None, tmp_path / "kept")
    with pytest.raises(InputError) as raised:
        encode_source(scan, scaling(scan), (-4, 5), 10, tmp_path / "kept")
    assert raised.value.sentence == f"{source}, {place}, column 'b': the normalised value is {side}; {DO}"
    assert not list((tmp_path / "kept").glob("prepared-*"))


def test_rounding_at_the_ends_is_clipped_and_no_more(tmp_path: Path) -> None:
    source = write(tmp_path / "t.parquet", pa.table({"a": [-2 - 1e-9, 0.5, 2 + 1e-9]}))
    scan = scan_source(source, (), None, tmp_path)
    scaled = replace(scaling(scan), factor=(2.0**30,))
    ends = (-(2.0**31), 2.0**31)
    found = dense(encode_source(scan, scaled, ends, 9, tmp_path))[:, 0]
    assert (found[0], found[2]) == ends
    with pytest.raises(InputError, match=r"row 1, column 'a': the normalised value is below -2"):
        encode_source(scan, scaling(scan), (-2 + 1e-8, 2), 9, tmp_path)


def test_an_unchanged_source_is_not_read_again_and_a_changed_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "t.parquet", named([[1, 2], [3, 4]]))
    first = scan_source(source, (), "id", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(values, "table_batches", None)
        assert scan_source(source, (), "id", tmp_path) == first
        moved = str(Path(source).rename(tmp_path / "moved.parquet"))
        assert scan_source(moved, (), "id", tmp_path) == replace(first, source=moved, files=(moved,))
    others = [
        scan_source(moved, ("c0",), "id", tmp_path),
        scan_source(moved, ("c1", "c0"), "id", tmp_path),
        scan_source(moved, ("c0", "c1"), None, tmp_path),
        scan_source(write(tmp_path / "moved.parquet", named([[1, 2], [3, 5]])), (), "id", tmp_path),
    ]
    assert len({each.digest for each in [first, *others]}) == 5
    assert others[1].high == (3, 4)[::-1]
    assert others[3].high == (3, 5)


def test_equal_work_is_done_once_and_other_work_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = scan_source(write(tmp_path / "t.csv", named([[1, 2], [3, 4], [5, 7]])), (), "id", tmp_path)
    made = scaling(scan, "minmax")
    first = encode_source(scan, made, (0, 1), 2, tmp_path)
    others = [
        encode_source(scan, made, (0, 1), 3, tmp_path),
        encode_source(scan, made, (0, 2), 2, tmp_path),
        encode_source(scan, scaling(scan, "zscore"), (-16, 16), 2, tmp_path),
        encode_source(scan, replace(made, shift=(0.9, 1.9)), (0, 2), 2, tmp_path),
    ]
    assert len({each.folder for each in [first, *others]}) == 5
    monkeypatch.setattr(values, "table_batches", None)
    assert encode_source(scan, made, (0.0, 1.0), 2, tmp_path) == first == load_encoded_data(first.folder)
    assert load_encoded_data(tmp_path) is None


def test_an_interrupted_encode_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = scan_source(write(tmp_path / "t.csv", named([[1], [2], [3]])), (), "id", tmp_path)
    first = encode_source(scan, scaling(scan), (0, 4), 1, tmp_path)
    (first.folder / "manifest.json").unlink()
    (first.folder / "000001.rows.arrow").write_bytes(b"half")
    (first.folder / "000002.rows.arrow.part").write_bytes(b"half")
    assert load_encoded_data(first.folder) is None
    assert encode_source(scan, scaling(scan), (0, 4), 1, tmp_path) == first
    assert dense(first).tolist() == [[1], [2], [3]]
    assert not list(first.folder.glob("*.part"))
    monkeypatch.setattr(prepared_files, "write_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        encode_source(scan, scaling(scan), (0, 4), 2, tmp_path)
    assert list(tmp_path.glob("prepared-*")) == [first.folder]


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("rows", [[[1], [2]], [[1], [2], [4]]], ids=["fewer rows", "another value"])
def test_a_source_that_changes_between_the_passes_is_told(tmp_path: Path, rows: list[list[float]]) -> None:
    source = write(tmp_path / "t.csv", named([[1], [2], [3]]))
    scan = scan_source(source, (), "id", tmp_path)
    write(tmp_path / "t.csv", named(rows))
    with pytest.raises(InputError, match=r"t\.csv was changed after it was first read: start again"):
        encode_source(scan, scaling(scan), (0, 4), 2, tmp_path)
    assert not list(tmp_path.glob("prepared-*"))


def test_a_source_on_a_beam_filesystem_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, kind in enumerate(["0.csv.gz", "1.csv.gz"]):
        content = Path(write(tmp_path / kind, named([[i, 2], [3, 4]]))).read_bytes()
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://t/{kind}", content)
    scan = scan_source("mem://t/*.csv.gz", ("c0",), "id", tmp_path)
    assert scan.files == ("mem://t/0.csv.gz", "mem://t/1.csv.gz")
    assert dense(encode_source(scan, scaling(scan), (0, 4), 3, tmp_path)).tolist() == [[0], [3], [1], [3]]


def test_folders_are_for_this_user_only(tmp_path: Path) -> None:
    scan = scan_source(write(tmp_path / "t.csv", named([[1]])), (), "id", tmp_path / "new" / "kept")
    encode_source(scan, scaling(scan), (0, 4), 2, tmp_path / "new" / "kept")
    found = [path for path in (tmp_path / "new").rglob("*") if path.is_dir()]
    assert len(found) == 3
    assert {path.stat().st_mode & 0o777 for path in [tmp_path / "new", *found]} == {0o700}
    assert json.loads(next((tmp_path / "new").rglob("scans/*.json")).read_text())["rows"] == 1


def test_a_disk_that_is_full_or_no_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "t.csv", named([[1]]))
    with pytest.raises(StorageError, match="cannot be written: Not a directory"):
        scan_source(source, (), "id", Path(source) / "kept")
    scan = scan_source(source, (), "id", tmp_path)
    with pytest.raises(StorageError, match="cannot be written: Not a directory"):
        encode_source(scan, scaling(scan), (0, 4), 2, Path(source) / "kept")
    monkeypatch.setattr(prepared_files, "write_stream", full)
    with pytest.raises(StorageError, match="is full: free some space and start again"):
        encode_source(scan, scaling(scan), (0, 4), 2, tmp_path)
    assert not list(tmp_path.glob("prepared-*"))


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_ids_of_no_prepared_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prepared data"):
        read_ids(tmp_path, 0)
