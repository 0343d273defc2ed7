"""What a trace says a protocol will send, beside what a run sends."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from support.parties import NAMES, make_shares, run_parties
from support.share_and_multiply import share_and_multiply
from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Mul
from veilmeans.schemas.arrays import Arrays, from_stream, nbytes
from veilmeans.schemas.kmeans_config import ProductEnginesConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans import job_trace
from veilmeans.transforms.primitives.multiply import MULTIPLY
from veilmeans.transforms.primitives.share_and_open import OPEN
from veilmeans.transforms.rounds.interfaces import CorrelationNeed, Shapes
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import NotAffineError, StageTrace, extrapolate, trace, trace_rows


def shapes_of(states: list[Arrays]) -> list[Shapes]:
    return [{name: (array.shape, str(array.dtype)) for name, array in state.items()} for state in states]


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("protocol", [share_and_multiply(0, 1), share_and_multiply(0, 1) + OPEN], ids=lambda p: p.name)
def test_a_trace_says_the_bytes_that_a_run_sends(tmp_path: Path, parties: int, protocol: Protocol) -> None:
    states: list[Arrays] = [{"x": np.ones((7, i + 1), ring.DTYPE)} for i in range(parties)]
    _, board = run_parties(protocol, [{0: state} for state in states], tmp_path)
    sent: Counter[tuple[str, str]] = Counter()
    for key, payload in board.messages.items():
        sent[key.address.stage, key.sender] += nbytes(from_stream(payload))
    traced = trace(protocol, shapes_of(states))
    assert {(stage.name, NAMES[i]): n for stage in traced for i, n in enumerate(stage.sent)} == dict(sent)


def test_a_trace_says_which_triples_are_needed() -> None:
    traced = trace(share_and_multiply(0, 1), [{"x": ((7, 2), "uint64")}] * 3)
    assert [(stage.name, stage.needs) for stage in traced] == [
        ("sums.00.share", ()),
        ("sums.01.multiply", (CorrelationNeed("", Mul(3, (7, 1))),)),
    ]
    assert traced[1].sent == (2 * 2 * 7 * 8,) * 3  # e and f of seven rows to two peers
    shares = make_shares(np.zeros(4, ring.DTYPE), 2)
    chain = trace(MULTIPLY * 3, shapes_of([{"x": share, "y": share} for share in shares]))
    assert [stage.needs for stage in chain] == [(CorrelationNeed("", Mul(2, (4,))),)] * 3


# Many rows from a few.
@settings(deadline=None, max_examples=20)
@given(
    st.integers(140, 700),
    st.integers(1, 5),
    st.sampled_from([vertical(700, (2, 3), 700), vertical(700, (1, 2, 1), 700), horizontal((700, 700), 2, 700)]),
    st.sampled_from(["beaver", "he", {"payco": ProductEnginesConfig(distance="he", update="beaver")}]),
)
def test_what_is_carried_on_is_what_would_be_traced(rows: int, k: int, layout: Layout, products: Any) -> None:
    kmeans = kmeans_for(layout, k, products=products)
    row_shapes = tuple(row_shard.shape for row_shard in layout.row_shards())
    shapes = (row_shapes[0], *job_trace._shards_of_others(row_shapes[0], row_shapes))
    trace_of = partial(job_trace._trace, kmeans, shapes, job_trace._column_shapes(kmeans), {}, None, None)
    assert trace_rows(trace_of, rows, job_trace._period(kmeans)) == trace_of(rows)


def test_shapes_that_do_not_grow_evenly_are_traced_as_they_are() -> None:
    for shape in (lambda rows: (rows * rows,), lambda rows: (rows,) * (1 + rows % 16 // 8)):
        shapes = [{"x": (shape(200), "uint64"), "y": (shape(200), "uint64")}] * 2

        def of(rows: int, shape: Callable[[int], tuple[int, ...]] = shape) -> tuple[StageTrace, ...]:
            return tuple(trace(MULTIPLY, [{"x": (shape(rows), "uint64"), "y": (shape(rows), "uint64")}] * 2))

        assert trace_rows(of, 200, 8) == tuple(trace(MULTIPLY, shapes))


def test_numbers_are_carried_on_through_tuples_and_dataclasses() -> None:
    one, two = (CorrelationNeed("s", Mul(2, (rows, 3))) for rows in (8, 16))
    assert extrapolate((one, "x", 5), (two, "x", 4), 3) == (CorrelationNeed("s", Mul(2, (32, 3))), "x", 2)
    for first, second in ((1, "1"), ("a", "b"), ((1,), (1, 2)), (1.5, 2.5)):
        with pytest.raises(NotAffineError):
            extrapolate(first, second, 3)
