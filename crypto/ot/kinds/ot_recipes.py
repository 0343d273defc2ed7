"""Correlations from random OTs: for each kind the OTs it needs, the corrections a party sends, and its parts.

All parts that a party holds come out of this, uniform ones too: a choice bit or m_0 ⊕ m_1 is uniform, but not an
expansion of the party's seed. Making it one costs a bit for each OT, more than twice the OT itself (0.4); keeping it
costs that bit on the party's own disk. So a store made by OTs keeps every part at every party, under the same names.
"""

from collections.abc import Sequence
from typing import Protocol

from veilmeans.crypto.correlations import BitProducts, DaBit, Inject, Kind, Mul, Trunc
from veilmeans.crypto.ot.kinds.bit_correlations import BitProductsByOt
from veilmeans.crypto.ot.kinds.word_correlations import DaBitByOt, InjectByOt, MulByOt, TruncByOt
from veilmeans.crypto.ot.ot_arrays import MessageShapes, OtRequest, OtSide
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import ConfigError


class OtRecipe(Protocol):
    """A way to make one kind. `sides`: a party's sides of the requests; `key`: its secret for this correlation."""

    def requests(self) -> list[OtRequest]:
        """The OTs that are needed."""

    def message_shapes(self, party: int) -> MessageShapes:
        """The shapes and types of the corrections that `party` sends."""

    def message(self, party: int, sides: Sequence[OtSide], key: bytes) -> dict[str, Array]:
        """The corrections that `party` sends: each under a string that their receiver does not know."""

    def parts(self, party: int, sides: Sequence[OtSide], key: bytes, received: Arrays) -> dict[str, Array]:
        """The parts that `party` holds."""


def recipe_for(kind: Kind) -> OtRecipe:
    """The recipe for a kind of two parties; a ConfigError for more, of which no kind is made by OTs."""
    if getattr(kind, "parties", 2) != 2:
        raise ConfigError("triples.provider is ot, which makes triples for two parties: use the dealer for more")
    match kind:
        case BitProducts():
            return BitProductsByOt(kind)
        case Inject():
            return InjectByOt(kind)
        case DaBit():
            return DaBitByOt(kind)
        case Mul():
            return MulByOt(kind)
        case Trunc():
            return TruncByOt(kind)
    raise TypeError(f"{kind.name} is not made by oblivious transfer")
