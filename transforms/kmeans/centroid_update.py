"""The k × d work at the end of an iteration: new centroids, their norms, the stop bit, the inertia.

`reciprocal`, once (`primitives.divide`): 1/n_j for all clusters
`quotient`, over shards of columns:
  1. ⟨μ'⟩ = ⟨s⟩ / ⟨n⟩, an empty cluster keeping μ                                   (F_SCU, `primitives.divide`)
  2. ⟨μ'²⟩ and ⟨(μ' − μ)²⟩ in one round of products; U' = |μ'_j|² and ESD(μ, μ') are sums of them over all columns
`finish`, once, on the sums over the column shards:
  3. F_CSC: open one bit, ESD(μ, μ') < ε, if ε > 0
  4. inertia, if it may be revealed: Σ|x|² − Σ_j n_j·|μ'_j|², because the centroids are their clusters' means

State of `quotient`: "s", "mu" (k × w), "v", "y", "empty" (k); out "mu" (k × w), and over these columns "u", "esd" (1).
State of `finish`: "u" (k), "esd" (1), "n" (k), "x2" (1: Σ|x|² of what this party owns, f fractional bits); out "u",
"stop" (1, opened), "x2", and "inertia" (1, a share) where it is wanted.
"""

from dataclasses import dataclass
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
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, local, require

_BELOW = Comparison("esd", "below")


@dataclass(frozen=True)
class CentroidUpdate:
    """`count_bits`: counts are below 2^count_bits. `magnitude`: |x| ≤ 2^magnitude in its last bit. `tol`: ε."""

    count_bits: int
    magnitude: int
    tol: float
    inertia: bool

    @property
    def division(self) -> Division:
        return Division(self.count_bits, self.magnitude)

    @property
    def threshold(self) -> int:
        """ε with 2f fractional bits, rounded up: ESD < ε is the same, and only ε = 0 becomes 0."""
        return ceil(self.tol * (1 << 2 * fixed.FRACTION_BITS))


def norms() -> Protocol:
    """U of the first centroids over a shard of columns, once per run: "mu" in, "mu" and "u" out."""
    return multiply("mu", "mu", "square").then(_norms).named("norms")


def quotient(work: CentroidUpdate) -> Protocol:
    """New centroids over a shard of columns, and what these add to their norms and movement."""
    squares = multiply("pair", "pair", "square").after(_pair).then(_sums)
    return (divide(work.division) + squares).named("quotient")


def finish(work: CentroidUpdate, parties: int) -> Protocol:
    """What is left when norms and movement are added up; nothing is sent where neither ε nor inertia is wanted."""
    protocol = Protocol("finish", ())
    if work.threshold:
        protocol += sign(_BELOW, parties).after(_Less(work.threshold)) + Protocol("stop", (_STOP,))
    if work.inertia:
        protocol += truncate_exactly(Truncation("norm", fixed.FRACTION_BITS)).after(_norm)
        protocol += multiply("norm", "n", "norm").then(_inertia)
    if not protocol.rounds:
        return Protocol("finish", (local("keep", _kept),))
    return protocol.then(_kept).named("finish")


def _norms(party: Party, state: Arrays) -> Arrays:
    del party
    return {"mu": state["mu"], "u": _row_sums(require(state, "square"))}


def _row_sums(matrix: ring.Ring) -> ring.Ring:
    return ring.column_sums(matrix.T)


def _pair(party: Party, state: Arrays) -> Arrays:
    del party
    new = require(state, "new")
    return {**state, "pair": np.stack([new, new - require(state, "mu")])}


def _sums(party: Party, state: Arrays) -> Arrays:
    del party
    new, moved = require(state, "square")
    return {"mu": state["new"], "u": _row_sums(new), "esd": _total(moved)}


def _total(matrix: ring.Ring) -> ring.Ring:
    """Σ of all elements, as an array of one."""
    return ring.column_sums(matrix.reshape(-1, 1))


@dataclass(frozen=True)
class _Less:
    """ESD − ε, whose sign is wanted."""

    threshold: int

    def __call__(self, party: Party, state: Arrays) -> Arrays:
        esd = require(state, "esd")
        return {**state, "esd": esd - ring.DTYPE(self.threshold) if party.first else esd}


def _show_stop(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del party, randomness
    return Sent(state, {"b": _bit(state)})


def _see_stop(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del party, randomness
    return {**state, "stop": inbox.opened_xor("b", _bit(state))}


def _bit(state: Arrays) -> bits.Packed:
    """The one bit, without the padding beside it: nothing else is shown."""
    return bits.unpack(state[_BELOW.target], 1)


_STOP = Round("stop", _show_stop, _see_stop, "[ESD(μ, μ') < ε], to be opened")


def _norm(party: Party, state: Arrays) -> Arrays:
    del party
    return {**state, "norm": require(state, "u").copy()}


def _inertia(party: Party, state: Arrays) -> Arrays:
    del party
    return {**state, "inertia": require(state, "x2") - _total(require(state, "norm"))}


def _kept(party: Party, state: Arrays) -> Arrays:
    """Without a tolerance the run never stops by itself."""
    del party
    known = {"stop": np.zeros(1, np.uint8), **state}
    return {name: known[name] for name in ("u", "stop", "inertia", "x2") if name in known}
