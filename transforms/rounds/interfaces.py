"""Interfaces for rounds: randomness at an address, and operations on ciphertexts. No input or output."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Kind
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.he.scheme import Ciphertexts
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.party import Party

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class CiphertextNeed:
    """Ciphertexts that party `maker` makes offline under party `key`'s key: of zeros, or of masks if `masked`."""

    label: str
    maker: int
    key: int
    count: int
    product: HEProductParameters
    masked: bool


@dataclass(frozen=True)
class ColumnCiphertexts:
    """Ciphertexts of some columns, in ascending order; the sums of all other columns are empty."""

    columns: NDArray[np.int64]
    ciphertexts: Ciphertexts


class HomomorphicOperations(Protocol):
    """The operations on ciphertexts at one address. `label` names the ciphertexts that were made offline for one."""

    def encrypt(self, label: str, party: Party, product: HEProductParameters, values: ring.Ring) -> Ciphertexts:
        """Compute Enc(values) under this party's key, rows × columns."""

    def check(self, party: Party, peer: int, y: Ciphertexts) -> Ciphertexts:
        """Return the ciphertexts that a peer sent under its own key, or refuse what is not a ciphertext."""

    def multiply(
        self, label: str, party: Party, peer: int, product: HEProductParameters, x: "csr_array"
    ) -> tuple[Ciphertexts, ring.Ring]:
        """Compute masked ciphertexts of X·Y from the peer's stored Enc(Y), and this party's share of X·Y."""

    def accumulate(
        self, party: Party, peer: int, product: HEProductParameters, x: "csr_array", y: Ciphertexts
    ) -> ColumnCiphertexts:
        """Compute ciphertexts of Xᵀ·Y. They are not masked and must not be sent."""

    def mask(
        self, label: str, party: Party, peer: int, product: HEProductParameters, width: int, sums: ColumnCiphertexts
    ) -> tuple[Ciphertexts, ring.Ring]:
        """Mask the sums of `width` columns; return ciphertexts of all columns and this party's share of the sums."""

    def decrypt(self, party: Party, peer: int, product: HEProductParameters, z: Ciphertexts, rows: int) -> ring.Ring:
        """Decrypt this party's share of what the peer has masked."""


Shape = tuple[int, ...]
Shapes = Mapping[str, tuple[Shape, str] | Array]
"""Name -> (shape, dtype) of each array in a party's state, or the array itself where it is public."""


class Randomness(Protocol):
    """The randomness of one round of one shard."""

    def uniform(self, label: str, shape: Shape) -> ring.Ring:
        """Expand uniform values that only this party knows."""

    def correlated(self, kind: Kind, part: str) -> Array:
        """Expand or read this party's share of one part of a correlation."""

    def scoped(self, scope: str) -> "Randomness":
        """The same randomness with `scope` before every label, for rounds that share one message."""

    def at(self, iteration: int, stage: str) -> "Randomness":
        """The randomness of the same shard in another iteration and stage, which an offline round prepares."""

    def he(self) -> HomomorphicOperations:
        """The operations on ciphertexts at this address."""


@dataclass(frozen=True)
class CorrelationNeed:
    """A kind of correlation that a round asks for, and the scope of its labels."""

    scope: str
    kind: Kind

    def label(self, part: str) -> str:
        """The PRG label of one part."""
        return f"{self.scope}{self.kind.name}.{part}"
