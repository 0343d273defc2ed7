"""The cost model of the cross products' engines, what `auto` chooses by it, and the calibration behind it."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from support.fixed_values import COSTS
from veilmeans.crypto.he import multiexp
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters, group_rows
from veilmeans.pipelines.planning import calibration as calibration
from veilmeans.pipelines.planning.calibration import calibrate
from veilmeans.pipelines.planning.engine_costs import Costs, Link, Owner, estimate, slowest
from veilmeans.pipelines.planning.engine_selection import ENGINES, EngineSelection, select_engines
from veilmeans.schemas.config import LinkShape

CIPHER = SchemeParameters("okamoto-uchiyama", 2048)
SMALL = SchemeParameters("okamoto-uchiyama", 960)
NAMES = [field.name for field in fields(Costs)]
counts = st.integers(1, 10**6)
widths = st.integers(1, 2000)
clusters = st.integers(2, 12)
magnitudes = st.integers(0, 24)


def owner_of(rows: int, columns: int, k: int, nonzeros: float | None = None, magnitude: int = 20) -> Owner:
    distance = group_rows(HEProductParameters(CIPHER, rows, magnitude, 0, columns, k, 70), columns)
    return Owner(rows, columns, distance, HEProductParameters(CIPHER, rows, magnitude, 0, rows, k - 1, 70), nonzeros)


def pair(choice: EngineSelection) -> tuple[str, str]:
    return choice.distance, choice.update


@given(counts, widths, clusters, magnitudes, st.floats(0, 1), st.floats(0, 1))
def test_more_zeros_never_make_he_slower(n: int, d: int, k: int, magnitude: int, one: float, other: float) -> None:
    few, many = (owner_of(n, d, k, d * share, magnitude) for share in sorted((one, other)))
    for product in ("distance", "update"):
        fewer, more = (estimate(owner, k, 2, 10, COSTS)[product] for owner in (few, many))
        assert fewer["he"].seconds <= more["he"].seconds * (1 + 1e-12)
        assert fewer["beaver"] == more["beaver"]


@given(counts, widths, clusters, st.floats(0, 1), st.integers(2, 5), st.floats(1, 1000))
def test_a_slower_link_never_favours_the_engine_with_more_bytes(
    n: int, d: int, k: int, share: float, parties: int, factor: float
) -> None:
    owner = owner_of(n, d, k, d * share)
    quick, slow = (select_engines(owner, k, parties, 10, replace(COSTS, rate=COSTS.rate / by)) for by in (1, factor))
    assert moved(slow) <= moved(quick)


def moved(choice: EngineSelection) -> int:
    """Bytes of an iteration."""
    found = choice.estimates
    operand = found["operand"]["beaver"].bytes if choice.sends_operand else 0
    return operand + found["distance"][choice.distance].bytes + found["update"][choice.update].bytes


@given(counts, widths, clusters, st.floats(0, 1), st.sampled_from([n for n in NAMES if n != "rate"]))
def test_nothing_gets_quicker_when_an_operation_gets_slower(n: int, d: int, k: int, share: float, name: str) -> None:
    owner, slow = owner_of(n, d, k, d * share), replace(COSTS, **{name: 2 * getattr(COSTS, name)})
    for product, engines in estimate(owner, k, 3, 10, COSTS).items():
        slower = estimate(owner, k, 3, 10, slow)[product]
        assert all(slower[engine].seconds >= each.seconds for engine, each in engines.items())


@given(counts, widths, clusters, st.floats(0, 1), st.integers(1, 100))
def test_no_other_pair_of_engines_takes_less_time(n: int, d: int, k: int, share: float, iterations: int) -> None:
    choice = select_engines(owner_of(n, d, k, d * share), k, 2, iterations, COSTS)
    allowed = ENGINES if choice.refused is None else ("he",)
    pairs = [replace(choice, distance=distance, update=update) for distance in allowed for update in allowed]
    assert choice.seconds == min(other.seconds for other in pairs)


def test_small_and_dense_goes_by_beaver() -> None:
    assert pair(select_engines(owner_of(10**4, 2, 5), 5, 2, 10, COSTS)) == ("beaver", "beaver")


def test_large_and_sparse_goes_under_encryption() -> None:
    choice = select_engines(owner_of(10**6, 100_000, 5, 20, magnitude=0), 5, 2, 10, COSTS)
    assert pair(choice) == ("he", "he")
    assert "more than" in (choice.refused or "")
    assert choice.estimates["operand"]["beaver"].bytes == 10**6 * 100_000 * 8 // 10
    assert "800 GB" in choice.estimates["operand"]["beaver"].why
    assert choice.seconds < replace(choice, distance="beaver", update="beaver").seconds


def test_a_shard_too_large_to_hold_is_never_chosen() -> None:
    owner = owner_of(10**4, 2, 5)
    size = 5000 * 2 * 8
    assert select_engines(owner, 5, 2, 10, COSTS, 5000, largest_shard=size).refused is None
    assert pair(select_engines(owner, 5, 2, 10, COSTS, 5000, largest_shard=size - 1)) == ("he", "he")


def test_what_is_asked_for_is_chosen() -> None:
    owner, wide = owner_of(10**4, 2, 5), owner_of(10**6, 100_000, 5, 20, magnitude=0)
    assert pair(select_engines(owner, 5, 2, 10, COSTS, allowed=(("he",), ENGINES)))[0] == "he"
    assert pair(select_engines(owner, 5, 2, 10, COSTS, allowed=(("he",), ("beaver",)))) == ("he", "beaver")
    assert pair(select_engines(wide, 5, 2, 10, COSTS, allowed=(ENGINES, ("beaver",)))) == ("he", "beaver")


def test_the_operand_counts_once_for_both_products() -> None:
    """It costs more than either product saves alone, and less than both do together."""
    owner = owner_of(10_000, 800, 5, 3, 0)
    slow = replace(COSTS, rate=1e5)
    estimates = estimate(owner, 5, 2, 10, slow)
    saved = [estimates[p]["he"].seconds - estimates[p]["beaver"].seconds for p in ("distance", "update")]
    operand = estimates["operand"]["beaver"].seconds
    assert max(saved) < operand < sum(saved)
    assert pair(select_engines(owner, 5, 2, 10, slow)) == ("beaver", "beaver")


def test_more_iterations_share_the_operand() -> None:
    few, many = (estimate(owner_of(1000, 100, 5), 5, 2, t, COSTS)["operand"]["beaver"] for t in (1, 100))
    assert few.bytes == 100 * many.bytes == 1000 * 100 * 8
    assert many.seconds == pytest.approx(few.seconds / 100)


def test_unknown_nonzeros_are_all() -> None:
    assert estimate(owner_of(1000, 30, 4), 4, 2, 10, COSTS) == estimate(owner_of(1000, 30, 4, 30), 4, 2, 10, COSTS)


def test_an_owner_of_nothing_costs_nothing() -> None:
    owner = replace(owner_of(1000, 30, 4), columns=0)
    assert select_engines(owner, 4, 2, 10, COSTS).seconds == 0
    assert not any(each.bytes for by in estimate(owner, 4, 2, 10, COSTS).values() for each in by.values())


def test_one_cluster_needs_no_update() -> None:
    owner = Owner(
        1000, 3, HEProductParameters(CIPHER, 1000, 20, 0, 3, 1, 70), HEProductParameters(CIPHER, 1000, 20, 0, 9, 0, 70)
    )
    estimates = estimate(owner, 1, 2, 10, COSTS)
    assert {each.seconds for each in estimates["update"].values()} == {0}
    assert estimates["distance"]["beaver"].bytes == 3 * 8


def test_bytes_are_those_of_the_messages() -> None:
    """Two shards; three packs of the five clusters; distance: one message of Y a shard; update: of C in all."""
    owner = owner_of(1000, 30, 5)
    found = estimate(owner, 5, 3, 10, COSTS, rows_per_shard=600)
    packs = owner.distance.packs
    assert packs > 1
    assert found["distance"]["beaver"].bytes == 2 * (2 * 30 * 5 * 8)
    assert found["update"]["beaver"].bytes == 2 * (1000 * 4 * 8)
    assert found["distance"]["he"].bytes == 2 * (30 + 1000) * packs * 256
    assert found["update"]["he"].bytes == 2 * (1000 + 30) * owner.update.packs * 256


@given(st.lists(st.floats(0.5, 2), min_size=len(NAMES), max_size=len(NAMES)))
def test_the_slowest_of_several(factors: list[float]) -> None:
    other = Costs(**{name: getattr(COSTS, name) * by for name, by in zip(NAMES, factors, strict=True)})
    agreed = slowest([COSTS, other])
    assert agreed == slowest([other, COSTS]) == slowest([agreed, COSTS, other])
    for name in NAMES:
        worst = min if name == "rate" else max
        assert getattr(agreed, name) == worst(getattr(COSTS, name), getattr(other, name))


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_costs_survive_json_to_the_last_bit(value: float) -> None:
    costs = replace(COSTS, raw=value)
    assert Costs.from_json(json.loads(json.dumps(costs.to_json()))) == costs


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", True, None, [1]])
def test_costs_that_are_no_numbers_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="raw"):
        Costs.from_json({**COSTS.to_json(), "raw": value})


@pytest.mark.parametrize("content", [{}, [], {**COSTS.to_json(), "more": 1.0}])
def test_costs_with_other_fields_are_refused(content: object) -> None:
    with pytest.raises(ValueError, match="fields"):
        Costs.from_json(content)


def test_the_link_is_the_configured_one() -> None:
    assert Link.shaped(None) == Link(125e6, 0.0005)
    assert Link.shaped(LinkShape(rate_mbps=40, round_trip_ms=80)) == Link(5e6, 0.08)


def test_a_calibration_is_kept_and_the_link_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = calibrate(SMALL, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["costs-okamoto-uchiyama-960.json"]
    monkeypatch.setattr(calibration, "_plain", _never)
    assert calibrate(SMALL, tmp_path) == first
    assert calibrate(SMALL, tmp_path, Link(1e6, 0.1)) == replace(first, rate=1e6, round_trip=0.1)


def test_a_calibration_is_not_kept_where_nothing_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_encrypted", lambda _: _MEASURED)
    monkeypatch.setattr(calibration, "_plain", dict)
    calibrate(SMALL, tmp_path, keep=False)
    assert not list(tmp_path.iterdir())


def _never() -> dict[str, float]:
    raise AssertionError("measured again")


_MEASURED = {name: 1.0 for name in NAMES if name not in ("rate", "round_trip")}


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "no JSON",
        lambda _: "[]",
        lambda kept: json.dumps({**kept, "seconds": {**kept["seconds"], "raw": "quick"}}),
        lambda kept: json.dumps({**kept, "seconds": {**kept["seconds"], "raw": -1}}),
        lambda kept: json.dumps({**kept, "seconds": None}),
        lambda kept: json.dumps({**kept, "machine": {**kept["machine"], "version": "0.0"}}),
        lambda kept: json.dumps({**kept, "machine": {**kept["machine"], "processors": 999}}),
        lambda kept: json.dumps({**kept, "machine": {**kept["machine"], "processor": "another"}}),
    ],
)
def test_a_calibration_of_something_else_is_measured_again(
    damage: Callable[[Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_encrypted", lambda _: _MEASURED)
    monkeypatch.setattr(calibration, "_plain", dict)
    first = calibrate(SMALL, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    file.write_text(damage(json.loads(whole)))
    assert calibrate(SMALL, tmp_path) == first
    assert file.read_text() == whole


class Counted:
    """A residue that counts the products with others like it; those with 1 cost next to nothing."""

    made = 0

    def __mul__(self, other: object) -> "Counted":
        Counted.made += isinstance(other, Counted)
        return self

    __rmul__ = __mul__

    def __mod__(self, modulus: object) -> "Counted":
        return self


@pytest.mark.parametrize("columns", [40, 400])
@pytest.mark.parametrize("bits", [1, 8, 20])
def test_multiplications_are_about_those_that_are_made(
    bits: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, nonzeros, modulus = 200, 10, mpz(7)
    uses = rows * nonzeros
    places, exponents = np.arange(uses) * 7919 % columns, np.arange(uses) * 48271 % ((1 << bits) - 1) + 1
    matrix = csr_array((exponents, places, np.arange(0, uses + 1, nonzeros)), (rows, columns))
    monkeypatch.setattr(multiexp.gmpy2, "powmod", lambda base, *_: base)

    window = multiexp.choose_window(columns, uses, bits, 1 << 30)
    Counted.made = 0
    multiexp.row_products(matrix, multiexp.PowerTables([Counted()] * columns, modulus, bits, window))
    assert Counted.made / 2 < multiexp.row_multiplications(columns, uses, rows, bits, 1 << 30) < 2 * Counted.made

    Counted.made = 0
    multiexp.column_products(matrix, [Counted()] * rows, modulus, bits)
    assert Counted.made / 2 < multiexp.column_multiplications(columns, uses, bits) < 2 * Counted.made
