"""What the owner of U computes from a response, and why it fails: the owner knows a, s, e and U.

Without r, C1 = round(Σ a·v) has 80 bits in each of 8,192 coefficients against 64 bits for each unknown word: V is the
one short vector of a lattice, and LLL finds it at once. The same for one r under two V, whose c1 differ by a·(v − v').
With fresh r nothing is short.
"""

from dataclasses import replace

import numpy as np
import pytest

from support.lattice_runs import PUBLIC, Product, integers, lll, multiply, words
from veilmeans.crypto.correlations import MatMul, expand_share
from veilmeans.crypto.lattice import matrix_triple
from veilmeans.crypto.lattice.kernel import Words
from veilmeans.crypto.lattice.lattice_seeds import OperandSeed, ResponseSeed, public_seed, session_seed
from veilmeans.crypto.lattice.operand import mask
from veilmeans.crypto.lattice.parameters import DEGREE, MODULUS, PRIMES
from veilmeans.schemas.address import Address

ADDRESS = Address("store.0", 3, "distance.00.cross", 0)
TRIPLE = MatMul(0, 1, 20, 2, 1, "operand")
BITS = 80


def recover(columns: list[list[int]], seen: list[int]) -> list[int] | None:
    """Solve Σ_c columns[c][x]·v_c ≈ seen[x]·q/2^80 for signed words v_c: Kannan's embedding and LLL."""
    unknowns, samples = len(columns), len(seen)
    size, edge = unknowns + samples + 1, MODULUS >> (BITS + 1)
    scale = MODULUS >> (BITS + 63)  # v·scale is as large as the rounding error
    basis = [[0] * size for _ in range(size)]
    for c, column in enumerate(columns):
        basis[c][c] = scale
        basis[c][unknowns:-1] = column
    for x, value in enumerate(seen):
        basis[unknowns + x][unknowns + x] = MODULUS
        basis[-1][unknowns + x] = -(value * MODULUS >> BITS)
    basis[-1][-1] = edge
    for row in lll(basis):
        if abs(row[-1]) == edge:
            sign = 1 if row[-1] > 0 else -1
            return [sign * x // scale % 2**64 for x in row[:unknowns]]
    return None


def columns_of(product: Product, samples: int) -> list[list[int]]:
    """How each unknown word of V moves the first coefficients of c1."""
    if not product.shape.transposed:
        return [integers(mask(PUBLIC, c))[:samples] for c in range(product.shape.columns)]
    a = integers(mask(PUBLIC, 0))  # times −X^(N−r): coefficient x becomes a[x + r]
    return [a[r : r + samples] for r in range(product.shape.rows)]


def attack(product: Product, seen: list[int]) -> list[int] | None:
    samples = product.shape.terms * 64 // BITS + product.shape.terms // 4 + 3
    return recover(columns_of(product, samples), seen[:samples])


def product_of(terms: int, transposed: bool, peer: bytes = b"peer", v_seed: int = 2) -> Product:
    rows, columns = (terms, 1) if transposed else (20, terms)
    u, v, share = words(rows, columns, seed=1), words(terms, 1, seed=v_seed), words(1 if transposed else rows, 1)
    return multiply(u, v, share, transposed, peer=peer)


def no_hiding(_seed: bytes, _j: int) -> Words:
    return np.zeros((len(PRIMES), DEGREE), np.uint64)


@pytest.mark.parametrize(("terms", "transposed"), [(1, False), (2, False), (6, False), (1, True), (4, True)])
def test_without_r_the_owner_computes_v(terms: int, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_triple, "hiding_polynomial", no_hiding)
    product = product_of(terms, transposed)
    assert np.array_equal(product.owner_share + product.share, product.expected)
    assert attack(product, product.mask(0)) == product.v[:, 0].tolist()


@pytest.mark.parametrize(("terms", "transposed"), [(1, False), (2, False), (6, False), (1, True), (4, True)])
def test_with_r_the_same_attack_fails(terms: int, transposed: bool) -> None:
    product = product_of(terms, transposed)
    assert attack(product, product.mask(0)) != product.v[:, 0].tolist()


def differences(first: Product, second: Product) -> list[int]:
    """C1 − C1', which has no r in it if both have the same."""
    return [(a - b) % 2**BITS for a, b in zip(first.mask(0), second.mask(0), strict=True)]


def signed(v: Words) -> list[int]:
    return v[:, 0].view(np.int64).tolist()


def difference_of_v(first: Product, second: Product) -> list[int]:
    return [(a - b) % 2**64 for a, b in zip(signed(first.v), signed(second.v), strict=True)]


@pytest.mark.parametrize("transposed", [False, True])
def test_one_r_for_two_v_reveals_their_difference(transposed: bool) -> None:
    first, second = product_of(2, transposed), product_of(2, transposed, v_seed=9)
    assert attack(first, differences(first, second)) == difference_of_v(first, second)


def peer_seed(own_seed: bytes, nonce: bytes, at: Address = ADDRESS, scope: str = "", kind: MatMul = TRIPLE) -> bytes:
    """The seed of a response, as offline rounds expand it."""
    seed = ResponseSeed(kind)
    return expand_share(session_seed(own_seed, nonce), at, scope, seed, seed.uniform_parts()[0]).tobytes()


def owner_seed(own_seed: bytes, nonce: bytes, at: Address = ADDRESS, kind: MatMul = TRIPLE) -> bytes:
    """The seed of an operand, as offline rounds expand it."""
    seed = OperandSeed(kind)
    return expand_share(session_seed(own_seed, nonce), at, "", seed, seed.uniform_parts()[0]).tobytes()


@pytest.mark.parametrize(("second_nonce", "leaks"), [(b"first nonce", True), (b"second nonce", False)])
def test_a_session_with_another_nonce_has_another_r(second_nonce: bytes, leaks: bool) -> None:
    """A peer that keeps its seed answers an owner that starts afresh, for a new V: only the nonce is another one."""
    seeds = [peer_seed(b"own seed", nonce) for nonce in (b"first nonce", second_nonce)]
    first, second = product_of(2, False, seeds[0]), product_of(2, False, seeds[1], v_seed=9)
    assert (attack(first, differences(first, second)) == difference_of_v(first, second)) is leaks


def test_seeds_differ_by_party_pair_address_scope_orientation_and_nonce() -> None:
    elsewhere = [replace(ADDRESS, run="store.1"), replace(ADDRESS, shard=1)]
    pairs = [replace(TRIPLE, owner=1, peer=0), replace(TRIPLE, peer=2)]
    turned = replace(TRIPLE, transposed=True)
    seeds = [
        peer_seed(b"seed", b"nonce"),
        peer_seed(b"seed", b"nonce 2"),
        peer_seed(b"other", b"nonce"),
        peer_seed(b"seed", b"nonce", scope="0/"),
        peer_seed(b"seed", b"nonce", replace(ADDRESS, iteration=4)),
        peer_seed(b"seed", b"nonce", replace(ADDRESS, stage="update.00.cross")),
        owner_seed(b"seed", b"nonce"),
        owner_seed(b"seed", b"nonce 2"),
        owner_seed(b"other", b"nonce"),
        owner_seed(b"seed", b"nonce", kind=turned),
        *(peer_seed(b"seed", b"nonce", at) for at in elsewhere),
        *(owner_seed(b"seed", b"nonce", at) for at in elsewhere),
        *(peer_seed(b"seed", b"nonce", kind=kind) for kind in pairs),
        *(owner_seed(b"seed", b"nonce", kind=kind) for kind in pairs),
        *(public_seed(b"nonce", kind) for kind in (TRIPLE, turned, *pairs)),
        public_seed(b"nonce 2", TRIPLE),
    ]
    assert len(set(seeds)) == len(seeds)


def test_an_operand_has_one_seed_in_all_iterations() -> None:
    """The owner opens every response with the secrets of the one operand."""
    assert owner_seed(b"seed", b"nonce") == owner_seed(b"seed", b"nonce", replace(ADDRESS, iteration=7, stage="other"))


def test_columns_of_v_have_their_own_r() -> None:
    """Equal columns of V give unrelated c1: one r for all would show that they are equal."""
    u, share = words(5, 2, seed=1), words(5, 2, seed=3)
    v = np.repeat(words(2, 1, seed=2), 2, axis=1)
    product = multiply(u, v, share, transposed=False)
    assert (product.response["c1"][0] != product.response["c1"][1]).all()
