"""Sparse matrices from .npz archives and svmlight text: the same shards as from a table, and every mistake named."""

import gzip
import io
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
from numpy.typing import NDArray
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from support.data_files import MemoryFileSystem, small_blocks, write
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.sources.encode import encode_source
from veilmeans.io.sources.scaling import Method, scale_columns
from veilmeans.io.sources.scan import Scan, scan_source
from veilmeans.io.sources.sparse_matrices import matrix_blocks
from veilmeans.io.sources.svmlight import read_lines
from veilmeans.io.storage.encoded_shards import EncodedData, load_encoded_data, read_ids, read_rows
from veilmeans.schemas.errors import InputError

Floats = NDArray[np.float64]
quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
values = st.sampled_from([0.0, 0.0, 0.0, 1.0, 0.5, 3.0, 0.125, 1e-9])
matrices = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(values, min_size=width, max_size=width), min_size=1, max_size=12)
)
SPARSE: dict[str, Callable[[Floats], Any]] = {
    "csr": sp.csr_array,
    "csc": sp.csc_array,
    "coo": sp.coo_array,
    "old csr": sp.csr_matrix,
}


def svmlight(file: Path, rows: Floats, base: int = 1) -> str:
    dump_svmlight_file(rows, np.arange(len(rows)), str(file), zero_based=base == 0)
    return str(file)


def npz(file: Path, **members: Any) -> str:
    np.savez(file, **members)
    return str(file)


def csr_npz(file: Path, **changed: Any) -> str:
    """The matrix [[1, 0], [0, 2]], with some members changed; None leaves one out."""
    members = {"format": b"csr", "shape": [2, 2], "indptr": [0, 1, 2], "indices": [0, 1], "data": [1.0, 2.0]}
    return npz(file, **{name: value for name, value in (members | changed).items() if value is not None})


def prepare(
    source: str,
    folder: Path,
    features: int | None = None,
    method: Method = "minmax",
    rows_per_shard: int = 3,
    columns: Sequence[str] = (),
) -> tuple[Scan, EncodedData]:
    scan = scan_source(source, columns, None, folder, features)
    scaling = scale_columns(scan, method, scan.low, scan.high, scan.mean, scan.deviation)
    interval = (0.0, 1.0) if method == "minmax" else (-16.0, 16.0)
    return scan, encode_source(scan, scaling, interval, rows_per_shard, folder)


def mistake(source: str, folder: Path, features: int | None = 2, **options: Any) -> str:
    with pytest.raises(InputError) as raised:
        prepare(source, folder / "kept", features, **options)
    assert not list((folder / "kept").glob("prepared-*"))
    return raised.value.sentence.replace(f"{folder}/", "")


def contents(prepared: EncodedData) -> list[tuple[list[int], list[int], list[int], tuple[int, ...]]]:
    found = [read_rows(prepared.folder, shard) for shard in range(prepared.shards)]
    return [(each.indptr.tolist(), each.indices.tolist(), each.data.tolist(), each.shape) for each in found]


@quick
@given(matrices, st.sampled_from(["minmax", "none"]), st.sampled_from(list(SPARSE)), st.integers(1, 5))
def test_a_matrix_in_any_format_gives_the_same_shards(
    tmp_path: Path, rows: list[list[float]], method: Method, kind: str, size: int
) -> None:
    table = np.vstack([np.array(rows), np.zeros(len(rows[0]))])
    table[0, 0] = 1.0  # so that svmlight indices begin where they can
    d = table.shape[1]
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, size=30, cells=4)
        sp.save_npz(tmp_path / "s.npz", SPARSE[kind](table))
        sources = [
            write(tmp_path / "t.parquet", pa.table({str(i): column for i, column in enumerate(table.T)})),
            npz(tmp_path / "dense.npz", X=table, y=np.zeros(len(table))),
            str(tmp_path / "s.npz"),
            svmlight(tmp_path / "zero.svm", table, base=0),
            svmlight(tmp_path / "one.libsvm", table, base=1),
        ]
        found = [prepare(source, tmp_path / "kept", d, method, size) for source in sources]
    scan, prepared = found[0]
    for other, made in found[1:]:
        assert contents(made) == contents(prepared)
        assert (made.rows, list(made.columns), made.nonzeros) == (scan.rows, list(scan.columns), prepared.nonzeros)
        assert made.whole == prepared.whole == load_encoded_data(made.folder).whole  # type: ignore[union-attr]
        assert (other.low, other.high, other.nonzeros) == (scan.low, scan.high, scan.nonzeros)
        np.testing.assert_allclose(other.mean, scan.mean, atol=1e-12)
        np.testing.assert_allclose(other.deviation, scan.deviation, atol=1e-12)
        assert scan_source(other.source, (), None, tmp_path / "kept", d) == other
    assert read_ids(found[-1][1].folder, 0).to_pylist() == list(range(min(size, len(table))))


