"""Profiles of the final clusters: sizes, and sums of values, squares and labels, from shares, for named parties.

A party that gets profiles has, beside its values X, their squares and two columns of its label, whether it is known and
whether it is 1; a party without a label has zeros there, so that nobody learns who has one. With P = [X, X², labels]:

  operand     P − U to the others, U uniform and for P alone
  b2a         ⟨C⟩ from the one-hot rows [C]; the last column is 1 − Σ of the others
  cross       ⟨PᵀC⟩ of every owner, by `products.cross_product`, also where X is multiplied under encryption

Vertical: P of each recipient, no columns of others. Horizontal: P of the rows' owner, all columns and the labels of
each recipient, of which only its own are not 0; the sums of all rows are opened to a recipient.

All k columns are multiplied. If the last cluster's sums were those of all rows less the others, a party's shares of all
clusters would add up to its own rows' sum, and three parties would open that.

State over rows: "c", "x" (P), "shape" (that of P) in; SIZES (k) and SUMS (k + 1 lines × width, the last of all rows)
out, to be added over the shards. Sums of small clusters are then hidden (`statistics.small_clusters`).
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import bits, ring
from veilmeans.crypto import fixed_point as fixed
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import Layout, ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a
from veilmeans.transforms.products.cross_product import CrossProduct, cross, filled_rows, mask_operand, shape_from_state
from veilmeans.transforms.rounds.protocol import Protocol, require, without

PROFILE_OPERAND = "profile-operand"
SIZES, SUMS, RECIPIENTS = "n", "s", "to"
_BITS, _HOT, _CLUSTERS, _PRODUCTS = "profile.bits", "profile.hot", "profile.c", "profile.s"
_LABELS = 2  # columns of a label: known, and known to be 1


@dataclass(frozen=True)
class Profiles:
    """The public parameters: who gets profiles, ascending, and the fractional bits of squares.

    `least`: sums of clusters with fewer rows are hidden; 1: none are.
    """

    layout: Layout
    k: int
    recipients: tuple[int, ...]
    square_bits: int
    least: int = 1

    def shape(self, shard: ShardShape) -> ShardShape:
        """The shape of P in a row shard."""
        if self.layout.vertical:
            widths = [2 * d + _LABELS if i in self.recipients else 0 for i, d in enumerate(self.layout.features)]
        else:
            widths = [self.width if owned else 0 for owned in shard.widths]
        return ShardShape(shard.rows, tuple(widths))

    @property
    def width(self) -> int:
        """The number of columns of P, of all owners of a row."""
        owned = [self.layout.features[i] for i in (self.recipients if self.layout.vertical else (0,))]
        return 2 * sum(owned) + _LABELS * len(self.recipients)

    def columns(self, party: int) -> NDArray[np.intp]:
        """The columns of SUMS that are a recipient's: values, squares, label."""
        before = [i for i in self.recipients if i < party]
        if self.layout.vertical:
            first = sum(2 * self.layout.features[i] + _LABELS for i in before)
            return np.arange(first, first + 2 * self.layout.features[party] + _LABELS)
        d = self.layout.features[0]
        return np.concatenate([np.arange(2 * d), 2 * d + _LABELS * len(before) + np.arange(_LABELS)])

    def operand(self, party: int, x: ring.Ring, labels: NDArray[np.uint8] | None) -> ring.Ring:
        """P of an owner's rows; its labels are 0, 1 or another number (unknown)."""
        squares = np.rint(np.ldexp(fixed.decode(x) ** 2, self.square_bits)).astype(np.int64).view(ring.DTYPE)
        owners = (party,) if self.layout.vertical else self.recipients
        of_labels = np.zeros((len(x), len(owners), _LABELS), ring.DTYPE)
        if labels is not None and party in owners:
            of_labels[:, owners.index(party)] = np.stack([labels <= 1, labels == 1], axis=1)
        return np.concatenate([x, squares, of_labels.reshape(len(x), -1)], axis=1)

    def rows(self) -> Protocol:
        """Sum the rows of each cluster in three rounds; with one cluster in two."""
        masked = mask_operand(frozenset(range(self.layout.parties)), PROFILE_OPERAND).after(_only_operands)
        if self.k > 1:
            masked += Protocol("b2a", (b2a(_BITS, None, _HOT),)).after(_select_bits)
        product = CrossProduct(_CLUSTERS, _PRODUCTS, transposed=True, operand=PROFILE_OPERAND)
        sums = cross(product).after(partial(_set_clusters, self.k)).then(_join_sums)
        return (masked + sums).named("profile")


def _only_operands(_party: Party, state: Arrays) -> Arrays:
    return {name: state[name] for name in ("c", "x", "shape")}


def _select_bits(_party: Party, state: Arrays) -> Arrays:
    """Select the one-hot rows of the first k − 1 clusters."""
    return {**state, _BITS: state["c"][:-1].reshape(-1)}


def _set_clusters(k: int, party: Party, state: Arrays) -> Arrays:
    """Set C (n × k) as the right operand of every owner's product, and the sizes."""
    rows = shape_from_state(state).rows
    hot = np.zeros((0, rows), ring.DTYPE) if k == 1 else bits.from_lanes(require(state, _HOT), k - 1, rows)
    last = np.full((1, rows), int(party.first), ring.DTYPE) - hot.sum(axis=0, dtype=ring.DTYPE)
    clusters = np.ascontiguousarray(np.concatenate([hot, last]).T)
    clusters[filled_rows(state) :] = 0  # padding is in no cluster
    operands = {f"{_CLUSTERS}{i}": clusters for i in range(party.count)}
    return {**without(state, "c", _BITS, _HOT), **operands, SIZES: ring.column_sums(clusters)}


def _join_sums(party: Party, state: Arrays) -> Arrays:
    """Put the owners' columns side by side, and below the clusters the sums of all rows."""
    sums = np.concatenate([require(state, f"{_PRODUCTS}{i}") for i in range(party.count)]).T
    return {SIZES: state[SIZES], SUMS: np.concatenate([sums, sums.sum(axis=0, keepdims=True, dtype=ring.DTYPE)])}
