"""Lattice products for tests: both parties in one call, coefficients as integers, and LLL in a page."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz

from veilmeans.crypto.lattice.kernel import Words
from veilmeans.crypto.lattice.matrix_triple import open_response, respond
from veilmeans.crypto.lattice.ntt import transform_back
from veilmeans.crypto.lattice.operand import encrypt_operand
from veilmeans.crypto.lattice.parameters import DEGREE, MODULUS, PRIMES
from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.schemas.arrays import Array

OWNER, PEER, PUBLIC = b"owner", b"peer", b"public"
EDGES = np.array([0, 1, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], np.uint64)


def words(*shape: int, seed: int = 0) -> Words:
    return np.random.default_rng(seed).integers(0, 2**64, shape, np.uint64)


def edges(*shape: int, seed: int = 0) -> Words:
    """Extreme words."""
    return np.random.default_rng(seed).choice(EDGES, shape)


@dataclass(frozen=True)
class Product:
    """A product of both parties: its matrices, its messages and the owner's share."""

    shape: ProductShape
    u: Words
    v: Words
    share: Words
    operand: dict[str, Array]
    response: dict[str, Array]
    owner_share: Words

    @property
    def expected(self) -> Words:
        """U·V or Uᵀ·V by Python's integers."""
        left = self.u.T if self.shape.transposed else self.u
        exact = left.astype(object) @ self.v.astype(object) % 2**64
        return exact.astype(np.uint64).reshape(self.share.shape)

    def mask(self, j: int) -> list[int]:
        """c1 of column j as integers of 80 bits."""
        pairs = zip(self.response["c1"][j].tolist(), self.response["c1.tail"][j].tolist(), strict=True)
        return [(top << 16) + tail for top, tail in pairs]


def multiply(
    u: Words, v: Words, share: Words, transposed: bool, owner: bytes = OWNER, peer: bytes = PEER, public: bytes = PUBLIC
) -> Product:
    """Run both messages of a product."""
    shape = ProductShape(*u.shape, v.shape[1], transposed)
    operand = encrypt_operand(shape, u, owner, public)
    response = respond(shape, operand, v, share, peer, public)
    return Product(shape, u, v, share, operand, response, open_response(shape, response, owner))


def integers(polynomial: Words) -> list[int]:
    """The coefficients mod q of a transformed polynomial."""
    return join_residues(transform_back(polynomial.copy()))


def join_residues(coefficients: Words) -> list[int]:
    """The numbers mod q with these residues, [prime, coefficient]."""
    factors = [MODULUS // p * pow(MODULUS // p, -1, p) for p in PRIMES]
    columns = zip(*(row.tolist() for row in coefficients), strict=True)
    return [sum(x * f for x, f in zip(residues, factors, strict=True)) % MODULUS for residues in columns]


def residues(numbers: Sequence[int]) -> Words:
    """The residues of numbers: [prime, coefficient]."""
    return np.array([[x % p for x in numbers] for p in PRIMES], np.uint64)


def centred(x: int) -> int:
    """x mod q, in [−q/2, q/2)."""
    return (x + MODULUS // 2) % MODULUS - MODULUS // 2


def negacyclic(a: Sequence[int], b: Sequence[int], modulus: int) -> list[int]:
    """a·b mod X^N + 1 and mod `modulus`, by one product of large integers (Kronecker substitution)."""
    size = -(-(2 * modulus.bit_length() + DEGREE.bit_length()) // 8)

    def joined(polynomial: Sequence[int]) -> mpz:
        return mpz.from_bytes(b"".join((x % modulus).to_bytes(size, "little") for x in polynomial), "little")

    product = (joined(a) * joined(b)).to_bytes(2 * size * DEGREE, "little")
    whole = [int.from_bytes(product[i * size : (i + 1) * size], "little") for i in range(2 * DEGREE)]
    return [(low - high) % modulus for low, high in zip(whole[:DEGREE], whole[DEGREE:], strict=True)]


def lll(basis: list[list[int]]) -> list[list[int]]:
    """Reduce a basis in place with integers alone (Cohen, A Course in Computational Number Theory, 2.6.7; δ = 3/4)."""
    n = len(basis)
    d, lam, k, k_max = [1] + [0] * n, [[0] * n for _ in range(n)], 1, 0
    d[1] = _dot(basis[0], basis[0])
    while k < n:
        if k > k_max:
            k_max = k
            for j in range(k + 1):
                u = _dot(basis[k], basis[j])
                for i in range(j):
                    u = (d[i + 1] * u - lam[k][i] * lam[j][i]) // d[i]
                if j < k:
                    lam[k][j] = u
                else:
                    d[k + 1] = u
        _reduce(basis, lam, d, k, k - 1)
        if 4 * d[k + 1] * d[k - 1] < 3 * d[k] ** 2 - 4 * lam[k][k - 1] ** 2:
            _swap(basis, lam, d, k, k_max)
            k = max(1, k - 1)
        else:
            for j in range(k - 2, -1, -1):
                _reduce(basis, lam, d, k, j)
            k += 1
    return basis


def _dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _reduce(basis: list[list[int]], lam: list[list[int]], d: list[int], k: int, j: int) -> None:
    if 2 * abs(lam[k][j]) > d[j + 1]:
        q = (2 * lam[k][j] + d[j + 1]) // (2 * d[j + 1])
        basis[k] = [x - q * y for x, y in zip(basis[k], basis[j], strict=True)]
        lam[k][j] -= q * d[j + 1]
        for i in range(j):
            lam[k][i] -= q * lam[j][i]


def _swap(basis: list[list[int]], lam: list[list[int]], d: list[int], k: int, k_max: int) -> None:
    basis[k], basis[k - 1] = basis[k - 1], basis[k]
    for j in range(k - 1):
        lam[k][j], lam[k - 1][j] = lam[k - 1][j], lam[k][j]
    c = lam[k][k - 1]
    b = (d[k - 1] * d[k + 1] + c * c) // d[k]
    for i in range(k + 1, k_max + 1):
        t = lam[i][k]
        lam[i][k] = (d[k + 1] * lam[i][k - 1] - c * t) // d[k]
        lam[i][k - 1] = (b * t + c * lam[i][k]) // d[k + 1]
    d[k] = b