def test_minmax_keeps_zeros_and_begins_at_zero(tmp_path: Path) -> None:
    table = np.array([[2.0, 0, 0, 7], [4, 1, 0, 7]])
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(table))
    _, prepared = prepare(str(tmp_path / "s.npz"), tmp_path)
    assert fixed.decode(read_rows(prepared.folder, 0).toarray()).tolist() == [[0.5, 0, 0, 1], [1, 1, 0, 1]]


@pytest.mark.parametrize("method", ["minmax", "zscore"])
def test_what_would_change_zeros_is_refused(tmp_path: Path, method: Method) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array([[0.0, -1], [1, 0]]))
    found = mistake(str(tmp_path / "s.npz"), tmp_path, method=method)
    assert "none with a bound" in found
    assert "into other values" in found
    assert ("column '1'" in found) == (method == "minmax")
    _, prepared = prepare(str(tmp_path / "s.npz"), tmp_path, method="none")
    assert prepared.whole


@pytest.mark.parametrize(
    ("rows", "whole"), [([[0.0, 1], [5, -3]], True), ([[0.0, 0.5], [5, 1]], False), ([[0.0, 0]], True)]
)
def test_whole_numbers_are_told_also_for_an_older_manifest(tmp_path: Path, rows: Any, whole: bool) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(rows))
    _, prepared = prepare(str(tmp_path / "s.npz"), tmp_path, method="none", rows_per_shard=1)
    assert prepared.whole == whole
    manifest = prepared.folder / "manifest.json"
    content = manifest.read_text()
    manifest.write_text(content.replace(',\n  "whole": ' + str(whole).lower(), ""))
    assert manifest.read_text() != content
    assert load_encoded_data(prepared.folder) == prepared


@pytest.mark.parametrize(("name", "d"), [("s.npz", 10**6), ("s.svm", 10**5)])
def test_a_million_columns_and_few_rows(tmp_path: Path, name: str, d: int) -> None:
    matrix = sp.csr_array(([1.0, 3.0, 1.0], ([0, 0, 2], [0, d - 1, 7])), shape=(4, d))
    sp.save_npz(tmp_path / "s.npz", matrix)
    (tmp_path / "s.svm").write_text(f"1 1:1 {d}:3\n1\n1 8:1\n1\n")
    scan, prepared = prepare(str(tmp_path / name), tmp_path, d)
    assert (len(scan.columns), scan.columns[-1], scan.columns[:2]) == (d, str(d - 1), ("0", "1"))
    assert contents(prepared)[0] == ([0, 2, 2, 3], [0, d - 1, 7], [1 << 20] * 3, (3, d))
    assert prepared.whole
    assert (prepared.folder / "manifest.json").stat().st_size < 1000
    assert load_encoded_data(prepared.folder) == prepared


def test_several_files_and_a_beam_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2):
        target = io.BytesIO()
        sp.save_npz(target, sp.csr_array([[i, 2.0]]))
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://s/{i}.npz", target.getvalue())
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://s/{i}.svm.gz", gzip.compress(f"1 {i + 1}:{i + 1}".encode()))
    _, prepared = prepare("mem://s/*.npz", tmp_path, method="none")
    assert fixed.decode(read_rows(prepared.folder, 0).toarray()).tolist() == [[0, 2], [1, 2]]
    _, prepared = prepare("mem://s/*.svm.gz", tmp_path, 2, method="none")
    assert fixed.decode(read_rows(prepared.folder, 0).toarray()).tolist() == [[1, 0], [0, 2]]


