"""Correlations from random OTs: for each kind the OTs it needs, the corrections a party sends, and its parts.

All parts that a party holds come out of this, uniform ones too: a choice bit or m_0 ⊕ m_1 is uniform, but not an
expansion of the party's seed. Making it one costs a bit for each OT, more than twice the OT itself (0.4); keeping it
costs that bit on the party's own disk. So a store made by OTs keeps every part at every party, under the same names.

Two parties have recipes of their own, with one message each way. Three or more use pairwise OTs, in a few messages that
wait for each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Protocol

import numpy as np

from veilmeans.crypto.correlations import BitProducts, DaBit, Inject, Kind, Mul, Trunc
from veilmeans.crypto.ot.kinds.bit_correlations import BitProductsByOt
from veilmeans.crypto.ot.kinds.shared_bits import SharedBitsByOt
from veilmeans.crypto.ot.kinds.shared_words import SharedMulByOt, dabit_recipe, inject_recipe, trunc_recipe
from veilmeans.crypto.ot.kinds.word_correlations import DaBitByOt, InjectByOt, MulByOt, TruncByOt
from veilmeans.crypto.ot.ot_arrays import MessageShapes, OtRequest, OtSide, Received, Sides
from veilmeans.schemas.arrays import Array, Arrays


class OtRecipe(Protocol):
    """A way to make one kind. `sides`: a party's sides of the requests; `key`: its secret for this correlation."""

    @property
    def messages(self) -> int:
        """Messages of each party to each peer, which wait for each other."""

    def requests(self) -> list[OtRequest]:
        """The OTs that are needed."""

    def message_shapes(self, number: int, sender: int, recipient: int) -> MessageShapes:
        """The shapes and types of the corrections in message `number`."""

    def message(self, party: int, sides: Sides, key: bytes, received: Received) -> dict[int, dict[str, Array]]:
        """The next corrections to each peer, each under a string that it does not know; `received`: those so far."""

    def parts(self, party: int, sides: Sides, key: bytes, received: Received) -> dict[str, Array]:
        """The parts that `party` holds, when all messages are received."""


class TwoPartyRecipe(Protocol):
    """A way to make one kind between two parties, with one message each way."""

    def requests(self) -> list[OtRequest]: ...

    def message_shapes(self, party: int) -> MessageShapes:
        """The shapes and types of the corrections that `party` sends."""

    def message(self, party: int, sides: Sequence[OtSide], key: bytes) -> dict[str, Array]: ...

    def parts(self, party: int, sides: Sequence[OtSide], key: bytes, received: Arrays) -> dict[str, Array]: ...


@dataclass(frozen=True)
class OneMessage:
    """A recipe of two parties as one of any number."""

    recipe: TwoPartyRecipe
    messages: int = 1

    def requests(self) -> list[OtRequest]:
        return self.recipe.requests()

    def message_shapes(self, _number: int, sender: int, _recipient: int) -> MessageShapes:
        return self.recipe.message_shapes(sender)

    def message(self, party: int, sides: Sides, key: bytes, _received: Received) -> dict[int, dict[str, Array]]:
        return {1 - party: self.recipe.message(party, [each[1 - party] for each in sides], key)}

    def parts(self, party: int, sides: Sides, key: bytes, received: Received) -> dict[str, Array]:
        return self.recipe.parts(party, [each[1 - party] for each in sides], key, received[0][1 - party])


def recipe_for(kind: Kind) -> OtRecipe:
    """The recipe for a kind."""
    match kind:
        case BitProducts(parties=2):
            return OneMessage(BitProductsByOt(kind))
        case BitProducts():
            return SharedBitsByOt(kind)
        case Inject(parties=2):
            return OneMessage(InjectByOt(kind))
        case Inject():
            return inject_recipe(kind)
        case DaBit(parties=2):
            return OneMessage(DaBitByOt(kind))
        case DaBit():
            return dabit_recipe(kind)
        case Mul(parties=2):
            return OneMessage(MulByOt(kind))
        case Mul():
            return SharedMulByOt(kind)
        case Trunc(parties=2):
            return OneMessage(TruncByOt(kind))
        case Trunc():
            return trunc_recipe(kind)
    raise TypeError(f"{kind.name} is not made by oblivious transfer")


def ot_cost(kind: Kind, parties: int) -> tuple[int, int]:
    """COTs, and the bytes of corrections, that one correlation takes, of all ordered pairs together."""
    recipe = recipe_for(kind)
    cots = sum(request.count for request in recipe.requests()) * (parties - 1)
    arrays = (
        array
        for number in range(recipe.messages)
        for sender, recipient in permutations(range(parties), 2)
        for array in recipe.message_shapes(number, sender, recipient).values()
    )
    return cots, sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in arrays)
