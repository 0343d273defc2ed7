"""Truncation of fixed-point values: ⟨⌊x / 2^f⌋⟩ from ⟨x⟩, for |x| < 2^62, without any wrap-around error.

Correlated randomness: r uniform, ⟨r⟩, ⟨r ≫ f⟩, its top bit ⟨r_63⟩, and its low bits shared by XOR.
  1. open c = x + 2^62 + r                                    (uniform)
  2. wrap = [c < r] = r_63·(1 − c_63), because x + 2^62 < 2^63: linear in ⟨r_63⟩, no communication
  3. borrow = [c mod 2^f < r mod 2^f], a comparison of a public with a XOR-shared number, then B2A
  4. ⌊x / 2^f⌋ = (c ≫ f) − (r ≫ f) + wrap·2^(64−f) − borrow − 2^(62−f)

`truncate` omits step 3: one round, and the result is the floor or one more. `truncate_exactly` takes the floor of
x + 2^(f−1), so it always rounds to the nearest.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto.correlations import Trunc
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a
from veilmeans.transforms.primitives.compare import Comparison, begin_prefix, prefix
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require, without

_OFFSET = 1 << 62


@dataclass(frozen=True)
class Truncation:
    """A division of the array `name` by 2^shift, in place."""

    name: str
    shift: int

    def __post_init__(self) -> None:
        if not 1 <= self.shift <= 61:
            raise ValueError(f"a truncation by {self.shift} bits is not possible")

    @property
    def borrow(self) -> Comparison:
        """The comparison c < r on the low bits."""
        return Comparison(self.name, f"{self.name}.borrow", compare_bits=next(w for w in (32, 64) if w >= self.shift))


def truncate(truncation: Truncation) -> Protocol:
    """Truncate in one round; the result is ⌊x/2^f⌋ or one more."""
    step = Round("open", partial(_send, truncation), partial(_receive, truncation, False), "⟨x + r⟩")
    return Protocol("truncate", (step,))


def truncate_exactly(truncation: Truncation) -> Protocol:
    """Truncate to the nearest: ⌊x/2^f + ½⌋, exactly."""
    opening = Round("open", partial(_send_rounded, truncation), partial(_receive, truncation, True), "⟨x + r⟩")
    borrow = truncation.borrow
    convert = b2a(borrow.target, truncation.name, borrow.name("bit"))
    protocol = Protocol("truncate-exactly", (opening, *prefix(borrow).rounds, convert))
    return protocol.then(partial(_subtract_borrow, truncation))


def _send(truncation: Truncation, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    return Sent(state, {"c": _mask(truncation, party, state, randomness)})


def _send_rounded(truncation: Truncation, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    x = require(state, truncation.name)
    half = ring.DTYPE(1 << (truncation.shift - 1)) if party.first else ring.DTYPE(0)
    return _send(truncation, party, {**state, truncation.name: x + half}, randomness)


def _mask(truncation: Truncation, party: Party, state: Arrays, randomness: Randomness) -> ring.Ring:
    """⟨x + 2^62 + r⟩."""
    x = require(state, truncation.name).reshape(-1)
    masked: ring.Ring = x + randomness.correlated(_kind(truncation, party, state), "r")
    return masked + ring.DTYPE(_OFFSET) if party.first else masked


def _kind(truncation: Truncation, party: Party, state: Arrays) -> Trunc:
    return Trunc(party.count, state[truncation.name].size, truncation.shift)


def _receive(
    truncation: Truncation, exact: bool, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    kind = _kind(truncation, party, state)
    c = inbox.open_sum("c", _mask(truncation, party, state, randomness))
    shape = state[truncation.name].shape
    high = ring.DTYPE(0) - randomness.correlated(kind, "high")
    wraps = randomness.correlated(kind, "top") * (ring.DTYPE(1) - (c >> ring.DTYPE(63)))
    high += wraps << ring.DTYPE(64 - truncation.shift)
    if party.first:
        high += (c >> ring.DTYPE(truncation.shift)) - ring.DTYPE(_OFFSET >> truncation.shift)
    after = {**state, truncation.name: high.reshape(shape)}
    return _begin_borrow(truncation, party, after, c, randomness.correlated(kind, "bits")) if exact else after


def _begin_borrow(truncation: Truncation, party: Party, state: Arrays, c: ring.Ring, r: ring.Ring) -> Arrays:
    """[c < r] on the low bits: g = ¬c ∧ r, p = ¬(c ⊕ r); both are linear in the shared r."""
    width = truncation.borrow.width
    size = bits.padded_count(c.size)
    word = bits.WORD_TYPES[width]
    low = ring.DTYPE((1 << truncation.shift) - 1)
    g, p = (np.zeros(size, word) for _ in "gp")
    g[: c.size] = (~c & r & low).astype(word)
    p[: c.size] = ((r & low) ^ (~c if party.first else ring.DTYPE(0))).astype(word)
    if party.first:
        p |= word(~int(low) % 2**width)
    return begin_prefix(truncation.borrow, state, g, p, np.zeros(size // 8, np.uint8))


def _subtract_borrow(truncation: Truncation, _party: Party, state: Arrays) -> Arrays:
    borrow = truncation.borrow
    difference = require(state, truncation.name) - require(state, borrow.name("bit"))
    return {**without(state, borrow.target, borrow.name("bit")), truncation.name: difference}