# svmlight
@quick
@given(matrices, st.integers(0, 1), st.booleans())
def test_svmlight_is_read_as_scikit_learn_does(tmp_path: Path, rows: list[list[float]], base: int, end: bool) -> None:
    source = svmlight(tmp_path / "s.svmlight", np.array(rows), base)
    text = Path(source).read_text()
    Path(source).write_text(text if end else text.rstrip("\n"))
    d = len(rows[0])
    expected = load_svmlight_file(source, n_features=d, zero_based="auto")[0].toarray()
    scan, prepared = prepare(source, tmp_path, d, "none")
    found = np.vstack([fixed.decode(read_rows(prepared.folder, i).toarray()) for i in range(prepared.shards)])
    np.testing.assert_array_equal(found, np.rint(expected * 2**20) / 2**20)
    assert scan.rows == len(rows)


TEXT = "# a comment\n\n+1 qid:3 1:0.5 4:-2e1 # note 9:9\r\n-1\n1,2\t2:1 3:.5\n   \n0.5 qid:4   1:7"


@pytest.mark.parametrize("size", [1, 7, 40, 1 << 20])
def test_labels_queries_comments_and_empty_lines_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    small_blocks(monkeypatch, size=size)
    (tmp_path / "s.svm").write_text(TEXT)
    found = list(read_lines(str(tmp_path / "s.svm")))
    assert np.concatenate([each.lines for each in found]).tolist() == [3, 4, 5, 7]
    assert np.concatenate([each.counts for each in found]).tolist() == [2, 0, 2, 1]
    blocks = list(matrix_blocks([str(tmp_path / "s.svm")], 4, base=1))
    rows = sp.vstack([block.rows for block in blocks]).toarray()
    assert rows.tolist() == [[0.5, 0, 0, -20], [0, 0, 0, 0], [0, 1, 0.5, 0], [7, 0, 0, 0]]
    assert [block.start for block in blocks] == [sum(b.rows.shape[0] for b in blocks[:i]) for i in range(len(blocks))]


FORM = "is not of the form `label index:value …`: correct it"


@pytest.mark.parametrize(
    ("line", "sentence"),
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
        ("1 1.5:2", "has an index that is no whole number below 2^31: correct it"),
        ("1 -1:2", "has an index that is no whole number below 2^31: correct it"),
        ("1 3000000000:2", "has an index that is no whole number below 2^31: correct it"),
        ("1 2:2 1:2", "has indices that do not ascend: correct it"),
        ("1 1:2 1:2", "has indices that do not ascend: correct it"),
        ("1 1:nan", "has a value that is no finite number: correct it"),
        ("1 1:1e999", "has a value that is no finite number: correct it"),
    ],
)
@pytest.mark.parametrize("size", [8, 1 << 20])
def test_a_bad_line_is_told_with_its_number_and_without_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, sentence: str, size: int
) -> None:
    small_blocks(monkeypatch, size=size)
    (tmp_path / "s.svm.gz").write_bytes(gzip.compress(f"1 1:1 2:2\n\n# c\n1 2:1\n{line}\n1 1:1\n".encode()))
    assert mistake(str(tmp_path / "s.svm.gz"), tmp_path) == f"s.svm.gz, line 5 {sentence}"


def test_an_index_beyond_the_columns_is_told(tmp_path: Path) -> None:
    (tmp_path / "s.svm").write_text("1 1:1\n1 1:1 3:1\n")
    assert prepare(str(tmp_path / "s.svm"), tmp_path, 3)[0].fields[0].base == 1
    beyond = "an index beyond the {} columns that kmeans.features says; correct one of them"
    assert mistake(str(tmp_path / "s.svm"), tmp_path, 1) == f"s.svm, line 2: {beyond.format(2)}"
    (tmp_path / "s.svm").write_text("1 0:1\n1 1:1 3:1\n")
    assert mistake(str(tmp_path / "s.svm"), tmp_path, 3) == f"s.svm, line 2: {beyond.format(3)}"
    assert prepare(str(tmp_path / "s.svm"), tmp_path, 4)[0].fields[0].base == 0


