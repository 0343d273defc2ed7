"""Words as polynomials: U in coefficients times q/2^64, V as signed integers.

  piece      Σ_r U[r, c]·X^r                     N rows of one column of U
  reversed   V[0] − Σ_{r>0} V[r]·X^(N−r)         its product with a piece has Σ_r U[r, c]·V[r] as coefficient 0

V is taken as integers in [−2^63, 2^63), which keeps the noise small; mod 2^64 it is the same.
"""

import numpy as np

from veilmeans.crypto.lattice.kernel import Word, Words, kernel
from veilmeans.crypto.lattice.modular import ONE, P, minus, shoup, times
from veilmeans.crypto.lattice.parameters import DEGREE, MODULUS, PRIMES

_MODULUS_LOW = Word(MODULUS % 2**64)
_MINUS_INVERSE = np.array([shoup(-pow(1 << 64, -1, p), p) for p in PRIMES], Word)
"""−2^−64."""


def pieces(matrix: Words) -> Words:
    """The columns of a matrix in pieces of N rows, the last one padded with zeros: [block, column, N]."""
    rows, columns = matrix.shape
    blocks = -(-rows // DEGREE)
    padded = np.zeros((blocks * DEGREE, columns), Word)
    padded[:rows] = matrix
    return np.ascontiguousarray(padded.reshape(blocks, DEGREE, columns).transpose(0, 2, 1))


def reversed_polynomials(v: Words) -> Words:
    """The reversed polynomials of V as residues: [column, block, prime, N]."""
    straight = pieces(v).transpose(1, 0, 2)
    turned = np.empty_like(straight, order="C")
    turned[..., 0], turned[..., 1:] = straight[..., 0], -straight[..., :0:-1]
    out = np.empty((*turned.shape[:2], len(PRIMES), DEGREE), Word)
    for at in np.ndindex(turned.shape[:2]):
        _signed_residues(turned[at], out[at])
    return out


def signed_scalars(v: Words) -> Words:
    """V as residues: [prime, column of V, row of V]."""
    out = np.empty((len(PRIMES), v.size), Word)
    _signed_residues(np.array(v.T, Word, order="C").ravel(), out)
    return out.reshape(len(PRIMES), *v.T.shape)


@kernel
def _signed_residues(values: Words, out: Words) -> None:
    for i in range(out.shape[0]):
        for x in range(values.size):
            negative = values[x] >> Word(63) == Word(1)
            r = times(~values[x] + Word(1) if negative else values[x], ONE[i], P[i])
            out[i, x] = minus(Word(0), r, P[i]) if negative else r


@kernel
def scaled(u: Word, i: int) -> Word:
    """⌊q·u/2^64⌉ mod p_i, which is −2^−64·(q·u mod± 2^64), because q is 0 mod p_i."""
    w = u * _MODULUS_LOW
    negative = w >> Word(63) == Word(1)
    r = times(~w + Word(1) if negative else w, _MINUS_INVERSE[i], P[i])
    return minus(Word(0), r, P[i]) if negative else r
