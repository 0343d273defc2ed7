"""A2B: all bits of ⟨x⟩, shared by XOR, by adding the parties' shares in a Boolean circuit (Kogge–Stone).

  1. two addends u, v shared by XOR                                    (M = 2: u is P_0's share of x, v is P_1's)
  2. g = u ∧ v, p = u ⊕ v; for s = 1, 2, 4, …:  g ← g ⊕ p∧(g ≪ s),  p ← p∧(p ≪ s)
  3. [x] = u ⊕ v ⊕ (g ≪ 1)

A comparison needs the top bit only and has a cheaper circuit (`transforms.compare`).

State: in `source`, a share of any shape; out `target`, the words of x shared by XOR, in that shape.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto.correlations import And
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.compare import Comparison, addends, and_share, carry_save
from veilmeans.transforms.randomness import Randomness
from veilmeans.transforms.rounds import Inbox, Protocol, Round, Sent, require, without

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


def to_boolean(decomposition: Decomposition, parties: int) -> Protocol:
    """The rounds of A2B."""
    generate = Round(
        "generate", partial(_send_generate, decomposition), partial(_receive_generate, decomposition), "[u⊕a], [v⊕b]"
    )
    levels = [
        Round(
            f"carry{shift}",
            partial(_send_carry, decomposition, shift),
            partial(_receive_carry, decomposition, shift),
            "[p⊕a], [g≪s⊕b], [p≪s⊕b']",
        )
        for shift in _SHIFTS
    ]
    protocol = carry_save(decomposition.whole, parties) + Protocol("a2b", (generate, *levels))
    return protocol.then(partial(_add, decomposition)).named("a2b")


def _generate(bits: Decomposition, party: Party, state: Arrays, randomness: Randomness) -> tuple[And, dict[str, Array]]:
    u, v = addends(bits.whole, party, state)
    kind = And(party.count, u.shape, np.uint64)
    return kind, {"d": u ^ randomness.correlated(kind, "a"), "e": v ^ randomness.correlated(kind, "b0")}


def _send_generate(bits: Decomposition, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    return Sent(state, _generate(bits, party, state, randomness)[1])


def _receive_generate(bits: Decomposition, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    kind, mine = _generate(bits, party, state, randomness)
    d, e = (inbox.opened_xor(name, mine[name]) for name in "de")
    u, v = addends(bits.whole, party, state)
    g = and_share(party, kind, d, e, 0, randomness)
    return {**without(state, bits.name("addends")), bits.name("g"): g, bits.name("p"): u ^ v, bits.name("sum"): u ^ v}


def _carry(
    bits: Decomposition, shift: int, party: Party, state: Arrays, randomness: Randomness
) -> tuple[And, dict[str, Array]]:
    g, p = state[bits.name("g")], state[bits.name("p")]
    kind = And(party.count, g.shape, np.uint64, outputs=2)
    message: dict[str, Array] = {"d": p ^ randomness.correlated(kind, "a")}
    for i, word in enumerate((g, p)):
        message[f"e{i}"] = (word << np.uint64(shift)) ^ randomness.correlated(kind, f"b{i}")
    return kind, message


def _send_carry(bits: Decomposition, shift: int, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    return Sent(state, _carry(bits, shift, party, state, randomness)[1])


def _receive_carry(
    bits: Decomposition, shift: int, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    kind, mine = _carry(bits, shift, party, state, randomness)
    d, e0, e1 = (inbox.opened_xor(name, mine[name]) for name in ("d", "e0", "e1"))
    g = state[bits.name("g")] ^ and_share(party, kind, d, e0, 0, randomness)
    return {**state, bits.name("g"): g, bits.name("p"): and_share(party, kind, d, e1, 1, randomness)}


def _add(bits: Decomposition, party: Party, state: Arrays) -> Arrays:
    del party
    shape = require(state, bits.source).shape
    words: Array = state[bits.name("sum")] ^ (state[bits.name("g")] << np.uint64(1))
    rest = without(state, *(bits.name(part) for part in ("g", "p", "sum")))
    return {**rest, bits.target: words[: int(np.prod(shape))].reshape(shape)}
