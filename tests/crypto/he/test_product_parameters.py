"""Parameters of homomorphic products: no value at its bound overflows its slot, and real keys have the agreed lengths.

Products are computed with Python's integers, as Π Enc(Y)^x would: plaintexts are multiplied by x, shifted, added up and
masked.
"""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from support.fixed_values import SCHEMES, fixed_key
from support.kmeans_in_memory import PAILLIER, SMALL, keyrings
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters, group_rows

LARGEST = 2**64 - 1
LONG = [
    SchemeParameters("okamoto-uchiyama", 2048),
    SchemeParameters("okamoto-uchiyama", 3072),
    SchemeParameters("paillier", 2048),
]
CIPHERS = [*LONG, SchemeParameters("okamoto-uchiyama", 1536), SchemeParameters("paillier", 768)]


@st.composite
def products(draw: st.DrawFn) -> HEProductParameters:
    """Draw parameters that are possible, with one or several rows in a plaintext."""
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
    """Pack a plaintext of Y."""
    return sum(value << slot * product.slots.width for slot, value in enumerate(values))


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
    """Each row has `terms` times ±2^magnitude, or zeros; Y and the masks are as large, or as small, as possible."""
    slots, count = product.slots, product.encrypted_slots.count
    y = data.draw(st.lists(st.sampled_from([0, 1, LARGEST]), min_size=count, max_size=count))
    signs = data.draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=product.group, max_size=product.group))
    mask = data.draw(st.lists(st.sampled_from([0, 255]), min_size=slots.count, max_size=slots.count))
    row = product.terms << product.magnitude
    plain = sum(
        sign * row * packed(product, y) << slot * product.columns * slots.width for slot, sign in enumerate(signs)
    )
    random = np.repeat(np.array([mask], np.uint8)[..., None], slots.mask_bytes, axis=-1)
    (masks,), residues = slots.masks(random)
    total = mpz(plain) + masks
    assert 0 <= total < 1 << product.cipher.capacity
    expected = [(sign * row * value) % 2**64 for sign in signs for value in y]
    share = slots.unpack([total]) - residues
    assert share.reshape(-1).tolist() == expected


@given(products())
def test_a_bound_exceeds_the_largest_product_by_less_than_two_bits(product: HEProductParameters) -> None:
    worst = (product.terms << product.magnitude) * LARGEST
    assert worst < 1 << product.bound
    assert product.bound < worst.bit_length() + 2
    assert product.slots.width < product.bound + product.sigma + 1 + 8
    assert 1 << product.magnitude < 1 << product.exponent_bits


@given(products())
def test_a_slot_above_the_bound_is_refused(product: HEProductParameters) -> None:
    """One more than the largest product under the largest mask, in any slot."""
    limit = (1 << product.bound + 1) + (1 << product.bound + product.sigma)
    for slot in {0, product.slots.count - 1}:
        at = slot * product.slots.width
        product.slots.unpack([mpz(limit) << at])
        with pytest.raises(ValueError, match="above the bound"):
            product.slots.unpack([mpz(limit + 1) << at])


@given(products())
def test_fresh_randomness_is_longer_than_any_products_by_sigma_bits(product: HEProductParameters) -> None:
    """Exponents r of Okamoto–Uchiyama add up as integers: Σ r_c·x_c, shifted with the rows that are shifted."""
    fresh = 256
    shifts = sum(1 << slot * product.columns * product.slots.width for slot in range(product.group))
    worst = ((1 << fresh) - 1) * (product.terms << product.magnitude) * shifts
    assert worst >> (fresh + product.growth - product.sigma) <= 1


def test_randomness_of_okamoto_uchiyama_grows_and_that_of_paillier_does_not() -> None:
    ou, paillier = (fixed_key(scheme).public for scheme in SCHEMES)
    assert (ou.random_bits(0), ou.random_bits(70)) == (256, 326)
    assert paillier.random_bits(70) == paillier.random_bits(0) > paillier.bits


@given(products(), st.integers(0, 10**6))
def test_rows_share_a_plaintext_only_where_it_saves_work(product: HEProductParameters, width: int) -> None:
    """g rows in one plaintext save decryptions, and cost copies of all columns, each about two decryptions."""
    grouped = group_rows(replace(product, group=1), width)
    assert grouped.group == 1 or grouped.rows * (1 - 1 / grouped.group) > 2 * width * (grouped.group - 1)
    assert group_rows(replace(product, group=1), 10**9).group == 1
    free = group_rows(replace(product, group=1, rows=10**12), 0)
    assert free.group == max(1, product.cipher.capacity // free.slots.width // product.columns)


@given(products(), st.integers(0, 50))
def test_shapes_hold_all_rows(product: HEProductParameters, rows: int) -> None:
    assert product.encrypted_shape(rows) == (rows, product.packs)
    assert product.product_shape(rows) == (ceil(rows / product.group), product.packs)


@pytest.mark.parametrize("columns", [1, 2, 5, 6, 7, 11, 13])
def test_columns_are_divided_evenly_over_plaintexts(columns: int) -> None:
    """OU-2048 has five such slots: eleven columns are four, four and three."""
    product = HEProductParameters(LONG[0], 100, 20, 0, 64, columns, 45)
    assert product.packs == ceil(columns / 5)
    assert product.slots.count == ceil(columns / product.packs)


# schemes, known by their lengths
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
def test_the_largest_plaintext_is_encrypted_and_decrypted(scheme: str, bits: int) -> None:
    key, cipher = fixed_key(scheme, bits), SchemeParameters(scheme, bits)
    for plain in (mpz(0), (mpz(1) << cipher.capacity) - 1):
        ciphertext = key.public.encrypt_unrandomised(plain) * key.public.encrypt_zero(mpz(12345))
        assert key.decrypt(ciphertext % key.public.modulus) == plain
    assert key.public.modulus < 1 << 8 * cipher.size
