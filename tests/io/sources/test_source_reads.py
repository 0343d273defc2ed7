"""A source is read twice: once to scan it, once to encode it. Beyond that, only names and types are looked up."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

from support.data_files import FORMATS, counted_reads, scale_by, write_svmlight, write_table
from veilmeans.io.sources.column_encoding import EncodingRules
from veilmeans.io.sources.encode import encode_source
from veilmeans.io.sources.scaling import scale_columns
from veilmeans.io.sources.scan import scan_source
from veilmeans.io.sources.source_files import BatchLimits
from veilmeans.transforms.statistics.joint_statistics import moment_sums

LIMITS = BatchLimits(text_bytes=1 << 15, cells=50_000)
ROWS = 30_000
VALUES = np.random.default_rng(7).random((ROWS, 6)).round(9)
LOOK_UPS = 0.3
"""Bytes read for names, types and indices of archives, as a part of the file's size."""


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_with_undeclared_categories_and_exact_sums_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    columns: dict[str, Any] = {f"c{i}": VALUES[:, i] for i in range(6)}
    colours = [["red", "blue", None][i % 3] for i in range(ROWS)]
    source = write_table(tmp_path / f"t.{kind}", pa.table({**columns, "colour": colours}), rows=5000)
    counter = counted_reads(monkeypatch)
    rules = EncodingRules(one_hot=("colour",), missing="mean")
    scan = scan_source(source, (), None, rules=rules, exact_sums=moment_sums, limits=LIMITS)
    encode_source(scan, scale_by(scan), (-16, 16), 9000, tmp_path)
    size = Path(source).stat().st_size
    assert size <= counter.bytes[source] <= (2 + LOOK_UPS) * size


@pytest.mark.parametrize("columns", [(), ("0-2", "4")], ids=["all columns", "some columns"])
@pytest.mark.parametrize("name", ["zero.svm", "one.svm", "s.npz"])
def test_a_matrix_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, columns: tuple[str, ...]
) -> None:
    write_svmlight(tmp_path / "zero.svm", VALUES, base=0)
    write_svmlight(tmp_path / "one.svm", VALUES, base=1)
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(VALUES))
    source = str(tmp_path / name)
    counter = counted_reads(monkeypatch)
    scan = scan_source(source, columns, None, 6, limits=LIMITS)
    scaling = scale_columns(scan, "minmax", scan.low, scan.high, scan.mean, scan.deviation)
    encode_source(scan, scaling, (0, 1), 9000, tmp_path)
    size = Path(source).stat().st_size
    assert size <= counter.bytes[source] <= (2 + LOOK_UPS) * size
