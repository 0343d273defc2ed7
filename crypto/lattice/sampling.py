"""Random polynomials from a seed: uniform masks, ternary secrets, small errors, uniform words.

A seed belongs to one message; a label names one array of it, and has one use.
"""

import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.lattice.kernel import Word, Words, count_ones, high_word, kernel
from veilmeans.crypto.lattice.modular import P, fold, minus
from veilmeans.crypto.lattice.parameters import DEGREE, NOISE, PRIMES


def words(seed: bytes, label: str, count: int) -> Words:
    """Uniform words."""
    out = np.empty(count, Word)
    prg.fill(prg.derive(seed, label), out)
    return out


def uniform(seed: bytes, label: str) -> Words:
    """A uniform polynomial (to within 2^-74 for each residue)."""
    out = np.empty((len(PRIMES), DEGREE), Word)
    _reduce(words(seed, label, 2 * out.size), out)
    return out


def ternary(seed: bytes, label: str, primes: int = len(PRIMES)) -> Words:
    """Coefficients uniform in {−1, 0, 1} (to within 2^-63), modulo the first primes."""
    out = np.empty((primes, DEGREE), Word)
    _thirds(words(seed, label, DEGREE), out)
    return out


def noise(seed: bytes, label: str) -> Words:
    """An error polynomial: centred binomial of 2·21 bits."""
    out = np.empty((len(PRIMES), DEGREE), Word)
    _binomial(words(seed, label, DEGREE), out)
    return out


@kernel
def _reduce(random: Words, out: Words) -> None:
    for i in range(out.shape[0]):
        for x in range(out.shape[1]):
            at = 2 * (i * out.shape[1] + x)
            out[i, x] = fold(random[at], random[at + 1], i)


@kernel
def _thirds(random: Words, out: Words) -> None:
    for i in range(out.shape[0]):
        for x in range(out.shape[1]):
            out[i, x] = minus(high_word(random[x], Word(3)), Word(1), P[i])


@kernel
def _binomial(random: Words, out: Words) -> None:
    mask, shift = Word((1 << NOISE) - 1), Word(NOISE)
    for i in range(out.shape[0]):
        for x in range(out.shape[1]):
            up, down = count_ones(random[x] & mask), count_ones(random[x] >> shift & mask)
            out[i, x] = minus(up, down, P[i])
