"""Explanations: what each column adds to an outlier's score, from shares, for the outliers alone.

An outlier's score is Σ_l (x_l − μ_jl)² over all columns, j its cluster. Whoever knows x_l needs μ_jl for its own
columns, and nothing of other rows, clusters or columns:

  explain             over rows: [g_j] = [c_j ∧ outlier], ⟨outlier·score⟩, and how many g_j are set, by B2A; one owner's
                      rows count for that owner alone
  explain-clusters    once: ⟨has_j⟩ = ⟨[Σ g_j > 0]⟩ for each cluster, and each owner of rows
  explain-centroids   over column shards: ⟨has_j·μ_j⟩

All of it is computed on shares over all rows: nobody learns which rows, or how many of whose, are explained. g and
has·μ are opened to their recipients at the end (`kmeans.open_explanations`).

State over rows: "c", "outlier", "shape", and "shown" (n) where scores of outliers are needed; beside them out
"explained" (k packed rows), "explained.score" (n), and "explained.n" (G × k), G = 1 if rows have all owners, else M.
Of `clusters`: "explained.n" in, "explained.has" (G × k) out. Of `centroids`: that and "mu" (k × w) in, "mu" (G × k × w)
out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto.correlations import ProductGroups
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a, inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.masked_opening import MaskedOpening, OpenedGroups, open_masked
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.products.cross_product import shape_from_state
from veilmeans.transforms.rounds.protocol import Protocol, merge_rounds, require, without
from veilmeans.transforms.statistics.small_clusters import OPEN

EXPLAINED, EXPLAINED_SCORE = "explained", "explained.score"
COUNTS, HAS = "explained.n", "explained.has"
_PLANES, _BITS, _HOT, _NONE = "explained.planes", "explained.bits", "explained.hot", "explained.none"


@dataclass(frozen=True)
class Explanations:
    """The public parameters: k, the owners whose rows are counted apart (1: all rows have all owners), and bits.

    `row_bits`: of a number of rows. `others`: an outlier's whole score is opened, from which the columns of all others
    follow as one number.
    """

    k: int
    groups: int
    row_bits: int
    others: bool

    def rows(self) -> Protocol:
        """Select the outliers' clusters and scores, and count their clusters, in two rounds."""
        products = tuple((((j,), (self.k,)),) for j in range(self.k))
        opening = MaskedOpening(_PLANES, (ProductGroups(1, self.k + 1, products),))
        select = open_masked("select", opening, _planes, partial(_select, self.k), "[c⊕λ], [outlier⊕λ']")
        if self.others:
            select = merge_rounds("select", select, inject("outlier", "shown", EXPLAINED_SCORE))
        count = Protocol("count", (b2a(_BITS, None, _HOT),)).then(partial(_count, self))
        return (Protocol("select", (select,)) + count).named("explain")

    def clusters(self, parties: int, closes: bool = False) -> Protocol:
        """Find the clusters that have an outlier; `closes`: and that may be opened, as OPEN says."""
        none = Comparison(COUNTS, _NONE, self.row_bits + 1, offset=-1)
        convert = Protocol("b2a", (b2a(_NONE, COUNTS, HAS),)).then(_invert)
        found = sign(none, parties) + convert
        if closes:
            found += multiply(HAS, OPEN, HAS).then(_only_has)
        return found.named("explain-clusters")

    def centroids(self, closes: bool = False) -> Protocol:
        """Multiply the centroids of clusters without an outlier by 0; `closes`: keep the bits, to be opened, too."""
        after = _with_bits if closes else _only_centroids
        product = multiply("mu", HAS, "mu").after(_repeat_both).then(after)
        return product.named("explain-centroids")


def _planes(_party: Party, state: Arrays) -> tuple[Arrays, Array]:
    return state, np.concatenate([state["c"], state["outlier"][None]])


def _select(k: int, _party: Party, state: Arrays, opened: Iterator[OpenedGroups]) -> Arrays:
    """[c_j·o] = m_j m_o ⊕ m_j [λ_o] ⊕ m_o [λ_j] ⊕ [λ_j λ_o]."""
    (group,) = opened
    m, mask = group.values[0], group.mask[0]
    selected = (m[:k] & (mask[k] ^ (m[k] & group.one))) ^ (m[k] & mask[:k]) ^ group.sums[0]
    return {**state, EXPLAINED: selected, _BITS: selected.reshape(-1)}


def _count(how: Explanations, _party: Party, state: Arrays) -> Arrays:
    """Count each cluster's outliers, in the line of the rows' owner."""
    shape = shape_from_state(state)
    hot = bits.from_lanes(require(state, _HOT), how.k, shape.rows)
    counts = np.zeros((how.groups, how.k), ring.DTYPE)
    owner = int(np.argmax(shape.widths)) if how.groups > 1 else 0
    counts[owner] = ring.column_sums(np.ascontiguousarray(hot.T))
    return {**without(state, _BITS, _HOT), COUNTS: counts}


def _invert(party: Party, state: Arrays) -> Arrays:
    """1 − [Σ g_j < 1]."""
    none = require(state, HAS)
    has = ring.DTYPE(1) - none if party.first else -none
    if OPEN not in state:
        return {HAS: has}
    return {HAS: has, OPEN: np.ascontiguousarray(np.broadcast_to(state[OPEN], has.shape))}


def _only_has(_party: Party, state: Arrays) -> Arrays:
    return {HAS: state[HAS]}


def _repeat_both(_party: Party, state: Arrays) -> Arrays:
    """The centroids for each owner, and beside each coordinate the bit of its cluster."""
    mu, has = require(state, "mu"), require(state, HAS)
    shape = (len(has), *mu.shape)
    repeated = np.broadcast_to(mu, shape), np.broadcast_to(has[:, :, None], shape)
    return dict(zip(("mu", HAS), map(np.ascontiguousarray, repeated), strict=True))


def _with_bits(_party: Party, state: Arrays) -> Arrays:
    return {"mu": state["mu"], HAS: np.ascontiguousarray(state[HAS][:, :, 0])}


def _only_centroids(_party: Party, state: Arrays) -> Arrays:
    return {"mu": state["mu"]}
