"""Scores and outliers: how far each row is from its own centroid, and the ℓ rows that are farthest.

  assign      |x − μ_j|² = D'_j + |x|², and |x|² is a sum of what owners know; the row's own one by its one-hot bits
              (`primitives.bit_injection`), with 2f fractional bits; rounded to f where it may be opened
  outliers    the score's bits, at most 32 from the highest that can be set (`primitives.bit_decomposition`), then a
  threshold   search for the ℓ largest, digit by digit (`statistics.largest`)
  weigh       during training: c_j ∧ ¬outlier, and B2A of these k rows: outliers move no centroid (k-means--)

Steps over row shards and over one element follow each other, a digit each; their rounds are numbered through.

State over rows: "x2" (n), this party's summand of |x|², and "d"; out "score" (n), "shown" (n) if scores may be opened,
and "outlier", a packed row. Of `weigh`: "c", "outlier" and "shape" in; out "hot" (n × k), "n" (k), and "c" as it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import TypeVar

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto.correlations import ProductGroups
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.argmin_choice import DEALT_SECONDS, ROUND_SECONDS
from veilmeans.transforms.primitives.bit_decomposition import BitDecomposition, decompose
from veilmeans.transforms.primitives.bit_injection import b2a, select_by_bits
from veilmeans.transforms.primitives.masked_opening import MaskedOpening, OpenedGroups, open_masked
from veilmeans.transforms.primitives.truncate import Truncation, truncate
from veilmeans.transforms.products.cross_product import filled_rows, shape_from_state
from veilmeans.transforms.rounds.executor import Step
from veilmeans.transforms.rounds.protocol import Protocol, require, without
from veilmeans.transforms.statistics.largest import (
    PLANES,
    Largest,
    begin,
    choose_digit,
    count_digit,
    count_ties,
    take_first,
    threshold,
)

MOST_BITS = 32
"""So many bits of a score are searched at most."""
_DISTANCES = "far"
S = TypeVar("S")


@dataclass(frozen=True)
class Outliers:
    """The public parameters: ℓ, the bits of a score, those of a digit, and the bits of a number of rows.

    `during_training`: in each iteration the ℓ farthest rows move no centroid.
    """

    count: int
    score_bits: int
    row_bits: int
    digit_bits: int = 2
    during_training: bool = False

    @property
    def search(self) -> Largest:
        width = min(MOST_BITS, self.score_bits)
        return Largest("outlier", self.count, width, self.digit_bits, self.row_bits)

    def row_steps(self, prefix: str, parties: int) -> Iterator[Step]:
        """The steps over rows: before the first threshold, after each, and after the last count of ties."""
        search, number = self.search, 0
        last = len(search.digits) - 1
        decomposition = BitDecomposition("score", PLANES, self.score_bits, self.score_bits - search.width)
        protocols = [decompose(decomposition, parties).then(_begin) + count_digit(search, 0)]
        protocols += [choose_digit(search, each) + count_digit(search, each + 1) for each in range(last)]
        protocols += [choose_digit(search, last) + count_ties(), take_first(search, parties)]
        for protocol in protocols:
            yield Step(protocol.named(f"{prefix}outliers").numbered(number), "[row is among the farthest]", "S2")
            number += len(protocol)

    def thresholds(self, prefix: str, parties: int) -> Iterator[Step]:
        """The comparisons of counts with ℓ, one for each digit."""
        protocol = threshold(self.search, parties).named(f"{prefix}threshold")
        for digit in range(len(self.search.digits)):
            yield Step(protocol.numbered(digit * len(protocol)), "[rows above a candidate ≥ ℓ]", "S2")


def _begin(party: Party, state: Arrays) -> Arrays:
    return without(begin("score", party, state), "score")


def choose_digit_bits(outliers: Outliers, rows: int, parties: int, rate: float, round_trip: float) -> Outliers:
    """Choose the bits of a digit for so many rows over a link; all parties choose the same.

    `rate`: bytes per second of the link, `round_trip`: seconds.
    """
    compare = len(threshold(outliers.search, parties))

    def seconds(digit_bits: int) -> float:
        digits, values = ceil(outliers.search.width / digit_bits), 1 << digit_bits
        sent = digits * (digit_bits + 1 + values - 1 + 2 * values - 1) / 8
        dealt = digits * (values - 1) * ring.DTYPE().itemsize
        waits = digits * (3 + compare) * (ROUND_SECONDS + round_trip / 2)
        return waits + rows * (sent / rate + dealt * DEALT_SECONDS)

    return replace(outliers, digit_bits=min((1, 2, 3, 4), key=seconds))


# scores
def keep_distances(_party: Party, state: Arrays) -> Arrays:
    """|x − μ_j|² = D'_j + |x|², before the assignment uses D' up."""
    return {**without(state, "x2"), _DISTANCES: require(state, "d") + require(state, "x2")}


def score(k: int, shown: bool) -> Protocol:
    """Select each row's distance to its own centroid; `shown`: also round it, so that it can be opened."""
    selected = select_by_bits("c", _DISTANCES, "score", k)
    if not shown:
        return selected
    return selected + truncate(Truncation("shown", fixed.FRACTION_BITS)).after(_copy_score)


def _copy_score(_party: Party, state: Arrays) -> Arrays:
    return {**state, "shown": require(state, "score")}


# weights
def weigh(k: int) -> Protocol:
    """Leave the outliers out of the one-hot rows, convert these to shares by sum, and count them."""
    products = tuple((((j,), (k,)),) for j in range(k))
    opening = MaskedOpening("weigh", (ProductGroups(1, k + 1, products),))
    planes = open_masked("weigh", opening, _weighed_planes, partial(_weigh, k), "[c⊕λ], [outlier⊕λ']")
    to_sums = Protocol("b2a", (b2a("weigh.bits", None, "weigh.hot"),)).then(partial(_count_weights, k))
    return (Protocol("weigh", (planes,)) + to_sums).named("weigh")


def _weighed_planes(party: Party, state: Arrays) -> tuple[Arrays, Array]:
    """The one-hot rows, and the weight: 1, but 0 of an outlier and of a row that fills the shard up."""
    ones = bits.first_lanes(filled_rows(state), shape_from_state(state).rows)
    weight = state["outlier"] ^ ones if party.first else state["outlier"]
    return state, np.concatenate([state["c"], weight[None]])


def _weigh(k: int, _party: Party, state: Arrays, opened: Iterator[OpenedGroups]) -> Arrays:
    """[c_j·w] = m_j m_w ⊕ m_j [λ_w] ⊕ m_w [λ_j] ⊕ [λ_j λ_w]."""
    (group,) = opened
    m, mask = group.values[0], group.mask[0]
    weighed = (m[:k] & (mask[k] ^ (m[k] & group.one))) ^ (m[k] & mask[:k]) ^ group.sums[0]
    return {**state, "weigh.bits": weighed.reshape(-1)}


def _count_weights(k: int, _party: Party, state: Arrays) -> Arrays:
    rows = shape_from_state(state).rows
    hot = bits.from_lanes(require(state, "weigh.hot"), k, rows)
    rest = without(state, "weigh.bits", "weigh.hot", "outlier")
    return {**rest, "hot": np.ascontiguousarray(hot.T), "n": ring.column_sums(np.ascontiguousarray(hot.T))}
