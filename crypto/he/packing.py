"""Packing: several values of one row in one plaintext, and the masks that hide them when a product is sent (HE2SS).

  plaintext   Σ_i v_i·2^(i·width)                           slot i from bit i·width
  product     |v_i| < 2^bound, and v_i may be negative
  masked      v_i + R_i + 2^bound,  R_i uniform below 2^(bound+σ)

The offset 2^bound is 0 mod 2^64 and keeps the slots of negative products positive; the largest masked slot is below
2^(bound+1) + 2^(bound+σ), which is what `unpack` accepts, and which fits a slot for σ ≥ 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from veilmeans.crypto import ring

_WORD = "<u8"


@dataclass(frozen=True)
class SlotLayout:
    """The slots of one plaintext.

    `bound`: |value of a product| < 2^bound, bound ≥ 64. `sigma`: statistical security bits. `count`: number of slots.
    """

    bound: int
    sigma: int
    count: int

    def __post_init__(self) -> None:
        if self.bound < 64 or self.sigma < 2 or self.count < 1:
            raise ValueError("slots need a bound of 64 bits or more, a σ of 2 or more, and a count of 1 or more")

    @property
    def width(self) -> int:
        """Bits of a slot, a multiple of 8."""
        return _width(self.bound, self.sigma)

    @property
    def bits(self) -> int:
        """Bits of a plaintext."""
        return self.count * self.width

    @property
    def mask_bytes(self) -> int:
        """Bytes of randomness for one slot."""
        return -(-(self.bound + self.sigma) // 8)

    def pack(self, values: ring.Ring) -> list[mpz]:
        """Pack ring elements (rows, count) into plaintexts."""
        return self._join_bytes(np.ascontiguousarray(values, _WORD)[..., None].view(np.uint8))

    def unpack(self, plains: Sequence[mpz]) -> ring.Ring:
        """Unpack each slot mod 2^64: (rows, count). A slot above what a masked product can have is refused."""
        words = self._split_words(plains)
        if _exceeds(words, (1 << (self.bound + 1)) + (1 << (self.bound + self.sigma))).any():
            raise ValueError("a slot of a plaintext is above the bound")
        return words[..., 0].astype(ring.DTYPE)

    def masks(self, random: NDArray[np.uint8]) -> tuple[list[mpz], ring.Ring]:
        """Make masks of random bytes (rows, count, mask_bytes): plaintexts of R + 2^bound per slot, and R mod 2^64."""
        masks = np.array(random, np.uint8)
        masks[..., -1] &= 0xFF >> (-(self.bound + self.sigma) % 8)
        offset = sum(mpz(1) << (slot * self.width + self.bound) for slot in range(self.count))
        return [plain + offset for plain in self._join_bytes(masks)], self.residues(masks)

    def residues(self, random: NDArray[np.uint8]) -> ring.Ring:
        """R mod 2^64 alone: the lowest eight bytes, which are all random."""
        return np.ascontiguousarray(random[..., :8]).view(_WORD)[..., 0].astype(ring.DTYPE)

    def _join_bytes(self, slots: NDArray[np.uint8]) -> list[mpz]:
        """Join bytes (rows, count, bytes of a value) into plaintexts."""
        rows, count, size = slots.shape
        if count != self.count:
            raise ValueError(f"a plaintext has {self.count} slots, not {count}")
        padded = np.zeros((rows, count, self.width // 8), np.uint8)
        padded[..., :size] = slots
        return [mpz.from_bytes(row.tobytes(), "little") for row in padded]

    def _split_words(self, plains: Sequence[mpz]) -> NDArray[np.uint64]:
        """Split plaintexts into words (rows, count, words of a slot), the lowest first."""
        if any(not 0 <= plain < 1 << self.bits for plain in plains):
            raise ValueError("a plaintext is above the bound")
        size = self.width // 8
        data = b"".join([plain.to_bytes(self.count * size, "little") for plain in plains])
        padded = np.zeros((len(plains), self.count, -(-size // 8) * 8), np.uint8)
        padded[..., :size] = np.frombuffer(data, np.uint8).reshape(len(plains), self.count, size)
        return padded.view(_WORD)


def fit_slots(capacity: int, bound: int, sigma: int, max_count: int) -> SlotLayout:
    """Lay out as many slots as a plaintext of `capacity` bits holds, but at most `max_count`."""
    count = min(capacity // _width(bound, sigma), max_count)
    if count < 1:
        raise ValueError(f"a plaintext of {capacity} bits has no room for a slot of {_width(bound, sigma)} bits")
    return SlotLayout(bound, sigma, count)


def _width(bound: int, sigma: int) -> int:
    return -(-(bound + sigma + 1) // 8) * 8


def _exceeds(words: NDArray[np.uint64], limit: int) -> NDArray[np.bool_]:
    """Return which integers, words along the last axis, exceed `limit`: the highest word that differs decides."""
    exceeds = np.zeros(words.shape[:-1], np.bool_)
    equal = ~exceeds
    for i in reversed(range(words.shape[-1])):
        limit_word = np.uint64(limit >> (64 * i) & (2**64 - 1))
        exceeds |= equal & (words[..., i] > limit_word)
        equal &= words[..., i] == limit_word
    return exceeds
