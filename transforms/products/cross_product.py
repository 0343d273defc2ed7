"""Cross products X·⟨Y⟩, X known to its owner and Y shared. There are two engines; each owner uses one per product.

`beaver`: SMUL of matrices with a fixed operand. For every owner P_i and every other party P_j (paper: X_A·⟨μ⟩_B and the
like; products of one party's own values are local):

  once per run    P_i sends E_ij = X_i − U_ij to P_j                     (U_ij uniform, known to P_i alone)
  per product     P_j sends F_ij = ⟨Y⟩_j − V_ij to P_i                   (V_ij uniform, fresh, known to P_j alone)
                  P_i: X_i·F_ij + ⟨U_ij·V_ij⟩_i       P_j: E_ij·V_ij + ⟨U_ij·V_ij⟩_j

because X·Y_j = X·(F + V) = X·F + (E + U)·V. X does not change during a run, so its mask need not change either, and the
messages of a product are only as large as Y. `transposed` products use the same E for Xᵀ·⟨Y⟩.

`he`: under P_j's key, see `products.he_product`. No message is as large as X, and only its nonzeros are touched.

A matrix without columns (of a party that owns none of the rows) takes part in no product: nothing is sent for it.

State: "shape", the shard's rows, padding and each party's columns; "x" this party's own matrix (`he`: "x.values",
"x.indices", "x.indptr"), "e0", "e1", … the others' masked ones (after `mask_operand`); `source`0, `source`1 … the
shares of the right operands, one for each owner's matrix; out `target`0, `target`1, …, the shares of the products. The
ciphertexts of a transposed product by `he`, "z0.columns", "z0.ciphertexts", …, are opened later by `he_product.unmask`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import MatMul, Operand
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.ring_matmul import matmul, sparse_matmul, sparse_matmul_transposed
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.layout import ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.products import he_product
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require, without

if TYPE_CHECKING:
    from scipy.sparse import csr_array

OPERAND = "operand"
"""The fixed stage of the masks of the rows themselves."""
Matrix: TypeAlias = "ring.Ring | csr_array"


@dataclass(frozen=True)
class CrossProduct:
    """The products X_i·⟨source_i⟩ for every owner i, or X_iᵀ·⟨source_i⟩.

    `engines` has the parameters of each owner that uses `he`; empty: all owners use `beaver`. `operand`: the fixed
    stage of the masks of X, as in `mask_operand`.
    """

    source: str
    target: str
    transposed: bool = False
    engines: tuple[HEProductParameters | None, ...] = ()
    operand: str = OPERAND

    def engine(self, owner: int) -> HEProductParameters | None:
        """The parameters of an owner that uses `he`; None: it uses `beaver`."""
        return self.engines[owner] if self.engines else None

    def kind(self, owner: int, peer: int, shard: ShardShape, columns: int) -> MatMul:
        """The correlation for the product of an owner's matrix and a peer's share."""
        shape = (shard.rows, shard.widths[owner])
        rows, inner = shape[::-1] if self.transposed else shape
        return MatMul(owner, peer, rows, inner, columns, self.operand, self.transposed)

    def compute(self, matrix: Matrix, right: ring.Ring) -> ring.Ring:
        """The product in the clear, matrix · right or matrixᵀ · right."""
        if not isinstance(matrix, np.ndarray):
            return sparse_matmul_transposed(matrix, right) if self.transposed else sparse_matmul(matrix, right)
        return matmul(matrix.T if self.transposed else matrix, right)

    def zeros(self, shard: ShardShape, owner: int, columns: int) -> ring.Ring:
        """Zeros in the shape of the product, where nothing is to be computed in this round."""
        return np.zeros((shard.widths[owner] if self.transposed else shard.rows, columns), ring.DTYPE)


def shape_from_state(state: Arrays) -> ShardShape:
    """Read the shard's shape from a state."""
    rows, _, *widths = state["shape"].tolist()
    return ShardShape(rows, tuple(widths))


def shape_to_state(shard: ShardShape, padding: int = 0) -> dict[str, Array]:
    """Turn a shard's shape into an array of a state; `padding`: so many of its last rows have the weight 0."""
    return {"shape": np.array([shard.rows, padding, *shard.widths])}


def filled_rows(state: Arrays) -> int:
    """Count the rows of a shard that are no padding."""
    rows, padding = state["shape"][:2].tolist()
    return int(rows - padding)


def own_matrix(party: Party, state: Arrays) -> Matrix:
    """Read this party's own matrix from a state, dense or in compressed rows."""
    width = shape_from_state(state).widths[party.index]
    return require(state, "x") if "x" in state else he_product.csr_from_state(state, width)


def mask_operand(owners: frozenset[int], operand: str = OPERAND) -> Protocol:
    """Send the masked matrix of every owner among `owners` to all others, once per run; no two have one `operand`."""
    halves = partial(_send_masked, owners, operand), partial(_receive_masked, owners)
    step = Round("operand", *halves, "X − U", broadcast=False)
    return Protocol("operand", (step,))


