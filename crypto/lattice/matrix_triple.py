"""U·V mod 2^64 between the owner of U and a peer with V, exactly, in two messages (semi-honest).

One mask `a` serves many secrets (a body for each), so a response has one c1 for many c0:

  distance  W = U·V     body[l, c] = −a[c]·s[l] + ⌊q·U[block l, column c]/2^64⌉ + e      key[l] = −a_*·s[l] + e
  update    W = Uᵀ·V    body[c, l] = −a[l]·s[c] + ⌊q·U[block l, column c]/2^64⌉ + e      key[c] = −a_*·s[c] + e

  1. The owner sends all bodies and keys, once: V may change, U does not (`encrypt_operand`).
  2. For each column of V, the peer sends, with fresh ternary r, small e' and its share W_peer = −R (`respond`),
       c1 = Σ a·v + a_*·r + e'                            rounded to 80 bits
       c0 = Σ body·v + key·r + ⌊q·R/2^64⌉ + flood         cut to 66 bits, at the coefficients that are results
  3. The owner computes its share W_owner = W + R = ⌊2^64·(c0 + c1·s)/q⌉ (`open_response`).

a·v without r would reveal V to the owner, who knows a (tests/crypto/lattice/test_response_attacks.py); with r it is an
RLWE sample. c0 depends on V by less than its flood hides (docs/offline.md has the theorem and its proof).

A seed belongs to one message, and is derived from a party's own seed, the joint nonce of the session and the address:
one r for two V would reveal their difference. `public` determines the masks a; it is derived from the joint nonce, so
that no party chooses them.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from veilmeans.crypto.lattice import sampling
from veilmeans.crypto.lattice.bit_packing import pack, unpack
from veilmeans.crypto.lattice.compression import decode, flood_and_cut, lift_mask, round_mask
from veilmeans.crypto.lattice.encoding import reversed_polynomials, signed_scalars
from veilmeans.crypto.lattice.kernel import Word, Words
from veilmeans.crypto.lattice.modular import P
from veilmeans.crypto.lattice.ntt import transform, transform_back
from veilmeans.crypto.lattice.operand import MalformedMessageError, mask, secret, unpack_body
from veilmeans.crypto.lattice.parameters import DEGREE, PRIMES
from veilmeans.crypto.lattice.product_shape import TAIL_BITS, ProductShape
from veilmeans.crypto.lattice.rlwe import add_combinations, add_constant_coefficient, add_product
from veilmeans.schemas.arrays import Array, Arrays, Spec, spec_of

_AT_ONCE = 64
"""Polynomials of a sum that are in memory at one time."""


def respond(
    shape: ProductShape, operand: Arrays, v: Words, share: Words, seed: bytes, public: bytes
) -> dict[str, Array]:
    """Multiply the encrypted U by V; W_peer = `share` is uniform, and used here only."""
    _check("encrypted operand", operand, shape.operand_spec())
    hiding = [hiding_polynomial(seed, j) for j in range(shape.outputs)]
    if shape.transposed:
        polynomials = transform(reversed_polynomials(v))
        c0 = _inner_products(shape, operand["operand"], polynomials, hiding)
        c1 = _sum_of_products(polynomials, partial(mask, public))
    else:
        scalars = signed_scalars(v)
        c0 = _scalar_products(shape, operand["operand"], scalars, hiding)
        c1 = _combine(scalars, partial(mask, public))
    last = mask(public, shape.masks)
    for j, r in enumerate(hiding):
        add_product(last, r, c1[j])
    return {**_rounded(c1, seed), **_flooded(shape, c0, -share, seed)}


def open_response(shape: ProductShape, response: Arrays, seed: bytes) -> Words:
    """Compute W_owner from the peer's response; `seed` is that of the operand."""
    _check("response", response, shape.response_spec())
    c1: Words = np.empty((shape.outputs, 2, DEGREE), Word)
    for j in range(shape.outputs):
        lift_mask(np.array(response["c1"][j]), response["c1.tail"][j].astype(Word), c1[j])
    transform(c1)
    top = np.array(response["c0"])
    tail = unpack(response["c0.tail"], TAIL_BITS, top.size).reshape(top.shape)
    out: Words = np.empty(top.shape, Word)
    for i in range(shape.secrets):
        s, at = secret(seed, i, 2), _results_of(shape, i)
        for j in range(shape.outputs):
            decode(_times_secret(shape, c1[j], s), top[j, at], tail[j, at], out[j, at])
    return np.ascontiguousarray(out.T)


