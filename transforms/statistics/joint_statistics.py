"""Statistics of all parties' rows together, to normalise horizontally split data: only the result is opened.

Mean and deviation of each column (`MOMENTS`), with no correlated randomness:

  1. P_i adds up its own rows, exactly:  s = Σ x̂  and  q = Σ x̂²,  where  x̂ = round(x·2^64)
  2. Shr of (s, q) over Z_2^320;  each party adds up the shares that it receives
  3. Rec of the totals  →  mean = s/n·2^-64,  deviation² = (n·q − s²)/n²·2^-128

Sums are exact, so that the opened totals depend on the rows and not on who has them: the low bits of a sum of rounded
summands would reveal the summands. Z_2^320 has room for |x| < 2^64 and n < 2^63. With two parties, each learns the
other's sums from the totals.

Lowest and highest value of each column (`extremes`), by the comparison tree of F_min^k:

  1. a float64 becomes an integer of 63 bits in the same order, rounded down:  o(x);  P_i knows o(low_i), o(−high_i)
  2. m = min_i over shares that are the value at P_i and 0 elsewhere
  3. Rec of m  →  low = o⁻¹(m_low),  high = −o⁻¹(m_high)

The bit injection at the root of the tree makes the shares of m uniform, and the positions are not opened: nobody learns
whose value it is. Every value lies inside the opened interval, which is wider by at most one last bit at each end.
"""

from collections.abc import Sequence
from functools import reduce
from math import frexp, sqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import ring
from veilmeans.crypto.wide_ring import add, subtract, to_integers, to_words
from veilmeans.schemas.arrays import Arrays, Real
from veilmeans.schemas.errors import InputError, RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.argmin import Argmin, argmin
from veilmeans.transforms.primitives.share_and_open import OPEN, send_share
from veilmeans.transforms.rounds.executor import Executor, Keep, Load, Over, Step
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require

FRACTION_BITS = 64
LIMIT = 2.0**64
S = TypeVar("S")


# mean and deviation
def moment_sums(rows: Real, columns: Sequence[str]) -> ring.Ring:
    """Compute Σ x̂ and Σ x̂² of a batch of rows for `MOMENTS`: WORDS × 2 × d. Batches are added with `wide_ring.add`."""
    _check_magnitude(LIMIT, rows, columns)
    x = np.rint(np.ldexp(rows, FRACTION_BITS))
    high, low = _split_float(x)
    squares = _exact_sums(high * high) + _exact_sums(2 * high * low) + _exact_sums(low * low)
    return to_words(np.stack([_exact_sums(x), squares]))


def _split_float(x: Real) -> tuple[Real, Real]:
    """Split x into a sum of two numbers of 26 bits each (Veltkamp), whose products are exact."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def _exact_sums(integers: Real) -> NDArray[Any]:
    """Σ over rows of integers in float64, as Python integers: limb by limb from the highest bit of the largest.

    A limb is so short that the sum of one limb from each row fits in 62 bits.
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
    """Compute each column's mean and deviation (of the population: divided by n) from the opened totals; n = `rows`."""
    s, q = to_integers(totals)
    scaled_variance = rows * q - s * s
    if (scaled_variance < 0).any():
        raise RefusedError(f"the opened sums are not those of {rows:,} rows")
    mean = [each / rows for each in s]
    deviation = [sqrt(each / rows**2) for each in scaled_variance]
    return np.ldexp(mean, -FRACTION_BITS), np.ldexp(deviation, -FRACTION_BITS)


