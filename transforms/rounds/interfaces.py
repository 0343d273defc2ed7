"""What a round may ask for: randomness at an address, and work on ciphertexts. Interfaces only, no input or output."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Kind
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.he.scheme import Ciphers
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.party import Party


@dataclass(frozen=True)
class CiphertextNeed:
    """Ciphertexts that `maker` makes beforehand under the key of `key`: of zero, or of masks if `masked`."""

    label: str
    maker: int
    key: int
    count: int
    product: HEProductParameters
    masked: bool


@dataclass(frozen=True)
class ColumnCiphertexts:
    """Products for some of the columns, in ascending order; the others are empty sums."""

    numbers: NDArray[np.int64]
    ciphers: Ciphers


class HomomorphicOperations(Protocol):
    """The steps at one address. `label` names what was made beforehand for it."""

    def encrypt(self, label: str, party: Party, product: HEProductParameters, values: ring.Ring) -> Ciphers:
        """Enc(values) under this party's key, rows × columns."""

    def check(self, party: Party, peer: int, y: Ciphers) -> Ciphers:
        """What a peer has sent under its own key; refused if it is no ciphertext."""

    def multiply(
        self, label: str, party: Party, peer: int, product: HEProductParameters, x: csr_array
    ) -> tuple[Ciphers, ring.Ring]:
        """Masked ciphertexts of X·Y for the peer's kept Enc(Y), and this party's share of X·Y."""

    def accumulate(
        self, party: Party, peer: int, product: HEProductParameters, x: csr_array, y: Ciphers
    ) -> ColumnCiphertexts:
        """Ciphertexts of Xᵀ·Y, not masked: they stay here."""

    def mask(
        self, label: str, party: Party, peer: int, product: HEProductParameters, width: int, found: ColumnCiphertexts
    ) -> tuple[Ciphers, ring.Ring]:
        """Masked ciphertexts of `width` columns, and this party's share of them."""

    def decrypt(self, party: Party, peer: int, product: HEProductParameters, z: Ciphers, rows: int) -> ring.Ring:
        """This party's share of what the peer has masked."""


Shape = tuple[int, ...]


class Randomness(Protocol):
    """What a round may ask for."""

    def uniform(self, label: str, shape: Shape) -> ring.Ring:
        """Uniform values that only this party knows."""

    def correlated(self, kind: Kind, part: str) -> Array:
        """This party's share of one part of correlated randomness."""

    def scoped(self, scope: str) -> "Randomness":
        """The same with other labels, for rounds that run together."""

    def homomorphic(self) -> HomomorphicOperations:
        """What can be done with ciphertexts here."""


@dataclass(frozen=True)
class CorrelationNeed:
    """A kind that a round asks for, and under which scope."""

    scope: str
    kind: Kind

    def label(self, part: str) -> str:
        return f"{self.scope}{self.kind.name}.{part}"
