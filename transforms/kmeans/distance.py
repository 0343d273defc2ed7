"""F_ESD': shares of the squared distances of all rows to all centroids, without the term |x|².

  D' = U − 2·X·μᵀ,    U_j = |μ_j|²                                (|x|² is the same for all j and is omitted)

X·μᵀ is the sum of each owner's X_i·μ_iᵀ, over the columns it owns (`products.cross_product`); the rest is local. U is
computed beside the products, and added when both are known (`add_norms`). D' carries 2f fractional bits and is compared
as it is.

State: the operands of the cross products and "mu" (k × d), a share; out "d" (k × n), −2·X·μᵀ, and "shape". Of
`add_norms`: "d" and "u" (k) in, "d" out.
"""

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.products.cross_product import CrossProduct, cross, shape_from_state
from veilmeans.transforms.products.he_product import OwnerProducts
from veilmeans.transforms.rounds.protocol import Protocol, require, without


def distance(engines: OwnerProducts = ()) -> Protocol:
    """Compute the products of the distances in one round.

    `engines`: the parameters of each owner that uses `he`; it has received the peers' Enc(μ) before.
    """
    product = CrossProduct("dist.mu", "dist.p", engines=tuple(engines))
    return cross(product).after(_split_centroids).then(_combine).named("distance")


def _split_centroids(party: Party, state: Arrays) -> Arrays:
    """Split the centroids by the owners of their columns."""
    shard, mu = shape_from_state(state), require(state, "mu")
    owned = {f"dist.mu{i}": np.ascontiguousarray(mu[:, shard.columns(i)].T) for i in range(party.count)}
    return {**without(state, "mu"), **owned}


def _combine(party: Party, state: Arrays) -> Arrays:
    """−2·Σ_i X_i·μ_iᵀ."""
    products = ring.total(require(state, f"dist.p{i}") for i in range(party.count))
    return {"shape": state["shape"], "d": -(np.ascontiguousarray(products.T) << ring.DTYPE(1))}


def add_norms(_party: Party, state: Arrays) -> Arrays:
    """U − 2·X·μᵀ."""
    return {**without(state, "u"), "d": require(state, "d") + require(state, "u")[:, None]}
