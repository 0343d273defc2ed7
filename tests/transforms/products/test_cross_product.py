"""Cross products with a fixed operand against numpy, plain and transposed, unequal columns or none, M = 2, 3, 4."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from support.parties import NAMES, make_shares, reconstruct, run_parties, shapes_of
from support.primitive_checks import PARTIES
from veilmeans.crypto.correlations import MatMul, Operand
from veilmeans.schemas.arrays import Arrays, from_stream
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.layout import ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.products.cross_product import CrossProduct, cross, mask_operand, shape_to_state
from veilmeans.transforms.rounds.protocol import Inbox
from veilmeans.transforms.rounds.trace import ShapeRecorder, trace

EVERYONE = frozenset(range(4))
PRODUCTS = cross(CrossProduct("y", "d")) + cross(CrossProduct("c", "s", transposed=True))
BOTH = (mask_operand(EVERYONE) + PRODUCTS).named("both")


def matrices(
    count: int, rows: int, k: int, widths: Sequence[int] = (2, 5, 1, 4)
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, list[dict[int, Arrays]]]:
    """Make each party's X, the right operands Y_i and C, and the parties' states."""
    rng = np.random.default_rng(count)
    widths = widths[:count]
    x = [rng.integers(0, 2**64, (rows, d), np.uint64) for d in widths]
    y = [rng.integers(0, 2**64, (d, k), np.uint64) for d in widths]
    c = rng.integers(0, 2**64, (rows, k), np.uint64)
    y_shares, c_shares = [make_shares(each, count, i) for i, each in enumerate(y)], make_shares(c, count, 50)
    states: list[dict[int, Arrays]] = []
    for p in range(count):
        right = {f"y{i}": shares[p] for i, shares in enumerate(y_shares)}
        shape = shape_to_state(ShardShape(rows, tuple(widths)))
        states.append({0: {**shape, "x": x[p], **right, **{f"c{i}": c_shares[p] for i in range(count)}}})
    return x, y, c, states


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("rows", [1, 23])
def test_products_with_every_owners_matrix(tmp_path: Path, count: int, rows: int) -> None:
    x, y, c, states = matrices(count, rows, k=3)
    after, _ = run_parties(BOTH, states, tmp_path)
    for i in range(count):
        np.testing.assert_array_equal(reconstruct(after, 0, f"d{i}"), x[i] @ y[i])
        np.testing.assert_array_equal(reconstruct(after, 0, f"s{i}"), x[i].T @ c)


def test_the_matrix_is_sent_once_and_then_only_right_operands() -> None:
    states = matrices(2, 1000, k=3)[3]
    shapes = [shapes_of(state[0]) for state in states]
    protocol = mask_operand(EVERYONE) + cross(CrossProduct("y", "d")) * 3
    operand, *products = trace(protocol.named("products"), shapes)
    assert operand.sent == (1000 * 2 * 8, 1000 * 5 * 8)
    assert all(stage.sent == (5 * 3 * 8, 2 * 3 * 8) for stage in products)


# horizontal: not all parties own columns of a shard
OWNERS = [(4, 0), (0, 3), (0, 0), (4, 0, 0), (0, 0, 2), (3, 0, 2)]


@pytest.mark.parametrize("widths", OWNERS, ids=str)
def test_a_party_without_columns_takes_part_in_the_products_of_the_others(
    tmp_path: Path, widths: tuple[int, ...]
) -> None:
    x, y, c, states = matrices(len(widths), 9, k=3, widths=widths)
    after, _ = run_parties(BOTH, states, tmp_path)
    for i, width in enumerate(widths):
        np.testing.assert_array_equal(reconstruct(after, 0, f"d{i}"), x[i] @ y[i])
        np.testing.assert_array_equal(reconstruct(after, 0, f"s{i}"), x[i].T @ c)
        assert reconstruct(after, 0, f"d{i}").shape == (9, 3)
        assert reconstruct(after, 0, f"s{i}").shape == (width, 3)


@pytest.mark.parametrize("widths", OWNERS, ids=str)
def test_nothing_is_sent_for_a_matrix_without_columns(tmp_path: Path, widths: tuple[int, ...]) -> None:
    states = matrices(len(widths), 9, k=3, widths=widths)[3]
    _, exchange = run_parties(BOTH, states, tmp_path)
    owners = {NAMES[i] for i, width in enumerate(widths) if width}
    for key, payload in exchange.messages.items():
        owner = key.sender if key.address.stage.endswith("operand") else key.recipient
        assert bool(from_stream(payload)) == (owner in owners)


@pytest.mark.parametrize("widths", OWNERS, ids=str)
def test_a_matrix_without_columns_needs_no_triples(widths: tuple[int, ...]) -> None:
    states = matrices(len(widths), 9, k=3, widths=widths)[3]
    shapes = [shapes_of(state[0]) for state in states]
    owned = {i: width for i, width in enumerate(widths) if width}
    pairs = [(i, j) for i in owned for j in range(len(widths)) if i != j]
    operand, plain, transposed = trace(BOTH, shapes)
    assert {need.kind for need in operand.needs} == {Operand(i, j, (9, widths[i]), "operand") for i, j in pairs}
    assert {need.kind for need in plain.needs} == {MatMul(i, j, 9, widths[i], 3, "operand", False) for i, j in pairs}
    assert {need.kind for need in transposed.needs} == {
        MatMul(i, j, widths[i], 9, 3, "operand", True) for i, j in pairs
    }
    others = len(widths) - 1
    assert operand.sent == tuple(8 * 9 * width * others for width in widths)
    assert plain.sent == tuple(8 * 3 * sum(owned[i] for i in owned if i != me) for me in range(len(widths)))
    assert transposed.sent == tuple(8 * 3 * 9 * len(owned.keys() - {me}) for me in range(len(widths)))


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((8, 2), np.uint64), np.zeros((9, 2), np.uint8), np.zeros(9, np.uint64), np.zeros((9, 1, 2), np.uint64)],
    ids=lambda matrix: f"{matrix.dtype} {matrix.shape}",
)
def test_a_masked_matrix_of_wrong_shape_or_type_is_refused(matrix: np.ndarray) -> None:
    (step,) = mask_operand(EVERYONE).rounds
    party = Party(0, ("payco", "shop"))
    mine: Arrays = {"x": np.zeros((9, 1), np.uint64), **shape_to_state(ShardShape(9, (1, 2)))}
    right = {"e": np.ones((9, 2), np.uint64)}
    assert step.receive(party, mine, Inbox(party, {1: right}), ShapeRecorder())["e1"].shape == (9, 2)
    with pytest.raises(RefusedError, match=r"shop sent .* as 'e'"):
        step.receive(party, mine, Inbox(party, {1: {"e": matrix}}), ShapeRecorder())
