"""The second pass over a source: normalised rows in shards; values out of range are named, no work is done twice."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.data_files import (
    FORMATS,
    SMALL,
    MemoryFileSystem,
    counted_reads,
    decode_rows,
    input_error,
    read_all_ids,
    scale_by,
    table_with_ids,
    write_glob,
    write_table,
)
from veilmeans.io.files import tagged_files
from veilmeans.io.sources.encode import OutOfRange, encode_source
from veilmeans.io.sources.scaling import Method
from veilmeans.io.sources.scan import scan_source
from veilmeans.io.sources.source_files import BatchLimits
from veilmeans.io.storage import encoded_shards
from veilmeans.io.storage.encoded_shards import load_encoded_data, read_ids, read_rows
from veilmeans.schemas.errors import InputError, StorageError

WIDE = (-1e6, 1e6)
numbers = st.floats(-1000, 1000).map(lambda x: round(x, 3))
tables = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=20)
)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(tables, st.sets(st.integers(1, 19), max_size=3), st.sampled_from(FORMATS), st.integers(1, 21))
def test_shards_do_not_depend_on_format_files_and_batches(
    tmp_path: Path, rows: list[list[float]], cuts: set[int], kind: str, size: int
) -> None:
    source = write_glob(tmp_path, kind, table_with_ids(rows), sorted(cuts))
    scan = scan_source(source, (), "id", limits=BatchLimits(text_bytes=100, cells=6))
    data = encode_source(scan, scale_by(scan), WIDE, size, tmp_path)
    np.testing.assert_array_equal(decode_rows(data), np.rint(np.array(rows) * 2**20) / 2**20)
    assert read_all_ids(data) == [f"r{i}" for i in range(len(rows))]
    heights = [read_rows(data.folder, i).shape[0] for i in range(data.shards)]
    assert all(height == size for height in heights[:-1])
    assert 1 <= heights[-1] <= size
    assert [len(read_ids(data.folder, i)) for i in range(data.shards)] == heights


@quick
@given(tables, st.sampled_from(["minmax", "zscore", "none"]))
def test_values_are_normalised(tmp_path: Path, rows: list[list[float]], method: Method) -> None:
    values = np.array(rows)
    scan = scan_source(write_glob(tmp_path, "arrow", table_with_ids(rows), ()), (), "id")
    interval = {"minmax": (0, 1), "zscore": (-16, 16), "none": WIDE}[method]
    data = encode_source(scan, scale_by(scan, method), interval, 7, tmp_path)
    shift, width = {
        "minmax": (values.min(axis=0), np.ptp(values, axis=0)),
        "zscore": (values.mean(axis=0), values.std(axis=0)),
        "none": (0.0, np.ones(len(rows[0]))),
    }[method]
    constant = (np.ptp(values, axis=0) == 0) & (method != "none")
    expected = np.where(constant, 0, (values - shift) / np.where(constant, 1, width))
    np.testing.assert_allclose(decode_rows(data), expected, atol=2**-20)


def test_shards_are_sparse_exact_and_the_last_may_have_one_row(tmp_path: Path) -> None:
    table = pa.table({"a": [0, 1, 0, 0, -2], "b": [0, 3, 0, 0, 0]})
    scan = scan_source(write_table(tmp_path / "t.parquet", table), (), None)
    data = encode_source(scan, scale_by(scan), (-16, 16), 2, tmp_path)
    assert (data.rows, data.columns, data.rows_per_shard) == (5, ("a", "b"), 2)
    assert (data.nonzeros, data.shards) == ((2, 0, 1), 3)
    shards = [read_rows(data.folder, i) for i in range(3)]
    assert [each.shape for each in shards] == [(2, 2), (2, 2), (1, 2)]
    assert [each.nnz for each in shards] == [2, 0, 1]
    assert {(each.dtype.name, each.indices.dtype.name) for each in shards} == {("uint64", "int32")}
    assert shards[2].toarray().tolist() == [[2**64 - 2 * 2**20, 0]]
    assert not shards[0].data.flags.owndata
    assert read_all_ids(data) == [0, 1, 2, 3, 4]
    assert read_ids(data.folder, 2).type == pa.int64()


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
def test_numbers_of_any_type_are_encoded(tmp_path: Path, values: pa.Array) -> None:
    scan = scan_source(write_table(tmp_path / "t.arrow", pa.table({"a": values})), (), None)
    assert decode_rows(encode_source(scan, scale_by(scan), (0, 1), 9, tmp_path)).tolist() == [[1], [0], [1]]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.string(), pa.large_string()], ids=str)
def test_ids_keep_their_type(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"id": pa.array(["7", "-10", "123"]).cast(kind), "a": [1, 2, 3]})
    scan = scan_source(write_table(tmp_path / "t.parquet", table), (), "id")
    data = encode_source(scan, scale_by(scan), (0, 4), 2, tmp_path)
    assert read_ids(data.folder, 0).type == kind
    assert [str(value) for value in read_all_ids(data)] == ["7", "-10", "123"]


# Values out of range.
@pytest.mark.parametrize(("value", "side"), [(5.5, "above 5"), (-4.5, "below -4"), (9.0, "above 5")])
def test_a_value_out_of_range_is_named_by_its_place_and_not_shown(tmp_path: Path, value: float, side: str) -> None:
    table = pa.table({"a": [1.5] * 50, "b": [0.5] * 41 + [value] + [0.5] * 8})
    scan = scan_source(write_table(tmp_path / "t.csv", table), (), None, limits=SMALL)
    sentence = input_error(lambda: encode_source(scan, scale_by(scan), (-4, 5), 10, tmp_path / "kept"), tmp_path)
    assert sentence.startswith("t.csv, row 42, column 'b': ")
    assert side in sentence
    assert str(value) not in sentence
    assert not list((tmp_path / "kept").glob("prepared-*"))


def test_a_value_out_of_range_is_clipped_if_asked_for(tmp_path: Path) -> None:
    scan = scan_source(write_table(tmp_path / "t.csv", pa.table({"a": [-9.0, 0.5, 9.0]})), (), None)
    data = encode_source(scan, scale_by(scan), (-4, 5), 10, tmp_path, OutOfRange(True, "unused"))
    assert decode_rows(data).tolist() == [[-4], [0.5], [5]]


def test_only_what_rounding_may_cause_is_clipped_at_the_ends(tmp_path: Path) -> None:
    scan = scan_source(write_table(tmp_path / "t.parquet", pa.table({"a": [-2 - 1e-9, 0.5, 2 + 1e-9]})), (), None)
    scaling = replace(scale_by(scan), factor=(2.0**30,))
    ends = (-(2.0**31), 2.0**31)
    values = decode_rows(encode_source(scan, scaling, ends, 9, tmp_path))[:, 0]
    assert (values[0], values[2]) == ends
    with pytest.raises(InputError, match="row 1, column 'a'"):
        encode_source(scan, scale_by(scan), (-2 + 1e-8, 2), 9, tmp_path)


# Work that is done once.
def test_equal_work_is_done_once_and_other_work_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_table(tmp_path / "t.csv", table_with_ids([[1, 2], [3, 4], [5, 7]]))
    scan = scan_source(source, (), "id")
    scaling = scale_by(scan, "minmax")
    first = encode_source(scan, scaling, (0, 1), 2, tmp_path)
    others = [
        encode_source(scan, scaling, (0, 1), 3, tmp_path),
        encode_source(scan, scaling, (0, 2), 2, tmp_path),
        encode_source(scan, scale_by(scan, "zscore"), (-16, 16), 2, tmp_path),
        encode_source(scan, replace(scaling, shift=(0.9, 1.9)), (0, 2), 2, tmp_path),
    ]
    assert len({each.folder for each in [first, *others]}) == 5
    counter = counted_reads(monkeypatch)
    assert encode_source(scan, scaling, (0.0, 1.0), 2, tmp_path) == first == load_encoded_data(first.folder)
    assert not counter.opened
    assert load_encoded_data(tmp_path) is None


def test_an_interrupted_encoding_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = scan_source(write_table(tmp_path / "t.csv", table_with_ids([[1], [2], [3]])), (), "id")
    first = encode_source(scan, scale_by(scan), (0, 4), 1, tmp_path)
    (first.folder / "manifest.json").unlink()
    (first.folder / "000001.rows.arrow").write_bytes(b"half")
    (first.folder / "000002.rows.arrow.part").write_bytes(b"half")
    assert load_encoded_data(first.folder) is None
    assert encode_source(scan, scale_by(scan), (0, 4), 1, tmp_path) == first
    assert decode_rows(first).tolist() == [[1], [2], [3]]
    assert not list(first.folder.glob("*.part"))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(encoded_shards, "write_file_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        encode_source(scan, scale_by(scan), (0, 4), 2, tmp_path)
    assert list(tmp_path.glob("prepared-*")) == [first.folder]


@pytest.mark.parametrize("rows", [[[1], [2]], [[1], [2], [4]]], ids=["fewer rows", "another value"])
def test_a_source_that_changes_between_the_passes_is_refused(tmp_path: Path, rows: list[list[float]]) -> None:
    scan = scan_source(write_table(tmp_path / "t.csv", table_with_ids([[1], [2], [3]])), (), "id")
    write_table(tmp_path / "t.csv", table_with_ids(rows))
    with pytest.raises(InputError, match=r"t\.csv was changed"):
        encode_source(scan, scale_by(scan), (0, 4), 2, tmp_path)
    assert not list(tmp_path.glob("prepared-*"))


def test_a_source_on_a_beam_filesystem_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, kind in enumerate(["0.csv.gz", "1.csv.gz"]):
        content = Path(write_table(tmp_path / kind, table_with_ids([[i, 2], [3, 4]]))).read_bytes()
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://t/{kind}", content)
    scan = scan_source("mem://t/*.csv.gz", ("c0",), "id")
    assert decode_rows(encode_source(scan, scale_by(scan), (0, 4), 3, tmp_path)).tolist() == [[0], [3], [1], [3]]


# The folder.
def test_folders_are_for_this_user_only(tmp_path: Path) -> None:
    scan = scan_source(write_table(tmp_path / "t.csv", table_with_ids([[1]])), (), "id")
    data = encode_source(scan, scale_by(scan), (0, 4), 2, tmp_path / "new" / "kept")
    folders = [tmp_path / "new", tmp_path / "new" / "kept", data.folder]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


@pytest.mark.parametrize("suffix", ["rows", "ids"])
def test_one_flipped_bit_of_a_shard_is_named(tmp_path: Path, suffix: str) -> None:
    scan = scan_source(write_table(tmp_path / "t.csv", table_with_ids([[1], [2], [3]])), (), "id")
    data = encode_source(scan, scale_by(scan), (0, 4), 2, tmp_path)
    file = data.folder / f"000001.{suffix}.arrow"
    content = bytearray(file.read_bytes())
    content[-tagged_files.TAG_SIZE - 9] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match=f"{file} is missing or damaged: remove {data.folder}"):
        (read_rows if suffix == "rows" else read_ids)(data.folder, 1)


def test_a_folder_that_cannot_be_made_and_a_full_disk_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_table(tmp_path / "t.csv", table_with_ids([[1]]))
    scan = scan_source(source, (), "id")
    with pytest.raises(StorageError, match=r"t\.csv/kept"):
        encode_source(scan, scale_by(scan), (0, 4), 2, Path(source) / "kept")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tagged_files, "write_stream", full)
    with pytest.raises(StorageError, match=f"{tmp_path}.* is full"):
        encode_source(scan, scale_by(scan), (0, 4), 2, tmp_path)
    assert not list(tmp_path.glob("prepared-*"))


def test_a_folder_without_encoded_data_has_no_ids(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        read_ids(tmp_path, 0)
