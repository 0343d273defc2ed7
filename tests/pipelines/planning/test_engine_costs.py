"""The cost model of the product engines, and the engines that it selects."""

import json
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from support.fixed_values import COSTS
from veilmeans.crypto.he import multiexp
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters, group_rows
from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.pipelines.planning.engine_costs import OperationCosts, OwnedMatrix, estimate_costs
from veilmeans.pipelines.planning.engine_selection import ENGINES, EngineSelection, select_engines

CIPHER = SchemeParameters("okamoto-uchiyama", 2048)
NAMES = [field.name for field in fields(OperationCosts)]
counts = st.integers(1, 10**6)
widths = st.integers(1, 2000)
clusters = st.integers(2, 12)
magnitudes = st.integers(0, 24)


def matrix_of(rows: int, columns: int, k: int, nonzeros: float | None = None, magnitude: int = 20) -> OwnedMatrix:
    distance = group_rows(HEProductParameters(CIPHER, rows, magnitude, 0, columns, k, 70), columns)
    return OwnedMatrix(
        rows, columns, distance, HEProductParameters(CIPHER, rows, magnitude, 0, rows, k - 1, 70), nonzeros
    )


@given(counts, widths, clusters, magnitudes, st.floats(0, 1), st.floats(0, 1))
def test_more_zeros_never_make_he_slower(n: int, d: int, k: int, magnitude: int, one: float, other: float) -> None:
    few, many = (matrix_of(n, d, k, d * share, magnitude) for share in sorted((one, other)))
    for product in ("distance", "update"):
        fewer, more = (estimate_costs(matrix, k, 2, 10, COSTS)[product] for matrix in (few, many))
        assert fewer["he"].seconds <= more["he"].seconds * (1 + 1e-12)
        assert fewer["beaver"] == more["beaver"]


@given(counts, widths, clusters, st.floats(0, 1), st.integers(2, 5), st.floats(1, 1000))
def test_a_slower_link_never_favours_the_engine_with_more_bytes(
    n: int, d: int, k: int, share: float, parties: int, factor: float
) -> None:
    matrix = matrix_of(n, d, k, d * share)
    quick, slow = (select_engines(matrix, k, parties, 10, replace(COSTS, rate=COSTS.rate / by)) for by in (1, factor))
    assert total_bytes(slow) <= total_bytes(quick)


def total_bytes(selection: EngineSelection) -> int:
    """Bytes of an iteration with the selected engines."""
    estimates = selection.estimates
    operand = estimates["operand"]["beaver"].bytes if "beaver" in selection.engines else 0
    return operand + estimates["distance"][selection.distance].bytes + estimates["update"][selection.update].bytes


@given(counts, widths, clusters, st.floats(0, 1), st.sampled_from([n for n in NAMES if n != "rate"]))
def test_nothing_gets_quicker_when_an_operation_gets_slower(n: int, d: int, k: int, share: float, name: str) -> None:
    matrix, slow = matrix_of(n, d, k, d * share), replace(COSTS, **{name: 2 * getattr(COSTS, name)})
    for product, engines in estimate_costs(matrix, k, 3, 10, COSTS).items():
        slower = estimate_costs(matrix, k, 3, 10, slow)[product]
        assert all(slower[engine].seconds >= each.seconds for engine, each in engines.items())


@given(counts, widths, clusters, st.floats(0, 1), st.integers(1, 100))
def test_no_other_pair_of_engines_takes_less_time(n: int, d: int, k: int, share: float, iterations: int) -> None:
    selection = select_engines(matrix_of(n, d, k, d * share), k, 2, iterations, COSTS)
    allowed = ENGINES if selection.beaver_excluded is None else ("he",)
    pairs = [replace(selection, distance=distance, update=update) for distance in allowed for update in allowed]
    assert selection.seconds == min(other.seconds for other in pairs)


def test_beaver_is_selected_for_small_dense_data() -> None:
    assert select_engines(matrix_of(10**4, 2, 5), 5, 2, 10, COSTS).engines == ("beaver", "beaver")


def test_he_is_selected_for_wide_sparse_data() -> None:
    selection = select_engines(matrix_of(10**6, 100_000, 5, 20, magnitude=0), 5, 2, 10, COSTS)
    assert selection.engines == ("he", "he")
    assert "rows_per_shard" in (selection.beaver_excluded or "")
    assert selection.estimates["operand"]["beaver"].bytes == 10**6 * 100_000 * 8 // 10
    assert selection.seconds < replace(selection, distance="beaver", update="beaver").seconds


def test_beaver_is_not_selected_if_a_shard_is_too_large_for_a_message() -> None:
    matrix = matrix_of(10**4, 2, 5)
    size = 5000 * 2 * 8
    assert select_engines(matrix, 5, 2, 10, COSTS, 5000, largest_shard=size).beaver_excluded is None
    assert select_engines(matrix, 5, 2, 10, COSTS, 5000, largest_shard=size - 1).engines == ("he", "he")