def cross(product: CrossProduct) -> Protocol:
    """Compute all cross products of all owners, in one round."""
    content = "⟨Y⟩ − V" if not any(product.engines) else "⟨Y⟩ − V, or ciphertexts"
    step = Round(
        "cross", partial(_send, product), partial(_receive, product), f"{content}, to each owner", broadcast=False
    )
    return Protocol("cross", (step,))


def _send_masked(owners: frozenset[int], operand: str, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    if party.index not in owners or not shape_from_state(state).widths[party.index]:
        return Sent(state, to={peer: {} for peer in party.others})
    x = require(state, "x")
    kinds = {peer: Operand(party.index, peer, x.shape, operand) for peer in party.others}
    return Sent(state, to={peer: {"e": x - randomness.correlated(kind, "u")} for peer, kind in kinds.items()})


def _receive_masked(
    owners: frozenset[int], party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness
) -> Arrays:
    shard = shape_from_state(state)
    senders = {i for i in party.others if i in owners and shard.widths[i]}
    expected = {i: np.zeros((shard.rows, shard.widths[i]), ring.DTYPE) for i in senders}
    return {**state, **{f"e{i}": inbox.from_peer(i, "e", like) for i, like in expected.items()}}


def _send(product: CrossProduct, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    shard, me = shape_from_state(state), party.index
    owners = [i for i in party.others if shard.widths[i]]
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    for owner in owners:
        if product.engine(owner) is None:
            y = require(state, f"{product.source}{owner}")
            kind = product.kind(owner, me, shard, y.shape[1])
            messages[owner] = {"f": y - randomness.correlated(kind, "v")}
    if product.transposed:
        return Sent(state, to=messages | _encrypt_share(product, party, state, owners, randomness))
    engine = product.engine(me)
    if engine is None or not shard.widths[me]:
        return Sent(state, to=messages)
    x = he_product.csr_from_state(state, shard.widths[me])
    products, share = he_product.send_products(engine, party, x, randomness)
    share += product.compute(x, require(state, f"{product.source}{me}"))
    merged = {peer: {**messages[peer], **products[peer]} for peer in messages}
    return Sent({**without(state, *he_product.CSR_ARRAYS), f"{product.target}{me}": share}, to=merged)


def _encrypt_share(
    product: CrossProduct, party: Party, state: Arrays, owners: list[int], randomness: Randomness
) -> dict[int, dict[str, Array]]:
    """Encrypt this party's share of Y for every owner that uses `he`."""
    engines = {owner: engine for owner in owners if (engine := product.engine(owner)) is not None}
    if not engines:
        return {}
    y = require(state, f"{product.source}{next(iter(engines))}")
    return he_product.send_encrypted(engines, party, y, randomness)


def _receive(product: CrossProduct, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    shares = _share_as_owner(product, party, state, inbox, randomness)
    for owner in party.others:
        shares[f"{product.target}{owner}"] = _share_as_peer(product, owner, party, state, inbox, randomness)
    return {**state, **shares}


def _share_as_owner(
    product: CrossProduct, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> dict[str, Array]:
    """Compute the share of the product with this party's own matrix. `beaver`: X·(⟨Y⟩_i + Σ F) + Σ ⟨UV⟩."""
    shard, me, target = shape_from_state(state), party.index, f"{product.target}{party.index}"
    y, engine = require(state, f"{product.source}{me}"), product.engine(me)
    if not shard.widths[me]:
        return {target: product.zeros(shard, me, y.shape[1])}
    if engine is None:
        share = product.compute(require(state, "x"), inbox.open_sum("f", y))
        for peer in party.others:
            share += randomness.correlated(product.kind(me, peer, shard, y.shape[1]), "w")
        return {target: share}
    if not product.transposed:
        return {target: state[target]}
    x = he_product.csr_from_state(state, shard.widths[me])
    return {target: product.compute(x, y), **he_product.receive_encrypted(engine, party, x, inbox, randomness)}


def _share_as_peer(
    product: CrossProduct, owner: int, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> ring.Ring:
    """Compute the share of the product with another owner's matrix. `beaver`: E·V + ⟨UV⟩."""
    shard, y, engine = shape_from_state(state), require(state, f"{product.source}{owner}"), product.engine(owner)
    if not shard.widths[owner] or (engine is not None and product.transposed):
        return product.zeros(shard, owner, y.shape[1])
    if engine is not None:
        return he_product.receive_products(engine, party, owner, shard.rows, inbox, randomness)
    kind = product.kind(owner, party.index, shard, y.shape[1])
    e = require(state, f"e{owner}")
    return product.compute(e, randomness.correlated(kind, "v")) + randomness.correlated(kind, "w")