def hiding_polynomial(seed: bytes, j: int) -> Words:
    """r for column j of V, transformed."""
    return transform(sampling.ternary(seed, f"hiding {j}"))


def _check(what: str, message: Arrays, expected: Spec) -> None:
    if spec_of(message) != expected:
        raise MalformedMessageError(f"the {what} has other arrays than those of the agreed shapes")


def _results_of(shape: ProductShape, i: int) -> slice:
    """The results that are encrypted under secret i."""
    if shape.transposed:
        return slice(i, i + 1)
    return slice(i * DEGREE, min((i + 1) * DEGREE, shape.rows))


def _combine(scalars: Words, polynomial: Callable[[int], Words]) -> Words:
    """Σ_c polynomial(c)·V[c, j] for each j, a few polynomials at a time."""
    _, outputs, inner = scalars.shape
    sums: Words = np.zeros((outputs, len(PRIMES), DEGREE), Word)
    for start in range(0, inner, _AT_ONCE):
        end = min(start + _AT_ONCE, inner)
        some = np.stack([polynomial(c) for c in range(start, end)])
        add_combinations(some, np.ascontiguousarray(scalars[:, :, start:end]), sums)
    return sums


def _sum_of_products(polynomials: Words, polynomial: Callable[[int], Words]) -> Words:
    """Σ_l polynomial(l)·V_j[block l] for each j."""
    sums: Words = np.zeros((len(polynomials), len(PRIMES), DEGREE), Word)
    for block in range(polynomials.shape[1]):
        a = polynomial(block)
        for j, each in enumerate(polynomials):
            add_product(a, each[block], sums[j])
    return sums


def _scalar_products(shape: ProductShape, bodies: Words, scalars: Words, hiding: Sequence[Words]) -> Words:
    """Σ body·v + key·r of a distance, its results: [output, prime, row]."""
    out: Words = np.empty((shape.outputs, len(PRIMES), shape.results), Word)
    for i in range(shape.secrets):
        sums, key, at = (
            _combine(scalars, partial(_unpack_at, bodies[i])),
            unpack_body(bodies[i, -1]),
            _results_of(shape, i),
        )
        for j, r in enumerate(hiding):
            add_product(key, r, sums[j])
        out[:, :, at] = transform_back(sums)[:, :, : at.stop - at.start]
    return out


def _inner_products(shape: ProductShape, bodies: Words, polynomials: Words, hiding: Sequence[Words]) -> Words:
    """Coefficient 0 of Σ body·v + key·r of an update: [output, prime, column]."""
    out: Words = np.zeros((shape.results, shape.outputs, len(PRIMES)), Word)
    for i in range(shape.secrets):
        for block in range(shape.masks):
            body = unpack_body(bodies[i, block])
            for j, each in enumerate(polynomials):
                add_constant_coefficient(body, each[block], out[i, j])
        key = unpack_body(bodies[i, -1])
        for j, r in enumerate(hiding):
            add_constant_coefficient(key, r, out[i, j])
    return np.ascontiguousarray(out.transpose(1, 2, 0))


def _unpack_at(bodies: Words, c: int) -> Words:
    return unpack_body(bodies[c])


def _rounded(c1: Words, seed: bytes) -> dict[str, Array]:
    """c1 + e', rounded to 80 bits."""
    top: Words = np.empty((len(c1), DEGREE), Word)
    tail = np.empty_like(top)
    for j, each in enumerate(transform_back(c1)):
        round_mask((each + sampling.noise(seed, f"error {j}")) % P[:, None], top[j], tail[j])
    return {"c1": top, "c1.tail": tail.astype(np.uint16)}


def _flooded(shape: ProductShape, c0: Words, masks: Words, seed: bytes) -> dict[str, Array]:
    """c0 + ⌊q·R/2^64⌉ + flood, cut to 66 bits."""
    top: Words = np.empty((shape.outputs, shape.results), Word)
    tail = np.empty_like(top)
    for j, each in enumerate(c0):
        random = sampling.words(seed, f"flood {j}", 2 * shape.results)
        flood_and_cut(each, np.array(masks[:, j]), random, top[j], tail[j])
    return {"c0": top, "c0.tail": pack(tail, TAIL_BITS)}


def _times_secret(shape: ProductShape, c1: Words, s: Words) -> Words:
    """c1·s modulo the first two primes, at the coefficients that are results."""
    if shape.transposed:
        constant: Words = np.zeros(2, Word)
        add_constant_coefficient(c1, s, constant)
        return constant.reshape(2, 1)
    product: Words = np.zeros((2, DEGREE), Word)
    add_product(c1, s, product)
    return transform_back(product)