def _send_wide_shares(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    """Shr over Z_2^320."""
    x = require(state, "x")
    shares = {peer: randomness.uniform(f"share.{peer}", x.shape) for peer in party.others}
    return Sent({"x": reduce(subtract, shares.values(), x)}, to={peer: {"x": share} for peer, share in shares.items()})


def _add_wide_shares(_party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    """Σ over Z_2^320 of all parties' arrays."""
    mine = require(state, "x")
    return {"x": reduce(add, (inbox.from_peer(peer, "x", mine) for peer in inbox.messages), mine)}


_SHARE_SUMS = Round(
    "share", _send_wide_shares, _add_wide_shares, sends="⟨s⟩_j, ⟨q⟩_j, uniform, to each P_j", broadcast=False
)
_OPEN_TOTALS = Round("reveal", send_share, _add_wide_shares, sends="Σ_i ⟨s_i⟩, Σ_i ⟨q_i⟩, to be opened")
MOMENTS = Protocol("moments", (_SHARE_SUMS, _OPEN_TOTALS))
"""State: in "x", `moment_sums` of this party's rows (WORDS × 2 × d); out "x", those of all rows."""


# lowest and highest value
def to_ordered_integers(values: Real) -> NDArray[np.int64]:
    """Convert finite float64 to integers in the same order, rounded down to 63 bits: o(x) = ⌊±(bits of |x|) / 2⌋."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    return np.where(bits < 0, np.iinfo(np.int64).min - bits, bits) >> 1


def from_ordered_integers(integers: NDArray[np.int64]) -> Real:
    """Convert back to float64: o⁻¹, with a last bit of 0; at most the largest finite number."""
    magnitudes = np.ascontiguousarray(np.abs(integers) << 1).view(np.float64)
    return np.copysign(np.minimum(magnitudes, np.finfo(np.float64).max), integers)


def encode_bounds(low: Real, high: Real, columns: Sequence[str]) -> ring.Ring:
    """Compute o(low) and o(−high) of this party's rows for `extremes`: 2 × d."""
    both = np.stack([low, -high])
    _check_magnitude(np.inf, both, columns)
    return ring.encode(to_ordered_integers(both))


def low_and_high(opened: ring.Ring) -> tuple[Real, Real]:
    """Compute each column's lowest and highest value from what `extremes` opened."""
    low, high = from_ordered_integers(ring.decode(opened))
    return low, 0.0 - high


def extremes(parties: int) -> Protocol:
    """Open the lowest and highest value of each column.

    State: in "x", `encode_bounds` of this party's rows (2 × d); out "x", those of all rows (2 × d).
    """
    tree = argmin(Argmin(source="bounds", target="positions", least="x"), parties, parties)
    return (tree.after(_to_own_row) + OPEN).then(_to_two_rows).named("extremes")


def _to_own_row(party: Party, state: Arrays) -> Arrays:
    """Share M × 2d values, of which each party knows one row: zeros in all other rows."""
    x = require(state, "x").reshape(-1)
    rows = np.zeros((party.count, x.size), ring.DTYPE)
    rows[party.index] = x
    return {"bounds": rows}


def _to_two_rows(_party: Party, state: Arrays) -> Arrays:
    return {"x": require(state, "x").reshape(2, -1)}


def _check_magnitude(limit: float, rows: Real, columns: Sequence[str]) -> None:
    in_range = (np.abs(rows) < limit).all(axis=0)
    if not in_range.all():
        column = columns[int(in_range.argmin())]
        raise InputError(f"column {column!r} has a value that is not finite or not below {limit:g} in magnitude")


# as a step
def statistics_step(method: str, parties: int) -> Step:
    """The step that opens what `method` (minmax or zscore) normalises by."""
    if method == "minmax":
        return Step(extremes(parties), "lowest and highest value of each column")
    return Step(MOMENTS, "mean and deviation of each column")


def open_statistics(step: Step, own: Load, run: Executor[S]) -> S:
    """Open the statistics of all parties' rows from each party's own; all data are scaled by them."""
    return run.keep(_SCALE, run.rounds(step, run.shards(Over.ONE, own)))


def _scale_follows(_job: object, _context: OpenPartyContext, _shard: int, _state: Arrays) -> None:
    """Keep nothing here: the caller computes the scale from what was opened and writes it."""


_SCALE = Keep("scale", _scale_follows)
