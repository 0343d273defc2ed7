"""The ℓ largest values and the bits of values against sorting and Python integers: ties, shards, M = 2, 3, 4."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.primitive_checks import EDGES, FEW, PARTIES, parties, run_on_shares
from veilmeans.crypto import bits
from veilmeans.transforms.primitives.bit_decomposition import BitDecomposition, decompose


def decomposed(values: list[int], count: int, folder: Path, width: int, drop: int = 0) -> list[int]:
    """⌊x / 2^drop⌋ of each value, from its bits."""
    how = BitDecomposition("x", "bits", width, drop)
    outcome = run_on_shares(decompose(how, count), count, folder, x=np.array(values, np.uint64))
    assert outcome.names() == {"x", "bits"}
    planes = bits.unpack_rows(outcome.xor("bits"), len(values)).tolist()
    return [sum(bit << place for place, bit in enumerate(reversed(column))) for column in zip(*planes, strict=True)]


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("width", [2, 3, 5, 6])
def test_bits_of_few_exhaustively(tmp_path: Path, width: int, count: int) -> None:
    values = list(range(1 << width))
    assert decomposed(values, count, tmp_path, width) == values


@pytest.mark.parametrize("count", PARTIES)
def test_bits_at_every_edge(tmp_path: Path, count: int) -> None:
    assert decomposed(EDGES, count, tmp_path, 64) == EDGES


@FEW
@given(width=st.integers(2, 64), count=parties, data=st.data())
def test_bits_of_any_width_are_exact_below_what_is_dropped(
    tmp_path: Path, width: int, count: int, data: st.DataObject
) -> None:
    drop = data.draw(st.integers(0, width - 2))
    drawn = data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=70))
    values = [0, 1, 2**width - 1, *drawn]
    assert decomposed(values, count, tmp_path, width, drop) == [value >> drop for value in values]


@pytest.mark.parametrize(("width", "drop"), [(1, 0), (65, 0), (8, 7)])
def test_impossible_widths(width: int, drop: int) -> None:
    with pytest.raises(ValueError, match="not possible"):
        BitDecomposition("x", "bits", width, drop)
