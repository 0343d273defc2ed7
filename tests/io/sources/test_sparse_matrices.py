"""Sparse matrices from .npz archives and svmlight text: the same shards as of a table, and errors with their place."""

import gzip
import io
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from support.data_files import (
    SMALL,
    MemoryFileSystem,
    decode_rows,
    input_error,
    write_csr_npz,
    write_npz,
    write_svmlight,
    write_table,
)
from veilmeans.io.sources.encode import encode_source
from veilmeans.io.sources.scaling import Method, scale_columns
from veilmeans.io.sources.scan import Scan, scan_source
from veilmeans.io.sources.source_files import BatchLimits, Source
from veilmeans.io.sources.sparse_matrices import matrix_batches
from veilmeans.io.sources.svmlight import read_lines
from veilmeans.io.storage.encoded_shards import EncodedData, load_encoded_data, read_ids, read_rows
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import InputError

quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
values = st.sampled_from([0.0, 0.0, 0.0, 1.0, 0.5, 3.0, 0.125, 1e-9])
matrices = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(values, min_size=width, max_size=width), min_size=1, max_size=12)
)
SPARSE: dict[str, Callable[[Real], Any]] = {
    "csr": sp.csr_array,
    "csc": sp.csc_array,
    "coo": sp.coo_array,
    "old csr": sp.csr_matrix,
}


def prepare(
    source: str,
    folder: Path,
    features: int | None = None,
    method: Method = "minmax",
    rows_per_shard: int = 3,
    columns: Sequence[str] = (),
    limits: BatchLimits = SMALL,
) -> tuple[Scan, EncodedData]:
    """Scan and encode a source."""
    scan = scan_source(source, columns, None, features, limits=limits)
    scaling = scale_columns(scan, method, scan.low, scan.high, scan.mean, scan.deviation)
    interval = (0.0, 1.0) if method == "minmax" else (-16.0, 16.0)
    return scan, encode_source(scan, scaling, interval, rows_per_shard, folder)


def mistake(source: str, folder: Path, features: int | None = 2, **options: Any) -> str:
    """Return the sentence with which a source is refused."""
    sentence = input_error(lambda: prepare(source, folder / "kept", features, **options), folder)
    assert not list((folder / "kept").glob("prepared-*"))
    return sentence


def contents(prepared: EncodedData) -> list[tuple[list[int], list[int], list[int], tuple[int, ...]]]:
    """Return all shards in CSR form."""
    shards = [read_rows(prepared.folder, shard) for shard in range(prepared.shards)]
    return [(each.indptr.tolist(), each.indices.tolist(), each.data.tolist(), each.shape) for each in shards]


@quick
@given(matrices, st.sampled_from(["minmax", "none"]), st.sampled_from(list(SPARSE)), st.integers(1, 5))
def test_a_matrix_in_any_format_gives_the_same_shards(
    tmp_path: Path, rows: list[list[float]], method: Method, kind: str, size: int
) -> None:
    table = np.vstack([np.array(rows), np.zeros(len(rows[0]))])
    table[0, 0] = 1.0  # so that the lowest svmlight index is used
    d = table.shape[1]
    limits = BatchLimits(text_bytes=30, cells=4)
    sp.save_npz(tmp_path / "s.npz", SPARSE[kind](table))
    sources = [
        write_table(tmp_path / "t.parquet", pa.table({str(i): column for i, column in enumerate(table.T)})),
        write_npz(tmp_path / "dense.npz", X=table, y=np.zeros(len(table))),
        str(tmp_path / "s.npz"),
        write_svmlight(tmp_path / "zero.svm", table, base=0),
        write_svmlight(tmp_path / "one.libsvm", table, base=1),
    ]
    every = [prepare(source, tmp_path / "kept", d, method, size, limits=limits) for source in sources]
    scan, prepared = every[0]
    for other, made in every[1:]:
        assert contents(made) == contents(prepared)
        assert (made.rows, list(made.columns), made.nonzeros) == (scan.rows, list(scan.columns), prepared.nonzeros)
        assert made.integer_valued == prepared.integer_valued == load_encoded_data(made.folder).integer_valued  # type: ignore[union-attr]
        assert (other.low, other.high, other.nonzeros) == (scan.low, scan.high, scan.nonzeros)
        np.testing.assert_allclose(other.mean, scan.mean, atol=1e-12)
        np.testing.assert_allclose(other.deviation, scan.deviation, atol=1e-12)
        assert scan_source(other.source.name, (), None, d, limits=limits) == other
    assert read_ids(every[-1][1].folder, 0).to_pylist() == list(range(min(size, len(table))))


