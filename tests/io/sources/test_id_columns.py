"""Ids for an alignment: the rule by which they are spelled, rows with the same id, rows without one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from veilmeans.io.sources.id_columns import IdRules, normalised_text, scan_ids
from veilmeans.io.storage.id_records import all_parts, read_records
from veilmeans.schemas.errors import InputError


def write(folder: Path, ids: pa.Array, name: str = "data.parquet") -> str:
    pq.write_table(pa.table({"id": ids, "x": np.zeros(len(ids))}), folder / name)
    return str(folder / name)


def kept_rows(folder: Path) -> dict[bytes, int]:
    """The row of each hash."""
    found: dict[bytes, int] = {}
    for number in all_parts(folder):
        hashes, rows = read_records(folder, number)
        found |= {each.tobytes(): row for each, row in zip(hashes, rows.tolist(), strict=True)}
    return found


def test_the_rule() -> None:
    spelled = ["  Zo\u0065\u0308 ", "Zo\u00eb", "zo\u00eb", "ZO\u00cb\t", "", " \n", None]
    assert normalised_text(pa.array(spelled), False).to_pylist()[:3] == ["Zo\u00eb", "Zo\u00eb", "zo\u00eb"]
    assert normalised_text(pa.array(spelled), True).to_pylist() == ["zo\u00eb"] * 4 + [None] * 3
    assert normalised_text(pa.array([7, -12]), False).to_pylist() == ["7", "-12"]


def test_integers_and_text_are_the_same_ids(tmp_path: Path) -> None:
    numbers = scan_ids(write(tmp_path, pa.array([7, 8, 900])), "id", IdRules(), tmp_path / "one")
    text = scan_ids(write(tmp_path, pa.array(["900", " 7", "8 "]), "text.parquet"), "id", IdRules(), tmp_path / "two")
    assert (numbers.rows, numbers.ids) == (text.rows, text.ids) == (3, 3)
    one, two = kept_rows(numbers.folder), kept_rows(text.folder)
    assert one.keys() == two.keys()
    assert sorted((row, two[each]) for each, row in one.items()) == [(0, 1), (1, 2), (2, 0)]


def test_repeated_ids_are_counted_and_named_or_the_first_is_kept(tmp_path: Path) -> None:
    file = write(tmp_path, pa.array(["a", "b", " a", "c", "b", "a"]))
    with pytest.raises(InputError, match=r"3 of 6 rows repeat the id of an earlier row, row 3 the first.*duplicates"):
        scan_ids(file, "id", IdRules(), tmp_path / "ids")
    found = scan_ids(file, "id", IdRules(keep_first=True), tmp_path / "ids")
    assert found.ids == 3
    assert sorted(kept_rows(found.folder).values()) == [0, 1, 3]


def test_missing_ids_are_counted_and_named_or_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, pa.array(["a", None, "  ", "b"]))
    with pytest.raises(InputError, match=r"row 2, column 'id': the id is missing, here and in all in 2 of 4 rows"):
        scan_ids(file, "id", IdRules(), tmp_path / "ids")
    found = scan_ids(file, "id", IdRules(drop_missing=True), tmp_path / "ids")
    assert (found.rows, found.ids, sorted(kept_rows(found.folder).values())) == (4, 2, [0, 3])


def test_fractions_and_matrices_have_no_ids(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an id is text or an integer"):
        scan_ids(write(tmp_path, pa.array([1.5])), "id", IdRules(), tmp_path / "ids")
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 2)))
    with pytest.raises(InputError, match="holds no ids"):
        scan_ids(str(tmp_path / "x.npz"), "id", IdRules(), tmp_path / "ids")
