"""Moments against exact fractions and extremes against numpy, M = 2, 3, 4; and what the peers see of them."""

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.parties import run_parties
from support.primitive_checks import PARTIES
from support.transcripts import (
    Case,
    Transcripts,
    byte_chi_square,
    masks_of,
    misused_masks,
    not_uniform,
    record,
    related,
    two_samples,
)
from support.uniformity import LIMIT as UNLIKELY
from veilmeans.crypto import ring
from veilmeans.crypto import wide_ring as wide
from veilmeans.crypto.wide_ring import WORDS
from veilmeans.schemas.arrays import Arrays, Real, from_stream
from veilmeans.schemas.errors import InputError, RefusedError
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import trace
from veilmeans.transforms.statistics import joint_statistics as statistics
from veilmeans.transforms.statistics.joint_statistics import MOMENTS, extremes

LARGEST = np.finfo(np.float64).max
CORNERS = [0.0, -0.0, 5e-324, -5e-324, 2.3e-308, 1e-6, 0.1, 1.0, -1.0, 1 / 3, 1e9, -1e9, 1.8e19, -1.8e19]
in_range = st.sampled_from(CORNERS) | st.floats(-(2.0**63), 2.0**63)
finite = st.sampled_from([*CORNERS, LARGEST, -LARGEST]) | st.floats(allow_nan=False, allow_infinity=False)
a_few = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def names(d: int) -> list[str]:
    return [f"c{i}" for i in range(d)]


def opened(protocol: Protocol, own: Sequence[ring.Ring], folder: Path) -> ring.Ring:
    """What all parties have at the end; nothing but "x", and all the same."""
    states, _ = run_parties(protocol, [{0: {"x": x}} for x in own], folder)
    assert [set(state[0]) for state in states] == [{"x"}] * len(own)
    for state in states[1:]:
        np.testing.assert_array_equal(state[0]["x"], states[0][0]["x"])
    return states[0][0]["x"]


# Mean and deviation.
def exactly(column: Sequence[float]) -> tuple[int, int]:
    """Σ x̂ and Σ x̂² in Python's integers."""
    x = [round(Fraction(each) * 2**64) for each in column]
    return sum(x), sum(each * each for each in x)


@given(st.lists(st.tuples(in_range, in_range), max_size=12), st.integers(0, 12))
def test_sums_are_exact_however_the_rows_are_cut(rows: list[tuple[float, float]], cut: int) -> None:
    x = np.array(rows).reshape(-1, 2)
    parts = [statistics.moment_sums(part, names(2)) for part in (x[:cut], x[cut:])]
    found = wide.to_integers(wide.add(*parts))
    assert [tuple(each) for each in found.T] == [exactly(x[:, i].tolist()) for i in range(2)]


def test_sums_of_many_rows_of_many_sizes_are_exact() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(5000, 3)) * 2.0 ** rng.integers(-60, 60, (5000, 3))
    found = wide.to_integers(statistics.moment_sums(x, names(3)))
    assert [tuple(each) for each in found.T] == [exactly(x[:, i].tolist()) for i in range(3)]


@a_few
@given(st.sampled_from(PARTIES), st.lists(st.lists(in_range, min_size=4, max_size=4), min_size=4, max_size=9))
def test_moments_of_all_rows_are_those_of_the_rows_in_one_hand(
    tmp_path: Path, count: int, rows: list[list[float]]
) -> None:
    x = np.array(rows)
    own = [statistics.moment_sums(part, names(4)) for part in np.array_split(x, count)]
    totals = opened(MOMENTS, own, tmp_path)
    np.testing.assert_array_equal(totals, statistics.moment_sums(x, names(4)))