def test_minmax_keeps_zeros_and_begins_at_zero(tmp_path: Path) -> None:
    table = np.array([[2.0, 0, 0, 7], [4, 1, 0, 7]])
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(table))
    _, prepared = prepare(str(tmp_path / "s.npz"), tmp_path)
    assert decode_rows(prepared).tolist() == [[0.5, 0, 0, 1], [1, 1, 0, 1]]


@pytest.mark.parametrize("method", ["minmax", "zscore"])
def test_a_scaling_that_would_change_zeros_is_refused(tmp_path: Path, method: Method) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array([[0.0, -1], [1, 0]]))
    sentence = mistake(str(tmp_path / "s.npz"), tmp_path, method=method)
    assert "kmeans.normalise.method" in sentence
    assert ("column '1'" in sentence) == (method == "minmax")
    _, prepared = prepare(str(tmp_path / "s.npz"), tmp_path, method="none")
    assert prepared.integer_valued


@pytest.mark.parametrize(
    ("rows", "integer_valued"), [([[0.0, 1], [5, -3]], True), ([[0.0, 0.5], [5, 1]], False), ([[0.0, 0]], True)]
)
def test_the_manifest_states_whether_all_values_are_integers(tmp_path: Path, rows: Any, integer_valued: bool) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(rows))
    _, prepared = prepare(str(tmp_path / "s.npz"), tmp_path, method="none", rows_per_shard=1)
    assert prepared.integer_valued == integer_valued
    assert load_encoded_data(prepared.folder) == prepared


@pytest.mark.parametrize(("name", "d"), [("s.npz", 10**6), ("s.svm", 10**5)])
def test_a_million_columns_and_few_rows(tmp_path: Path, name: str, d: int) -> None:
    matrix = sp.csr_array(([1.0, 3.0, 1.0], ([0, 0, 2], [0, d - 1, 7])), shape=(4, d))
    sp.save_npz(tmp_path / "s.npz", matrix)
    (tmp_path / "s.svm").write_text(f"1 1:1 {d}:3\n1\n1 8:1\n1\n")
    scan, prepared = prepare(str(tmp_path / name), tmp_path, d)
    assert (len(scan.columns), scan.columns[-1], scan.columns[:2]) == (d, str(d - 1), ("0", "1"))
    assert contents(prepared)[0] == ([0, 2, 2, 3], [0, d - 1, 7], [1 << 20] * 3, (3, d))
    assert prepared.integer_valued
    assert (prepared.folder / "manifest.json").stat().st_size < 1000
    assert load_encoded_data(prepared.folder) == prepared


def test_several_files_and_a_beam_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2):
        target = io.BytesIO()
        sp.save_npz(target, sp.csr_array([[i, 2.0]]))
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://s/{i}.npz", target.getvalue())
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://s/{i}.svm.gz", gzip.compress(f"1 {i + 1}:{i + 1}".encode()))
    _, prepared = prepare("mem://s/*.npz", tmp_path, method="none")
    assert decode_rows(prepared).tolist() == [[0, 2], [1, 2]]
    _, prepared = prepare("mem://s/*.svm.gz", tmp_path, 2, method="none")
    assert decode_rows(prepared).tolist() == [[1, 0], [0, 2]]


