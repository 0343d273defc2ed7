"""The k × d work on centroids beside their division (`primitives.divide`): norms, movement, the stop bit, the inertia.

`norms`, over column shards, beside the distances' products, of the centroids μ that an iteration begins with:
  1. ⟨μ²⟩ and, if ε > 0, ⟨(μ − μ_before)²⟩ in one round; U = |μ_j|² and ESD(μ_before, μ) are their sums over all columns
`stop`, once, beside the assignment, from the second iteration on:
  2. F_CSC: open one bit, ESD(μ_before, μ) < ε. If it is 1, the run has ended with the iteration before
`inertia`, once, after the last iteration, if it may be revealed:
  3. Σ|x|² − Σ_j n_j·|μ_j|², because the centroids are their clusters' means

State of `norms`: "mu" (k × w), and "before" (k × w) if ε > 0; out, over these columns, "u" (k) and "esd" (1). State of
`stop`: "esd" in, "stop" (1, opened) out. State of `inertia`: "u" (k), "n" (k), "x2" (1: Σ|x|² of what this party owns,
f fractional bits) in, "inertia" (1, a share) out.
"""

from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto import fixed_point as fixed
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.divide import Division
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.share_and_open import commit_first
from veilmeans.transforms.primitives.truncate import Truncation, truncate
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require

_BELOW = Comparison("esd", "below")
_EXACT_MAGNITUDE = 27  # up to so many bits the reciprocal's own error is below half of the last place


@dataclass(frozen=True)
class CentroidUpdate:
    """The public parameters of the centroid update.

    `count_bits`: counts are below 2^count_bits. `magnitude`: |x| ≤ 2^magnitude in its last bit. `tol`: ε. `inertia`: it
    is computed. `coordinates`: the number of coordinates of all centroids, k·d.
    """

    count_bits: int
    magnitude: int
    tol: float
    inertia: bool
    coordinates: int

    @property
    def division(self) -> Division:
        """The bounds of the division of sums by counts."""
        return Division(self.count_bits, self.magnitude)

    @property
    def threshold(self) -> int:
        """ε with 2f fractional bits, rounded up: ESD < ε does not change, and only ε = 0 becomes 0.

        It is at least what rounding alone can move: quotients are rounded at random, so that coordinates of the same
        rows may differ by two in their last place, and a run that has converged must stop.
        """
        if not self.tol:
            return 0
        rounding = 2 + (1 << max(0, self.magnitude - _EXACT_MAGNITUDE) >> 1)
        return max(ceil(self.tol * (1 << 2 * fixed.FRACTION_BITS)), self.coordinates * rounding**2 + 1)


def norms(update: CentroidUpdate) -> Protocol:
    """Compute a column shard's summands of the centroids' norms, and of their movement if there is a tolerance."""
    if not update.threshold:
        return squared_norms()
    pair = multiply("pair", "pair", "square").after(_stack_centroids_and_difference)
    return pair.then(_sum_squares_and_movement).named("norms")


def squared_norms() -> Protocol:
    """Compute a column shard's summands of the centroids' norms."""
    return multiply("mu", "mu", "square").then(_sum_squares).named("norms")


def stop(update: CentroidUpdate, parties: int) -> Protocol:
    """Open whether the centroids have moved by less than the tolerance."""
    below = sign(_BELOW, parties).after(partial(_subtract_threshold, update.threshold))
    return (below + Protocol("stop", commit_first(_STOP))).named("stop")


def inertia() -> Protocol:
    """Compute the inertia from norms and counts."""
    weigh = multiply("u", "n", "u").then(_compute_inertia)
    return (truncate(Truncation("u", fixed.FRACTION_BITS)) + weigh).named("inertia")


def _sum_squares(_party: Party, state: Arrays) -> Arrays:
    return {"u": _row_sums(require(state, "square"))}


def _row_sums(matrix: ring.Ring) -> ring.Ring:
    return ring.column_sums(matrix.T)


def _stack_centroids_and_difference(_party: Party, state: Arrays) -> Arrays:
    mu = require(state, "mu")
    return {"pair": np.stack([mu, mu - require(state, "before")])}


def _sum_squares_and_movement(_party: Party, state: Arrays) -> Arrays:
    squares, movement = require(state, "square")
    return {"u": _row_sums(squares), "esd": _total(movement)}


def _total(matrix: ring.Ring) -> ring.Ring:
    """Σ of all elements, as an array of one."""
    return ring.column_sums(matrix.reshape(-1, 1))


def _subtract_threshold(threshold: int, party: Party, state: Arrays) -> Arrays:
    """ESD − ε, whose sign is the stop bit."""
    esd = require(state, "esd")
    return {"esd": esd - ring.DTYPE(threshold) if party.first else esd}


def _send_stop_bit(_party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, {"b": _stop_bit(state)})


def _open_stop_bit(_party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    return {"stop": inbox.open_xor("b", _stop_bit(state))}


def _stop_bit(state: Arrays) -> bits.Bits:
    """This party's share of the one bit, without its padding: nothing else is opened."""
    return bits.unpack(state[_BELOW.target], 1)


_STOP = Round("stop", _send_stop_bit, _open_stop_bit, "[ESD(μ, μ') < ε], to be opened")


def _compute_inertia(_party: Party, state: Arrays) -> Arrays:
    return {"inertia": require(state, "x2") - _total(require(state, "u"))}