def test_requested_engines_are_selected() -> None:
    matrix, wide = matrix_of(10**4, 2, 5), matrix_of(10**6, 100_000, 5, 20, magnitude=0)
    assert select_engines(matrix, 5, 2, 10, COSTS, allowed=(("he",), ENGINES)).engines[0] == "he"
    assert select_engines(matrix, 5, 2, 10, COSTS, allowed=(("he",), ("beaver",))).engines == ("he", "beaver")
    assert select_engines(wide, 5, 2, 10, COSTS, allowed=(ENGINES, ("beaver",))).engines == ("he", "beaver")


def test_the_masked_matrix_counts_once_for_both_products() -> None:
    """The masked matrix costs more than one product saves, and less than both save together."""
    matrix = matrix_of(10_000, 800, 5, 3, 0)
    slow = replace(COSTS, rate=1e5)
    estimates = estimate_costs(matrix, 5, 2, 10, slow)
    saved = [estimates[p]["he"].seconds - estimates[p]["beaver"].seconds for p in ("distance", "update")]
    operand = estimates["operand"]["beaver"].seconds
    assert max(saved) < operand < sum(saved)
    assert select_engines(matrix, 5, 2, 10, slow).engines == ("beaver", "beaver")


def test_more_iterations_share_the_cost_of_the_masked_matrix() -> None:
    few, many = (estimate_costs(matrix_of(1000, 100, 5), 5, 2, t, COSTS)["operand"]["beaver"] for t in (1, 100))
    assert few.bytes == 100 * many.bytes == 1000 * 100 * 8
    assert many.seconds == pytest.approx(few.seconds / 100)


def test_all_values_count_as_nonzeros_if_nothing_is_known() -> None:
    assert estimate_costs(matrix_of(1000, 30, 4), 4, 2, 10, COSTS) == estimate_costs(
        matrix_of(1000, 30, 4, 30), 4, 2, 10, COSTS
    )


def test_an_empty_matrix_costs_nothing() -> None:
    matrix = replace(matrix_of(1000, 30, 4), columns=0)
    assert select_engines(matrix, 4, 2, 10, COSTS).seconds == 0
    assert not any(each.bytes for by in estimate_costs(matrix, 4, 2, 10, COSTS).values() for each in by.values())


def test_one_cluster_needs_no_update() -> None:
    matrix = OwnedMatrix(
        1000, 3, HEProductParameters(CIPHER, 1000, 20, 0, 3, 1, 70), HEProductParameters(CIPHER, 1000, 20, 0, 9, 0, 70)
    )
    estimates = estimate_costs(matrix, 1, 2, 10, COSTS)
    assert {each.seconds for each in estimates["update"].values()} == {0}
    assert estimates["distance"]["beaver"].bytes == 3 * 8


def test_estimated_bytes_are_those_of_the_messages() -> None:
    """Two shards; three packs of the five clusters; distance: one message of Y a shard; update: of C in all."""
    matrix = matrix_of(1000, 30, 5)
    estimates = estimate_costs(matrix, 5, 3, 10, COSTS, rows_per_shard=600)
    packs = matrix.distance.packs
    assert packs > 1
    assert estimates["distance"]["beaver"].bytes == 2 * (2 * 30 * 5 * 8)
    assert estimates["update"]["beaver"].bytes == 2 * (1000 * 4 * 8)
    assert estimates["distance"]["he"].bytes == 2 * (30 + 1000) * packs * 256
    assert estimates["update"]["he"].bytes == 2 * (1000 + 30) * matrix.update.packs * 256


@given(st.lists(st.floats(0.5, 2), min_size=len(NAMES), max_size=len(NAMES)))
def test_parties_agree_on_the_slowest_costs(factors: list[float]) -> None:
    other = OperationCosts(**{name: getattr(COSTS, name) * by for name, by in zip(NAMES, factors, strict=True)})
    agreed = OperationCosts.slowest([COSTS, other])
    assert agreed == OperationCosts.slowest([other, COSTS]) == OperationCosts.slowest([agreed, COSTS, other])
    for name in NAMES:
        worst = min if name == "rate" else max
        assert getattr(agreed, name) == worst(getattr(COSTS, name), getattr(other, name))


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_costs_keep_every_bit_in_json(value: float) -> None:
    costs = replace(COSTS, packed_value=value)
    assert OperationCosts.from_json(json.loads(json.dumps(asdict(costs)))) == costs


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", True, None, [1]])
def test_costs_that_are_not_numbers_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="packed_value"):
        OperationCosts.from_json({**asdict(COSTS), "packed_value": value})


@pytest.mark.parametrize("content", [{}, [], {**asdict(COSTS), "more": 1.0}])
def test_costs_with_other_fields_are_refused(content: object) -> None:
    with pytest.raises(ValueError, match="fields"):
        OperationCosts.from_json(content)