def test_text_with_no_values_counts_from_zero_and_with_no_rows_is_told(tmp_path: Path) -> None:
    (tmp_path / "s.svm").write_text("1\n0\n")
    scan, prepared = prepare(str(tmp_path / "s.svm"), tmp_path, 5)
    assert (scan.rows, scan.high, scan.fields[0].base, prepared.nonzeros) == (2, (0,) * 5, 0, (0,))
    (tmp_path / "s.svm").write_text("# nothing\n\n")
    assert mistake(str(tmp_path / "s.svm"), tmp_path) == "s.svm has no rows"
    (tmp_path / "s.svm.gz").write_bytes(b"1 1:1\n")
    assert mistake(str(tmp_path / "s.svm.gz"), tmp_path).startswith("the data file s.svm.gz cannot be read: ")


# .npz
DAMAGED = "the data file s.npz cannot be read: it is damaged, or neither a sparse matrix (scipy.sparse.save_npz) nor "


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"indices": [0, 2]}, "s.npz, row 2: an index beyond the 2 columns of the matrix; save it again"),
        ({"indices": [-1, 1]}, "s.npz, row 1: an index beyond the 2 columns of the matrix; save it again"),
        ({"format": b"csc", "indices": [0, 2]}, "s.npz, column 2: an index beyond the 2 rows of the matrix"),
        ({"data": [1.0, np.nan]}, "s.npz, row 2, column '1': no finite number"),
        ({"data": ["1", "2"]}, "s.npz holds a matrix of <U1, and numbers are needed"),
        ({"data": [1.0]}, DAMAGED),
        ({"data": None}, DAMAGED),
        ({"shape": None}, DAMAGED),
        ({"shape": [2, 2, 2]}, "s.npz holds no matrix with rows and columns below 2^31"),
        ({"shape": [3, 2]}, DAMAGED),
        ({"indptr": [0, 2, 1]}, DAMAGED),
        ({"indptr": [1, 1, 2]}, DAMAGED),
        ({"indptr": [0, 1, 9]}, DAMAGED),
        ({"indptr": [0.0, 1.0, 2.0]}, DAMAGED),
        ({"indices": [[0, 1]]}, DAMAGED),
        ({"format": b"dia"}, "s.npz holds a sparse matrix in the format 'dia': save it as CSR"),
        ({"format": b"coo", "row": [0, 1], "col": [0, 2]}, "s.npz has an entry beyond its 2 columns: save the matrix"),
        ({"format": b"coo", "row": [0, 1, 1], "col": [0, 1]}, DAMAGED),
        ({"format": b"coo"}, DAMAGED),
        ({"shape": [0, 2], "indptr": [0], "indices": np.zeros(0, int), "data": []}, "s.npz has no rows"),
        ({"data": [1e300, 1.0]}, "s.npz, column '0': values are too large to be squared and summed; rescale them"),
    ],
    ids=str,
)
def test_a_bad_matrix_is_told(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    assert mistake(csr_npz(tmp_path / "s.npz", **changed), tmp_path).startswith(sentence)


@pytest.mark.parametrize("keep", [0, 10, 300, -10])
def test_a_cut_archive_is_told(tmp_path: Path, keep: int) -> None:
    file = Path(csr_npz(tmp_path / "s.npz"))
    file.write_bytes(file.read_bytes()[:keep])
    assert mistake(str(file), tmp_path).startswith(DAMAGED)


def test_archives_with_something_else_are_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        archive.writestr("X.npy", b"secret")
    assert mistake(str(tmp_path / "s.npz"), tmp_path).startswith(DAMAGED)
    neither = "s.npz holds neither a sparse matrix (scipy.sparse.save_npz) nor an array X"
    assert mistake(npz(tmp_path / "s.npz", y=[1]), tmp_path) == neither
    needed = "dimensions of float64: two, of numbers, are needed"
    assert mistake(npz(tmp_path / "s.npz", X=[1.0]), tmp_path) == f"s.npz holds an array X of 1 {needed}"
    assert mistake(npz(tmp_path / "s.npz", X=[[1.0, np.inf]]), tmp_path) == (
        "s.npz, row 1, column '1': no finite number"
    )


def test_entries_in_any_order_are_sorted_and_equal_ones_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, cells=2)
    source = csr_npz(tmp_path / "s.npz", indptr=[0, 3, 4], indices=[1, 0, 1, 0], data=[1.0, 2.0, 3.0, 5.0])
    _, prepared = prepare(source, tmp_path, method="none")
    assert contents(prepared) == [([0, 2, 3], [0, 1, 0], [2 << 20, 4 << 20, 5 << 20], (2, 2))]


