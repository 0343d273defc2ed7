"""Which engine computes each owner's cross products, and the public numbers of the homomorphic ones.

Bounds come from the plan: values are at most 2^magnitude in their last bit (as whole numbers, where an owner's are), an
owner's row has at most as many nonzeros as it has columns, its column as many as it has rows. σ counts every value that
a run opens under a mask: 40 + log2 of them.
"""

from dataclasses import dataclass

from veilmeans.crypto.fixed_point import FRACTION_BITS
from veilmeans.crypto.he.product_parameters import SECURITY, HEProductParameters, SchemeParameters, group_rows
from veilmeans.schemas.layout import Layout

ChosenEngines = tuple[tuple[str, ...], ...]
"""For each owner the engines of its distance and its update."""


@dataclass(frozen=True)
class EngineParameters:
    """For each owner the numbers of its homomorphic products; None: it uses `beaver`."""

    distance: tuple[HEProductParameters | None, ...]
    update: tuple[HEProductParameters | None, ...]

    @classmethod
    def beaver(cls, parties: int) -> "EngineParameters":
        return cls((None,) * parties, (None,) * parties)

    @property
    def masked(self) -> frozenset[int]:
        """Owners whose matrix is sent, masked, once per run."""
        pairs = zip(self.distance, self.update, strict=True)
        return frozenset(i for i, engines in enumerate(pairs) if None in engines)

    @property
    def cipher(self) -> SchemeParameters | None:
        """The cryptosystem, if any product uses one."""
        found = [product.cipher for product in (*self.distance, *self.update) if product is not None]
        return found[0] if found else None

    def patience(self, layout: Layout) -> float:
        """For how many seconds more a peer may be silent while it works on the ciphertexts of one stage."""
        products = [product for product in (*self.distance, *self.update) if product is not None]
        values = (layout.total_rows + layout.total_features) * (layout.parties - 1)
        return max((values * product.packs * product.cipher.patience for product in products), default=0.0)


@dataclass(frozen=True)
class HEBounds:
    """What homomorphic products of a job may assume. `whole`: for each owner, whether its values are whole numbers."""

    layout: Layout
    k: int
    magnitude: int
    whole: tuple[bool, ...]
    iterations: int

    @property
    def sigma(self) -> int:
        parties = self.layout.parties
        values = (self.layout.total_rows + self.layout.total_features) * self.k
        return SECURITY + (self.iterations * parties * (parties - 1) * values - 1).bit_length()

    def distance(self, owner: int, cipher: SchemeParameters) -> HEProductParameters:
        """X·μᵀ: sums over the owner's columns."""
        width = self.layout.features[owner]
        return group_rows(self._product(owner, cipher, terms=width, columns=self.k), width)

    def update(self, owner: int, cipher: SchemeParameters) -> HEProductParameters:
        """Xᵀ·C: sums over the owner's rows."""
        return self._product(owner, cipher, terms=self.layout.rows[owner], columns=max(1, self.k - 1))

    def _product(self, owner: int, cipher: SchemeParameters, terms: int, columns: int) -> HEProductParameters:
        shift = FRACTION_BITS if self.whole[owner] else 0
        rows, magnitude = self.layout.rows[owner], max(0, self.magnitude - shift)
        return HEProductParameters(cipher, rows, magnitude, shift, max(1, terms), columns, self.sigma)
