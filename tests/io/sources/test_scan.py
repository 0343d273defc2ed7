"""The first pass over a source: statistics in any format and batches, digests, and every mistake with its place."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.data_files import (
    FORMATS,
    SMALL,
    MemoryFileSystem,
    input_error,
    table_with_ids,
    write_glob,
    write_table,
)
from veilmeans.crypto.wide_ring import to_integers
from veilmeans.io.sources.column_encoding import EncodingRules
from veilmeans.io.sources.scan import scan_source
from veilmeans.io.sources.source_files import BatchLimits
from veilmeans.transforms.statistics.joint_statistics import moment_sums

numbers = st.floats(-1000, 1000).map(lambda x: round(x, 3))
tables = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=20)
)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mistake(folder: Path, table: pa.Table | str, columns: Sequence[str] = ("a",), id: str | None = None) -> str:  # noqa: A002
    """Return the sentence with which a table is refused."""
    source = table if isinstance(table, str) else write_table(folder / "t.parquet", table)
    return input_error(lambda: scan_source(source, columns, id, limits=SMALL), folder)


@quick
@given(tables, st.sets(st.integers(1, 19), max_size=3), st.sampled_from(FORMATS))
def test_statistics_do_not_depend_on_format_files_and_batches(
    tmp_path: Path, rows: list[list[float]], cuts: set[int], kind: str
) -> None:
    source = write_glob(tmp_path, kind, table_with_ids(rows), sorted(cuts))
    scan = scan_source(source, (), "id", limits=BatchLimits(text_bytes=100, cells=6))
    values = np.array(rows)
    assert (scan.rows, scan.columns) == (len(rows), tuple(f"c{i}" for i in range(len(rows[0]))))
    assert scan.low == tuple(values.min(axis=0))
    assert scan.high == tuple(values.max(axis=0))
    np.testing.assert_allclose(scan.mean, values.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(scan.deviation, values.std(axis=0), atol=1e-9)


def test_a_constant_column_has_exactly_its_value_and_no_deviation(tmp_path: Path) -> None:
    table = pa.table({"a": [0.1] * 1001, "b": [0.0] * 1000 + [1.0]})
    scan = scan_source(write_table(tmp_path / "t.parquet", table, rows=100), (), None)
    assert (scan.mean[0], scan.deviation[0]) == (0.1, 0.0)


def test_integers_beyond_53_bits_are_rounded(tmp_path: Path) -> None:
    scan = scan_source(write_table(tmp_path / "t.arrow", pa.table({"a": [2**62 + 1, 2**62 + 3]})), (), None)
    assert scan.high == (2.0**62,)


def test_csv_may_have_truth_values_and_fractions_after_integers(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "0,true\n" * 30 + "0.5,false\n")
    scan = scan_source(str(file), (), None, limits=SMALL)
    assert (scan.low, scan.high, scan.nonzeros) == ((0, 0), (0.5, 1), (1, 30))


@pytest.mark.parametrize("missing", ["zero", "mean"])
def test_exact_sums_have_the_mean_or_zero_for_missing_values(tmp_path: Path, missing: str) -> None:
    values = np.array([[1.5, 2.0], [np.nan, 0.25], [-3.0, np.nan], [np.nan, 1e6]] * 3)
    source = write_table(tmp_path / "t.parquet", pa.table({"a": values[:, 0], "c": ["x", "y"] * 6, "b": values[:, 1]}))
    rules = EncodingRules(one_hot=("c",), missing=missing)  # type: ignore[arg-type]
    scan = scan_source(source, (), None, rules=rules, exact_sums=moment_sums, limits=SMALL)
    filled = np.where(np.isnan(values), 0 if missing == "zero" else np.nanmean(values, axis=0), values)
    np.testing.assert_array_equal(to_integers(scan.required_sums), to_integers(moment_sums(filled, ["a", "b"])))
    with pytest.raises(ValueError, match="exact sums"):
        assert scan_source(source, (), None, rules=rules).required_sums


# Digests.
def test_ids_have_one_digest_as_text_and_as_integers(tmp_path: Path) -> None:
    expected = hashlib.sha256(b"".join(len(x).to_bytes(8, "little") + x for x in (b"7", b"-10", b"123"))).hexdigest()
    for kind in (pa.int8(), pa.int64(), pa.string(), pa.large_string()):
        table = pa.table({"id": pa.array(["7", "-10", "123"]).cast(kind), "a": [1, 2, 3]})
        assert scan_source(write_table(tmp_path / "t.parquet", table), (), "id").ids == expected
    assert scan_source(write_table(tmp_path / "t.csv", table), (), "id").ids == expected


def test_other_ids_have_another_digest(tmp_path: Path) -> None:
    lists = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab", "c", "d"], ["ä", "c"]]
    digests = {
        scan_source(write_table(tmp_path / "t.csv", pa.table({"id": each, "a": [1] * len(each)})), (), "id").ids
        for each in lists
    }
    assert len(digests) == len(lists)
    assert scan_source(write_table(tmp_path / "t.csv", pa.table({"a": [1]})), (), None).ids == ""


def test_the_digest_changes_with_values_columns_and_id_and_not_with_the_path(tmp_path: Path) -> None:
    source = write_table(tmp_path / "t.parquet", table_with_ids([[1, 2], [3, 4]]))
    first = scan_source(source, (), "id")
    moved = str(Path(source).rename(tmp_path / "moved.parquet"))
    assert scan_source(moved, (), "id").digest == first.digest
    others = [
        scan_source(moved, ("c0",), "id"),
        scan_source(moved, ("c1", "c0"), "id"),
        scan_source(moved, ("c0", "c1"), None),
        scan_source(write_table(tmp_path / "moved.parquet", table_with_ids([[1, 2], [3, 5]])), (), "id"),
    ]
    assert len({each.digest for each in [first, *others]}) == 5
    assert others[1].high == (3, 4)[::-1]
    assert others[3].high == (3, 5)


def test_a_source_on_a_beam_filesystem_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, kind in enumerate(["0.csv.gz", "1.csv.gz"]):
        content = Path(write_table(tmp_path / kind, table_with_ids([[i, 2], [3, 4]]))).read_bytes()
        monkeypatch.setitem(MemoryFileSystem.files, f"mem://t/{kind}", content)
    scan = scan_source("mem://t/*.csv.gz", ("c0",), "id")
    assert scan.files == ("mem://t/0.csv.gz", "mem://t/1.csv.gz")
    assert (scan.rows, scan.low, scan.high) == (4, (0,), (3,))


# Mistakes.
@pytest.mark.parametrize(
    ("values", "place"),
    [
        (pa.array([1.0, None]), "row 2, column 'a': no value"),
        (pa.array([1.0, 2.0, 3.0, math.nan]), "row 4, column 'a': no finite number"),
        (pa.array([math.inf]), "row 1, column 'a': no finite number"),
        (pa.array(["1"]), "column 'a' holds string"),
        (pa.array([1], pa.timestamp("s")), "column 'a' holds timestamp[ms]"),
        (pa.array([1e300, -1e300]), "column 'a': values are too large"),
        (pa.array([1e308] * 9), "column 'a': values are too large"),
    ],
    ids=str,
)
def test_a_bad_value_is_named_by_file_row_and_column(tmp_path: Path, values: pa.Array, place: str) -> None:
    assert mistake(tmp_path, pa.table({"a": values})).startswith(f"t.parquet, {place}")


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    assert mistake(tmp_path, pa.table({"a": pa.array([], pa.float64())})) == "t.parquet has no rows"


def test_rows_are_counted_in_their_own_file_across_batches(tmp_path: Path) -> None:
    for kind in FORMATS:
        write_table(tmp_path / f"1.{kind}", pa.table({"a": [0.5] * 50}))
        write_table(tmp_path / f"2.{kind}", pa.table({"a": [0.5] * 41 + [None] + [0.5] * 20}))
        assert mistake(tmp_path, f"{tmp_path}/*.{kind}").startswith(f"2.{kind}, row 42, column 'a': no value")


@pytest.mark.parametrize(
    ("ids", "place"),
    [
        (pa.array([1, None]), "row 2, column 'id': no id"),
        (pa.array(["x", ""]), "row 2, column 'id': no id"),
        (pa.array([None, "x"]), "row 1, column 'id': no id"),
        (pa.array([1.5, 2]), "column 'id' holds double"),
    ],
    ids=str,
)
def test_a_bad_id_is_named(tmp_path: Path, ids: pa.Array, place: str) -> None:
    assert mistake(tmp_path, pa.table({"id": ids, "a": [1, 2]}), (), "id").startswith(f"t.parquet, {place}")


def test_columns_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "a": [1]})
    assert "no column 'b'" in mistake(tmp_path, table, ("b",))
    assert "no column 'b'" in mistake(tmp_path, table, (), "b")
    assert "column 'id' is the id" in mistake(tmp_path, table, ("a", "id"), "id")
    assert mistake(tmp_path, table.select(["id"]), (), "id") == "t.parquet has no column but the id"
    assert "more than one column 'a'" in mistake(tmp_path, pa.table([[1], [2]], ["a", "a"]), ())
    assert "none.csv" in mistake(tmp_path, f"{tmp_path}/none.csv")
    assert mistake(tmp_path, f"{tmp_path}/none*") == "no file matches none*"


def test_an_id_of_two_types_is_named_with_both_files(tmp_path: Path) -> None:
    write_table(tmp_path / "1.arrow", pa.table({"id": [1], "a": [1]}))
    write_table(tmp_path / "2.arrow", pa.table({"id": ["x"], "a": [1]}))
    sentence = mistake(tmp_path, f"{tmp_path}/*.arrow", (), "id")
    assert "int64 in 1.arrow" in sentence
    assert "string in 2.arrow" in sentence
