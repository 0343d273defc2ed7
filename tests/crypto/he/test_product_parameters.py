"""What a plaintext of a homomorphic product holds: no value at its bound reaches its neighbour, and what was agreed on
from lengths alone is true of real keys.

Products are made of Python's integers, as Π Enc(Y)^x would make them: whole plaintexts are multiplied by x, moved,
added up and masked.
"""

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from support.config_mistakes import mistake
from support.fixed_values import SCHEMES, fixed_key
from support.kmeans_in_memory import PAILLIER, SMALL, horizontal, keyrings, kmeans_for, vertical
from veilmeans.crypto import ring
from veilmeans.crypto.fixed_point import FRACTION_BITS
from veilmeans.crypto.he.product_parameters import SECURITY, HEProductParameters, SchemeParameters, group_rows
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.products.engine_parameters import HEBounds

LARGEST = 2**64 - 1
LONG = [
    SchemeParameters("okamoto-uchiyama", 2048),
    SchemeParameters("okamoto-uchiyama", 3072),
    SchemeParameters("paillier", 2048),
]
CIPHERS = [*LONG, SchemeParameters("okamoto-uchiyama", 1536), SchemeParameters("paillier", 768)]


@st.composite
def products(draw: st.DrawFn) -> HEProductParameters:
    """All that fit, with as many rows in a plaintext as pay, or as can be."""
    product = HEProductParameters(
        cipher=draw(st.sampled_from(CIPHERS)),
        rows=draw(st.integers(1, 10**7)),
        magnitude=draw(st.integers(0, 44)),
        shift=0,
        terms=draw(st.integers(1, 10**6)),
        columns=draw(st.integers(1, 12)),
        sigma=draw(st.integers(2, 90)),
    )
    return group_rows(product, width=draw(st.sampled_from([0, 1, 100, 10**6])))


def packed(product: HEProductParameters, values: list[int]) -> int:
    """A plaintext of Y."""
    return sum(value << place * product.slots.width for place, value in enumerate(values))


@given(products())
def test_a_plaintext_fits_and_every_column_has_a_slot(product: HEProductParameters) -> None:
    slots = product.slots
    assert slots.bits <= product.cipher.capacity
    assert product.packs * slots.count >= product.columns * product.group
    assert (product.packs - 1) * slots.count < product.columns
    assert product.group == 1 or (product.packs, slots.count) == (1, product.columns * product.group)
    assert product.encrypted_slots.count * product.packs >= product.columns
    assert product.encrypted_slots.width == slots.width


@given(products(), st.data())
def test_values_at_the_bound_stay_in_their_slots_and_are_accepted(
    product: HEProductParameters, data: st.DataObject
) -> None:
    """Each row has `terms` times ±2^magnitude, or nothing, and Y and the masks are as large, or as small, as can be."""
    slots, count = product.slots, product.encrypted_slots.count
    y = data.draw(st.lists(st.sampled_from([0, 1, LARGEST]), min_size=count, max_size=count))
    signs = data.draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=product.group, max_size=product.group))
    mask = data.draw(st.lists(st.sampled_from([0, 255]), min_size=slots.count, max_size=slots.count))
    row = product.terms << product.magnitude
    plain = sum(
        sign * row * packed(product, y) << place * product.columns * slots.width for place, sign in enumerate(signs)
    )
    random = np.repeat(np.array([mask], np.uint8)[..., None], slots.mask_bytes, axis=-1)
    (masks,), residues = slots.masks(random)
    total = mpz(plain) + masks
    assert 0 <= total < 1 << product.cipher.capacity
    expected = [(sign * row * value) % 2**64 for sign in signs for value in y]
    share = slots.unpack([total]) - residues
    assert share.reshape(-1).tolist() == expected


@given(products())
def test_a_bound_is_no_looser_than_two_bits_and_a_byte(product: HEProductParameters) -> None:
    worst = (product.terms << product.magnitude) * LARGEST
    assert worst < 1 << product.bound
    assert product.bound < worst.bit_length() + 2
    assert product.slots.width < product.bound + product.sigma + 1 + 8
    assert 1 << product.magnitude < 1 << product.exponent_bits


@given(products())
def test_what_is_above_the_bound_is_refused(product: HEProductParameters) -> None:
    """One more than the largest product under the largest mask, in any slot."""
    limit = (1 << product.bound + 1) + (1 << product.bound + product.sigma)
    for slot in {0, product.slots.count - 1}:
        at = slot * product.slots.width
        product.slots.unpack([mpz(limit) << at])
        with pytest.raises(ValueError, match="above the bound"):
            product.slots.unpack([mpz(limit + 1) << at])


@given(products())
def test_fresh_randomness_is_longer_than_any_products_by_sigma_bits(product: HEProductParameters) -> None:
    """r of Okamoto–Uchiyama counts as a number: Σ r_c·x_c, and for the rows that were moved, as far as they were."""
    fresh = 256
    moved = sum(1 << place * product.columns * product.slots.width for place in range(product.group))
    worst = ((1 << fresh) - 1) * (product.terms << product.magnitude) * moved
    assert worst >> (fresh + product.growth - product.sigma) <= 1


def test_random_numbers_of_okamoto_uchiyama_grow_and_those_of_paillier_need_not() -> None:
    ou, paillier = (fixed_key(scheme).public for scheme in SCHEMES)
    assert (ou.random_bits(0), ou.random_bits(70)) == (256, 326)
    assert paillier.random_bits(70) == paillier.random_bits(0) > paillier.bits