# svmlight
@quick
@given(matrices, st.integers(0, 1), st.booleans())
def test_svmlight_is_read_as_scikit_learn_does(tmp_path: Path, rows: list[list[float]], base: int, end: bool) -> None:
    source = write_svmlight(tmp_path / "s.svmlight", np.array(rows), base)
    text = Path(source).read_text()
    Path(source).write_text(text if end else text.rstrip("\n"))
    d = len(rows[0])
    expected = load_svmlight_file(source, n_features=d, zero_based="auto")[0].toarray()
    scan, prepared = prepare(source, tmp_path, d, "none")
    np.testing.assert_array_equal(decode_rows(prepared), np.rint(expected * 2**20) / 2**20)
    assert scan.rows == len(rows)


TEXT = "# a comment\n\n+1 qid:3 1:0.5 4:-2e1 # note 9:9\r\n-1\n1,2\t2:1 3:.5\n   \n0.5 qid:4   1:7"


@pytest.mark.parametrize("size", [1, 7, 40, 1 << 20])
def test_labels_queries_comments_and_empty_lines_are_ignored(tmp_path: Path, size: int) -> None:
    file, limits = tmp_path / "s.svm", BatchLimits(text_bytes=size)
    file.write_text(TEXT)
    parsed = list(read_lines(str(file), limits))
    assert np.concatenate([each.lines for each in parsed]).tolist() == [3, 4, 5, 7]
    assert np.concatenate([each.counts for each in parsed]).tolist() == [2, 0, 2, 1]
    batches = list(matrix_batches(Source(str(file), (str(file),), limits), 4, base=1))
    rows = sp.vstack([batch.rows for batch in batches]).toarray()
    assert rows.tolist() == [[0.5, 0, 0, -20], [0, 0, 0, 0], [0, 1, 0.5, 0], [7, 0, 0, 0]]
    assert [each.start for each in batches] == [sum(b.rows.shape[0] for b in batches[:i]) for i in range(len(batches))]


FORM, INDEX, ORDER, NUMBER = "label index:value", "index", "do not ascend", "no finite number"


@pytest.mark.parametrize(
    ("line", "mistake_in_line"),
    [
        ("1 1:secret", FORM),
        ("1 1:2 3", FORM),
        ("1:2", FORM),
        ("1 1: 2", FORM),
        ("1 1:2:3", FORM),
        ("1 :2", FORM),
        ("1 1:+", FORM),
        ("1 1:2+3", FORM),
        ("1 1:\xff", FORM),
        ("1 1:2\0", FORM),
        ("1 1.5:2", INDEX),
        ("1 -1:2", INDEX),
        ("1 3000000000:2", INDEX),
        ("1 2:2 1:2", ORDER),
        ("1 1:2 1:2", ORDER),
        ("1 1:nan", NUMBER),
        ("1 1:1e999", NUMBER),
    ],
)
@pytest.mark.parametrize("size", [8, 1 << 20])
def test_a_bad_line_is_named_and_not_shown(tmp_path: Path, line: str, mistake_in_line: str, size: int) -> None:
    (tmp_path / "s.svm.gz").write_bytes(gzip.compress(f"1 1:1 2:2\n\n# c\n1 2:1\n{line}\n1 1:1\n".encode()))
    sentence = mistake(str(tmp_path / "s.svm.gz"), tmp_path, limits=BatchLimits(text_bytes=size))
    assert sentence.startswith("s.svm.gz, line 5 ")
    assert mistake_in_line in sentence
    assert "secret" not in sentence


def test_an_index_beyond_the_columns_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "s.svm").write_text("1 1:1\n1 1:1 3:1\n")
    assert prepare(str(tmp_path / "s.svm"), tmp_path, 3)[0].fields[0].base == 1
    beyond = r"s\.svm, line 2: .* {} columns of kmeans\.features"
    assert re.match(beyond.format(2), mistake(str(tmp_path / "s.svm"), tmp_path, 1))
    (tmp_path / "s.svm").write_text("1 0:1\n1 1:1 3:1\n")
    assert re.match(beyond.format(3), mistake(str(tmp_path / "s.svm"), tmp_path, 3))
    assert prepare(str(tmp_path / "s.svm"), tmp_path, 4)[0].fields[0].base == 0


