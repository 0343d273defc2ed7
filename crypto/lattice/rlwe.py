"""Ciphertexts and linear combinations of them; all polynomials transformed, [prime, N].

body = −a·s + ⌊q·u/2^64⌉ + e        key = −a·s + e
"""

import numpy as np

from veilmeans.crypto.lattice.encoding import scaled
from veilmeans.crypto.lattice.kernel import Word, Words, high_word, kernel
from veilmeans.crypto.lattice.modular import P, fold, minus, plus, product, times
from veilmeans.crypto.lattice.ntt import INVERSE_DEGREE, transform

_TILE = 128


def encrypt(u: Words, error: Words, mask: Words, secret: Words) -> Words:
    """A body that encrypts the words u (coefficients); `error` in coefficients, it becomes the body."""
    _add_scaled(u, error)
    transform(error)
    _subtract_product(mask, secret, error)
    return error


@kernel
def _add_scaled(u: Words, out: Words) -> None:
    for i in range(out.shape[0]):
        for x in range(u.size):
            out[i, x] = plus(out[i, x], scaled(u[x], i), P[i])


@kernel
def _subtract_product(a: Words, b: Words, out: Words) -> None:
    for i in range(out.shape[0]):
        for x in range(out.shape[1]):
            out[i, x] = minus(out[i, x], product(a[i, x], b[i, x], i), P[i])


@kernel
def add_product(a: Words, b: Words, out: Words) -> None:
    """out += a·b."""
    for i in range(out.shape[0]):
        for x in range(out.shape[1]):
            out[i, x] = plus(out[i, x], product(a[i, x], b[i, x], i), P[i])


@kernel
def add_combinations(bodies: Words, scalars: Words, out: Words) -> None:
    """out[j] += Σ_c bodies[c]·scalars[·, j, c]. Sums of 128 bits: fewer than 2^20 bodies in one call."""
    outputs = out.shape[0]
    low, high = np.empty((outputs, _TILE), Word), np.empty((outputs, _TILE), Word)
    for i in range(out.shape[1]):
        for start in range(0, out.shape[2], _TILE):
            low[:], high[:] = Word(0), Word(0)
            for c in range(bodies.shape[0]):
                for j in range(outputs):
                    v = scalars[i, j, c]
                    for x in range(_TILE):
                        b = bodies[c, i, start + x]
                        added = b * v
                        s = low[j, x] + added
                        high[j, x] += high_word(b, v) + Word(s < added)
                        low[j, x] = s
            for j in range(outputs):
                for x in range(_TILE):
                    out[j, i, start + x] = plus(out[j, i, start + x], fold(high[j, x], low[j, x], i), P[i])


@kernel
def add_constant_coefficient(a: Words, b: Words, out: Words) -> None:
    """out[i] += coefficient 0 of a·b, which is the mean of the product's values."""
    for i in range(out.size):
        low = high = Word(0)
        for x in range(a.shape[1]):
            added = a[i, x] * b[i, x]
            low += added
            high += high_word(a[i, x], b[i, x]) + Word(low < added)
        out[i] = plus(out[i], times(fold(high, low, i), INVERSE_DEGREE[i], P[i]), P[i])
