"""Vector oblivious linear evaluation from correlated OTs: C = A·Δ + B in GF(2^128), A in a small subspace.

The ℓ COTs t_i = q_i ⊕ a_i·Δ of one entry are added with the powers of x, the root of x^128 + x^7 + x^2 + x + 1:

  receiver    A = Σ a_i·x^i        C = Σ t_i·x^i
  sender      B = Σ q_i·x^i        so that C = A·Δ + B

A is a word whose bit i is a_i: a polynomial of degree below ℓ ≤ 64, of which additions, but not products, are needed.
"""

from typing import Any

import numpy as np

from veilmeans.crypto.lattice.kernel import kernel
from veilmeans.crypto.ot.blocks import Blocks
from veilmeans.schemas.arrays import Array

MOST_BITS = 64
_POLYNOMIAL = 0x87


def combine(cots: Blocks, bits: int) -> tuple[Array, Blocks]:
    """Add each `bits` COTs with powers of x: Σ of their lowest bits (A, or 0 at the sender), and of the blocks."""
    if not 0 < bits <= MOST_BITS or len(cots) % bits:
        raise ValueError(f"{len(cots):,} COTs are not entries of {bits} bits each")
    entries = len(cots) // bits
    low, total = np.empty(entries, np.uint64), np.empty((entries, 2), np.uint64)
    _combine(cots, bits, low, total)
    return low, total


def multiples(delta: Blocks) -> Array:
    """The table of Δ: its products with every value of each byte of a word, 8 × 256 × 2."""
    table = np.zeros((8, 256, 2), np.uint64)
    power = [int(delta[0]), int(delta[1])]
    for byte in range(8):
        for bit in range(8):
            step = np.array(power, np.uint64)
            table[byte, 1 << bit : 2 << bit] = table[byte, : 1 << bit] ^ step
            carry = power[1] >> 63
            power = [(power[0] << 1) % 2**64 ^ carry * _POLYNOMIAL, (power[1] << 1) % 2**64 | power[0] >> 63]
    return table


def add_products(table: Array, factors: Array, out: Blocks) -> None:
    """out += Δ·factors, for factors of one word."""
    _add_products(table, factors, out)


@kernel
def _combine(cots: Any, bits: int, low: Any, total: Any) -> None:
    one, top, polynomial = np.uint64(1), np.uint64(63), np.uint64(0x87)
    for entry in range(len(low)):
        a, x, y = np.uint64(0), np.uint64(0), np.uint64(0)
        for i in range(bits - 1, -1, -1):
            carry = y >> top
            y = (y << one) | (x >> top)
            x = (x << one) ^ (carry * polynomial)
            t = cots[entry * bits + i, 0]
            a = (a << one) | (t & one)
            x ^= t
            y ^= cots[entry * bits + i, 1]
        low[entry], total[entry, 0], total[entry, 1] = a, x, y


@kernel
def _add_products(table: Any, factors: Any, out: Any) -> None:
    for i in range(len(factors)):
        factor, x, y = factors[i], out[i, 0], out[i, 1]
        for byte in range(8):
            digit = factor & np.uint64(255)
            x ^= table[byte, digit, 0]
            y ^= table[byte, digit, 1]
            factor >>= np.uint64(8)
        out[i, 0], out[i, 1] = x, y