@quick
@given(matrices, st.sampled_from(list(SPARSE)), st.data())
def test_chosen_columns_are_those_of_the_whole(
    tmp_path: Path, rows: list[list[float]], kind: str, data: st.DataObject
) -> None:
    table = np.vstack([np.array(rows), np.zeros(len(rows[0]))])
    table[0, 0] = 1.0
    d = table.shape[1]
    chosen = sorted(data.draw(st.sets(st.integers(0, d - 1), min_size=1)))
    asked = runs(chosen)
    sp.save_npz(tmp_path / "s.npz", SPARSE[kind](table))
    part = npz(tmp_path / "part.npz", X=table[:, chosen])
    plain, prepared = prepare(part, tmp_path / "kept")
    for source in (
        str(tmp_path / "s.npz"),
        npz(tmp_path / "dense.npz", X=table),
        svmlight(tmp_path / "zero.svm", table, base=0),
        svmlight(tmp_path / "one.svm", table, base=1),
    ):
        scan, made = prepare(source, tmp_path / "kept", columns=asked)
        assert contents(made) == contents(prepared)
        assert list(made.columns) == [str(column) for column in chosen]
        assert (scan.low, scan.high, scan.nonzeros) == (plain.low, plain.high, plain.nonzeros)
        assert list(load_encoded_data(made.folder).columns) == list(made.columns)  # type: ignore[union-attr]
        assert scan_source(source, asked, None, tmp_path / "kept") == scan


def runs(columns: list[int]) -> tuple[str, ...]:
    """The same columns, neighbours as one run."""
    found: list[list[int]] = []
    for column in columns:
        if found and found[-1][-1] == column - 1:
            found[-1].append(column)
        else:
            found.append([column])
    return tuple(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (("a",), "kmeans.columns must have numbers and runs of them (7, 0-61), not 'a'"),
        (("0-",), "kmeans.columns must have numbers and runs of them (7, 0-61), not '0-'"),
        (("1", "0"), "kmeans.columns must ascend, and '0' does not"),
        (("1-0",), "kmeans.columns must ascend, and '1-0' does not"),
        (("0-1", "1"), "kmeans.columns must ascend, and '1' does not"),
        (("0-2",), "has 2 columns, counted from 0, and kmeans.columns asks for 2"),
        (("99999999999",), "kmeans.columns must ascend"),
    ],
)
def test_columns_that_cannot_be_chosen_are_told(tmp_path: Path, columns: tuple[str, ...], sentence: str) -> None:
    assert sentence in mistake(csr_npz(tmp_path / "s.npz"), tmp_path, columns=columns)


def test_ids_of_a_matrix_are_refused(tmp_path: Path) -> None:
    for source in (csr_npz(tmp_path / "s.npz"), npz(tmp_path / "x.npz", X=[[1.0]])):
        with pytest.raises(InputError, match=r"\.npz holds no ids: leave out kmeans\.id"):
            scan_source(source, (), "0", tmp_path)
    assert scan_source(str(tmp_path / "x.npz"), ("0",), None, tmp_path).columns == ("0",)


def test_matrices_of_two_widths_are_told(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "1.npz", sp.csr_array((1, 2)))
    sp.save_npz(tmp_path / "2.npz", sp.csr_array((1, 3)))
    with pytest.raises(InputError, match=r"1\.npz has 2 columns and .*2\.npz has 3: make them alike"):
        scan_source(f"{tmp_path}/*.npz", (), None, tmp_path)


def test_a_value_beyond_the_bound_is_told_with_its_place(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "s.npz", sp.csr_array([[0.0, 1], [0, 0], [0, 17]]))
    assert mistake(str(tmp_path / "s.npz"), tmp_path, method="none").startswith(
        "s.npz, row 3, column '1': the normalised value is above 16; raise kmeans.normalise.bound"
    )
