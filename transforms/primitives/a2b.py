"""A2B: all bits of ⟨x⟩, shared by XOR, by adding the parties' shares in a Boolean circuit (Kogge–Stone).

  1. two addends u, v shared by XOR                                    (M = 2: u is P_0's share of x, v is P_1's)
  2. g = u ∧ v, p = u ⊕ v; for s = 1, 2, 4, …:  g ← g ⊕ p∧(g ≪ s),  p ← p∧(p ≪ s)
  3. [x] = u ⊕ v ⊕ (g ≪ 1)

A comparison needs the top bit only and has a cheaper circuit (`transforms.primitives.compare`).

State: in `source`, a share of any shape; out `target`, the words of x shared by XOR, in that shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.and_gate import and_round
from veilmeans.transforms.primitives.compare import Comparison, addends, carry_save
from veilmeans.transforms.rounds.protocol import Protocol, require, without

_SHIFTS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Decomposition:
    """The names in the state."""

    source: str
    target: str

    @property
    def whole(self) -> Comparison:
        """All 64 bits, as a comparison would add them up."""
        return Comparison(self.source, self.target)

    def name(self, part: str) -> str:
        return self.whole.name(part)


def a2b(decomposition: Decomposition, parties: int) -> Protocol:
    """The rounds of A2B."""
    both = partial(_both, decomposition), partial(_generated, decomposition)
    levels = [
        and_round(
            f"carry{shift}",
            partial(_shifted, decomposition, shift),
            partial(_carried, decomposition),
            "[p⊕a], [g≪s⊕b], [p≪s⊕b']",
        )
        for shift in _SHIFTS
    ]
    add = Protocol("a2b", (and_round("generate", *both, "[u⊕a], [v⊕b]"), *levels)).then(partial(_add, decomposition))
    return (carry_save(decomposition.whole, parties) + add).named("a2b")


def _both(bits: Decomposition, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    u, v = addends(bits.whole, party, state)
    return u, [v]


def _generated(bits: Decomposition, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    u, v = addends(bits.whole, party, state)
    rest = without(state, bits.name("addends"))
    return {**rest, bits.name("g"): products[0], bits.name("p"): u ^ v, bits.name("sum"): u ^ v}


def _shifted(bits: Decomposition, shift: int, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    del party
    g, p = state[bits.name("g")], state[bits.name("p")]
    return p, [word << np.uint64(shift) for word in (g, p)]


def _carried(bits: Decomposition, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    del party
    return {**state, bits.name("g"): state[bits.name("g")] ^ products[0], bits.name("p"): products[1]}


def _add(bits: Decomposition, party: Party, state: Arrays) -> Arrays:
    del party
    shape = require(state, bits.source).shape
    words: Array = state[bits.name("sum")] ^ (state[bits.name("g")] << np.uint64(1))
    rest = without(state, *(bits.name(part) for part in ("g", "p", "sum")))
    return {**rest, bits.target: words[: int(np.prod(shape))].reshape(shape)}
