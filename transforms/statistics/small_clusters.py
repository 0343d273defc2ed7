"""Hide the sums of small clusters: those of fewer than m rows become 0, on shares.

Whoever knows the sums of all rows could subtract those of the other clusters. So what is hidden has m rows in total, or
none: where the small clusters together have fewer, the smallest of the others is hidden, too.

  1. [small_j] = [n_j < m]
  2. ⟨small_j⟩ and ⟨small_j·n_j⟩, by bit injection; f = Σ_j small_j·n_j rows are hidden so far
  3. [short] = [1 ≤ f < m] = [f < 1] ⊕ [f < m]
  4. [next_j]: the position of the least n_j + small_j·2^b, 2^b > n; equal ones: the first
  5. ⟨short⟩ and ⟨next_j⟩, by B2A            6. ⟨short·next_j⟩
  7. ⟨s_j·(1 − small_j − short·next_j)⟩ for all sums s_j of a cluster

m is at most the number of rows n: if all clusters are small, f = n ≥ m, and no cluster is hidden twice. Recipients
learn sizes, and from them which clusters are hidden (`hidden_clusters`); nothing else is opened.

State: in SIZES (k) and SUMS (k + 1 lines, the last of all rows, which stays as it is); out the same.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import bits, ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.kmeans_config import MOST_CLUSTERS_BY_PAIRS
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.argmin import Argmin, argmin
from veilmeans.transforms.primitives.bit_injection import b2a, inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.rounds.protocol import Protocol, require
from veilmeans.transforms.statistics.profiles import SIZES, SUMS

_SMALL, _FEW, _IS_SMALL, _SHORT, _NEXT = "hide.small", "hide.few", "hide.is-small", "hide.short", "hide.next"
_LIMITS, _ORDER, _BITS, _LIKE, _HOT = "hide.limits", "hide.order", "hide.bits", "hide.like", "hide.hot"
_LEFT, _RIGHT = "hide.x", "hide.y"


@dataclass(frozen=True)
class SmallClusters:
    """The public parameters: k ≥ 2, m, and b, the bits of a number of rows."""

    k: int
    least: int
    row_bits: int

    def hide(self, parties: int) -> Protocol:
        """Multiply the sums of clusters that are to be hidden by 0."""
        small = sign(Comparison(SIZES, _SMALL, self.row_bits + 1, offset=-self.least), parties)
        few = Protocol("few", (inject(_SMALL, SIZES, _FEW, bit_target=_IS_SMALL),)).then(partial(_compare_next, self))
        short = sign(Comparison(_LIMITS, _SHORT, self.row_bits + 1), parties)
        method = "pairs" if self.k <= MOST_CLUSTERS_BY_PAIRS else "tree"
        order = Argmin(_ORDER, _NEXT, compare_bits=self.row_bits + 3, method=method)  # type: ignore[arg-type]
        convert = Protocol("b2a", (b2a(_BITS, _LIKE, _HOT),)).after(_join_bits).then(_split_bits)
        both = multiply(_LEFT, _RIGHT, _LEFT).then(partial(_keep_others, self.k))
        sums = multiply(_LEFT, _RIGHT, _LEFT).then(_only_sums)
        protocol = small + few + short + argmin(order, self.k, parties) + convert + both + sums
        return protocol.named("profile-hide")


def _compare_next(how: SmallClusters, party: Party, state: Arrays) -> Arrays:
    """f − 1 and f − m, and n_j + small_j·2^b."""
    few = require(state, _FEW).sum(dtype=ring.DTYPE)
    limits = np.full(2, few, ring.DTYPE)
    if party.first:
        limits -= np.array([1, how.least], ring.DTYPE)
    order = require(state, SIZES) + (require(state, _IS_SMALL) << ring.DTYPE(how.row_bits))
    kept = {name: state[name] for name in (SIZES, SUMS, _IS_SMALL)}
    return {**kept, _LIMITS: limits, _ORDER: order[:, None]}


def _join_bits(_party: Party, state: Arrays) -> Arrays:
    """[short] and [next_j], packed together."""
    short, following = bits.unpack(state[_SHORT], 2), bits.unpack_rows(state[_NEXT], 1)[:, 0]
    together = np.concatenate([short[:1] ^ short[1:], following])
    kept = {name: state[name] for name in (SIZES, SUMS, _IS_SMALL)}
    return {**kept, _BITS: bits.pack(together), _LIKE: np.zeros(len(together), ring.DTYPE)}


def _split_bits(_party: Party, state: Arrays) -> Arrays:
    short, following = np.split(require(state, _HOT), [1])
    kept = {name: state[name] for name in (SIZES, SUMS, _IS_SMALL)}
    return {**kept, _LEFT: following, _RIGHT: np.repeat(short, len(following))}


def _keep_others(k: int, party: Party, state: Arrays) -> Arrays:
    """Beside each sum of a cluster the bit that keeps it."""
    hidden = require(state, _IS_SMALL) + require(state, _LEFT)
    kept = ring.DTYPE(party.first) - hidden
    sums = np.ascontiguousarray(require(state, SUMS)[:k])
    beside = np.ascontiguousarray(np.broadcast_to(kept[:, None], sums.shape))
    return {SIZES: state[SIZES], SUMS: state[SUMS], _LEFT: sums, _RIGHT: beside}


def _only_sums(_party: Party, state: Arrays) -> Arrays:
    return {SIZES: state[SIZES], SUMS: np.concatenate([require(state, _LEFT), state[SUMS][-1:]])}


def hidden_clusters(sizes: NDArray[np.int64], least: int) -> NDArray[np.bool_]:
    """Return whose sums are hidden, from opened sizes."""
    hidden = sizes < least
    if 0 < sizes[hidden].sum() < least:
        hidden = hidden.copy()
        hidden[np.argmin(np.where(hidden, sizes.sum() + 1, sizes))] = True
    return hidden
