"""The needs of a job: of each shard by its own shape, of steps that run once in the first iteration."""

from collections.abc import Sequence

import pytest

from veilmeans.crypto.correlations import MatMul, Mul, Operand
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.offline.traced_job import JobStep, TracedJob, When
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.products.cross_product import CrossProduct, cross, mask_operand, shape_to_state
from veilmeans.transforms.rounds.executor import Over
from veilmeans.transforms.rounds.interfaces import Shapes
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import trace

K = 3
PRODUCT = cross(CrossProduct("y", "d")).named("product")
ROWS = (ShardShape(2), ShardShape(2), ShardShape(1))


def column_shapes(*widths: int) -> tuple[ShardShape, ...]:
    """Column shards of K centroids."""
    return tuple(ShardShape(K, (width,)) for width in widths)


def job(*steps: tuple[str, Over, When], rows: Sequence[ShardShape] = ROWS, widths: Sequence[int] = (4,)) -> TracedJob:
    """A job whose steps multiply as many values as a shard has."""
    columns = column_shapes(*widths)
    shapes = {Over.ROWS: rows, Over.COLUMNS: columns, Over.ONE: (ShardShape(sum(shape.rows for shape in rows)),)}
    made = []
    for name, over, when in steps:
        protocol = multiply("x", "x", "z").named(name)
        arrays: dict[ShardShape, Shapes] = {
            shape: {"x": ((shape.rows, *shape.widths), "uint64")} for shape in shapes[over]
        }
        stages = {shape: tuple(trace(protocol, [each] * 2)) for shape, each in arrays.items()}
        made.append(JobStep(name, "", "", over, when, (), stages))
    return TracedJob(tuple(rows), columns, tuple(made))


def kinds(traced: TracedJob, shard: int, iteration: int) -> dict[str, list[object]]:
    return {name: [need.kind for need in needs] for name, needs in traced.needs(shard, iteration).items()}


def test_steps_that_run_once_need_the_first_iteration_and_single_elements_the_first_shard() -> None:
    traced = job(
        ("always", Over.ROWS, "iteration"),
        ("once", Over.ROWS, "once"),
        ("each", Over.ONE, "iteration"),
        ("first", Over.ONE, "once"),
        ("opening", Over.ROWS, "end"),
    )
    for shard, rows in enumerate((2, 2, 1)):
        sharded: dict[str, list[object]] = {"always.00.multiply": [Mul(2, (rows,))]}
        single: dict[str, list[object]] = {"each.00.multiply": [Mul(2, (5,))]} if shard == 0 else {}
        first: dict[str, list[object]] = {"first.00.multiply": [Mul(2, (5,))]} if shard == 0 else {}
        once = {"once.00.multiply": [Mul(2, (rows,))]}
        assert kinds(traced, shard, 0) == {**sharded, **once, **single, **first}
        assert kinds(traced, shard, 1) == kinds(traced, shard, 2) == {**sharded, **single}


def test_stages_are_counted_by_the_shape_of_their_shards() -> None:
    traced = job(("always", Over.ROWS, "iteration"), ("each", Over.ONE, "iteration"))
    counted = [[(count, stage.sent) for count, stage in traced.stage_counts(step)] for step in traced.steps]
    assert counted == [[(2, (32, 32)), (1, (16, 16))], [(1, (80, 80))]]


@pytest.mark.parametrize("widths", [(4,), (4, 4), (4, 4, 4, 1)])
def test_the_store_has_as_many_shards_as_the_kind_that_has_more(widths: tuple[int, ...]) -> None:
    steps = (("rows", Over.ROWS, "iteration"), ("columns", Over.COLUMNS, "iteration"), ("norms", Over.COLUMNS, "once"))
    traced = job(*steps, rows=(ShardShape(2), ShardShape(1)), widths=widths)
    assert (traced.store_shards, traced.rows) == (max(2, len(widths)), 3)
    for shard in range(traced.store_shards):
        expected: dict[str, list[object]] = {}
        if shard < 2:
            expected["rows.00.multiply"] = [Mul(2, ((2, 1)[shard],))]
        if shard < len(widths):
            expected["columns.00.multiply"] = [Mul(2, (K, widths[shard]))]
        norms = {"norms.00.multiply": [Mul(2, (K, widths[shard]))]} if shard < len(widths) else {}
        assert [kinds(traced, shard, i) for i in (0, 1)] == [{**expected, **norms}, expected]


def matrices(shape: ShardShape) -> Sequence[Shapes]:
    """Everyone's own matrix, the others' masked ones, and right operands for all."""
    own = [((shape.rows, width), "uint64") for width in shape.widths]
    right: Shapes = {f"y{i}": ((width, K), "uint64") for i, width in enumerate(shape.widths)}
    masked = [{f"e{i}": other for i, other in enumerate(own) if i != me} for me in range(len(own))]
    return [{**shape_to_state(shape), "x": own[me], **right, **masked[me]} for me in range(len(own))]


def product_job(*shapes: ShardShape) -> TracedJob:
    protocols: dict[str, tuple[Protocol, When]] = {
        "operand": (mask_operand(frozenset(range(2))), "once"),
        "product": (PRODUCT, "iteration"),
    }
    steps = [
        JobStep(name, "", "", Over.ROWS, when, (), {shape: tuple(trace(each, matrices(shape))) for shape in shapes})
        for name, (each, when) in protocols.items()
    ]
    return TracedJob(shapes, (), tuple(steps))


def test_shards_of_other_widths_need_what_their_owners_need() -> None:
    """Vertical: all own columns. Horizontal: one owner, and the others' empty matrices need nothing."""
    traced = product_job(ShardShape(4, (2, 5)), ShardShape(4, (7, 0)), ShardShape(3, (0, 7)))
    for shard, (rows, owned) in enumerate(((4, {0: 2, 1: 5}), (4, {0: 7}), (3, {1: 7}))):
        first, later = kinds(traced, shard, 0), kinds(traced, shard, 1)
        operands = first.pop("operand.00.operand")
        assert operands == [Operand(i, 1 - i, (rows, width), "operand") for i, width in owned.items()]
        assert first == later
        products = {MatMul(i, 1 - i, rows, width, K, "operand", False) for i, width in owned.items()}
        assert set(later["product.00.cross"]) == products


def test_a_digest_differs_with_everything_that_changes_what_a_store_must_hold() -> None:
    a: tuple[str, Over, When] = ("a", Over.ROWS, "iteration")
    columns: tuple[str, Over, When] = ("b", Over.COLUMNS, "iteration")
    jobs = [
        job(a),
        job(a, rows=(ShardShape(3), ShardShape(2))),
        job(a, rows=(ShardShape(2),) * 3),
        job(("b", Over.ROWS, "iteration")),
        job(("a", Over.ROWS, "once")),
        job(("a", Over.ONE, "iteration")),
        job(a, ("b", Over.ONE, "iteration")),
        *(job(a, columns, widths=widths) for widths in ((4,), (4, 4), (4, 3), (3, 4))),
        product_job(ShardShape(4, (7, 0)), ShardShape(4, (0, 7))),
        product_job(ShardShape(4, (0, 7)), ShardShape(4, (7, 0))),
        product_job(ShardShape(4, (7, 0)), ShardShape(4, (0, 6))),
    ]
    assert len({each.digest() for each in jobs}) == len(jobs)
    assert job(a).digest() == jobs[0].digest()
