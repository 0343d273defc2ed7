"""A2B: all bits of ⟨x⟩, shared by XOR, by adding the parties' shares in a Boolean circuit (Kogge–Stone).

  1. two addends u, v shared by XOR                                    (M = 2: u is P_0's share of x, v is P_1's)
  2. g = u ∧ v, p = u ⊕ v; for s = 1, 2, 4, …:  g ← g ⊕ p∧(g ≪ s),  p ← p∧(p ≪ s)
  3. [x] = u ⊕ v ⊕ (g ≪ 1)

A comparison needs only the top bit and has a cheaper circuit (`transforms.primitives.compare`).

State: in `source`, a share of any shape; out `target`, the words of x shared by XOR, in that shape.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.and_gate import and_round
from veilmeans.transforms.primitives.compare import Comparison, addends, carry_save
from veilmeans.transforms.rounds.protocol import Protocol, require, without

_SHIFTS = (1, 2, 4, 8, 16, 32)


def a2b(source: str, target: str, parties: int) -> Protocol:
    """Convert a value to its bits, shared by XOR."""
    addition = Comparison(source, target)
    generate = and_round(
        "generate", partial(_both_addends, addition), partial(_begin_carries, addition), "[u⊕a], [v⊕b]"
    )
    levels = []
    for shift in _SHIFTS:
        halves = partial(_shift_pairs, addition, shift), partial(_combine_pairs, addition)
        levels.append(and_round(f"carry{shift}", *halves, "[p⊕a], [g≪s⊕b], [p≪s⊕b']"))
    add = Protocol("a2b", (generate, *levels)).then(partial(_add_carries, addition))
    return (carry_save(addition, parties) + add).named("a2b")


def _both_addends(addition: Comparison, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    u, v = addends(addition, party, state)
    return u, [v]


def _begin_carries(addition: Comparison, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    u, v = addends(addition, party, state)
    carries = {addition.name("g"): products[0], addition.name("p"): u ^ v, addition.name("sum"): u ^ v}
    return {**without(state, addition.name("addends")), **carries}


def _shift_pairs(addition: Comparison, shift: int, _party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    g, p = state[addition.name("g")], state[addition.name("p")]
    return p, [word << np.uint64(shift) for word in (g, p)]


def _combine_pairs(addition: Comparison, _party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    g = state[addition.name("g")] ^ products[0]
    return {**state, addition.name("g"): g, addition.name("p"): products[1]}


def _add_carries(addition: Comparison, _party: Party, state: Arrays) -> Arrays:
    shape = require(state, addition.source).shape
    words: Array = state[addition.name("sum")] ^ (state[addition.name("g")] << np.uint64(1))
    rest = without(state, *(addition.name(part) for part in ("g", "p", "sum")))
    return {**rest, addition.target: words[: int(np.prod(shape))].reshape(shape)}
