"""Random OTs from COTs: m_0 = H(q), m_1 = H(q ⊕ Δ) at the sender, m_c = H(t) at the receiver.

  H(x) = AES_K(x) ⊕ x      K from (session, direction, address, block); a block is 256 OTs

A receiver that searches for Δ has as many targets per key as there are OTs under it: log2 256 = 8 bits of 127 are lost,
however many OTs there are. Nothing but these values is ever used: q, t and Δ stay where they are.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from veilmeans.crypto.ot.blocks import Bits, Blocks, choice_bits, encrypt_parts, encryption_buffer
from veilmeans.crypto.ot.ot_session import KEY_SIZE, OtSession

OTS_PER_KEY = 256


class CotSupply(Protocol):
    """A party's COTs of one direction at one address, each taken once."""

    def take(self, count: int) -> Blocks:
        """The next `count` COTs."""


@dataclass
class HashKeys:
    """The hash of one direction at one address; its keys go with the OTs, 256 under each."""

    stream: CipherContext

    @classmethod
    def of(cls, session: OtSession) -> "HashKeys":
        key = session.public("hash")
        return cls(Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor())

    def hash(self, inputs: Blocks) -> Blocks:
        """H of blocks of OTs × inputs × 2 words, each block under the next key."""
        keys = self.stream.update(bytes(KEY_SIZE * len(inputs)))
        outputs = encryption_buffer(inputs.size // 2)
        encrypt_parts([keys[start : start + KEY_SIZE] for start in range(0, len(keys), KEY_SIZE)], inputs, outputs)
        hashed: Blocks = outputs[:-1].reshape(inputs.shape)
        hashed ^= inputs
        return hashed


@dataclass
class RandomOtSender:
    """The sender's random OTs."""

    cots: CotSupply
    delta: Blocks = field(repr=False)
    keys: HashKeys

    def take(self, count: int) -> tuple[Blocks, Blocks]:
        """The next m_0 and m_1, each blocks × 256 × 2; those after `count` are used up, too."""
        q = self.cots.take(padded(count)).reshape(-1, OTS_PER_KEY, 2)
        inputs = np.empty((len(q), 2, OTS_PER_KEY, 2), np.uint64)
        inputs[:, 0] = q
        np.bitwise_xor(q, self.delta, out=inputs[:, 1])
        hashed = self.keys.hash(inputs)
        return hashed[:, 0], hashed[:, 1]


@dataclass
class RandomOtReceiver:
    """The receiver's random OTs."""

    cots: CotSupply
    keys: HashKeys

    def take(self, count: int) -> tuple[Bits, Blocks]:
        """The next choice bits, blocks × 256, and m_c, blocks × 256 × 2; those after `count` are used up, too."""
        t = self.cots.take(padded(count)).reshape(-1, OTS_PER_KEY, 2)
        return choice_bits(t), self.keys.hash(t)


def padded(count: int) -> int:
    """COTs that `take(count)` uses up: blocks of OTs are not shared between calls."""
    return -(-count // OTS_PER_KEY) * OTS_PER_KEY
