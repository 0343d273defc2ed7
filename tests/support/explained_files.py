"""Files of explanations, against the same parts in the clear."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from veilmeans.schemas.arrays import Array, Arrays, Real
from veilmeans.transforms.openings.score_parts import OTHER_PARTIES


@dataclass(frozen=True)
class Explained:
    """All rows in the clear: x − μ on the common scale and its units; the columns and rows of one party."""

    columns: Sequence[str]
    own_columns: Sequence[int]
    moved: Real
    unit: Real
    labels: Array
    own_rows: slice

    @classmethod
    def of(
        cls,
        data: Real,
        centroids: Real,
        labels: Array,
        width: Real,
        columns: Sequence[str],
        own: Sequence[int],
        rows: slice,
    ) -> "Explained":
        """`width`: of each column, 1 on the common scale; 0: it is constant."""
        unit = np.where(width == 0, 1, width)
        return cls(columns, own, (data - centroids[labels]) / unit, unit, labels, rows)


def check_explanations(file: str, clear: Explained, outliers: int, others: bool) -> None:
    """Check each own column's part of the outliers' scores, and that all parts add up to the score."""
    table = pq.read_table(file)
    scores, mine = (clear.moved**2).sum(axis=1), clear.own_rows
    rows = [row for row in np.argsort(-scores)[:outliers].tolist() if mine.start <= row < mine.stop]
    assert set(table["row"].to_pylist()) == {row - mine.start for row in rows}
    names = {clear.columns[column]: column for column in clear.own_columns}
    for row in rows:
        lines = table.filter(pc.equal(table["row"], row - mine.start)).to_pylist()
        parts = {line["column"]: line["contribution"] for line in lines}
        assert parts.keys() == {*names, *([OTHER_PARTIES] if others else [])}
        for line in lines:
            assert line["cluster"] == clear.labels[row]
            if line["column"] in names:
                column = names[line["column"]]
                moved, unit = clear.moved[row, column], clear.unit[column]
                assert line["contribution"] == pytest.approx(moved**2, abs=1e-3)
                assert line["difference"] == pytest.approx(moved * unit, abs=1e-3 * unit)
        assert sum(parts.values()) == pytest.approx(scores[row], abs=1e-3)
        assert sum(line["share"] for line in lines) == pytest.approx(1)


def check_explaining(stage: str, arrays: Arrays, named: bool, mine: bool, whole: bool, columns: int) -> None:
    """Check that a message of explanations has what its recipient may know; `mine`: the rows are the recipient's."""
    if stage.startswith("reveal-explanations"):
        assert set(arrays) == ({"explained", *(["explained.score"] if whole else [])} if named and mine else set())
    else:
        assert {name: array.shape[1] for name, array in arrays.items()} == ({"mu": columns} if named else {})
