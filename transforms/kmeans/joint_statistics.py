"""Statistics of all parties' rows together, to normalise data whose rows are split: nothing is opened but the result.

Mean and deviation of each column (`MOMENTS`), with no correlated randomness:

  1. P_i adds up its own rows, exactly:  s = Σ x̂  and  q = Σ x̂²,  where  x̂ = round(x·2^64)
  2. Shr of (s, q) over Z_2^320;  each party adds the shares that it has
  3. Rec of the totals  →  mean = s/n·2^-64,  deviation² = (n·q − s²)/n²·2^-128

Sums are exact, so that what is opened depends on the rows and not on who has them: a sum of rounded parts has low bits
that tell the parts. Z_2^320 has room for |x| < 2^64 and n < 2^63. Two parties know each other's sums from the totals.

Lowest and highest value of each column (`extremes`), by the comparison tree of F_min^k:

  1. a float64 becomes an integer of 63 bits in the same order, rounded down:  o(x);  P_i knows o(low_i), o(−high_i)
  2. m = min_i over shares that are the value at P_i and 0 elsewhere
  3. Rec of m  →  low = o⁻¹(m_low),  high = −o⁻¹(m_high)

The bit injection at the root of the tree makes the shares of m uniform, and the positions are not opened: nobody learns
whose value it is. Every value lies inside the opened interval, which is wider by a last bit at each end at most.
"""

from collections.abc import Sequence
from functools import reduce
from math import frexp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import ring
from veilmeans.crypto.wide_ring import add, subtract, to_integers, to_words
from veilmeans.schemas.arrays import Arrays, Real
from veilmeans.schemas.errors import InputError, RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.argmin_tree import ArgminTree, argmin
from veilmeans.transforms.primitives.share_and_open import OPEN, send_share
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require

FRACTION_BITS = 64
LIMIT = 2.0**64


# Mean and deviation.
def sums(rows: Real, columns: Sequence[str]) -> ring.Ring:
    """Σ x̂ and Σ x̂² of one block of rows for `MOMENTS`: WORDS × 2 × d. Blocks are put together with `add`."""
    _refuse_beyond(LIMIT, rows, columns)
    x = np.rint(np.ldexp(rows, FRACTION_BITS))
    high, low = _halves(x)
    squares = _exact_sums(high * high) + _exact_sums(2 * high * low) + _exact_sums(low * low)
    return to_words(np.stack([_exact_sums(x), squares]))


def _halves(x: Real) -> tuple[Real, Real]:
    """x as a sum of two numbers of 26 bits each (Veltkamp), whose products are exact."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def _exact_sums(integers: Real) -> NDArray[Any]:
    """Σ over rows of integers in float64, as Python's integers: limb by limb from the highest bit of the largest.

    A limb has as many bits as let the sum of one from each row fit in 62.
    """
    totals, rest = np.zeros(integers.shape[1], object), integers
    width = 62 - len(integers).bit_length()
    while rest.any():
        shift = max(0, frexp(np.abs(rest).max())[1] - width)
        limb = np.trunc(rest * 2.0**-shift)
        totals = totals + limb.astype(np.int64).sum(axis=0).astype(object) * (1 << shift)
        rest = rest - limb * 2.0**shift
    return totals


def mean_and_deviation(totals: ring.Ring, rows: int) -> tuple[Real, Real]:
    """Each column's mean and deviation (of the population: divided by n) from what `MOMENTS` opened; n = `rows`."""
    s, q = to_integers(totals)
    spread = rows * q - s * s
    if (spread < 0).any():
        raise RefusedError(f"the opened sums are not those of {rows:,} rows")
    mean = [each / rows for each in s]
    deviation = [sqrt(each / rows**2) for each in spread]
    return np.ldexp(mean, -FRACTION_BITS), np.ldexp(deviation, -FRACTION_BITS)


def _deal(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    x = require(state, "x")
    shares = {peer: randomness.uniform(f"share.{peer}", x.shape) for peer in party.others}
    return Sent({"x": reduce(subtract, shares.values(), x)}, to={peer: {"x": share} for peer, share in shares.items()})


def _add_up(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del party, randomness
    mine = require(state, "x")
    return {"x": reduce(add, (inbox.from_peer(peer, "x", mine) for peer in inbox.messages), mine)}


MOMENTS = Protocol(
    "moments",
    (
        Round("share", _deal, _add_up, sends="⟨s⟩_j, ⟨q⟩_j, uniform, to each P_j"),
        Round("reveal", send_share, _add_up, sends="Σ_i ⟨s_i⟩, Σ_i ⟨q_i⟩, to be opened"),
    ),
)
"""State: in "x", `sums` of my rows (WORDS × 2 × d); out "x", those of all rows."""


# Lowest and highest value.
def ordered(values: Real) -> NDArray[np.int64]:
    """Finite float64 as integers in the same order, rounded down to 63 bits: o(x) = ⌊±(bits of |x|) / 2⌋."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    return np.where(bits < 0, np.iinfo(np.int64).min - bits, bits) >> 1


def from_ordered(integers: NDArray[np.int64]) -> Real:
    """The value of `ordered`, its last bit 0; never beyond the largest finite number."""
    magnitudes = np.ascontiguousarray(np.abs(integers) << 1).view(np.float64)
    return np.copysign(np.minimum(magnitudes, np.finfo(np.float64).max), integers)


def bounds(low: Real, high: Real, columns: Sequence[str]) -> ring.Ring:
    """o(low) and o(−high) of my rows for `extremes`: 2 × d."""
    both = np.stack([low, -high])
    _refuse_beyond(np.inf, both, columns)
    return ring.encode(ordered(both))


def low_and_high(opened: ring.Ring) -> tuple[Real, Real]:
    """Each column's lowest and highest value, from what `extremes` opened."""
    low, high = from_ordered(ring.decode(opened))
    return low, 0.0 - high


def extremes(parties: int) -> Protocol:
    """State: in "x", `bounds` of my rows (2 × d); out "x", those of all rows (2 × d)."""
    tree = argmin(ArgminTree(source="bounds", target="positions", least="x"), parties, parties)
    return (tree.after(_own_row) + OPEN).then(_in_two_rows).named("extremes")


def _own_row(party: Party, state: Arrays) -> Arrays:
    """Shares of M × 2d values of which each party knows one row."""
    x = require(state, "x").reshape(-1)
    rows = np.zeros((party.count, x.size), ring.DTYPE)
    rows[party.index] = x
    return {"bounds": rows}


def _in_two_rows(party: Party, state: Arrays) -> Arrays:
    del party
    return {"x": require(state, "x").reshape(2, -1)}


def _refuse_beyond(limit: float, rows: Real, columns: Sequence[str]) -> None:
    inside = (np.abs(rows) < limit).all(axis=0)
    if not inside.all():
        where = columns[int(inside.argmin())]
        raise InputError(f"column {where!r} has a value that is not finite or not below {limit:g} in magnitude")
