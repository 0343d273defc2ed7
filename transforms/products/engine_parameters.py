"""The engines of each owner's cross products, and the public parameters of the homomorphic ones.

Bounds come from the job: values are at most 2^magnitude in their last bit (as integers, where an owner's are integers),
an owner's row has at most as many nonzeros as columns, its column at most as many as rows. σ counts every value that a
run opens under a mask: 40 + log2 of their number.
"""

from dataclasses import dataclass

from veilmeans.crypto.fixed_point import FRACTION_BITS
from veilmeans.crypto.he import product_parameters as he
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters
from veilmeans.schemas.layout import Layout

ChosenEngines = tuple[tuple[str, ...], ...]
"""For each owner the engines of its distance and its update."""


@dataclass(frozen=True)
class EngineParameters:
    """For each owner the parameters of its homomorphic products; None: it uses `beaver`."""

    distance: tuple[HEProductParameters | None, ...]
    update: tuple[HEProductParameters | None, ...]

    @property
    def masked(self) -> frozenset[int]:
        """The owners whose matrix is sent, masked, once per run."""
        pairs = zip(self.distance, self.update, strict=True)
        return frozenset(i for i, engines in enumerate(pairs) if None in engines)

    @property
    def cipher(self) -> SchemeParameters | None:
        """The cryptosystem, if any product uses one."""
        return next((product.cipher for product in self._homomorphic_products), None)

    def extra_timeout_s(self, layout: Layout) -> float:
        """Extra seconds for which a peer may be silent while it works on the ciphertexts of one stage."""
        values = (layout.total_rows + layout.total_features) * (layout.parties - 1)
        seconds = [product.packs * _seconds_per_ciphertext(product.cipher) for product in self._homomorphic_products]
        return values * max(seconds, default=0.0)

    @property
    def _homomorphic_products(self) -> list[HEProductParameters]:
        return [product for product in (*self.distance, *self.update) if product is not None]


@dataclass(frozen=True)
class HEBounds:
    """Bounds of a job's homomorphic products; `integer_valued`: for each owner, True if its values are integers.

    `all_clusters`: the last cluster's sum does not follow from the others'.
    """

    layout: Layout
    k: int
    magnitude: int
    integer_valued: tuple[bool, ...]
    iterations: int
    all_clusters: bool = False

    @property
    def sigma(self) -> int:
        """Bits by which a mask is longer than what it hides."""
        parties = self.layout.parties
        values = (self.layout.total_rows + self.layout.total_features) * self.k
        return he.STATISTICAL_SECURITY_BITS + (self.iterations * parties * (parties - 1) * values - 1).bit_length()

    def distance(self, owner: int, cipher: SchemeParameters) -> HEProductParameters:
        """X·μᵀ: sums over the owner's columns."""
        width = self.layout.features[owner]
        return he.group_rows(self._product(owner, cipher, terms=width, columns=self.k), width)

    def update(self, owner: int, cipher: SchemeParameters) -> HEProductParameters:
        """Xᵀ·C: sums over the owner's rows."""
        columns = self.k if self.all_clusters else max(1, self.k - 1)
        return self._product(owner, cipher, terms=self.layout.rows[owner], columns=columns)

    def _product(self, owner: int, cipher: SchemeParameters, terms: int, columns: int) -> HEProductParameters:
        shift = FRACTION_BITS if self.integer_valued[owner] else 0
        rows, magnitude = self.layout.rows[owner], max(0, self.magnitude - shift)
        return HEProductParameters(cipher, rows, magnitude, shift, max(1, terms), columns, self.sigma)


def _seconds_per_ciphertext(cipher: SchemeParameters) -> float:
    """Seconds that work on one ciphertext may take on a slow machine."""
    return (0.02 if cipher.scheme == "paillier" else 1e-3) * (cipher.bits / 2048) ** 3
