"""The public numbers of a product X·Y in which X is plain and sparse and Y is encrypted: what its plaintexts hold.

Every value of a product is a sum of at most `terms` numbers x·y, |x| ≤ 2^magnitude and 0 ≤ y < 2^64, so it is below
2^bound, bound = 64 + magnitude + ⌈log2 terms⌉. A slot has room for it, for a mask that is σ bits longer, and for the
offset that keeps a negative one positive (`crypto.he.packing`). `columns` values of Y stand side by side in one
plaintext, or in several (`packs`); where they are few, `group` rows of the product share one, too.

Nothing in here depends on data: it is part of the plan that all parties and the offline phase agree on.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np

from veilmeans.crypto.he.packing import Slots, slots_for

SECURITY = 40
"""Statistical security of a whole run, in bits."""


@dataclass(frozen=True)
class SchemeParameters:
    """A cryptosystem and the length of its modulus n."""

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
    def patience(self) -> float:
        """Seconds that work on one ciphertext may take on a slow machine."""
        return (0.02 if self.scheme == "paillier" else 1e-3) * (self.bits / 2048) ** 3

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Of an array of ciphertexts."""
        return np.dtype(f"V{self.size}")


@dataclass(frozen=True)
class HEProductParameters:
    """X, of `rows` rows in the whole run, enters as x / 2^shift, a whole number of magnitude 2^magnitude at most."""

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
        return 64 + self.magnitude + _log2(self.terms)

    @property
    def exponent_bits(self) -> int:
        """|x| is below 2^exponent_bits."""
        return self.magnitude + 1

    @property
    def growth(self) -> int:
        """By how many bits the randomness of a fresh ciphertext must be longer to hide that of the product.

        The copies whose plaintexts are moved by a row's slots have their randomness moved as far.
        """
        moved = (self.group - 1) * self.columns * self.slots.width
        return moved + self.magnitude + _log2(self.terms) + self.sigma

    @cached_property
    def slots(self) -> Slots:
        """Of a plaintext of the product; the columns are spread evenly where they need several."""
        fit = slots_for(self.cipher.capacity, self.bound, self.sigma, self.columns * self.group)
        if self.group > 1 or fit.count >= self.columns:
            return fit
        packs = ceil(self.columns / fit.count)
        return Slots(fit.bound, fit.sigma, ceil(self.columns / packs))

    @property
    def encrypted_slots(self) -> Slots:
        """Of a plaintext of Y: one row's."""
        return self.slots if self.group == 1 else replace(self.slots, count=self.columns)

    @property
    def packs(self) -> int:
        """Plaintexts for one row of Y."""
        return 1 if self.group > 1 else ceil(self.columns / self.slots.count)

    def encrypted_shape(self, rows: int) -> tuple[int, int]:
        """Of the ciphertexts of Y."""
        return rows, self.packs

    def product_shape(self, rows: int) -> tuple[int, int]:
        """Of the ciphertexts of X·Y."""
        return ceil(rows / self.group), self.packs


def group_rows(product: HEProductParameters, width: int) -> HEProductParameters:
    """The same with as many rows in one plaintext as fit and pay for the shifted copies of `width` columns.

    To make a copy costs about twice as much as to decrypt, and g rows in a plaintext save all but 1/g of `rows`.
    """
    one = slots_for(product.cipher.capacity, product.bound, product.sigma, 1)
    most = product.cipher.capacity // one.width // product.columns
    best = max(range(1, most + 1), key=lambda g: product.rows * (1 - 1 / g) - 2 * width * (g - 1), default=1)
    return replace(product, group=best)


def _log2(count: int) -> int:
    """⌈log2 count⌉."""
    return (count - 1).bit_length()
