"""The negacyclic number-theoretic transform: polynomials mod X^N + 1 to their values at the odd powers of ψ, and back.

ψ is a primitive 2N-th root of unity mod p. The product of two polynomials is then the product of their values.
Butterflies are lazy: values stay below 4p forward and below 2p backward, and are reduced at the end (Harvey).
"""

from functools import cache

import numpy as np

from veilmeans.crypto.lattice.kernel import Word, Words, high_word, kernel
from veilmeans.crypto.lattice.modular import TWICE, P, shoup, times
from veilmeans.crypto.lattice.parameters import DEGREE, PRIMES

INVERSE_DEGREE = np.array([shoup(pow(DEGREE, -1, p), p) for p in PRIMES], Word)
"""1/N."""


def transform(polynomials: Words) -> Words:
    """Transform polynomials in place: any leading axes, then primes, then N coefficients below p."""
    for at in np.ndindex(polynomials.shape[:-2]):
        _forward(polynomials[at], _roots()[0])
    return polynomials


def transform_back(polynomials: Words) -> Words:
    """Invert `transform`, in place."""
    for at in np.ndindex(polynomials.shape[:-2]):
        _backward(polynomials[at], _roots()[1])
    return polynomials


@cache
def _roots() -> Words:
    """Powers of ψ in bit-reversed order and their inverses, with Shoup quotients: [direction, prime, 2, N]."""
    tables = np.empty((2, len(PRIMES), 2, DEGREE), Word)
    digits = DEGREE.bit_length() - 1
    order = [int(f"{j:0{digits}b}"[::-1], 2) for j in range(DEGREE)]
    for i, p in enumerate(PRIMES):
        root = pow(_non_residue(p), (p - 1) // (2 * DEGREE), p)
        for direction, psi in enumerate((root, pow(root, -1, p))):
            powers = [1]
            while len(powers) < DEGREE:
                powers.append(powers[-1] * psi % p)
            tables[direction, i] = np.array([shoup(powers[j], p) for j in order], Word).T
    return tables


def _non_residue(p: int) -> int:
    """The smallest number that is no square mod p: its (p − 1)/2N-th power has order 2N."""
    return next(x for x in range(2, p) if pow(x, (p - 1) // 2, p) == p - 1)


@kernel
def _butterflies(left: Words, right: Words, w: Word, quotient: Word, p: Word, twice: Word) -> None:
    """(x, y) -> (x + w·y, x − w·y), over two slices: separate arrays are what LLVM makes vectors of."""
    for j in range(left.size):
        x, y = left[j], right[j]
        x = min(x, x - twice)
        y = y * w - high_word(y, quotient) * p
        left[j], right[j] = x + y, x + twice - y


@kernel
def _forward_one(a: Words, roots: Words, quotients: Words, p: Word, twice: Word) -> None:
    half, m = DEGREE, 1
    while m < DEGREE:
        half >>= 1
        for k in range(m):
            start = 2 * k * half
            middle = start + half
            _butterflies(a[start:middle], a[middle : middle + half], roots[m + k], quotients[m + k], p, twice)
        m <<= 1
    for j in range(DEGREE):
        x = min(a[j], a[j] - twice)
        a[j] = min(x, x - p)


@kernel
def _forward(polynomial: Words, roots: Words) -> None:
    for i in range(polynomial.shape[0]):
        _forward_one(polynomial[i], roots[i, 0], roots[i, 1], P[i], TWICE[i])


@kernel
def _backward_one(a: Words, roots: Words, quotients: Words, i: int) -> None:
    p, twice, half, m = P[i], TWICE[i], 1, DEGREE >> 1
    while m >= 1:
        for k in range(m):
            w, quotient, start = roots[m + k], quotients[m + k], 2 * k * half
            for j in range(start, start + half):
                x, y = a[j], a[j + half]
                s, d = x + y, x + twice - y
                a[j], a[j + half] = min(s, s - twice), d * w - high_word(d, quotient) * p
        half, m = half << 1, m >> 1
    for j in range(DEGREE):
        a[j] = times(a[j], INVERSE_DEGREE[i], p)


@kernel
def _backward(polynomial: Words, roots: Words) -> None:
    for i in range(polynomial.shape[0]):
        _backward_one(polynomial[i], roots[i, 0], roots[i, 1], i)