def test_text_without_values_counts_from_zero_and_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.svm").write_text("1\n0\n")
    scan, prepared = prepare(str(tmp_path / "s.svm"), tmp_path, 5)
    assert (scan.rows, scan.high, scan.fields[0].base, prepared.nonzeros) == (2, (0,) * 5, 0, (0,))
    (tmp_path / "s.svm").write_text("# nothing\n\n")
    assert mistake(str(tmp_path / "s.svm"), tmp_path) == "s.svm has no rows"
    (tmp_path / "s.svm.gz").write_bytes(b"1 1:1\n")
    assert "s.svm.gz cannot be read" in mistake(str(tmp_path / "s.svm.gz"), tmp_path)


# .npz
DAMAGED = "the data file s.npz cannot be read"


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"indices": [0, 2]}, "s.npz, row 2: an index beyond the 2 columns"),
        ({"indices": [-1, 1]}, "s.npz, row 1: an index beyond the 2 columns"),
        ({"format": b"csc", "indices": [0, 2]}, "s.npz, column 2: an index beyond the 2 rows"),
        ({"data": [1.0, np.nan]}, "s.npz, row 2, column '1': no finite number"),
        ({"data": ["1", "2"]}, "s.npz holds a matrix of <U1"),
        ({"data": [1.0]}, DAMAGED),
        ({"data": None}, DAMAGED),
        ({"shape": None}, DAMAGED),
        ({"shape": [2, 2, 2]}, "s.npz holds no matrix"),
        ({"shape": [3, 2]}, DAMAGED),
        ({"indptr": [0, 2, 1]}, DAMAGED),
        ({"indptr": [1, 1, 2]}, DAMAGED),
        ({"indptr": [0, 1, 9]}, DAMAGED),
        ({"indptr": [0.0, 1.0, 2.0]}, DAMAGED),
        ({"indices": [[0, 1]]}, DAMAGED),
        ({"format": b"dia"}, "s.npz holds a sparse matrix in the format 'dia'"),
        ({"format": b"coo", "row": [0, 1], "col": [0, 2]}, "s.npz has an entry beyond its 2 columns"),
        ({"format": b"coo", "row": [0, 1, 1], "col": [0, 1]}, DAMAGED),
        ({"format": b"coo"}, DAMAGED),
        ({"shape": [0, 2], "indptr": [0], "indices": np.zeros(0, int), "data": []}, "s.npz has no rows"),
        ({"data": [1e300, 1.0]}, "s.npz, column '0': values are too large"),
    ],
    ids=str,
)
def test_a_bad_matrix_is_named(tmp_path: Path, changed: dict[str, Any], place: str) -> None:
    assert mistake(write_csr_npz(tmp_path / "s.npz", **changed), tmp_path).startswith(place)


@pytest.mark.parametrize("keep", [0, 10, 300, -10])
def test_a_truncated_archive_of_a_matrix_is_named(tmp_path: Path, keep: int) -> None:
    file = Path(write_csr_npz(tmp_path / "s.npz"))
    file.write_bytes(file.read_bytes()[:keep])
    assert mistake(str(file), tmp_path).startswith(DAMAGED)


def test_archives_with_other_content_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        archive.writestr("X.npy", b"secret")
    assert mistake(str(tmp_path / "s.npz"), tmp_path).startswith(DAMAGED)
    assert mistake(write_npz(tmp_path / "s.npz", y=[1]), tmp_path).startswith("s.npz holds neither")
    assert mistake(write_npz(tmp_path / "s.npz", X=[1.0]), tmp_path).startswith("s.npz holds an array X of 1")
    infinite = write_npz(tmp_path / "s.npz", X=[[1.0, np.inf]])
    assert mistake(infinite, tmp_path) == "s.npz, row 1, column '1': no finite number"


