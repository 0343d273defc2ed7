"""Bit injection: ⟨b·x⟩ from a bit b shared by XOR and a value x shared by sum, in one round.

Correlated randomness: a random bit r, shared both ways, and ⟨a⟩, ⟨r·a⟩ for a uniform a.
  1. open o = b ⊕ r and e = x − a                          (both uniform: they reveal nothing)
  2. ⟨b·x⟩ = o·⟨x⟩ + (1 − 2o)·(e·⟨r⟩ + ⟨r·a⟩)

B2A is the injection of 1, and needs no a:
  1. open o = b ⊕ r         2. ⟨b⟩ = [i = 0]·o + (1 − 2o)·⟨r⟩

State: `bit` packed (crypto.bits), `value` a share of any shape with as many elements, of 32 or 64 bits; out `target`,
in that shape and type. One value may have several bits: it is masked by one a, and has one r·a for each of its bits.

MUX of k values by one-hot bits c is one injection, and with k = 1 nothing is sent:
  Σ_j c_j·x_j = x_{k−1} + Σ_{j<k−1} c_j·(x_j − x_{k−1})
"""

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto.correlations import DaBit, Inject
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, local_round, require, without


@dataclass(frozen=True)
class Injection:
    """The names of an injection in the state; see `inject`."""

    bit: str
    value: str
    target: str
    like: str
    bit_target: str | None

    def kind(self, party: Party, state: Arrays) -> Inject:
        """The correlation: as many bits as the target has elements, and a mask for each value."""
        count, value = prod(state[self.like].shape), state[self.value]
        return Inject(party.count, count, value.dtype.type, times=count // value.size)

    def mask(self, party: Party, state: Arrays, randomness: Randomness) -> dict[str, Array]:
        """Mask this party's shares of the bits and of the values."""
        kind = self.kind(party, state)
        e = state[self.value].reshape(-1) - randomness.correlated(kind, "a")
        return {"o": state[self.bit] ^ randomness.correlated(kind, "bit"), "e": e}


def inject(bit: str, value: str, target: str, like: str | None = None, bit_target: str | None = None) -> Round:
    """Inject a bit: target = bit · value.

    `like`: the array that has the target's shape, if there are several bits for each value, bit i for value i mod their
    number; a value is masked once. `bit_target`: also convert the bits to shares by sum; nothing more is opened for it.
    """
    injection = Injection(bit, value, target, like or value, bit_target)
    return Round(
        "inject", partial(_send_injection, injection), partial(_receive_injection, injection), "[b⊕r], ⟨x − a⟩"
    )


def _send_injection(injection: Injection, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    return Sent(state, injection.mask(party, state, randomness))


def _receive_injection(
    injection: Injection, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    kind, mine = injection.kind(party, state), injection.mask(party, state, randomness)
    value = state[injection.value].reshape(-1)
    o = _open_bits(inbox, mine["o"], kind.count).astype(value.dtype)
    e = np.tile(inbox.open_sum("e", mine["e"]), kind.times)
    r = randomness.correlated(kind, "r")
    product = _negate_where(o, e * r + randomness.correlated(kind, "ra"))
    product += o * np.tile(value, kind.times)
    shape = state[injection.like].shape
    after = {**state, injection.target: product.reshape(shape)}
    if injection.bit_target is not None:
        after[injection.bit_target] = _converted(party, o, r).reshape(shape)
    return after


def b2a(bit: str, like: str | None, target: str) -> Round:
    """Convert a bit from XOR shares to shares by sum (B2A).

    `target` gets the shape of the array `like` of the state; None: all packed bits, flat.
    """
    return Round("b2a", partial(_send_bit, bit, like), partial(_receive_bit, bit, like, target), "[b⊕r]")


def _target_shape(bit: str, like: str | None, state: Arrays) -> tuple[int, ...]:
    return (bits.LANES * state[bit].size,) if like is None else state[like].shape


def _send_bit(bit: str, like: str | None, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    kind = DaBit(party.count, prod(_target_shape(bit, like, state)))
    return Sent(state, {"o": state[bit] ^ randomness.correlated(kind, "bit")})


def _receive_bit(
    bit: str, like: str | None, target: str, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    shape = _target_shape(bit, like, state)
    kind = DaBit(party.count, prod(shape))
    o = _open_bits(inbox, state[bit] ^ randomness.correlated(kind, "bit"), kind.count).astype(ring.DTYPE)
    return {**state, target: _converted(party, o, randomness.correlated(kind, "r")).reshape(shape)}


def _converted(party: Party, o: Array, r: Array) -> Array:
    """[i = 0]·o + (1 − 2o)·⟨r⟩."""
    converted = _negate_where(o, r)
    return converted + o if party.first else converted


def _open_bits(inbox: Inbox, mine: Array, count: int) -> bits.Bits:
    return bits.unpack(inbox.open_xor("o", mine), count)


def _negate_where(o: Array, value: Array) -> Array:
    """(1 − 2o)·value."""
    result: Array = np.where(o.astype(bool), -value, value)
    return result


# MUX
_BITS, _VALUES, _CHOSEN = "select.b", "select.x", "select.bx"


def select_by_bits(hot: str, values: str, target: str, k: int) -> Protocol:
    """Select one of k values by one-hot bits: `values` k × n, `hot` k packed rows; `values` is dropped."""
    if k == 1:
        return Protocol("select", (local_round("select", partial(_only_value, values, target)),))
    chosen = Protocol("select", (inject(_BITS, _VALUES, _CHOSEN),))
    return chosen.after(partial(_differences, hot, values)).then(partial(_add_last, values, target))


def _only_value(values: str, target: str, _party: Party, state: Arrays) -> Arrays:
    return {**without(state, values), target: require(state, values)[0]}


def _differences(hot: str, values: str, _party: Party, state: Arrays) -> Arrays:
    """x_j − x_{k−1}, in the order of the packed bits."""
    x = require(state, values)
    return {**state, _BITS: state[hot][:-1].reshape(-1), _VALUES: bits.to_lanes(x[:-1] - x[-1])}


def _add_last(values: str, target: str, _party: Party, state: Arrays) -> Arrays:
    x = require(state, values)
    chosen = bits.from_lanes(require(state, _CHOSEN), len(x) - 1, x.shape[1])
    rest = without(state, values, _BITS, _VALUES, _CHOSEN)
    return {**rest, target: x[-1] + ring.column_sums(np.ascontiguousarray(chosen))}
