"""SMUL: ⟨z⟩ = ⟨x·y⟩ element by element, by Beaver's triples, in one round.

Correlated randomness: ⟨a⟩, ⟨b⟩ uniform and ⟨c⟩ = ⟨a·b⟩.
  1. open e = x − a and f = y − b                              (both uniform: they reveal nothing)
  2. ⟨z⟩_i = ⟨c⟩_i + e·⟨b⟩_i + f·⟨a⟩_i + [i = 0]·e·f
"""

from functools import partial

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Mul
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require


def multiply(left: str, right: str, target: str) -> Protocol:
    """Multiply: target = left · right, for arrays of one shape in the state."""
    names = (left, right)
    step = Round("multiply", partial(_send, names), partial(_receive, names, target), sends="⟨x − a⟩, ⟨y − b⟩")
    return Protocol("multiply", (step,))


def _mask(
    names: tuple[str, str], party: Party, state: Arrays, randomness: Randomness
) -> tuple[Mul, dict[str, ring.Ring]]:
    """Mask this party's shares of both operands."""
    x, y = (require(state, name) for name in names)
    kind = Mul(party.count, x.shape)
    return kind, {"e": x - randomness.correlated(kind, "a"), "f": y - randomness.correlated(kind, "b")}


def _send(names: tuple[str, str], party: Party, state: Arrays, randomness: Randomness) -> Sent:
    return Sent(state, _mask(names, party, state, randomness)[1])


def _receive(
    names: tuple[str, str], target: str, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    kind, mine = _mask(names, party, state, randomness)
    e, f = (inbox.open_sum(name, mine[name]) for name in "ef")
    a, b, c = (randomness.correlated(kind, part) for part in "abc")
    product: ring.Ring = c + e * b + f * a
    if party.first:
        product += e * f
    return {**state, target: product}


MULTIPLY = multiply("x", "y", "x")