@pytest.mark.parametrize("count", PARTIES)
def test_mean_and_deviation_of_columns_of_very_different_size(tmp_path: Path, count: int) -> None:
    scales, shifts = np.array([1e-12, 1e-6, 1.0, 1e9, 1.0, 0.0, 1e-3]), np.array([0, 0, 0, 0, 1e9, 7.1, -1e6])
    x = shifts + scales * np.random.default_rng(count).normal(size=(601, 7))
    own = [statistics.moment_sums(part, names(7)) for part in np.split(x, [1, 200, 500][: count - 1])]
    mean, deviation = statistics.mean_and_deviation(opened(MOMENTS, own, tmp_path), 601)
    np.testing.assert_allclose(mean, x.mean(axis=0), rtol=1e-12, atol=1e-20)
    np.testing.assert_allclose(deviation, x.std(axis=0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(deviation[:4], x.std(axis=0)[:4], rtol=1e-7)
    assert deviation[5] == 0
    assert mean[5] == 7.1


def test_a_column_that_is_constant_at_each_party_has_the_deviation_between_them(tmp_path: Path) -> None:
    own = [statistics.moment_sums(np.full((3, 1), value), ["c"]) for value in (1e9 - 1, 1e9 + 1)]
    mean, deviation = statistics.mean_and_deviation(opened(MOMENTS, own, tmp_path), 6)
    assert (mean.tolist(), deviation.tolist()) == ([1e9], [1.0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**64, -(2.0**64)])
def test_a_value_out_of_range_is_refused_by_the_name_of_its_column(value: float) -> None:
    rows = np.array([[1.0, 2.0, 3.0], [1.0, value, 3.0]])
    with pytest.raises(InputError, match="column 'income' has a value that is not finite or not below"):
        statistics.moment_sums(rows, ["age", "income", "visits"])


def test_values_at_the_limit_do_not_wrap(tmp_path: Path) -> None:
    largest = np.nextafter(2.0**64, 0)
    own = [statistics.moment_sums(np.full((1000, 1), each), ["c"]) for each in (largest, -largest, largest, -largest)]
    mean, deviation = statistics.mean_and_deviation(opened(MOMENTS, own, tmp_path), 4000)
    assert (mean.tolist(), deviation.tolist()) == ([0.0], [largest])


def test_sums_that_no_rows_have_are_refused() -> None:
    with pytest.raises(RefusedError, match="not those of 5 rows"):
        statistics.mean_and_deviation(statistics.moment_sums(np.full((10, 1), 3.0), ["c"]), 5)


def test_moments_need_no_correlated_randomness() -> None:
    assert [stage.needs for stage in trace(MOMENTS, [{"x": ((WORDS, 2, 3), "uint64")}] * 3)] == [(), ()]


# Lowest and highest value.
def below(x: Real | float) -> Real:
    """The finite float64 next below, if there is one."""
    with np.errstate(over="ignore"):
        return np.maximum(np.nextafter(x, -np.inf), -LARGEST)


@given(finite, finite)
def test_ordered_integers_keep_the_order_and_leave_room_for_a_difference(x: float, y: float) -> None:
    a, b = (int(each) for each in statistics.to_ordered_integers(np.array([x, y])))
    assert x > y or a <= b
    assert a >= b or x < y
    assert -(2**63) <= a - b - 1 < 2**63


@given(finite)
def test_an_ordered_integer_is_the_value_rounded_down_by_a_last_bit_at_most(x: float) -> None:
    found = float(statistics.from_ordered_integers(statistics.to_ordered_integers(np.array([x])))[0])
    assert below(x) <= found <= x
    assert np.isfinite(found)


@given(st.integers(-(2**40), 2**40))
def test_whole_numbers_come_back_as_they_are(x: int) -> None:
    assert statistics.from_ordered_integers(statistics.to_ordered_integers(np.array([float(x)]))).tolist() == [x]


def interval(x: Sequence[Real], folder: Path) -> tuple[Real, Real]:
    own = [statistics.encode_bounds(part.min(axis=0), part.max(axis=0), names(part.shape[1])) for part in x]
    return statistics.low_and_high(opened(extremes(len(x)), own, folder))


def assert_around(x: NDArray[np.float64], low: Real, high: Real) -> None:
    """[low, high] holds all values, and is a last bit wider at each end at most."""
    assert (low <= x.min(axis=0)).all()
    assert (high >= x.max(axis=0)).all()
    assert (low >= below(x.min(axis=0))).all()
    assert (-high >= below(-x.max(axis=0))).all()


@a_few
@given(st.sampled_from(PARTIES), st.lists(st.lists(finite, min_size=3, max_size=3), min_size=4, max_size=9))
def test_extremes_of_all_rows(tmp_path: Path, count: int, rows: list[list[float]]) -> None:
    x = np.array(rows)
    assert_around(x, *interval(np.array_split(x, count), tmp_path))


@pytest.mark.parametrize("count", PARTIES)
def test_extremes_at_any_party(tmp_path: Path, count: int) -> None:
    """Column i has its lowest value at party i and its highest at the next one; the last has the largest floats."""
    x = np.tile(np.linspace(-1, 1, 5)[:, None], (count, 1, count + 1))
    for i in range(count):
        x[i, 2, i], x[(i + 1) % count, 3, i] = -1e9 - i, 1e-6 + i + 1
    x[0, 0, count], x[-1, 0, count] = -LARGEST, LARGEST
    low, high = interval(list(x), tmp_path)
    assert_around(x.reshape(-1, count + 1), low, high)
    assert (low[count], high[count]) == (-LARGEST, LARGEST)


def test_a_constant_column_and_zeros(tmp_path: Path) -> None:
    x = [np.array([[5.0, -0.0, -3.0]]), np.array([[5.0, 0.0, -7.0]])]
    low, high = interval(x, tmp_path)
    assert (low.tolist(), high.tolist()) == ([5.0, 0.0, -7.0], [5.0, 0.0, -3.0])
    assert not np.signbit([low[1], high[1]]).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_extreme_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="column 'b' has a value that is not finite"):
        statistics.encode_bounds(np.array([1.0, 1.0]), np.array([2.0, value]), ["a", "b"])


@pytest.mark.parametrize("count", PARTIES)
def test_extremes_are_planned_from_shapes(count: int) -> None:
    traced = trace(extremes(count), [{"x": ((2, 5), "uint64")}] * count)
    assert any(stage.needs for stage in traced)
    assert traced[-1].sent == (2 * 5 * 8 * (count - 1),) * count


# What the peers see. The same totals from other parties' values, twice; messages are uniform and do not depend on them.
COLUMNS = 512


def moments_case(parties: int) -> Case:
    def begin(which: int, d: int) -> list[Arrays]:
        values = [3.5, 0.25, *[1.0] * (parties - 2)]
        ordered = values[::-1] if which else values
        return [{"x": statistics.moment_sums(np.full((2, d), each), names(d))} for each in ordered]

    return Case(MOMENTS, parties, begin)


def extremes_case(parties: int) -> Case:
    def begin(which: int, d: int) -> list[Arrays]:
        values = [(-2.0, 3.0), (-1.0, 1.0), *[(-2.0, 0.5)] * (parties - 2)]
        ordered = values[::-1] if which else values
        return [
            {"x": statistics.encode_bounds(np.full(d, low), np.full(d, high), names(d))}
            for low, high in ordered[:parties]
        ]

    return Case(extremes(parties), parties, begin)


CASES = {f"{m.__name__}, M = {count}": m(count) for m in (moments_case, extremes_case) for count in (2, 3)}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def split_up(public: Transcripts) -> tuple[Transcripts, Transcripts]:
    """All rounds but the last; and the messages of the last, which opens."""
    *before, last = public
    return {stage: public[stage] for stage in before}, {
        last: {what: array for what, array in public[last].items() if "→" in what}
    }


@every_case
def test_messages_are_uniform_and_do_not_tell_whose_value_it_is(case: Case) -> None:
    (public, own), (other, _) = (record(case, which, rows=COLUMNS) for which in (0, 1))
    before, opening = split_up(public)
    assert not_uniform(before) == []
    assert not_uniform(opening) == []
    assert related(before, own) == []
    assert [
        f"{stage} {what}"
        for stage, arrays in public.items()
        for what, values in arrays.items()
        if "→" in what and two_samples(values, other[stage][what]) > UNLIKELY
    ] == []


@every_case
def test_every_message_before_the_opening_has_a_mask_of_its_own(case: Case) -> None:
    last = list(case.protocol.stages())[-1].name
    used = [(where, masks) for where, masks in masks_of(case) if not where.startswith(last)]
    assert used
    assert misused_masks(used) == []


def test_of_three_parties_one_cannot_take_off_the_masks_of_another() -> None:
    """P_2 takes from what P_0 opens all that it knows of it: the share it got from P_0, and the one it gave it."""
    public, _ = record(moments_case(3), 0, rows=64)
    share, reveal = public["moments.00.share"], public["moments.01.reveal"]
    words = (len(share["0→2: x"]), WORDS, -1)
    got, gave, shown = (
        np.moveaxis(each.reshape(words), 1, 0) for each in (share["0→2: x"], share["2→0: x"], reveal["0→all: x"])
    )
    left = wide.subtract(wide.add(shown, got), gave)
    assert byte_chi_square(left) < UNLIKELY


@pytest.mark.parametrize("count", PARTIES)
def test_no_message_holds_a_word_of_a_partys_own_values(tmp_path: Path, count: int) -> None:
    x = np.random.default_rng(count).normal(size=(count, 5, 40))
    for protocol, own in (
        (MOMENTS, [statistics.moment_sums(part, names(40)) for part in x]),
        (extremes(count), [statistics.encode_bounds(part.min(axis=0), part.max(axis=0), names(40)) for part in x]),
    ):
        _, board = run_parties(protocol, [{0: {"x": each}} for each in own], tmp_path)
        secret = np.concatenate([each.reshape(-1) for each in own])
        secret = secret[(secret != 0) & (secret != 2**64 - 1)]
        words = [array for each in board.messages.values() for array in from_stream(each).values()]
        sent = np.concatenate([array.reshape(-1) for array in words if array.dtype == ring.DTYPE])
        assert sent.size
        assert not np.isin(sent, secret).any()
        assert not np.isin(sent, -secret).any()


def test_the_sums_of_parties_are_put_together_block_by_block() -> None:
    x = np.random.default_rng(0).normal(size=(100, 2))
    parts = [statistics.moment_sums(part, names(2)) for part in np.split(x, [3, 3, 50])]
    np.testing.assert_array_equal(reduce(wide.add, parts), statistics.moment_sums(x, names(2)))
