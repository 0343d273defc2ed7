"""A masked product needs fresh randomness: without it, the owner of the key learns the other party's row.

The owner made Enc(Y_c; r_c) = Enc(Y_c; 0)·Enc(0; r_c) and knows every r_c. It gets back
C = Π_c Enc(Y_c; r_c)^x_c · Enc(R; 0). Decryption gives Σ x_c·Y_c + R, which R hides; but C / Enc(that; 0) =
Π_c Enc(0; r_c)^x_c depends on the row x alone.
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


def own_zeros(key: PrivateKey) -> list[mpz]:
    """Enc(0; r_c), with which the owner encrypts Y_c."""
    return [key.public.encrypt_zero(number(f"r {column}", key.public.random_bits(0))) for column in range(WIDTH)]


def masked_product(key: PrivateKey, row: list[int]) -> mpz:
    """Π_c Enc(Y_c; r_c)^x_c · Enc(R; 0)."""
    modulus, product = key.public.modulus, key.public.encrypt_unrandomised(number("R", BOUND + 40))
    for column, (x, zero) in enumerate(zip(row, own_zeros(key), strict=True)):
        ciphertext = key.public.encrypt_unrandomised(number(f"Y {column}", 64)) * zero % modulus
        product = product * gmpy2.powmod(ciphertext, x, modulus) % modulus
    return product


def attack(key: PrivateKey, ciphertext: mpz) -> list[int] | None:
    """Find the 0/1 row by the randomness of `ciphertext`, trying all rows."""
    modulus = key.public.modulus
    inverse = gmpy2.invert(key.public.encrypt_unrandomised(key.decrypt(ciphertext)), modulus)
    randomness = ciphertext * inverse % modulus
    products = {mpz(1): 0}
    for column, zero in enumerate(own_zeros(key)):
        products |= {product * zero % modulus: row | 1 << column for product, row in products.items()}
    row = products.get(randomness)
    return None if row is None else [row >> column & 1 for column in range(WIDTH)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("row", ROWS)
def test_a_mask_alone_does_not_hide_the_row(scheme: str, row: list[int]) -> None:
    key = fixed_key(scheme)
    assert attack(key, masked_product(key, row)) == row


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("row", ROWS)
def test_fresh_randomness_hides_the_row(scheme: str, row: list[int]) -> None:
    key = fixed_key(scheme)
    product = masked_product(key, row)
    growth = 1 + WIDTH.bit_length() + 40
    size = -(-key.public.random_bits(growth) // 8)
    fresh = key.public.encrypt_zero(mpz.from_bytes(hashlib.shake_256(b"fresh").digest(size), "little"))
    hidden = product * fresh % key.public.modulus
    assert key.decrypt(hidden) == key.decrypt(product)
    assert attack(key, hidden) is None
