"""Bit injection: ⟨b·x⟩ from a bit b shared by XOR and a value x shared by sum, in one round.

Correlated randomness: a random bit r, shared both ways, and ⟨a⟩, ⟨r·a⟩ for a uniform a.
  1. open o = b ⊕ r and e = x − a                          (both uniform: they tell nothing)
  2. ⟨b·x⟩ = o·⟨x⟩ + (1 − 2o)·(e·⟨r⟩ + ⟨r·a⟩)

MUX(b, x, y) = y + b·(x − y), so it is an injection, too. B2A is the injection of 1, and needs no a:
  1. open o = b ⊕ r         2. ⟨b⟩ = [i = 0]·o + (1 − 2o)·⟨r⟩

State: `bit` packed (crypto.bits), `value` a share of any shape with as many elements; out `target`, in that shape.
"""

from functools import partial
from math import prod

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto.correlations import DaBit, Inject
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require


def inject(bit: str, value: str, target: str) -> Round:
    """target = bit · value."""
    return Round("inject", partial(_mask, bit, value), partial(_finish, bit, value, target), "[b⊕r], ⟨x − a⟩")


def _mask(bit: str, value: str, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    x = require(state, value).reshape(-1)
    kind = Inject(party.count, x.size)
    opened = {"o": state[bit] ^ randomness.correlated(kind, "bit"), "e": x - randomness.correlated(kind, "a")}
    return Sent(state, opened)


def _finish(
    bit: str, value: str, target: str, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    shaped = require(state, value)
    x = shaped.reshape(-1)
    kind = Inject(party.count, x.size)
    o = _opened_bits(inbox, state[bit] ^ randomness.correlated(kind, "bit"), x.size)
    e = inbox.opened("e", x - randomness.correlated(kind, "a"))
    product = _flipped(o, e * randomness.correlated(kind, "r") + randomness.correlated(kind, "ra"))
    product += o * x
    return {**state, target: product.reshape(shaped.shape)}


def mux(bit: str, left: str, right: str, target: str) -> Protocol:
    """target = left where the bit is 1, else right."""
    step = Protocol("mux", (inject(bit, target, target),))
    return step.after(partial(_difference, left, right, target)).then(partial(_from_right, right, target))


def _difference(left: str, right: str, target: str, party: Party, state: Arrays) -> Arrays:
    del party
    return {**state, target: require(state, left) - require(state, right)}


def _from_right(right: str, target: str, party: Party, state: Arrays) -> Arrays:
    del party
    return {**state, target: require(state, right) + require(state, target)}


def b2a(bit: str, like: str | None, target: str) -> Round:
    """B2A: target = bit, shared by sum, in the shape of the array `like` of the state; none: all packed bits, flat."""
    return Round("b2a", partial(_hide, bit, like), partial(_convert, bit, like, target), "[b⊕r]")


def _shape(bit: str, like: str | None, state: Arrays) -> tuple[int, ...]:
    return (8 * state[bit].size,) if like is None else state[like].shape


def _hide(bit: str, like: str | None, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    kind = DaBit(party.count, prod(_shape(bit, like, state)))
    return Sent(state, {"o": state[bit] ^ randomness.correlated(kind, "bit")})


def _convert(
    bit: str, like: str | None, target: str, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    shape = _shape(bit, like, state)
    kind = DaBit(party.count, prod(shape))
    o = _opened_bits(inbox, state[bit] ^ randomness.correlated(kind, "bit"), kind.count)
    converted = _flipped(o, randomness.correlated(kind, "r"))
    if party.first:
        converted += o
    return {**state, target: converted.reshape(shape)}


def _opened_bits(inbox: Inbox, mine: Array, count: int) -> ring.Ring:
    return bits.unpack(inbox.opened_xor("o", mine), count).astype(ring.DTYPE)


def _flipped(o: ring.Ring, value: ring.Ring) -> ring.Ring:
    """(1 − 2o)·value."""
    result: ring.Ring = np.where(o.astype(bool), -value, value)
    return result
