"""Blocks of 128 bits as pairs of words, and AES over many of them.

A correlated OT (COT) under Δ: the sender has q, the receiver t = q ⊕ c·Δ and the choice bit c. The lowest bit of Δ is 1
and that of every q is 0, so that the lowest bit of t is c.
"""

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from numpy.typing import NDArray

from veilmeans.crypto import prg

Blocks = NDArray[np.uint64]
"""… × 2 words, the low one first."""
Bits = NDArray[np.uint8]
_ECB = modes.ECB()
_LOWEST = np.uint64(1)
_SPARE = 15
"""Bytes of room that `update_into` asks for beyond what ECB writes."""


def uniform_blocks(key: bytes, count: int) -> Blocks:
    """Expand `count` uniform blocks from a key."""
    blocks = np.empty((count, 2), np.uint64)
    prg.fill(key, blocks)
    return blocks


def make_delta(key: bytes) -> Blocks:
    """Expand Δ: 127 uniform bits, and 1 as the lowest."""
    delta: Blocks = uniform_blocks(key, 1)[0]
    delta[0] |= _LOWEST
    return delta


def choice_bits(t: Blocks) -> Bits:
    """The choice bits that the receiver's blocks carry."""
    return (t[..., 0] & _LOWEST).astype(np.uint8)


def encryption_buffer(count: int) -> Blocks:
    """A buffer into which `encrypt` can write `count` blocks."""
    return np.empty((count + 1, 2), np.uint64)


def encrypt(key: bytes, source: Blocks, target: Blocks) -> None:
    """target = AES-128 of each block of `source`; `target` has room for one block more."""
    encrypt_parts([key], source, target)


def encrypt_parts(keys: Sequence[bytes], source: Blocks, target: Blocks) -> None:
    """Encrypt as many equal parts of `source` as there are keys; views of bytes cost less than slices of arrays."""
    octets, encrypted = source.data.cast("B"), target.data.cast("B")
    step = len(octets) // max(1, len(keys))
    for number, key in enumerate(keys):
        start = number * step
        encryptor = Cipher(AES128(key), _ECB).encryptor()
        encryptor.update_into(octets[start : start + step], encrypted[start : start + step + _SPARE])