def test_entries_in_any_order_are_sorted_and_equal_ones_added(tmp_path: Path) -> None:
    source = write_csr_npz(tmp_path / "s.npz", indptr=[0, 3, 4], indices=[1, 0, 1, 0], data=[1.0, 2.0, 3.0, 5.0])
    _, prepared = prepare(source, tmp_path, method="none", limits=BatchLimits(cells=2))
    assert contents(prepared) == [([0, 2, 3], [0, 1, 0], [2 << 20, 4 << 20, 5 << 20], (2, 2))]


@quick
@given(matrices, st.sampled_from(list(SPARSE)), st.data())
def test_chosen_columns_are_those_of_the_matrix(
    tmp_path: Path, rows: list[list[float]], kind: str, data: st.DataObject
) -> None:
    table = np.vstack([np.array(rows), np.zeros(len(rows[0]))])
    table[0, 0] = 1.0
    d = table.shape[1]
    chosen = sorted(data.draw(st.sets(st.integers(0, d - 1), min_size=1)))
    ranges = column_ranges(chosen)
    sp.save_npz(tmp_path / "s.npz", SPARSE[kind](table))
    selected = write_npz(tmp_path / "selected.npz", X=table[:, chosen])
    plain, prepared = prepare(selected, tmp_path / "kept")
    for source in (
        str(tmp_path / "s.npz"),
        write_npz(tmp_path / "dense.npz", X=table),
        write_svmlight(tmp_path / "zero.svm", table, base=0),
        write_svmlight(tmp_path / "one.svm", table, base=1),
    ):
        scan, made = prepare(source, tmp_path / "kept", columns=ranges)
        assert contents(made) == contents(prepared)
        assert list(made.columns) == [str(column) for column in chosen]
        assert (scan.low, scan.high, scan.nonzeros) == (plain.low, plain.high, plain.nonzeros)
        assert list(load_encoded_data(made.folder).columns) == list(made.columns)  # type: ignore[union-attr]
        assert scan_source(source, ranges, None, limits=SMALL) == scan


def column_ranges(columns: list[int]) -> tuple[str, ...]:
    """Write columns as in a configuration, neighbours as one range."""
    ranges: list[list[int]] = []
    for column in columns:
        if ranges and ranges[-1][-1] == column - 1:
            ranges[-1].append(column)
        else:
            ranges.append([column])
    return tuple(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in ranges)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (("a",), "'a'"),
        (("0-",), "'0-'"),
        (("1", "0"), "'0'"),
        (("1-0",), "'1-0'"),
        (("0-1", "1"), "'1'"),
        (("0-2",), "2 columns"),
        (("99999999999",), "'99999999999'"),
    ],
)
def test_columns_that_cannot_be_chosen_are_named(tmp_path: Path, columns: tuple[str, ...], named: str) -> None:
    sentence = mistake(write_csr_npz(tmp_path / "s.npz"), tmp_path, columns=columns)
    assert "kmeans.columns" in sentence
    assert named in sentence


def test_ids_of_a_matrix_are_refused(tmp_path: Path) -> None:
    for source in (write_csr_npz(tmp_path / "s.npz"), write_npz(tmp_path / "x.npz", X=[[1.0]])):
        with pytest.raises(InputError, match=r"\.npz .*kmeans\.id"):
            scan_source(source, (), "0")
    assert scan_source(str(tmp_path / "x.npz"), ("0",), None).columns == ("0",)


def test_matrices_of_two_widths_are_named(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "1.npz", sp.csr_array((1, 2)))
    sp.save_npz(tmp_path / "2.npz", sp.csr_array((1, 3)))
    with pytest.raises(InputError, match=r"1\.npz has 2 columns and .*2\.npz has 3"):
        scan_source(f"{tmp_path}/*.npz", (), None)


def test_a_value_out_of_range_is_named_by_its_place(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array([[0.0, 1], [0, 0], [0, 17]]))
    assert mistake(str(tmp_path / "s.npz"), tmp_path, method="none").startswith("s.npz, row 3, column '1'")
