"""Bit injection: ⟨b·x⟩ from a bit b shared by XOR and a value x shared by sum, in one round.

Correlated randomness: a random bit r, shared both ways, and ⟨a⟩, ⟨r·a⟩ for a uniform a.
  1. open o = b ⊕ r and e = x − a                          (both uniform: they reveal nothing)
  2. ⟨b·x⟩ = o·⟨x⟩ + (1 − 2o)·(e·⟨r⟩ + ⟨r·a⟩)

B2A is the injection of 1, and needs no a:
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
from veilmeans.transforms.rounds.protocol import Inbox, Round, Sent, require


def inject(bit: str, value: str, target: str) -> Round:
    """Inject a bit: target = bit · value."""
    halves = partial(_send_injection, bit, value), partial(_receive_injection, bit, value, target)
    return Round("inject", *halves, "[b⊕r], ⟨x − a⟩")


def _send_injection(bit: str, value: str, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    x = require(state, value).reshape(-1)
    kind = Inject(party.count, x.size)
    opened = {"o": state[bit] ^ randomness.correlated(kind, "bit"), "e": x - randomness.correlated(kind, "a")}
    return Sent(state, opened)


def _receive_injection(
    bit: str, value: str, target: str, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    shaped = require(state, value)
    x = shaped.reshape(-1)
    kind = Inject(party.count, x.size)
    o = _open_bits(inbox, state[bit] ^ randomness.correlated(kind, "bit"), x.size)
    e = inbox.open_sum("e", x - randomness.correlated(kind, "a"))
    product = _negate_where(o, e * randomness.correlated(kind, "r") + randomness.correlated(kind, "ra"))
    product += o * x
    return {**state, target: product.reshape(shaped.shape)}


def b2a(bit: str, like: str | None, target: str) -> Round:
    """Convert a bit from XOR shares to shares by sum (B2A).

    `target` gets the shape of the array `like` of the state; None: all packed bits, flat.
    """
    return Round("b2a", partial(_send_bit, bit, like), partial(_receive_bit, bit, like, target), "[b⊕r]")


def _target_shape(bit: str, like: str | None, state: Arrays) -> tuple[int, ...]:
    return (8 * state[bit].size,) if like is None else state[like].shape


def _send_bit(bit: str, like: str | None, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    kind = DaBit(party.count, prod(_target_shape(bit, like, state)))
    return Sent(state, {"o": state[bit] ^ randomness.correlated(kind, "bit")})


def _receive_bit(
    bit: str, like: str | None, target: str, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    shape = _target_shape(bit, like, state)
    kind = DaBit(party.count, prod(shape))
    o = _open_bits(inbox, state[bit] ^ randomness.correlated(kind, "bit"), kind.count)
    converted = _negate_where(o, randomness.correlated(kind, "r"))
    if party.first:
        converted += o
    return {**state, target: converted.reshape(shape)}


def _open_bits(inbox: Inbox, mine: Array, count: int) -> ring.Ring:
    return bits.unpack(inbox.open_xor("o", mine), count).astype(ring.DTYPE)


def _negate_where(o: ring.Ring, value: ring.Ring) -> ring.Ring:
    """(1 − 2o)·value."""
    result: ring.Ring = np.where(o.astype(bool), -value, value)
    return result
