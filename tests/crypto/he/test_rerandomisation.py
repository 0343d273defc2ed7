"""Why a masked product needs a fresh blind: without it, the owner of the key reads the other party's row.

The owner made Enc(Y_c) = raw(Y_c)·blind(r_c) and knows every r_c. It gets C = Π_c Enc(Y_c)^x_c · raw(R) back.
Decrypting tells Σ x_c·Y_c + R, which R hides; but C / raw(that) = Π_c blind(r_c)^x_c depends on the row x alone.
"""

import hashlib

import gmpy2
import pytest
from gmpy2 import mpz

from support.fixed_values import SCHEMES, fixed_key, number
from veilmeans.crypto.he.scheme import PrivateKey

WIDTH = 10
BOUND = 64 + 4
ROWS = [[0] * WIDTH, [1] * WIDTH, [1, 0, 1, 1, 0, 0, 1, 0, 1, 0], [0] * (WIDTH - 1) + [1]]


def own_blinds(key: PrivateKey) -> list[mpz]:
    return [key.public.blind(number(f"r {place}", key.public.random_bits(0))) for place in range(WIDTH)]


def masked_product(key: PrivateKey, row: list[int]) -> mpz:
    """Π_c Enc(Y_c)^x_c · raw(R)."""
    modulus, product = key.public.modulus, key.public.raw(number("R", BOUND + 40))
    for place, (x, blind) in enumerate(zip(row, own_blinds(key), strict=True)):
        cipher = key.public.raw(number(f"Y {place}", 64)) * blind % modulus
        product = product * gmpy2.powmod(cipher, x, modulus) % modulus
    return product


def attack(key: PrivateKey, cipher: mpz) -> list[int] | None:
    """The 0/1 row whose blinds are in `cipher`, by trying all rows."""
    modulus = key.public.modulus
    remaining = cipher * gmpy2.invert(key.public.raw(key.decrypt(cipher)), modulus) % modulus
    products = {mpz(1): 0}
    for place, blind in enumerate(own_blinds(key)):
        products |= {product * blind % modulus: row | 1 << place for product, row in products.items()}
    row = products.get(remaining)
    return None if row is None else [row >> place & 1 for place in range(WIDTH)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("row", ROWS)
def test_a_mask_alone_does_not_hide_the_row(scheme: str, row: list[int]) -> None:
    key = fixed_key(scheme)
    assert attack(key, masked_product(key, row)) == row


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("row", ROWS)
def test_a_fresh_blind_hides_it(scheme: str, row: list[int]) -> None:
    key = fixed_key(scheme)
    product = masked_product(key, row)
    growth = 1 + WIDTH.bit_length() + 40
    size = -(-key.public.random_bits(growth) // 8)
    fresh = key.public.blind(mpz.from_bytes(hashlib.shake_256(b"fresh").digest(size), "little"))
    hidden = product * fresh % key.public.modulus
    assert key.decrypt(hidden) == key.decrypt(product)
    assert attack(key, hidden) is None
