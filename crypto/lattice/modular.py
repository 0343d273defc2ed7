"""Arithmetic modulo the four primes of q, in words.

A constant factor w comes with its Shoup quotient ⌊w·2^64/p⌋, so that a product mod p needs no division:

  x·w − ⌊x·⌊w·2^64/p⌋/2^64⌋·p  is x·w mod p, or that plus p, for every word x

Words wrap: min(x, x − p) is x mod p for x < 2p.
"""

import numpy as np

from veilmeans.crypto.lattice.kernel import Word, Words, high_word, kernel
from veilmeans.crypto.lattice.parameters import PRIMES


def shoup(factor: int, prime: int) -> tuple[int, int]:
    """A factor mod `prime` and its Shoup quotient."""
    return factor % prime, (factor % prime << 64) // prime


P = np.array(PRIMES, Word)
TWICE = P * Word(2)
ONE = np.array([shoup(1, p) for p in PRIMES], Word)
WORD = np.array([shoup(1 << 64, p) for p in PRIMES], Word)
"""2^64."""


@kernel
def times_lazy(x: Word, factor: Words, p: Word) -> Word:
    """x·factor mod p, below 2p."""
    r: Word = x * factor[0] - high_word(x, factor[1]) * p
    return r


@kernel
def times(x: Word, factor: Words, p: Word) -> Word:
    """x·factor mod p."""
    r = times_lazy(x, factor, p)
    return min(r, r - p)


@kernel
def minus(x: Word, y: Word, p: Word) -> Word:
    """x − y mod p, for residues."""
    return min(x - y, x + p - y)


@kernel
def plus(x: Word, y: Word, p: Word) -> Word:
    """x + y mod p, for residues."""
    return min(x + y, x + y - p)


@kernel
def fold(high: Word, low: Word, i: int) -> Word:
    """high·2^64 + low mod p_i."""
    r = times_lazy(high, WORD[i], P[i]) + times_lazy(low, ONE[i], P[i])
    r = min(r, r - TWICE[i])
    return min(r, r - P[i])


@kernel
def product(x: Word, y: Word, i: int) -> Word:
    """x·y mod p_i."""
    return fold(high_word(x, y), x * y, i)
