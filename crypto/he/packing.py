"""Several values of one row in one plaintext, and the masks that hide them when a product goes back (HE2SS).

  plaintext   Σ_i v_i·2^(i·width)                           slot i from bit i·width
  product     |v_i| < 2^bound, and v_i may be negative
  masked      v_i + R_i + 2^bound,  R_i uniform below 2^(bound+σ)

The offset 2^bound is 0 mod 2^64 and keeps the slots of negative products positive; the largest masked slot is below
2^(bound+1) + 2^(bound+σ), which is what `unpack` accepts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from veilmeans.crypto import ring

_WORD = "<u8"


@dataclass(frozen=True)
class Slots:
    """`bound`: |value of a product| < 2^bound, bound ≥ 64. `sigma`: statistical security bits. `count`: slots in one
    plaintext."""

    bound: int
    sigma: int
    count: int

    def __post_init__(self) -> None:
        if self.bound < 64 or self.sigma < 1 or self.count < 1:
            raise ValueError("slots need a bound of 64 bits or more, and σ and a count of 1 or more")

    @property
    def width(self) -> int:
        """Bits of a slot, whole bytes."""
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
        """Ring elements (rows, count) as plaintexts."""
        return self._join(np.ascontiguousarray(values, _WORD)[..., None].view(np.uint8))

    def unpack(self, plains: Sequence[mpz]) -> ring.Ring:
        """Each slot mod 2^64: (rows, count). A slot that no masked product can have is refused."""
        words = self._split(plains)
        if _above(words, (1 << (self.bound + 1)) + (1 << (self.bound + self.sigma))).any():
            raise ValueError("a slot of a plaintext is above the bound")
        return words[..., 0].astype(ring.DTYPE)

    def masks(self, random: NDArray[np.uint8]) -> tuple[list[mpz], ring.Ring]:
        """From random bytes (rows, count, mask_bytes): plaintexts of R + 2^bound in each slot, and R mod 2^64."""
        masks = np.array(random, np.uint8)
        masks[..., -1] &= 0xFF >> (-(self.bound + self.sigma) % 8)
        offset = sum(mpz(1) << (slot * self.width + self.bound) for slot in range(self.count))
        return [plain + offset for plain in self._join(masks)], self.residues(masks)

    def residues(self, random: NDArray[np.uint8]) -> ring.Ring:
        """R mod 2^64 alone: its lowest bytes, of which none are cut."""
        return np.ascontiguousarray(random[..., :8]).view(_WORD)[..., 0].astype(ring.DTYPE)

    def _join(self, slots: NDArray[np.uint8]) -> list[mpz]:
        """Bytes (rows, count, some) as plaintexts."""
        rows, count, some = slots.shape
        if count != self.count:
            raise ValueError(f"a plaintext has {self.count} slots, not {count}")
        padded = np.zeros((rows, count, self.width // 8), np.uint8)
        padded[..., :some] = slots
        return [mpz.from_bytes(row.tobytes(), "little") for row in padded]

    def _split(self, plains: Sequence[mpz]) -> NDArray[np.uint64]:
        """Plaintexts as words (rows, count, words of a slot), the lowest first."""
        if any(not 0 <= plain < 1 << self.bits for plain in plains):
            raise ValueError("a plaintext is above the bound")
        size = self.width // 8
        data = b"".join([plain.to_bytes(self.count * size, "little") for plain in plains])
        padded = np.zeros((len(plains), self.count, -(-size // 8) * 8), np.uint8)
        padded[..., :size] = np.frombuffer(data, np.uint8).reshape(len(plains), self.count, size)
        return padded.view(_WORD)


def slots_for(capacity: int, bound: int, sigma: int, wanted: int) -> Slots:
    """As many slots as a plaintext of `capacity` bits holds and as are wanted."""
    count = min(capacity // _width(bound, sigma), wanted)
    if count < 1:
        raise ValueError(f"a plaintext of {capacity} bits has no room for a slot of {_width(bound, sigma)} bits")
    return Slots(bound, sigma, count)


def _width(bound: int, sigma: int) -> int:
    return -(-(bound + sigma + 1) // 8) * 8


def _above(words: NDArray[np.uint64], limit: int) -> NDArray[np.bool_]:
    """Which numbers, words along the last axis, are larger than `limit`: the highest word that differs decides."""
    above = np.zeros(words.shape[:-1], np.bool_)
    equal = ~above
    for place in reversed(range(words.shape[-1])):
        other = np.uint64(limit >> (64 * place) & (2**64 - 1))
        above |= equal & (words[..., place] > other)
        equal &= words[..., place] == other
    return above
