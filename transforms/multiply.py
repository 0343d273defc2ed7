"""SMUL: ⟨z⟩ = ⟨x·y⟩ element by element, by Beaver's triples, in one round.

Correlated randomness: ⟨a⟩, ⟨b⟩ uniform and ⟨c⟩ = ⟨a·b⟩.
  1. open e = x − a and f = y − b                              (both uniform: they tell nothing)
  2. ⟨z⟩_i = ⟨c⟩_i + e·⟨b⟩_i + f·⟨a⟩_i + [i = 0]·e·f

State: in "x" and "y"; out "x" = the product, and "y" as it was.
"""

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.randomness import Randomness
from veilmeans.transforms.rounds import Inbox, Protocol, Round, Sent, require


def mask(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del party
    x, y = require(state, "x"), require(state, "y")
    a, b, _ = randomness.mul(x.shape)
    return Sent(state, {"e": x - a, "f": y - b})


def finish(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    a, b, c = randomness.mul(state["x"].shape)
    e = inbox.opened("e", require(state, "x") - a)
    f = inbox.opened("f", require(state, "y") - b)
    product: ring.Ring = c + e * b + f * a
    if party.first:
        product += e * f
    return {**state, "x": product}


MULTIPLY = Protocol("multiply", (Round("multiply", mask, finish, sends="⟨x − a⟩, ⟨y − b⟩"),))
