"""A choice by secret weights against the inverse CDF of integers."""

from functools import reduce
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parties import make_shares
from support.primitive_checks import FEW, parties, run_on_shares
from support.transcripts import InStepRun, seeds_of
from veilmeans.crypto import ring
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.products.cross_product import shape_to_state
from veilmeans.transforms.statistics.weighted_choice import choose, draw, limit

MOST = 2**31 - 1
small = st.integers(0, 3)
weights = st.lists(st.one_of(small, st.integers(0, MOST // 40)), min_size=1, max_size=12)


def chosen_in_the_clear(rows: list[int], drawn: int) -> int:
    """The first row whose prefix sum exceeds drawn·T / 2^31; the last one if none does."""
    limited = drawn * sum(rows)
    up_to = np.cumsum(rows).tolist()
    return next((i for i, each in enumerate(up_to) if each << 31 > limited), len(rows) - 1)


@FEW
@given(st.lists(weights, min_size=1, max_size=3), st.integers(0, MOST), parties)
@pytest.mark.parametrize("edge", [None, 0, MOST])
def test_the_row_is_that_of_the_inverse_cdf(
    tmp_path: Path, edge: int | None, shards: list[list[int]], drawn: int, parties: int
) -> None:
    """Two choices at once: of these weights, and of the same in reverse order."""
    drawn = drawn if edge is None else edge
    rows = [row for shard in shards for row in shard]
    both = [rows, rows[::-1]]
    cuts = np.cumsum([0, *map(len, shards)])
    parts = [np.array([each[a:b] for each in both], np.uint64) for a, b in pairwise(cuts)]
    sums = np.stack([part.sum(axis=1) for part in parts])
    ends = run_on_shares(limit(), parties, tmp_path / "limit", r=np.full(2, drawn), sums=sums)
    before, t = ends.total("before"), ends.total("t")
    hot = []
    for number, part in enumerate(parts):
        protocol = choose(len(parts) - 1, parties)
        runs = InStepRun(
            protocol, shared_with_number(parties, number, v=part, before=before[number], t=t), seeds_of(number, parties)
        )
        runs.run()
        hot.append(ring.total(state["hot"] for state in runs.states))
    found = np.concatenate(hot)
    assert found.sum(axis=0).tolist() == [1, 1]
    assert found.argmax(axis=0).tolist() == [chosen_in_the_clear(each, drawn) for each in both]


def shared_with_number(parties: int, number: int, **values: ring.Ring) -> list[dict[str, np.ndarray]]:
    shares = {name: make_shares(value, parties, seed=3) for name, value in values.items()}
    about = {"number": np.array([number]), **shape_to_state(ShardShape(values["v"].shape[1]))}
    return [{**about, **{name: each[i] for name, each in shares.items()}} for i in range(parties)]


@settings(max_examples=10, deadline=None)
@given(parties, st.integers(1, 5), st.integers(0, 2**32))
def test_a_drawn_number_is_the_xor_of_all_parties_bits(parties: int, choices: int, run: int) -> None:
    """None of the parties determines a bit."""
    run_ = InStepRun(draw(choices), [{}] * parties, seeds_of(run, parties))
    (transcript,) = run_.run().values()
    own = [transcript.randomness[i]["draw"] & np.uint64(1) for i in range(parties)]
    bits = reduce(np.bitwise_xor, own).reshape(choices, 31)
    expected = [int("".join(map(str, each[::-1])), 2) for each in bits.tolist()]
    assert ring.total(state["r"] for state in run_.states).tolist() == expected


def test_drawn_numbers_are_spread_over_their_range() -> None:
    """In each eighth of the range an eighth of 4,096 numbers; seven deviations have a probability below 10^-11."""
    run = InStepRun(draw(4096), [{}, {}], seeds_of("many", 2))
    run.run()
    drawn = ring.total(state["r"] for state in run.states)
    assert drawn.max() <= MOST
    counts = np.bincount((drawn >> np.uint64(28)).astype(int), minlength=8)
    assert np.abs(counts - 512).max() < 7 * (4096 * 7 / 64) ** 0.5
