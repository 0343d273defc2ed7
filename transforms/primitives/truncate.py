"""Truncation of fixed-point values by random rounding: ⟨x / 2^f⟩ from ⟨x⟩, for |x| < 2^62, in one round.

Correlated randomness (`crypto.correlations.Trunc`): r uniform, ⟨r⟩, ⟨r ≫ f⟩ and its top bit ⟨r_63⟩.
  1. open c = x + 2^62 + r                                    (uniform)
  2. wrap = [c < r] = r_63·(1 − c_63), because x + 2^62 < 2^63: linear in ⟨r_63⟩, no communication
  3. (c ≫ f) − (r ≫ f) + wrap·2^(64−f) − 2^(62−f) = ⌊x / 2^f⌋ + carry,  carry = [x mod 2^f + r mod 2^f ≥ 2^f]

The carry is 1 with the probability (x mod 2^f) / 2^f: the result is ⌊x / 2^f⌋ or one more, and right on average. A
multiple of 2^f has no carry, so that 0 stays 0. There is no wrap-around error.
"""

from dataclasses import dataclass
from functools import partial

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Trunc
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require

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
    def round(self) -> Round:
        """The one round of the truncation, to be merged with others."""
        return Round("truncate", partial(_send, self), partial(_receive, self), "⟨x + r⟩")


def truncate(truncation: Truncation) -> Protocol:
    """Truncate in one round; the result is ⌊x/2^f⌋ or one more."""
    return Protocol("truncate", (truncation.round,))


def _send(truncation: Truncation, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    return Sent(state, {"c": _mask(truncation, party, state, randomness)})


def _mask(truncation: Truncation, party: Party, state: Arrays, randomness: Randomness) -> ring.Ring:
    """⟨x + 2^62 + r⟩."""
    x = require(state, truncation.name).reshape(-1)
    masked: ring.Ring = x + randomness.correlated(_kind(truncation, party, state), "r")
    return masked + ring.DTYPE(_OFFSET) if party.first else masked


def _kind(truncation: Truncation, party: Party, state: Arrays) -> Trunc:
    return Trunc(party.count, state[truncation.name].size, truncation.shift)


def _receive(truncation: Truncation, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    kind = _kind(truncation, party, state)
    c = inbox.open_sum("c", _mask(truncation, party, state, randomness))
    wraps = randomness.correlated(kind, "top") * (ring.DTYPE(1) - (c >> ring.DTYPE(63)))
    high: ring.Ring = (wraps << ring.DTYPE(64 - truncation.shift)) - randomness.correlated(kind, "high")
    if party.first:
        high += (c >> ring.DTYPE(truncation.shift)) - ring.DTYPE(_OFFSET >> truncation.shift)
    return {**state, truncation.name: high.reshape(state[truncation.name].shape)}