class CountedResidue:
    """A residue that counts products with other residues; products with 1 do not count."""

    made = 0

    def __mul__(self, other: object) -> "CountedResidue":
        CountedResidue.made += isinstance(other, CountedResidue)
        return self

    __rmul__ = __mul__

    def __mod__(self, modulus: object) -> "CountedResidue":
        return self


@pytest.mark.parametrize("columns", [40, 400])
@pytest.mark.parametrize("bits", [1, 8, 20])
def test_estimated_multiplications_are_about_those_that_are_made(
    bits: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, nonzeros, modulus = 200, 10, mpz(7)
    uses = rows * nonzeros
    columns_used, exponents = np.arange(uses) * 7919 % columns, np.arange(uses) * 48271 % ((1 << bits) - 1) + 1
    matrix = csr_array((exponents, columns_used, np.arange(0, uses + 1, nonzeros)), (rows, columns))
    monkeypatch.setattr(multiexp.gmpy2, "powmod", lambda base, *_: base)

    window = multiexp.choose_window(columns, uses, bits, 1 << 30)
    CountedResidue.made = 0
    multiexp.row_products(matrix, multiexp.PowerTables([CountedResidue()] * columns, modulus, bits, window))
    assert (
        CountedResidue.made / 2
        < multiexp.row_multiplications(columns, uses, rows, bits, 1 << 30)
        < 2 * CountedResidue.made
    )

    CountedResidue.made = 0
    multiexp.column_products(matrix, [CountedResidue()] * rows, modulus, bits)
    assert CountedResidue.made / 2 < multiexp.column_multiplications(columns, uses, bits) < 2 * CountedResidue.made


# Without a dealer.
def test_a_dealer_counts_as_nothing() -> None:
    estimates = estimate_costs(matrix_of(10**4, 32, 5), 5, 2, 10, COSTS)
    assert not any(each.offline_seconds or each.offline_sent for by in estimates.values() for each in by.values())


def test_enc_u_counts_once_a_run_and_the_responses_in_each_iteration() -> None:
    """The figures of docs/offline.md for one shard of 10^5 rows and 32 columns, updates of k − 1 outputs."""
    few, many = (
        estimate_costs(matrix_of(10**5, 32, 5), 5, 2, t, COSTS, rows_per_shard=10**5, dealt=False) for t in (1, 10)
    )
    for product, operand, response in (("distance", 94.9e6, 4.5e6), ("update", 99.1e6, 0.33e6)):
        once, shared = few[product]["beaver"], many[product]["beaver"]
        assert once.offline_sent == pytest.approx(operand + response, rel=0.01)
        assert shared.offline_sent == pytest.approx(operand / 10 + response, rel=0.01)
        assert shared.offline_seconds < once.offline_seconds
        assert replace(shared, offline_seconds=0, offline_sent=0).bytes == once.bytes


def test_offline_bytes_are_those_of_the_lattice_messages() -> None:
    """Three shards, the last one smaller, to each of two peers; a shard's operand does not depend on its number."""
    rows, columns, k, shard = 20_000, 3, 4, 8_192
    estimates = estimate_costs(matrix_of(rows, columns, k), k, 3, 1, COSTS, rows_per_shard=shard, dealt=False)
    shape = ProductShape(shard, columns, k, transposed=False)
    whole = 2 * rows / shard * (shape.operand_bytes + shape.response_bytes)
    assert estimates["distance"]["beaver"].offline_sent == pytest.approx(whole, abs=1)


def test_blinds_count_for_he_without_a_dealer() -> None:
    matrix = matrix_of(1000, 30, 5)
    he = estimate_costs(matrix, 5, 2, 10, COSTS, dealt=False)["distance"]["he"]
    assert he.offline_seconds == pytest.approx((30 + 1000) * matrix.distance.packs * COSTS.blinding)
    assert he.offline_sent == 0


def test_he_is_selected_where_enc_u_takes_longer() -> None:
    """Sparse one-hot rows on a slow link: with a dealer the masked matrix is cheaper, without one Enc(U) is not."""
    matrix, slow = matrix_of(10**4, 400, 4, 2, magnitude=0), replace(COSTS, rate=2.5e6)
    dealt, made = (select_engines(matrix, 4, 2, 10, slow, dealt=each) for each in (True, False))
    assert "beaver" in dealt.engines
    assert made.engines == ("he", "he")


def test_beaver_is_not_selected_if_enc_u_of_a_shard_is_too_large_for_a_message() -> None:
    matrix = matrix_of(65_536, 67, 5)
    assert select_engines(matrix, 5, 2, 10, COSTS).beaver_excluded is None
    assert select_engines(matrix, 5, 2, 10, COSTS, dealt=False).beaver_excluded
    assert select_engines(matrix, 5, 2, 10, COSTS, 32_768, dealt=False).beaver_excluded is None
