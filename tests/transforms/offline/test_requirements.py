"""What a plan asks of the triple store: of each shard by its own shape, of one-off work once, and the same for all."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.crypto.correlations import MatMul, Mul, Operand
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.offline.requirements import Over, StepShapes, StoreRequirements
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.products.cross_product import CrossProduct, cross, mask_operand, shape_to_state
from veilmeans.transforms.rounds.interfaces import CorrelationNeed
from veilmeans.transforms.rounds.trace import Shapes

K = 3
PRODUCT = cross(CrossProduct("y", "d")).named("product")


def a_product(name: str, over: Over = Over.ROWS, first: bool = False) -> StepShapes:
    """One multiplication of as many values as a block has rows, and columns where they are told."""

    def shapes(block: ShardShape) -> Sequence[Shapes]:
        return [{"x": ((block.rows, *block.widths), "uint64")}] * 2

    return StepShapes(multiply("x", "x", "z").named(name), shapes, over, first)


def matrices(block: ShardShape) -> Sequence[Shapes]:
    """Everyone's own matrix, the others' masked ones, and right operands for all."""
    own = [((block.rows, width), "uint64") for width in block.widths]
    right: Shapes = {f"y{i}": ((width, K), "uint64") for i, width in enumerate(block.widths)}
    shape = shape_to_state(block)
    masked = [{f"e{i}": other for i, other in enumerate(own) if i != me} for me in range(len(own))]
    return [{**shape, "x": own[me], **right, **masked[me]} for me in range(len(own))]


def asked(plan: StoreRequirements, shard: int, iteration: int) -> dict[str, list[object]]:
    return {name: [need.kind for need in needs] for name, needs in plan.needs(shard, iteration).items()}


@given(st.integers(1, 50), st.integers(1, 60))
def test_rows_are_cut_into_shards_of_which_only_the_last_is_shorter(rows: int, rows_per_shard: int) -> None:
    plan = StoreRequirements.of_rows((a_product("all"),), rows, rows_per_shard)
    lengths = [block.rows for block in plan.blocks]
    assert (plan.rows, plan.shards) == (sum(lengths), len(lengths)) == (rows, -(-rows // rows_per_shard))
    assert all(length == rows_per_shard for length in lengths[:-1])
    for shard, length in enumerate(lengths):
        assert plan.needs(shard, 0) == {"all.00.multiply": (CorrelationNeed("", Mul(2, (length,))),)}


def test_first_work_is_asked_for_in_the_first_iteration_and_single_work_in_the_first_shard() -> None:
    works = (
        a_product("always"),
        a_product("once", first=True),
        a_product("each", Over.ONE),
        a_product("start", Over.ONE, first=True),
    )
    plan = StoreRequirements.of_rows(works, rows=5, rows_per_shard=2)
    found = {(shard, i): asked(plan, shard, i) for shard in range(3) for i in range(3)}
    for shard, rows in enumerate((2, 2, 1)):
        sharded: dict[str, list[object]] = {"always.00.multiply": [Mul(2, (rows,))]}
        single: dict[str, list[object]] = {"each.00.multiply": [Mul(2, (5,))]} if shard == 0 else {}
        started: dict[str, list[object]] = {"start.00.multiply": [Mul(2, (5,))]} if shard == 0 else {}
        assert found[shard, 0] == {**sharded, "once.00.multiply": [Mul(2, (rows,))], **single, **started}
        assert found[shard, 1] == found[shard, 2] == {**sharded, **single}


def test_the_stages_of_an_iteration_are_told_apart_by_shard_and_single_work() -> None:
    works = (a_product("once", first=True), a_product("each", Over.ONE), a_product("always"))
    plan = StoreRequirements.of_rows(works, rows=5, rows_per_shard=2)
    for iteration, sharded in enumerate((["once", "always"], ["always"])):
        for over, block, names in ((Over.ROWS, ShardShape(1), sharded), (Over.ONE, ShardShape(5), ["each"])):
            assert [stage.name.split(".")[0] for stage in plan.traces(over, block, iteration)] == names
        counted = [(count, stage.name.split(".")[0], stage.sent) for count, stage in plan.counted(iteration)]
        alike = [(count, name, (16 * rows,) * 2) for count, rows in ((2, 2), (1, 1)) for name in sharded]
        assert counted == [*alike, (1, "each", (80, 80))]


def tables(*widths: int) -> tuple[ShardShape, ...]:
    """Column shards of K centroids."""
    return tuple(ShardShape(K, (width,)) for width in widths)


@pytest.mark.parametrize("widths", [(4,), (4, 4), (4, 4, 4, 1)])
def test_column_shards_ask_beside_row_shards(widths: tuple[int, ...]) -> None:
    """The store has as many shards as there are of the kind that has more."""
    works = (a_product("rows"), a_product("columns", Over.COLUMNS), a_product("norms", Over.COLUMNS, first=True))
    plan = StoreRequirements((*works, a_product("each", Over.ONE)), (ShardShape(2), ShardShape(1)), tables(*widths))
    assert (plan.shards, plan.rows) == (max(2, len(widths)), 3)
    for shard in range(plan.shards):
        found = {i: asked(plan, shard, i) for i in (0, 1)}
        expected: dict[str, list[object]] = {}
        if shard < 2:
            expected["rows.00.multiply"] = [Mul(2, ((2, 1)[shard],))]
        if shard < len(widths):
            expected["columns.00.multiply"] = [Mul(2, (K, widths[shard]))]
        if shard == 0:
            expected["each.00.multiply"] = [Mul(2, (3,))]
        norms = {"norms.00.multiply": [Mul(2, (K, widths[shard]))]} if shard < len(widths) else {}
        assert found == {0: {**expected, **norms}, 1: expected}


def test_shards_of_other_widths_ask_for_what_their_owners_need() -> None:
    """Vertical: all own columns. Horizontal: one owner, and nothing is asked for the others' empty matrices."""
    blocks = (ShardShape(4, (2, 5)), ShardShape(4, (7, 0)), ShardShape(3, (0, 7)))
    plan = StoreRequirements(
        (StepShapes(mask_operand(frozenset(range(2))), matrices, first=True), StepShapes(PRODUCT, matrices)), blocks
    )
    assert (plan.rows, plan.shards) == (11, 3)
    for shard, (rows, owned) in enumerate(((4, {0: 2, 1: 5}), (4, {0: 7}), (3, {1: 7}))):
        first, later = asked(plan, shard, 0), asked(plan, shard, 1)
        operands = first.pop("operand.00.operand")
        assert operands == [Operand(i, 1 - i, (rows, width), "operand") for i, width in owned.items()]
        assert first == later
        products = {MatMul(i, 1 - i, rows, width, K, "operand", False) for i, width in owned.items()}
        assert set(later["product.00.cross"]) == products


