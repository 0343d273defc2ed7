"""Choose the clusters that stay open, and hide the sums of the others: those of fewer than m rows become 0, on shares.

Whoever knows the sums of all rows could subtract those of the other clusters. So what is hidden has m rows in total, or
none: where the small clusters together have fewer, the smallest of the others is hidden, too.

  1. [small_j] = [n_j < m]
  2. ⟨small_j⟩ and ⟨small_j·n_j⟩, by bit injection; f = Σ_j small_j·n_j rows are hidden so far
  3. [short] = [1 ≤ f < m] = [f < 1] ⊕ [f < m]
  4. [next_j]: the position of the least n_j + small_j·2^b, 2^b > n; equal ones: the first
  5. ⟨short⟩ and ⟨next_j⟩, by B2A            6. ⟨short·next_j⟩
  7. ⟨open_j·s_j⟩ for all sums s_j of a cluster, open_j = 1 − small_j − short·next_j

m is at most the number of rows n: if all clusters are small, f = n ≥ m, and no cluster is hidden twice. Of profiles
recipients learn sizes, and from them which clusters are hidden (`hidden_clusters`); nothing else is opened. With
`kmeans.reveal.minimum_size` sizes are hidden, too, and [open_j] is opened: of a hidden cluster only that it is one.

State of `hide`: in SIZES (k) and SUMS (k + 1 lines, the last of all rows, which stays as it is); out the same, and OPEN
(k) if sizes are hidden. State of `choose`: in SIZES, out SIZES and OPEN.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import bits, ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.kmeans_config import MOST_CLUSTERS_BY_PAIRS
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.argmin import Argmin, argmin
from veilmeans.transforms.primitives.bit_injection import b2a, inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.rounds.protocol import Protocol, require, without
from veilmeans.transforms.statistics.profiles import SIZES, SUMS

_SMALL, _FEW, _IS_SMALL, _SHORT, _NEXT = "hide.small", "hide.few", "hide.is-small", "hide.short", "hide.next"
_LIMITS, _ORDER, _BITS, _LIKE, _HOT = "hide.limits", "hide.order", "hide.bits", "hide.like", "hide.hot"
_LEFT, _RIGHT = "hide.x", "hide.y"
OPEN = "open"
"""Shares of 1 for each cluster that may be opened, 0 for others."""


@dataclass(frozen=True)
class SmallClusters:
    """The public parameters: k ≥ 2, m, and b, the bits of a number of rows."""

    k: int
    least: int
    row_bits: int

    def choose(self, parties: int) -> Protocol:
        """Find the clusters that may be opened."""
        small = sign(Comparison(SIZES, _SMALL, self.row_bits + 1, offset=-self.least), parties)
        few = Protocol("few", (inject(_SMALL, SIZES, _FEW, bit_target=_IS_SMALL),)).then(partial(_compare_next, self))
        short = sign(Comparison(_LIMITS, _SHORT, self.row_bits + 1), parties)
        method = "pairs" if self.k <= MOST_CLUSTERS_BY_PAIRS else "tree"
        order = Argmin(_ORDER, _NEXT, compare_bits=self.row_bits + 3, method=method)  # type: ignore[arg-type]
        convert = Protocol("b2a", (b2a(_BITS, _LIKE, _HOT),)).after(_join_bits).then(_split_bits)
        both = multiply(_LEFT, _RIGHT, _LEFT).then(_open_others)
        return small + few + short + argmin(order, self.k, parties) + convert + both

    def hide(self, parties: int, sizes: bool = False) -> Protocol:
        """Multiply the sums of clusters that are to be hidden by 0, and their sizes, if these are hidden, too."""
        hidden = multiply(_LEFT, _RIGHT, _LEFT).after(partial(_to_hide, self.k, sizes)).then(partial(_hidden, sizes))
        return (self.choose(parties) + hidden).named("profile-hide")


def _compare_next(how: SmallClusters, party: Party, state: Arrays) -> Arrays:
    """f − 1 and f − m, and n_j + small_j·2^b."""
    few = require(state, _FEW).sum(dtype=ring.DTYPE)
    limits = np.full(2, few, ring.DTYPE)
    if party.first:
        limits -= np.array([1, how.least], ring.DTYPE)
    order = require(state, SIZES) + (require(state, _IS_SMALL) << ring.DTYPE(how.row_bits))
    return {**_kept(state), _LIMITS: limits, _ORDER: order[:, None]}


def _kept(state: Arrays) -> Arrays:
    return {name: state[name] for name in (SIZES, SUMS, _IS_SMALL) if name in state}


def _join_bits(_party: Party, state: Arrays) -> Arrays:
    """[short] and [next_j], packed together."""
    short, following = bits.unpack(state[_SHORT], 2), bits.unpack_rows(state[_NEXT], 1)[:, 0]
    together = np.concatenate([short[:1] ^ short[1:], following])
    return {**_kept(state), _BITS: bits.pack(together), _LIKE: np.zeros(len(together), ring.DTYPE)}


def _split_bits(_party: Party, state: Arrays) -> Arrays:
    short, following = np.split(require(state, _HOT), [1])
    return {**_kept(state), _LEFT: following, _RIGHT: np.repeat(short, len(following))}


def _open_others(party: Party, state: Arrays) -> Arrays:
    """1 − small_j − short·next_j."""
    hidden = require(state, _IS_SMALL) + require(state, _LEFT)
    return {**without(state, _IS_SMALL, _LEFT, _RIGHT), OPEN: ring.DTYPE(party.first) - hidden}


def _to_hide(k: int, sizes: bool, _party: Party, state: Arrays) -> Arrays:
    """Beside each sum of a cluster, and its size if that is hidden, too, the bit that keeps it."""
    shown = require(state, SUMS)[:k]
    if sizes:
        shown = np.concatenate([shown, require(state, SIZES)[:, None]], axis=1)
    beside = np.broadcast_to(require(state, OPEN)[:, None], shown.shape)
    return {**state, _LEFT: np.ascontiguousarray(shown), _RIGHT: np.ascontiguousarray(beside)}


def _hidden(sizes: bool, _party: Party, state: Arrays) -> Arrays:
    shown, all_rows = require(state, _LEFT), state[SUMS][-1:]
    if not sizes:
        return {SIZES: state[SIZES], SUMS: np.concatenate([shown, all_rows])}
    sums = np.concatenate([np.ascontiguousarray(shown[:, :-1]), all_rows])
    return {SIZES: np.ascontiguousarray(shown[:, -1]), SUMS: sums, OPEN: state[OPEN]}


# the centroids of small clusters
def keep_open(parties: int, small: SmallClusters) -> Protocol:
    """Find the clusters whose centroids may be opened; state: in SIZES, out OPEN."""
    return small.choose(parties).then(_only_open).named("minimum-size")


def open_centroids() -> Protocol:
    """Multiply the centroids of clusters that may not be opened by 0; state: in "mu" (k × w) and OPEN, out "mu"."""
    return multiply("mu", OPEN, "mu").after(_beside_centroids).then(_only_centroids).named("open-centroids")


def _only_open(_party: Party, state: Arrays) -> Arrays:
    return {OPEN: state[OPEN]}


def _beside_centroids(_party: Party, state: Arrays) -> Arrays:
    mu = require(state, "mu")
    return {"mu": mu, OPEN: np.ascontiguousarray(np.broadcast_to(require(state, OPEN)[:, None], mu.shape))}


def _only_centroids(_party: Party, state: Arrays) -> Arrays:
    return {"mu": state["mu"]}


def opened_clusters(opened: ring.Ring) -> NDArray[np.bool_]:
    """Return which clusters were opened, from the opened bits; RefusedError if these are no bits."""
    if np.any(opened > 1):
        raise RefusedError("the opened bits of closed clusters are neither 0 nor 1: a share of a party is not right")
    return opened.astype(bool)


def hidden_clusters(sizes: NDArray[np.int64], least: int) -> NDArray[np.bool_]:
    """Return whose sums are hidden, from opened sizes."""
    hidden = sizes < least
    if 0 < sizes[hidden].sum() < least:
        hidden = hidden.copy()
        hidden[np.argmin(np.where(hidden, sizes.sum() + 1, sizes))] = True
    return hidden
