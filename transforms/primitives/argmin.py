"""F_min^k: the position of the minimum of k shared values, by all pairs or by a tree.

  1. ⟨v⟩ = (⟨d⟩ mod 2^ℓ) ≫ s, share by share (`compare_bits` = ℓ, `drop` = s): values of L = ℓ − s bits
  2. their minimum, by all pairs (`primitives.all_pairs`) or a tree (`primitives.argmin_tree`)

Each share is rounded down, so v is ⌊d/2^s⌋ less a loss below M, whatever it is compared with: all comparisons are of
the same v, and a row is one-hot whatever the values are. Equal distances may lose differently, and the lower index must
win: all pairs add i·M to v_i, which keeps the order total; a node of a tree takes its left if left − right < M. So only
near-ties change, of distances that differ by less than k·M·2^s (pairs) or ⌈log2 k⌉·2M·2^s (tree). With s = 0 nothing
is lost or added. |d_i − d_j| < 2^(ℓ−1) − (k+1)·M·2^s must hold (pairs), or − 2M·2^s (tree).

All pairs take a round more than one comparison, a tree up to log2 k comparisons and choices one after the other, of
fewer values. `primitives.argmin_choice` takes what is sooner done.

State: in `source`, distances k × n as shares; out `target`, the one-hot positions as XOR-shared bits, a packed row
(crypto.bits) for each of the k; and in `least` the minimum v (1 × n), unless `least` is None.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from veilmeans.crypto import bits
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.all_pairs import AllPairs, all_pairs
from veilmeans.transforms.primitives.argmin_tree import ArgminTree, argmin_tree
from veilmeans.transforms.primitives.compare import Radices
from veilmeans.transforms.rounds.protocol import Protocol, local_round, require, without

Method = Literal["pairs", "tree"]
METHODS: tuple[Method, ...] = ("pairs", "tree")


@dataclass(frozen=True)
class Argmin:
    """The names in the state, the bits that are compared, and how."""

    source: str = "d"
    target: str = "c"
    least: str | None = None
    compare_bits: int = 64
    drop: int = 0
    method: Method = "tree"
    radices: Radices = ()

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 64 or not 0 <= self.drop < self.compare_bits <= 64:
            raise ValueError(f"a comparison of {self.compare_bits} bits with {self.drop} dropped is not possible")
        if self.method == "pairs" and self.least is not None:
            raise ValueError("all pairs find no minimum, only its position")

    @property
    def width(self) -> int:
        """L, the bits of a rounded value."""
        return self.compare_bits - self.drop

    def loss(self, parties: int) -> int:
        """The bound of what rounding shares takes from a value; 1: nothing."""
        return parties if self.drop else 1


def argmin(how: Argmin, k: int, parties: int) -> Protocol:
    """Find the position of the smallest of k distances."""
    if k == 1:
        return Protocol("min", (local_round("leaves", partial(_single_leaf, how)),))
    if how.method == "pairs":
        pairs = AllPairs(how.source, how.target, how.width, how.loss(parties), how.radices)
        protocol = all_pairs(pairs, k, parties)
    else:
        tree = ArgminTree(how.source, how.target, how.width, how.loss(parties), how.least, how.radices)
        protocol = argmin_tree(tree, k, parties)
    return protocol.after(partial(_round_values, how))


def _round_values(how: Argmin, _party: Party, state: Arrays) -> Arrays:
    """Round each share down to L bits, in words of 32 bits where they suffice; above L bits they are not compared."""
    x = require(state, how.source)
    rounded = x >> np.uint64(how.drop) if how.drop else x
    return {**state, how.source: rounded.astype(np.uint32) if how.width <= 32 else rounded}


def _single_leaf(how: Argmin, party: Party, state: Arrays) -> Arrays:
    """Set the position for k = 1: every row belongs to the one cluster."""
    values = state[how.source]
    ones = np.full((1, bits.word_count(values.shape[1])), bits.ONES if party.first else 0, np.uint64)
    least = {} if how.least is None else {how.least: values}
    return {**without(state, how.source), **least, how.target: ones}