def test_a_digest_tells_works_and_shapes_apart() -> None:
    """Equal for a plan made again; another for everything that changes what a store must hold, or where."""
    plans = [
        StoreRequirements.of_rows((a_product("a"),), 5, 2),
        StoreRequirements.of_rows((a_product("a"),), 5, 3),
        StoreRequirements.of_rows((a_product("a"),), 6, 2),
        StoreRequirements.of_rows((a_product("b"),), 5, 2),
        StoreRequirements.of_rows((a_product("a", first=True),), 5, 2),
        StoreRequirements.of_rows((a_product("a", Over.ONE),), 5, 2),
        StoreRequirements.of_rows((a_product("a", Over.ONE, first=True),), 5, 2),
        StoreRequirements.of_rows((a_product("a"), a_product("b", Over.ONE)), 5, 2),
        *(
            StoreRequirements(
                (a_product("a"), a_product("b", Over.COLUMNS)), (ShardShape(2), ShardShape(1)), tables(*widths)
            )
            for widths in ((4,), (4, 4), (4, 3), (3, 4))
        ),
        *(
            StoreRequirements((StepShapes(PRODUCT, matrices),), blocks)
            for blocks in (
                (ShardShape(4, (7, 0)), ShardShape(4, (0, 7))),
                (ShardShape(4, (0, 7)), ShardShape(4, (7, 0))),
                (ShardShape(4, (7, 0)), ShardShape(4, (7, 0))),
                (ShardShape(4, (7, 0)), ShardShape(4, (0, 6))),
            )
        ),
    ]
    assert len({plan.digest() for plan in plans}) == len(plans)
    assert [StoreRequirements(plan.works, plan.blocks, plan.columns).digest() for plan in plans] == [
        plan.digest() for plan in plans
    ]
    assert plans[0].digest() == StoreRequirements.of_rows((a_product("a"),), 5, 2).digest()
