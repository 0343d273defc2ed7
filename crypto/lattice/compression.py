"""Coefficients mod q as fractions of q: cut to the bits that are sent, and decoded.

  cut(x):    y = ⌊x/p3⌋;  z = ⌊(y + f)/p2⌋ mod p0·p1, f uniform below p2;  h = ⌊z·⌊2^234/(p0·p1)⌋/2^106⌋ ≈ 2^128·x/q;
             the top 66 bits of h + g mod 2^128, g uniform below 2^62
  round(x):  the nearest multiple of q/2^80, f = 0

All quotients are exact, so that h is one monotone function of x: rounded reciprocals would show the low bits of x. f
and g are the flood: uniform noise below the bits that are sent, far wider than what x reveals beyond the result.
"""

import numpy as np

from veilmeans.crypto.lattice.encoding import scaled
from veilmeans.crypto.lattice.kernel import Word, Words, high_word, kernel
from veilmeans.crypto.lattice.modular import P, fold, minus, plus, shoup, times
from veilmeans.crypto.lattice.parameters import KEPT, PRIMES


def _inverses(of: int) -> Words:
    """1/p_of modulo each prime above it."""
    return np.array([shoup(pow(PRIMES[of], -1, p), p) for p in PRIMES[:of]], Word)


_BY_P3, _BY_P2, _BY_P0 = _inverses(3), _inverses(2), np.array(shoup(pow(PRIMES[0], -1, PRIMES[1]), PRIMES[1]), Word)
_RECIPROCAL = np.array(divmod((1 << 234) // KEPT, 2**64), Word)
"""⌊2^234/(p0·p1)⌋, high word and low word."""
_KEPT = np.array(divmod(KEPT, 2**64), Word)


@kernel
def _join(z0: Word, z1: Word) -> tuple[Word, Word]:
    """The number below p0·p1 with these residues, high word and low word."""
    g = times(minus(z1, min(z0, z0 - P[1]), P[1]), _BY_P0, P[1])
    low = g * P[0] + z0
    return high_word(g, P[0]) + Word(low < z0), low


@kernel
def _fraction_of_kept(high: Word, low: Word) -> tuple[Word, Word]:
    """(high·2^64 + low)·⌊2^234/(p0·p1)⌋/2^106, rounded down: a product of 4 words, shifted."""
    r1, r0 = _RECIPROCAL[0], _RECIPROCAL[1]
    w1 = high_word(low, r0)
    w2 = high_word(high, r0)
    t = high * r0
    w1 += t
    w2 += Word(w1 < t)
    t = low * r1
    w1 += t
    carry = Word(w1 < t)
    w2 += carry
    w3 = high_word(high, r1) + Word(w2 < carry)
    t = high_word(low, r1)
    w2 += t
    w3 += Word(w2 < t)
    t = high * r1
    w2 += t
    w3 += Word(w2 < t)
    return w2 >> Word(42) | w3 << Word(22), w1 >> Word(42) | w2 << Word(22)


@kernel
def fraction(x0: Word, x1: Word, x2: Word, x3: Word, f: Word) -> tuple[Word, Word]:
    """h of the number with these residues, and the digit f of the flood; high word and low word."""
    p0, p1, p2 = P[0], P[1], P[2]  # falling: a residue of a later prime is one of an earlier prime
    y0 = times(minus(x0, x3, p0), _BY_P3[0], p0)
    y1 = times(minus(x1, x3, p1), _BY_P3[1], p1)
    y2 = times(minus(x2, x3, p2), _BY_P3[2], p2) + f
    last = min(y2, y2 - p2)
    z0 = times(y0 + f + p0 - last, _BY_P2[0], p0)
    z1 = times(y1 + f + p1 - last, _BY_P2[1], p1)
    high, low = _join(z0, z1)
    return _fraction_of_kept(high, low)


@kernel
def flood_and_cut(x: Words, masks: Words, random: Words, top: Words, tail: Words) -> None:
    """cut(x + ⌊q·R/2^64⌉), 64 bits in `top` and 2 in `tail`; `random` has two words for each coefficient.

    R is added in the residues: then what is sent depends on the sum alone, and not on how R and x share it.
    """
    for c in range(top.size):
        x0, x1 = plus(x[0, c], scaled(masks[c], 0), P[0]), plus(x[1, c], scaled(masks[c], 1), P[1])
        x2, x3 = plus(x[2, c], scaled(masks[c], 2), P[2]), plus(x[3, c], scaled(masks[c], 3), P[3])
        high, low = fraction(x0, x1, x2, x3, high_word(random[2 * c], P[2]))
        g = random[2 * c + 1] >> Word(2)
        s = low + g
        top[c], tail[c] = high + Word(s < g), s >> Word(62)


@kernel
def round_mask(x: Words, top: Words, tail: Words) -> None:
    """round(x), 64 bits in `top` and 16 in `tail`."""
    half = Word(1 << 47)
    for c in range(top.size):
        high, low = fraction(x[0, c], x[1, c], x[2, c], x[3, c], Word(0))
        s = low + half
        top[c], tail[c] = high + Word(s < half), s >> Word(48)


@kernel
def lift_mask(top: Words, tail: Words, out: Words) -> None:
    """The 80-bit integers of `round_mask` modulo the first two primes."""
    for i in range(out.shape[0]):
        for c in range(top.size):
            out[i, c] = fold(top[c] >> Word(48), top[c] << Word(16) | tail[c], i)


@kernel
def decode(z: Words, top: Words, tail: Words, out: Words) -> None:
    """⌊2^64·(c0 + c1·s)/q⌉: c0 of 66 bits, and c1·s as an integer modulo p0·p1, in units of q/2^80 (below 2^93)."""
    for c in range(out.size):
        high, low = _join(z[0, c], z[1, c])
        if high >> Word(41):
            borrow = Word(low < _KEPT[1])
            low, high = low - _KEPT[1], high - _KEPT[0] - borrow
        t = (tail[c] << Word(14)) + Word(1 << 15)
        low += t
        high += Word(low < t)
        out[c] = top[c] + (high << Word(48) | low >> Word(16))
