"""Tagged files: read as they were written, or refused."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from veilmeans.io.files.tagged_files import DamagedFileError, map_tagged, write_tagged
from veilmeans.schemas.arrays import from_stream, to_batch

KEY, OTHER = bytes(32), bytes(31) + b"\1"


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.data())
def test_every_bit_is_covered_by_the_tag(values: list[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "x.arrow")
        write_tagged(file, KEY, "x", to_batch({"e": np.array(values, np.uint64)}))
        assert from_stream(map_tagged(file, KEY, "x"))["e"].tolist() == values
        content = file.read_bytes()
        damaged = bytearray(content)
        damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        for each in (bytes(damaged), content[: data.draw(st.integers(0, len(content) - 1))], content + b"\0"):
            altered = Path(folder, "y.arrow")
            altered.unlink(missing_ok=True)
            altered.write_bytes(each)
            with pytest.raises(DamagedFileError):
                map_tagged(altered, KEY, "x")


def test_another_name_or_key_is_refused_also_after_the_file_was_checked(tmp_path: Path) -> None:
    write_tagged(tmp_path / "x", KEY, "x", to_batch({"e": np.ones(3)}))
    assert from_stream(map_tagged(tmp_path / "x", KEY, "x"))["e"].tolist() == [1, 1, 1]
    with pytest.raises(DamagedFileError):
        map_tagged(tmp_path / "x", OTHER, "x")
    (tmp_path / "z").write_bytes((tmp_path / "x").read_bytes())
    with pytest.raises(DamagedFileError):
        map_tagged(tmp_path / "z", KEY, "z")
    with pytest.raises(DamagedFileError):
        map_tagged(tmp_path / "missing", KEY, "x")
