"""F_ESD': shares of the squared distances of all rows to all centroids, but for a term that does not matter.

  D' = U − 2·X·μᵀ,    U_j = |μ_j|²                                (|x|² is the same for all j and is left out)

X·μᵀ is the sum of each owner's X_i·μ_iᵀ, over the columns it owns (`transforms.cross`); the rest is local. D' carries
2f fractional bits and is compared as it is.

State: "x", "e0", "e1", … the operands of the cross products; "mu" (k × d) and "u" (k), shares; out "d" (k × n).
"""

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import Block
from veilmeans.schemas.party import Party
from veilmeans.transforms.cross import CrossProduct, cross
from veilmeans.transforms.rounds import Protocol, require

_PRODUCT = CrossProduct("dist.mu", "dist.p")


def distance() -> Protocol:
    """One round."""
    return cross(_PRODUCT).after(_spread).then(_finish).named("distance")


def block_of(party: Party, state: Arrays) -> Block:
    """The shard's shape, as its operands tell it."""
    x = require(state, "x")
    widths = [x.shape[1] if i == party.index else state[f"e{i}"].shape[1] for i in range(party.count)]
    return Block(len(x), tuple(widths))


def _spread(party: Party, state: Arrays) -> Arrays:
    """To each owner the centroids of its columns."""
    block, mu = block_of(party, state), require(state, "mu")
    parts = {f"dist.mu{i}": np.ascontiguousarray(mu[:, block.columns(i)].T) for i in range(party.count)}
    return {**state, **parts}


def _finish(party: Party, state: Arrays) -> Arrays:
    products = ring.total(require(state, f"dist.p{i}") for i in range(party.count))
    u = require(state, "u")
    return {"d": u[:, None] - (np.ascontiguousarray(products.T) << ring.DTYPE(1))}
