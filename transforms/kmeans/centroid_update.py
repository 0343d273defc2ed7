"""The k × d work at the end of an iteration: new centroids, their norms, the stop bit, the inertia.

`reciprocal`, once (`primitives.divide`): 1/n_j for all clusters
`quotient`, over column shards:
  1. ⟨μ'⟩ = ⟨s⟩ / ⟨n⟩, an empty cluster keeping μ                                   (F_SCU, `primitives.divide`)
  2. ⟨μ'²⟩ and ⟨(μ' − μ)²⟩ in one round of products; U' = |μ'_j|² and ESD(μ, μ') are sums of them over all columns
`finish`, once, on the sums over the column shards:
  3. F_CSC: open one bit, ESD(μ, μ') < ε, if ε > 0
  4. inertia, if it may be revealed: Σ|x|² − Σ_j n_j·|μ'_j|², because the centroids are their clusters' means

State of `quotient`: "s", "mu" (k × w), "v", "y", "empty" (k); out "mu" (k × w), and over these columns "u", "esd" (1).
State of `finish`: "u" (k), "esd" (1), "n" (k), "x2" (1: Σ|x|² of what this party owns, f fractional bits); out "u",
"stop" (1, opened), "x2", and "inertia" (1, a share) if it is computed.
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
from veilmeans.transforms.primitives.divide import Division, divide
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.truncate import Truncation, truncate_exactly
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, local_round, require

_BELOW = Comparison("esd", "below")


@dataclass(frozen=True)
class CentroidUpdate:
    """The public parameters of the centroid update.

    `count_bits`: counts are below 2^count_bits. `magnitude`: |x| ≤ 2^magnitude in its last bit. `tol`: ε. `inertia`: it
    is computed.
    """

    count_bits: int
    magnitude: int
    tol: float
    inertia: bool

    @property
    def division(self) -> Division:
        """The bounds of the division of sums by counts."""
        return Division(self.count_bits, self.magnitude)

    @property
    def threshold(self) -> int:
        """ε with 2f fractional bits, rounded up: ESD < ε does not change, and only ε = 0 becomes 0."""
        return ceil(self.tol * (1 << 2 * fixed.FRACTION_BITS))


def norms() -> Protocol:
    """Compute U of the first centroids over a column shard, once per run: "mu" in, "mu" and "u" out."""
    return multiply("mu", "mu", "square").then(_sum_squares).named("norms")


def quotient(update: CentroidUpdate) -> Protocol:
    """Compute new centroids over a column shard, and its summands of their norms and movement."""
    squares = multiply("pair", "pair", "square").after(_stack_new_and_difference).then(_sum_new_and_movement)
    return (divide(update.division) + squares).named("quotient")


def finish(update: CentroidUpdate, parties: int) -> Protocol:
    """Compute the stop bit and the inertia from the sums over all column shards; without both, send nothing."""
    protocol = Protocol("finish", ())
    if update.threshold:
        below = sign(_BELOW, parties).after(partial(_subtract_threshold, update.threshold))
        protocol += below + Protocol("stop", (_STOP,))
    if update.inertia:
        protocol += truncate_exactly(Truncation("norm", fixed.FRACTION_BITS)).after(_copy_norms)
        protocol += multiply("norm", "n", "norm").then(_compute_inertia)
    if not protocol.rounds:
        return Protocol("finish", (local_round("keep", _select_results),))
    return protocol.then(_select_results).named("finish")


def _sum_squares(_party: Party, state: Arrays) -> Arrays:
    return {"mu": state["mu"], "u": _row_sums(require(state, "square"))}


def _row_sums(matrix: ring.Ring) -> ring.Ring:
    return ring.column_sums(matrix.T)


def _stack_new_and_difference(_party: Party, state: Arrays) -> Arrays:
    new = require(state, "new")
    return {**state, "pair": np.stack([new, new - require(state, "mu")])}


def _sum_new_and_movement(_party: Party, state: Arrays) -> Arrays:
    new, movement = require(state, "square")
    return {"mu": state["new"], "u": _row_sums(new), "esd": _total(movement)}


def _total(matrix: ring.Ring) -> ring.Ring:
    """Σ of all elements, as an array of one."""
    return ring.column_sums(matrix.reshape(-1, 1))


def _subtract_threshold(threshold: int, party: Party, state: Arrays) -> Arrays:
    """ESD − ε, whose sign is the stop bit."""
    esd = require(state, "esd")
    return {**state, "esd": esd - ring.DTYPE(threshold) if party.first else esd}


def _send_stop_bit(_party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, {"b": _stop_bit(state)})


def _open_stop_bit(_party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    return {**state, "stop": inbox.open_xor("b", _stop_bit(state))}


def _stop_bit(state: Arrays) -> bits.Packed:
    """This party's share of the one bit, without its padding: nothing else is opened."""
    return bits.unpack(state[_BELOW.target], 1)


_STOP = Round("stop", _send_stop_bit, _open_stop_bit, "[ESD(μ, μ') < ε], to be opened")


def _copy_norms(_party: Party, state: Arrays) -> Arrays:
    return {**state, "norm": require(state, "u").copy()}


def _compute_inertia(_party: Party, state: Arrays) -> Arrays:
    return {**state, "inertia": require(state, "x2") - _total(require(state, "norm"))}


def _select_results(_party: Party, state: Arrays) -> Arrays:
    """Select what the checkpoint needs; without a tolerance the stop bit is 0."""
    with_stop = {"stop": np.zeros(1, np.uint8), **state}
    return {name: with_stop[name] for name in ("u", "stop", "inertia", "x2") if name in with_stop}
