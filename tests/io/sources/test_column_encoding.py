"""Categories, lists of numbers and missing values: encoded as columns of numbers, or named in an error."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.data_files import FORMATS, SMALL, decode_rows, input_error, write_table
from veilmeans.io.sources.column_encoding import EncodingRules
from veilmeans.io.sources.encode import encode_source
from veilmeans.io.sources.scaling import Method, scale_columns
from veilmeans.io.sources.scan import Scan, scan_source
from veilmeans.io.storage.encoded_shards import EncodedData, load_encoded_data, read_rows

INTERVALS = {"minmax": (0.0, 1.0), "zscore": (-16.0, 16.0), "none": (-16.0, 16.0)}
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
COLOURS = pa.table({"n": [2.0, 4, 3, 2], "colour": ["red", "blue", "red", "green"], "m": [1, 0, 0, 1]})


def prepare(
    folder: Path, source: str | pa.Table, method: Method = "minmax", columns: tuple[str, ...] = (), **rules: Any
) -> tuple[Scan, EncodedData]:
    """Scan and encode a source in small batches."""
    file = source if isinstance(source, str) else write_table(folder / "t.parquet", source)
    scan = scan_source(file, columns, None, rules=EncodingRules(**rules), limits=SMALL)
    scaling = scale_columns(scan, method, scan.low, scan.high, scan.mean, scan.deviation)
    return scan, encode_source(scan, scaling, INTERVALS[method], 3, folder / "kept")


def mistake(folder: Path, source: str | pa.Table, **options: Any) -> str:
    """Return the sentence with which a source is refused."""
    return input_error(lambda: prepare(folder, source, **options), folder)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("declared", [False, True])
def test_categories_become_columns_of_0_and_1_in_place_of_the_field(tmp_path: Path, kind: str, declared: bool) -> None:
    rules: dict[str, Any] = (
        {"categories": {"colour": ("red", "blue", "green")}} if declared else {"one_hot": ("colour",)}
    )
    scan, prepared = prepare(tmp_path, write_table(tmp_path / f"t.{kind}", COLOURS), **rules)
    names = ("red", "blue", "green") if declared else ("blue", "green", "red")
    assert scan.columns == prepared.columns == ("n", *(f"colour={name}" for name in names), "m")
    hot = [[float(name == value) for name in names] for value in COLOURS["colour"].to_pylist()]
    numbers = [0, 1, 0.5, 0]
    assert decode_rows(prepared).tolist() == [
        [number, *ones, m] for number, ones, m in zip(numbers, hot, [1, 0, 0, 1], strict=True)
    ]
    assert not prepared.integer_valued
    assert scan.nonzeros[1:4] == tuple(int(sum(column)) for column in zip(*hot, strict=True))
    again = scan_source(scan.source.name, (), None, rules=EncodingRules(**rules), limits=SMALL)
    assert again == scan
    assert load_encoded_data(prepared.folder) == prepared


@pytest.mark.parametrize("method", ["minmax", "zscore", "none"])
def test_columns_of_0_and_1_are_never_scaled(tmp_path: Path, method: Method) -> None:
    table = COLOURS.append_column("one", pa.array(["x"] * 4))
    scan, prepared = prepare(tmp_path, table, method, one_hot=("colour", "one"), columns=("colour", "one"))
    assert decode_rows(prepared).tolist() == [[0, 0, 1, 1], [1, 0, 0, 1], [0, 0, 1, 1], [0, 1, 0, 1]]
    assert prepared.integer_valued
    assert (scan.low, scan.high) == ((0,) * 4, (1,) * 4)
    np.testing.assert_allclose(scan.mean, [0.25, 0.25, 0.5, 1])


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pa.array([10, 9, 10]), ("9", "10")),
        (pa.array([True, False, True]), ("false", "true")),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ("a", "b")),
        (pa.array(["b", "a", "b"]).cast(pa.string_view()), ("a", "b")),
    ],
    ids=str,
)
def test_categories_of_any_type_are_sorted(tmp_path: Path, values: pa.Array, names: tuple[str, ...]) -> None:
    scan, prepared = prepare(tmp_path, pa.table({"a": values}), one_hot=("a",))
    assert scan.columns == tuple(f"a={name}" for name in names)
    assert decode_rows(prepared).tolist() == [[0, 1], [1, 0], [0, 1]]


def test_integers_in_csv_are_categories_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,007\n2,8\n1,007\n")
    scan, _ = prepare(tmp_path, str(tmp_path / "t.csv"), one_hot=("a",), categories={"b": ("8", "007")})
    assert scan.columns == ("a=1", "a=2", "b=8", "b=007")


def test_an_unseen_value_is_named_and_not_shown_or_it_is_ignored(tmp_path: Path) -> None:
    few = {"colour": ("red", "green")}
    sentence = mistake(tmp_path, COLOURS, categories=few)
    assert sentence.startswith("t.parquet, row 2, column 'colour'")
    assert "blue" not in sentence
    _, prepared = prepare(tmp_path, COLOURS, categories=few, unseen="ignore", columns=("colour",))
    assert decode_rows(prepared).tolist() == [[1, 0], [0, 0], [1, 0], [0, 1]]


@quick
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=9), st.sampled_from(["parquet", "arrow"]))
def test_lists_of_numbers_become_columns(tmp_path: Path, lists: list[list[int]], kind: str) -> None:
    table = pa.table({"a": np.arange(len(lists)) % 2, "items": pa.array(lists, pa.list_(pa.int32()))})
    scan, prepared = prepare(tmp_path, write_table(tmp_path / f"t.{kind}", table), multi_hot={"items": 7})
    assert list(scan.columns) == ["a", *(f"items={i}" for i in range(7))]
    expected = [[i % 2, *(float(j in each) for j in range(7))] for i, each in enumerate(lists)]
    assert decode_rows(prepared).tolist() == expected
    assert prepared.integer_valued
    assert load_encoded_data(prepared.folder) == prepared
    assert scan.nonzeros == tuple(np.count_nonzero(expected, axis=0))


def test_many_columns_of_lists(tmp_path: Path) -> None:
    table = pa.table({"items": [[99_999, 5], [5], []]})
    scan, prepared = prepare(tmp_path, table, multi_hot={"items": 10**5})
    assert (len(scan.columns), scan.columns[-1]) == (10**5, "items=99999")
    assert read_rows(prepared.folder, 0).indices.tolist() == [5, 99_999, 5]
    assert prepared.integer_valued


MISSING = pa.table(
    {"a": [1.0, None, 3, math.nan], "b": [4, 5, 6, 6], "c": ["x", None, "y", ""], "d": [[1], None, [], [0]]}
)


def test_missing_values_are_zeros_or_means(tmp_path: Path) -> None:
    encoded = {"one_hot": ("c",), "multi_hot": {"d": 2}}
    _, zero = prepare(tmp_path, MISSING, "none", missing="zero", **encoded)
    hot = [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert decode_rows(zero).tolist() == [[a, b, *h] for a, b, h in zip([1, 0, 3, 0], [4, 5, 6, 6], hot, strict=True)]
    scan, mean = prepare(tmp_path, MISSING, "none", missing="mean", **encoded)
    assert decode_rows(mean).tolist() == [[a, b, *h] for a, b, h in zip([1, 2, 3, 2], [4, 5, 6, 6], hot, strict=True)]
    assert (scan.low[0], scan.high[0], scan.mean[0]) == (1, 3, 2)
    assert scan.deviation[0] == pytest.approx(np.std([1, 2, 3, 2]))
    assert mean.folder != zero.folder


@quick
@given(st.lists(st.lists(st.sampled_from([None, 0.0, 1.5, -2.0, 7.0]), min_size=2, max_size=2), min_size=1, max_size=9))
def test_means_do_not_count_missing_values(tmp_path: Path, rows: list[list[float | None]]) -> None:
    rows = [[1.0, 1.0], *rows]
    table = pa.table({"a": [row[0] for row in rows], "b": [row[1] for row in rows]})
    scan, prepared = prepare(tmp_path, table, "zscore", missing="mean")
    values = np.array(rows, np.float64)
    mean = np.nanmean(values, axis=0)
    filled = np.where(np.isnan(values), mean, values)
    np.testing.assert_allclose(scan.mean, mean, atol=1e-12)
    np.testing.assert_allclose(scan.deviation, filled.std(axis=0), atol=1e-9)
    assert (scan.low, scan.high) == (tuple(np.nanmin(values, axis=0)), tuple(np.nanmax(values, axis=0)))
    deviation = filled.std(axis=0)
    constant = np.ptp(filled, axis=0) == 0
    expected = np.where(constant, 0, (filled - mean) / np.where(constant, 1, deviation))
    np.testing.assert_allclose(decode_rows(prepared), expected, atol=2**-19)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"one_hot": ("c",), "columns": ("c",)}, "t.parquet, row 2, column 'c': no value"),
        ({"multi_hot": {"d": 2}, "columns": ("d",)}, "t.parquet, row 2, column 'd': no value"),
        ({"columns": ("a",)}, "t.parquet, row 2, column 'a': no value"),
        ({"one_hot": ("e",)}, "t.parquet: 'e' is to be encoded"),
        ({"one_hot": ("c",), "columns": ("b",)}, "t.parquet: 'c' is to be encoded"),
        ({"one_hot": ("a",), "columns": ("a",)}, "t.parquet, column 'a' holds double"),
        ({"multi_hot": {"b": 2}, "columns": ("b",)}, "t.parquet, column 'b' holds int64"),
        ({"multi_hot": {"d": 1}, "columns": ("d",), "missing": "zero"}, "t.parquet, row 1, column 'd'"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_encoded_is_named(tmp_path: Path, options: dict[str, Any], place: str) -> None:
    assert mistake(tmp_path, MISSING, **options).startswith(place)


def test_columns_without_values_with_infinity_or_with_one_name_are_named(tmp_path: Path) -> None:
    empty = pa.table({"a": pa.array([None, None], pa.float64()), "b": pa.array([None, None], pa.string())})
    for column, rules in {"a": {"columns": ("a",)}, "b": {"one_hot": ("b",), "columns": ("b",)}}.items():
        assert f"t.parquet, column '{column}' has no value" in mistake(tmp_path, empty, missing="mean", **rules)
    assert decode_rows(prepare(tmp_path, empty, missing="zero", columns=("a",))[1]).tolist() == [[0], [0]]
    infinite = pa.table({"a": [1.0, math.inf]})
    assert "row 2, column 'a': no finite number" in mistake(tmp_path, infinite, missing="zero")
    repeated = pa.table({"a": ["x", "x"], "a=x": [1, 2]})
    assert mistake(tmp_path, repeated, one_hot=("a",)).startswith("t.parquet: two columns would have one name")
