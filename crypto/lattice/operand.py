"""Enc(U): bodies and keys, packed; masks from a public seed, secrets from the owner's (see `matrix_triple`)."""

import numpy as np

from veilmeans.crypto.lattice import sampling
from veilmeans.crypto.lattice.bit_packing import pack, unpack
from veilmeans.crypto.lattice.encoding import pieces
from veilmeans.crypto.lattice.kernel import Word, Words
from veilmeans.crypto.lattice.modular import P
from veilmeans.crypto.lattice.ntt import transform
from veilmeans.crypto.lattice.parameters import DEGREE, PRIMES, RESIDUE_BITS
from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.crypto.lattice.rlwe import encrypt
from veilmeans.schemas.arrays import Array


class MalformedMessageError(Exception):
    """A message that no party makes: arrays of another shape, or residues that are not below their primes."""


def encrypt_operand(shape: ProductShape, u: Words, seed: bytes, public: bytes) -> dict[str, Array]:
    """Encrypt U for all its products of one orientation. `shape.outputs` does not matter."""
    spec = shape.operand_spec()[0]
    message: Words = np.empty(spec.shape, Word)
    parts = pieces(u)
    by_secret = parts.transpose(1, 0, 2) if shape.transposed else parts
    secrets = [secret(seed, i) for i in range(shape.secrets)]
    for c in range(shape.masks + 1):
        a = mask(public, c)
        for i, s in enumerate(secrets):
            words = by_secret[i, c] if c < shape.masks else np.zeros(DEGREE, Word)
            message[i, c] = pack(encrypt(words, sampling.noise(seed, f"error {i} {c}"), a, s), RESIDUE_BITS)
    return {spec.name: message}


def mask(public: bytes, c: int) -> Words:
    """a[c]; the last one, c = masks, is a_*."""
    return sampling.uniform(public, f"mask {c}")


def secret(seed: bytes, i: int, primes: int = len(PRIMES)) -> Words:
    """s[i], modulo the first primes."""
    return transform(sampling.ternary(seed, f"secret {i}", primes))


def unpack_body(packed: Words) -> Words:
    """Unpack one polynomial of a message, and check its residues."""
    body = unpack(packed, RESIDUE_BITS, len(PRIMES) * DEGREE).reshape(len(PRIMES), DEGREE)
    if (body.max(axis=1) >= P).any():
        raise MalformedMessageError("the encrypted operand has a residue that is not below its prime")
    return body
