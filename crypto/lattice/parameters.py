"""Parameters of the lattice products, and what follows from them. No numba: plans read this file, too.

Ring Z_q[X]/(X^N + 1), N = 8192, q = p0·p1·p2·p3 < 2^214, plaintexts mod 2^64. The security guidelines for homomorphic
encryption (ePrint 2024/463, table 5.2) allow log2 q ≤ 214 at N = 8192, for a uniform ternary secret, an error of
standard deviation 3.19 and 128 bits of security.
"""

from math import log2

DEGREE = 8192
"""N."""
PRIMES = (12_738_103_344_971_777, 12_738_103_344_480_257, 12_738_103_344_365_569, 12_738_103_343_742_977)
"""The four largest primes below 2^53.5 that are 1 mod 2N, falling."""
MODULUS = PRIMES[0] * PRIMES[1] * PRIMES[2] * PRIMES[3]
"""q."""
KEPT = PRIMES[0] * PRIMES[1]
"""The modulus that is left of q when a response has been divided by p3 and p2."""
NOISE = 21
"""Largest error: centred binomial of 2·21 bits, standard deviation √(21/2) = 3.24."""
RESIDUE_BITS = 54
MASK_BITS = 80
"""Bits that are sent of a coefficient of c1."""
RESULT_BITS = 66
"""Bits that are sent of a coefficient of c0."""


def noise_bound(terms: int) -> float:
    """Bound |η|, the noise of one result that is a sum of `terms` products: B = 21.5·2^63·T + 2·21·N + 1."""
    return (NOISE + 0.5) * 2.0**63 * terms + 2 * NOISE * DEGREE + 1


def statistical_distance(terms: int) -> float:
    """Bound ε: how much one coefficient of c0 depends on V, beyond the owner's share (proof: docs/offline.md)."""
    first = ((noise_bound(terms) + 1) / PRIMES[3] + 1) / PRIMES[2]
    return first * (2.0**128 / KEPT + 3) / 2.0**62 + 2.0**-103


def distance_bits(terms: int, coefficients: int) -> float:
    """log2 of m·ε, for `coefficients` results of `terms` products each."""
    return log2(coefficients * statistical_distance(terms))
