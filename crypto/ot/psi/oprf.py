"""An OPRF on the leader's ids (Rindal, Schoppmann 2021; Raghuraman, Rindal 2022), and one that is programmed (OPPRF).

With C = A·Δ + B at the leader (A, C) and at a member (Δ, B), for one shard:

  leader    P = OKVS(id → h(id)), sends M = P ⊕ A                         h(id): ℓ bits of the id's hash
  member    K = B + Δ·M = C + Δ·P
  F(id)     member: H(Decode(K, id) + Δ·h(id))      leader: H(Decode(C, id)) for its own ids

For an id that the leader does not have, Decode(P, id) ≠ h(id) but for a chance of 2^-ℓ, and the member's input to H
has a multiple of Δ in it that nobody else knows. The member learns nothing from M: A is pseudorandom to it.

  member    T = OKVS(id → F(id) ⊕ s(id)) for its own ids, sends T
  leader    Decode(T, id) ⊕ F(id) = s(id) if the member has the id, else pseudorandom

T is uniform to whoever does not know F: it shows neither ids nor how many there are.

  s_i(id) = ⊕_j AES under k_ij (id's hash), with a key for each pair of parties (Kolesnikov et al. 2017)

⊕ over all parties of s_i(id) is 0. The leader knows the keys that it shares, and every other value is covered by a key
that two members share: the sum over members of what it decodes equals its own s(id) if all of them have the id. If one
lacks it, the leader does not learn which, or how many do. With one member there is nothing to hide behind others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilmeans.crypto.ot.blocks import Blocks, encrypt, encryption_buffer
from veilmeans.crypto.ot.psi import okvs
from veilmeans.crypto.ot.psi.id_hash import IdHashes
from veilmeans.crypto.ot.psi.okvs import OkvsShape
from veilmeans.crypto.ot.psi.vole import add_products, multiples
from veilmeans.schemas.arrays import Array


@dataclass(frozen=True)
class Oprf:
    """The public parameters of the OPRF in one shard: the leader's key-value store, ℓ, and the key of H."""

    shape: OkvsShape
    bits: int
    hash_key: bytes

    def mask_store(self, hashes: IdHashes, free: Array, a: Array) -> Array:
        """The leader's message M = P ⊕ A."""
        cut = np.uint64(2**self.bits - 1)
        return okvs.encode(self.shape, hashes, self._values(hashes), free & cut) ^ a

    def leader_outputs(self, c: Blocks, hashes: IdHashes) -> Array:
        """F of the leader's own ids."""
        return self._hash(okvs.decode_blocks(self.shape, c, hashes))

    def member_outputs(self, delta: Blocks, b: Blocks, message: Array, hashes: IdHashes) -> Array:
        """F of the member's own ids, from the leader's message."""
        table, k = multiples(delta), b.copy()
        add_products(table, message, k)
        inputs = okvs.decode_blocks(self.shape, k, hashes)
        add_products(table, self._values(hashes), inputs)
        return self._hash(inputs)

    def _values(self, hashes: IdHashes) -> Array:
        """h(id): the lowest ℓ bits of the last word."""
        return hashes[:, 3] & np.uint64(2**self.bits - 1)

    def _hash(self, inputs: Blocks) -> Array:
        """H(x) = AES_K(x) ⊕ x, one word of it."""
        return _encrypted_words(self.hash_key, inputs) ^ inputs[:, 0]


def share_of_zero(keys: Sequence[bytes], hashes: IdHashes) -> Array:
    """s(id) of a party with these pairwise keys."""
    ids, total = np.ascontiguousarray(hashes[:, :2]), np.zeros(len(hashes), np.uint64)
    for key in keys:
        total ^= _encrypted_words(key, ids)
    return total


def id_tags(key: bytes, hashes: IdHashes) -> tuple[Array, Array]:
    """96 bits of AES of each id's hash under a key: 64, and 32. No two of 2^24 × 2^24 ids agree but by 2^-48."""
    ids = np.ascontiguousarray(hashes[:, :2])
    encrypted = encryption_buffer(len(ids))
    if len(ids):
        encrypt(key, ids, encrypted)
    return encrypted[:-1, 0].copy(), encrypted[:-1, 1].astype(np.uint32)


def _encrypted_words(key: bytes, blocks: Blocks) -> Array:
    """The first word of AES of each block."""
    encrypted = encryption_buffer(len(blocks))
    if len(blocks):
        encrypt(key, blocks, encrypted)
    words: Array = encrypted[:-1, 0]
    return words
