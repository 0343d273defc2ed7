"""Cross products with a fixed operand against numpy, plain and transposed, unequal columns, M = 2, 3, 4."""

from pathlib import Path

import numpy as np
import pytest

from arithmetic import PARTIES
from parties import joined, run_parties, split
from veilmeans.schemas.arrays import Arrays
from veilmeans.transforms.cross import CrossProduct, cross, mask_operand
from veilmeans.transforms.trace import trace


def matrices(
    count: int, rows: int, k: int
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, list[dict[int, Arrays]]]:
    """Each party's X, the right operands Y_i and C, and the parties' states."""
    rng = np.random.default_rng(count)
    widths = [2, 5, 1, 4][:count]
    x = [rng.integers(0, 2**64, (rows, d), np.uint64) for d in widths]
    y = [rng.integers(0, 2**64, (d, k), np.uint64) for d in widths]
    c = rng.integers(0, 2**64, (rows, k), np.uint64)
    y_shares, c_shares = [split(each, count, i) for i, each in enumerate(y)], split(c, count, 50)
    states: list[dict[int, Arrays]] = []
    for p in range(count):
        right = {f"y{i}": shares[p] for i, shares in enumerate(y_shares)}
        states.append({0: {"x": x[p], **right, **{f"c{i}": c_shares[p] for i in range(count)}}})
    return x, y, c, states


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("rows", [1, 23])
def test_every_owner_s_product(tmp_path: Path, count: int, rows: int) -> None:
    x, y, c, states = matrices(count, rows, k=3)
    protocol = mask_operand() + cross(CrossProduct("y", "d")) + cross(CrossProduct("c", "s", transposed=True))
    after, _ = run_parties(protocol.named("products"), states, tmp_path)
    for i in range(count):
        np.testing.assert_array_equal(joined(after, 0, f"d{i}"), x[i] @ y[i])
        np.testing.assert_array_equal(joined(after, 0, f"s{i}"), x[i].T @ c)


def test_the_matrix_crosses_once_and_only_the_right_operand_after_that() -> None:
    states = matrices(2, 1000, k=3)[3]
    shapes = [{name: (array.shape, "uint64") for name, array in state[0].items()} for state in states]
    protocol = mask_operand() + cross(CrossProduct("y", "d")) * 3
    operand, *products = trace(protocol.named("products"), shapes)
    assert operand.sent == (1000 * 2 * 8, 1000 * 5 * 8)
    assert all(stage.sent == (5 * 3 * 8, 2 * 3 * 8) for stage in products)