@given(products(), st.integers(0, 10**6))
def test_more_rows_share_a_plaintext_only_where_it_pays(product: HEProductParameters, width: int) -> None:
    """g rows in one save decryptions, and cost copies of all columns, each about two decryptions."""
    found = group_rows(replace(product, group=1), width)
    assert found.group == 1 or found.rows * (1 - 1 / found.group) > 2 * width * (found.group - 1)
    assert group_rows(replace(product, group=1), 10**9).group == 1
    free = group_rows(replace(product, group=1, rows=10**12), 0)
    assert free.group == max(1, product.cipher.capacity // free.slots.width // product.columns)


@given(products(), st.integers(0, 50))
def test_shapes_hold_all_rows(product: HEProductParameters, rows: int) -> None:
    assert product.encrypted_shape(rows) == (rows, product.packs)
    assert product.product_shape(rows) == (ceil(rows / product.group), product.packs)


@pytest.mark.parametrize("columns", [1, 2, 5, 6, 7, 11, 13])
def test_columns_are_spread_evenly_over_plaintexts(columns: int) -> None:
    """OU-2048 has five such slots: eleven columns are four, four and three."""
    product = HEProductParameters(LONG[0], 100, 20, 0, 64, columns, 45)
    assert product.packs == ceil(columns / 5)
    assert product.slots.count == ceil(columns / product.packs)


# Ciphers, known by their lengths.
@pytest.mark.parametrize(
    "cipher", [SMALL, PAILLIER, SchemeParameters("okamoto-uchiyama", 1025), SchemeParameters("paillier", 514)]
)
def test_capacity_and_size_are_those_of_generated_keys(cipher: SchemeParameters) -> None:
    key = keyrings(1, cipher)[0].own.public
    assert (key.scheme, key.bits) == (cipher.scheme, cipher.bits)
    assert (key.capacity, key.size) == (cipher.capacity, cipher.size)
    assert cipher.dtype == np.dtype(f"V{key.size}")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [1024, 2048])
def test_the_largest_plaintext_survives_encryption(scheme: str, bits: int) -> None:
    key, cipher = fixed_key(scheme, bits), SchemeParameters(scheme, bits)
    for plain in (mpz(0), (mpz(1) << cipher.capacity) - 1):
        assert key.decrypt(key.public.raw(plain) * key.public.blind(mpz(12345)) % key.public.modulus) == plain
    assert key.public.modulus < 1 << 8 * cipher.size


# Bounds, from a job.
LAYOUTS = [vertical(23, (3, 4), 8), vertical(1, (1, 1), 1), horizontal((9, 6), 5, 4), vertical(11, (2, 3, 2), 5)]


def bounds(layout: Layout, k: int = 3, iterations: int = 10, whole: bool = False) -> HEBounds:
    return HEBounds(layout, k, FRACTION_BITS, (whole,) * layout.parties, iterations)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_sigma_counts_every_value_that_a_run_decrypts(layout: Layout, k: int) -> None:
    """Slots in all that the plan has made beforehand under a mask, less those that hold no value."""
    iterations = 7
    kmeans = kmeans_for(layout, k, products="he", max_iter=iterations)
    plan = kmeans.plan()
    masked = 0
    for iteration in range(iterations):
        for shard in range(plan.shards):
            for blindings in plan.ciphertext_needs(shard, iteration).values():
                masked += sum(each.count * each.product.slots.count for each in blindings if each.masked)
    sigmas = {product.sigma for product in (*kmeans.engines.distance, *kmeans.engines.update) if product}
    (sigma,) = sigmas
    assert sigma == bounds(layout, k, iterations).sigma
    assert masked * 2**SECURITY <= 2**sigma * 2, "σ is 40 bits more than log2 of the values, slots without one aside"
    assert bounds(layout, k, 8 * iterations).sigma == sigma + 3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_sum_has_no_more_terms_than_a_row_has_columns_and_a_column_rows(layout: Layout, whole: bool) -> None:
    for owner in range(layout.parties):
        distance, update = (
            each(owner, LONG[0]) for each in (bounds(layout, whole=whole).distance, bounds(layout, whole=whole).update)
        )
        assert (distance.terms, update.terms) == (layout.features[owner], layout.rows[owner])
        assert (distance.columns, update.columns) == (3, 2)
        assert (distance.magnitude, distance.shift) == ((0, FRACTION_BITS) if whole else (FRACTION_BITS, 0))
        assert update.group == 1


def test_all_ones_over_a_column_of_the_longest_table_fit() -> None:
    """2^30 rows of the largest value against the largest share, exactly."""
    product = bounds(vertical(2**30, (1, 1), 2**24)).update(0, LONG[0])
    value = mpz(2**30 * 2**FRACTION_BITS * LARGEST)
    assert value < 1 << product.bound
    masks, residues = product.slots.masks(np.full((1, product.slots.count, product.slots.mask_bytes), 255, np.uint8))
    total = masks[0] + sum(value << place * product.slots.width for place in range(product.slots.count))
    share = product.slots.unpack([total]) - residues
    assert share.tolist() == [[int(value) % 2**64] * product.slots.count]
    assert share.dtype == ring.DTYPE


def test_no_room_is_said_before_anything_is_made() -> None:
    """No table that is allowed is too long for a key that is allowed; a scheme with short plaintexts would be."""
    short: dict[str, Any] = {"cipher": {"scheme": "okamoto-uchiyama", "bits": 2048}, "products": "he"}
    wide = {"normalise": {"method": "none", "bound": 500.0}, "rows": 2**29, "tol": 0, **short}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SchemeParameters, "capacity", property(lambda cipher: cipher.bits // 16))
        said = mistake(**wide)
    assert said == (
        "a plaintext of kmeans.cipher (2048 bits) has no room for a product of so many rows and columns: set "
        "kmeans.cipher.bits to 3072, or kmeans.products to beaver"
    )
