"""The public parameters of a product X·Y in which X is plain and sparse and Y is encrypted.

Every value of a product is a sum of at most `terms` integers x·y, |x| ≤ 2^magnitude and 0 ≤ y < 2^64, so it is below
2^bound, bound = 64 + magnitude + ⌈log2 terms⌉. A slot has room for it, for a mask that is σ bits longer, and for the
offset that keeps a negative one positive (`crypto.he.packing`). The `columns` values of a row of Y are packed into one
plaintext, or into several (`packs`); where they are few, `group` rows of the product share one plaintext.

Nothing in here depends on data: it is part of what all parties and the offline phase agree on.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np

from veilmeans.crypto.he.packing import SlotLayout, fit_slots

STATISTICAL_SECURITY_BITS = 40
"""Statistical security of one run, all its masks together."""


@dataclass(frozen=True)
class SchemeParameters:
    """A homomorphic cryptosystem and the length of its modulus n in bits."""

    scheme: str
    bits: int

    @property
    def capacity(self) -> int:
        """Plaintexts are below 2^capacity."""
        return self.bits - 1 if self.scheme == "paillier" else self.bits // 3 - 1

    @property
    def size(self) -> int:
        """Bytes of a ciphertext."""
        return ceil(self.bits * (2 if self.scheme == "paillier" else 1) / 8)

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Element type of an array of ciphertexts."""
        return np.dtype(f"V{self.size}")


@dataclass(frozen=True)
class HEProductParameters:
    """A product with an owner's matrix X, of `rows` rows in all shards together.

    X enters as x / 2^shift, an integer of magnitude 2^magnitude at most.
    """

    cipher: SchemeParameters
    rows: int
    magnitude: int
    shift: int
    terms: int
    columns: int
    sigma: int
    group: int = 1

    @property
    def bound(self) -> int:
        """Values of the product are below 2^bound in magnitude."""
        return 64 + self.magnitude + _log2(self.terms)

    @property
    def exponent_bits(self) -> int:
        """|x| is below 2^exponent_bits."""
        return self.magnitude + 1

    @property
    def growth(self) -> int:
        """Extra bits that the randomness of a fresh ciphertext needs to hide the randomness of the product.

        A base that is shifted by a row's slots has its randomness shifted as far.
        """
        shifted = (self.group - 1) * self.columns * self.slots.width
        return shifted + self.magnitude + _log2(self.terms) + self.sigma

    @cached_property
    def slots(self) -> SlotLayout:
        """Slots of a plaintext of the product; columns that need several plaintexts are divided evenly."""
        fit = fit_slots(self.cipher.capacity, self.bound, self.sigma, self.columns * self.group)
        if self.group > 1 or fit.count >= self.columns:
            return fit
        packs = ceil(self.columns / fit.count)
        return SlotLayout(fit.bound, fit.sigma, ceil(self.columns / packs))

    @property
    def encrypted_slots(self) -> SlotLayout:
        """Slots of a plaintext of Y, which holds one row."""
        return self.slots if self.group == 1 else replace(self.slots, count=self.columns)

    @property
    def packs(self) -> int:
        """Plaintexts for one row of Y."""
        return 1 if self.group > 1 else ceil(self.columns / self.slots.count)

    def encrypted_shape(self, rows: int) -> tuple[int, int]:
        """Shape of the ciphertexts of Y."""
        return rows, self.packs

    def product_shape(self, rows: int) -> tuple[int, int]:
        """Shape of the ciphertexts of X·Y."""
        return ceil(rows / self.group), self.packs


def group_rows(product: HEProductParameters, width: int) -> HEProductParameters:
    """Put as many rows into one plaintext as fit and are worth the shifted copies of `width` columns.

    A copy costs about twice as much as a decryption, and g rows in a plaintext save all but 1/g of `rows` decryptions.
    """
    one = fit_slots(product.cipher.capacity, product.bound, product.sigma, 1)
    most = product.cipher.capacity // one.width // product.columns
    best = max(range(1, most + 1), key=lambda g: product.rows * (1 - 1 / g) - 2 * width * (g - 1), default=1)
    return replace(product, group=best)


def _log2(count: int) -> int:
    """⌈log2 count⌉."""
    return (count - 1).bit_length()
