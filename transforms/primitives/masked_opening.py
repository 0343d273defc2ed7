"""Opening of bits under masks: one round, after which polynomials of the bits are shared without a message.

A bit z is opened once, as m = z ⊕ λ, under a mask of its own. For a polynomial f of opened bits

  f(m ⊕ λ) = ⊕_S (Π_{i∈S} m_i) · D_S(λ)

where D_S, a derivative of f, is a sum of products of masks. Those that are not linear are dealt (`BitProducts`), a bit
each, so a product of many factors takes one round like a product of two (after ABY2.0; Ohata and Nuida, 2019).

What a party receives is uniform: m under the peers' shares of λ, of which each masks this bit alone. That λ occurs in
several D_S is no second use, since m is the only value that is sent under it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import bits
from veilmeans.crypto.correlations import BitProducts, ProductGroups
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Round, Sent, without


@dataclass(frozen=True)
class OpenedGroups:
    """This party's view of the groups of one `ProductGroups`: planes as count × row of the group × W.

    `values` has the opened bits; of known bits (M = 2) party 0's, and `others` party 1's. `one` is this party's share
    of the public constant 1.
    """

    values: Array
    others: Array | None
    mask: Array
    sums: Array
    one: np.uint64


@dataclass(frozen=True)
class MaskedOpening:
    """The bits that a round opens, as groups of planes; `name` is a prefix of names in the state.

    `known`: there are two parties, and each knows half of the bits of each group itself (`BitProducts.known`).
    """

    name: str
    groups: tuple[ProductGroups, ...]
    known: bool = False

    def kind(self, party: Party, words: int) -> BitProducts:
        return BitProducts(party.count, words, self.groups, self.known)

    @property
    def kept(self) -> tuple[str, str]:
        """The names of what is kept from send to receive: this party's message and its share of the masks."""
        return f"{self.name}.sent", f"{self.name}.mask"

    def split(
        self, party: Party, opened: tuple[Array, Array | None], mask: Array, sums: Array
    ) -> Iterator[OpenedGroups]:
        """View all planes by groups."""
        start = dealt = 0
        one = bits.ONES if party.first else np.uint64(0)
        for each in self.groups:
            rows, outputs = each.count * each.masks // (2 if self.known else 1), each.count * len(each.sums)
            masked, products = slice(start, start + rows), slice(dealt, dealt + outputs)
            values, others = opened
            yield OpenedGroups(
                _by_group(values[masked], each.count),
                None if others is None else _by_group(others[masked], each.count),
                _by_group(mask[masked], each.count),
                _by_group(sums[products], each.count),
                one,
            )
            start, dealt = masked.stop, products.stop


def _by_group(planes: Array, count: int) -> Array:
    """View planes as count × row of the group × W."""
    return planes.reshape(count, -1, planes.shape[1])


Planes = Callable[[Party, Arrays], tuple[Arrays, Array]]
"""The state to keep, and this party's shares of the bits to open, in planes in the order of the mask bits."""
Finish = Callable[[Party, Arrays, Iterator[OpenedGroups]], Arrays]
"""The state after the round."""


def open_masked(name: str, opening: MaskedOpening, planes: Planes, finish: Finish, sends: str) -> Round:
    """Make a round that opens `planes` under masks and passes what was opened and dealt to `finish`."""
    return Round(name, partial(_send, opening, planes), partial(_receive, opening, finish), sends)


def _send(opening: MaskedOpening, planes: Planes, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    rest, shares = planes(party, state)
    kind = opening.kind(party, shares.shape[1])
    mask = randomness.correlated(kind, kind.mask_of(party.index))
    message: Array = shares ^ mask
    return Sent({**rest, **dict(zip(opening.kept, (message, mask), strict=True))}, {"m": message})


def _receive(
    opening: MaskedOpening, finish: Finish, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    mine, mask = (state[name] for name in opening.kept)
    opened: tuple[Array, Array | None]
    if opening.known:
        theirs = inbox.from_peer(1 - party.index, "m", mine)
        opened = (mine, theirs) if party.first else (theirs, mine)
    else:
        opened = inbox.open_xor("m", mine), None
    sums = randomness.correlated(opening.kind(party, mine.shape[1]), "sums")
    return finish(party, without(state, *opening.kept), opening.split(party, opened, mask, sums))
