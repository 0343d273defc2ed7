"""Cross products X·⟨Y⟩, X known to its owner and Y shared. Two engines; each owner uses one of them for a product.

`beaver`: SMUL of matrices with a fixed operand. For every owner P_i and every other party P_j (paper: X_A·⟨μ⟩_B and the
like; products of what one party has are local):

  once per run    P_i sends E_ij = X_i − U_ij to P_j                     (U_ij uniform, known to P_i alone)
  per product     P_j sends F_ij = ⟨Y⟩_j − V_ij to P_i                   (V_ij uniform, fresh, known to P_j alone)
                  P_i: X_i·F_ij + ⟨U_ij·V_ij⟩_i       P_j: E_ij·V_ij + ⟨U_ij·V_ij⟩_j

because X·Y_j = X·(F + V) = X·F + (E + U)·V. X does not change during a run, so neither need its mask; a product moves
only Y-sized messages. `transposed` products use the same E for Xᵀ·⟨Y⟩.

`he`: under P_j's key, see `products.he_product`. Nothing of X's size crosses, and only its nonzeros are touched.

A matrix without columns (a party that owns none of the rows) takes part in no product: nothing is sent for it.

State: "block", the shard's rows and each party's columns; "x" this party's own matrix (`he`: "x.values", "x.indices",
"x.indptr"), "e0", "e1", … the others' masked ones (after `mask_operand`); `source`0, `source`1 … the shares of the
right operands, one for each owner's matrix; out `target`0, `target`1, …, the shares of the products. What `he` gives a
transposed product in ciphertexts, "z0.columns", "z0.ciphers", …, is left for `sparse.unmask`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import MatMul, Operand
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.ring_matmul import matmul, sparse_matmul, sparse_matmul_transposed
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.layout import ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.products import he_product as sparse
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require, without

_STAGE = "operand"
Matrix: TypeAlias = ring.Ring | csr_array


@dataclass(frozen=True)
class CrossProduct:
    """X_i·⟨source_i⟩ for every owner i, or X_iᵀ·⟨source_i⟩; `engines` has the numbers of each owner that uses `he`."""

    source: str
    target: str
    transposed: bool = False
    engines: tuple[HEProductParameters | None, ...] = ()

    def engine(self, owner: int) -> HEProductParameters | None:
        return self.engines[owner] if self.engines else None

    def kind(self, owner: int, peer: int, block: ShardShape, columns: int) -> MatMul:
        shape = (block.rows, block.widths[owner])
        rows, inner = shape[::-1] if self.transposed else shape
        return MatMul(owner, peer, rows, inner, columns, _STAGE, self.transposed)

    def of(self, matrix: Matrix, right: ring.Ring) -> ring.Ring:
        if isinstance(matrix, csr_array):
            return sparse_matmul_transposed(matrix, right) if self.transposed else sparse_matmul(matrix, right)
        return matmul(matrix.T if self.transposed else matrix, right)

    def nothing(self, block: ShardShape, owner: int, columns: int) -> ring.Ring:
        """The product with a matrix without columns, or a share that is still to come."""
        return np.zeros((block.widths[owner] if self.transposed else block.rows, columns), ring.DTYPE)


def shape_from_state(state: Arrays) -> ShardShape:
    """The shard's shape."""
    rows, *widths = state["block"].tolist()
    return ShardShape(rows, tuple(widths))


def shape_to_state(block: ShardShape) -> dict[str, Array]:
    """The same, into a state."""
    return {"block": np.array([block.rows, *block.widths])}


def own_matrix(party: Party, state: Arrays) -> Matrix:
    """This party's own matrix, dense or in compressed rows."""
    block = shape_from_state(state)
    return require(state, "x") if "x" in state else sparse.csr_from_state(state, block.widths[party.index])


def mask_operand(owners: frozenset[int]) -> Protocol:
    """The round, once per run, in which every owner among `owners` sends its masked matrix."""
    step = Round("operand", partial(_send_masked, owners), partial(_keep_masked, owners), "X − U")
    return Protocol("operand", (step,))


def cross(product: CrossProduct) -> Protocol:
    """One round for all cross products of all owners."""
    how = "⟨Y⟩ − V" if not any(product.engines) else "⟨Y⟩ − V, or ciphertexts"
    step = Round("cross", partial(_send, product), partial(_receive, product), f"{how}, to each owner")
    return Protocol("cross", (step,))


def _send_masked(owners: frozenset[int], party: Party, state: Arrays, randomness: Randomness) -> Sent:
    if party.index not in owners or not shape_from_state(state).widths[party.index]:
        return Sent(state, to={peer: {} for peer in party.others})
    x = require(state, "x")
    kinds = {peer: Operand(party.index, peer, x.shape, _STAGE) for peer in party.others}
    return Sent(state, to={peer: {"e": x - randomness.correlated(kind, "u")} for peer, kind in kinds.items()})


def _keep_masked(owners: frozenset[int], party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del randomness
    block = shape_from_state(state)
    like = {i: np.zeros((block.rows, block.widths[i]), ring.DTYPE) for i in party.others}
    due = {i for i in party.others if i in owners and block.widths[i]}
    return {**state, **{f"e{i}": inbox.from_peer(i, "e", like[i]) for i in due}}


def _send(product: CrossProduct, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    block, me = shape_from_state(state), party.index
    owners = [i for i in party.others if block.widths[i]]
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    for owner in owners:
        if product.engine(owner) is None:
            y = require(state, f"{product.source}{owner}")
            kind = product.kind(owner, me, block, y.shape[1])
            messages[owner] = {"f": y - randomness.correlated(kind, "v")}
    if product.transposed:
        return Sent(state, to=messages | _encrypted(product, party, state, owners, randomness))
    engine = product.engine(me)
    if engine is None or not block.widths[me]:
        return Sent(state, to=messages)
    x = sparse.csr_from_state(state, block.widths[me])
    masked, share = sparse.send_products(engine, party, x, randomness)
    share += product.of(x, require(state, f"{product.source}{me}"))
    together = {peer: {**messages[peer], **masked[peer]} for peer in messages}
    return Sent({**without(state, *sparse.MATRIX), f"{product.target}{me}": share}, to=together)


def _encrypted(
    product: CrossProduct, party: Party, state: Arrays, owners: list[int], randomness: Randomness
) -> dict[int, dict[str, Array]]:
    """My share of Y to every owner that uses `he`."""
    engines = {owner: engine for owner in owners if (engine := product.engine(owner)) is not None}
    if not engines:
        return {}
    y = require(state, f"{product.source}{next(iter(engines))}")
    return sparse.send_encrypted(engines, party, y, randomness)


def _receive(product: CrossProduct, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    shares = _owned(product, party, state, inbox, randomness)
    for owner in party.others:
        shares[f"{product.target}{owner}"] = _helped(product, owner, party, state, inbox, randomness)
    return {**state, **shares}


def _owned(
    product: CrossProduct, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> dict[str, Array]:
    """My share of the product with my own matrix. `beaver`: X·(⟨Y⟩_me + Σ F) + Σ ⟨UV⟩."""
    block, me, target = shape_from_state(state), party.index, f"{product.target}{party.index}"
    mine, engine = require(state, f"{product.source}{me}"), product.engine(me)
    if not block.widths[me]:
        return {target: product.nothing(block, me, mine.shape[1])}
    if engine is None:
        share = product.of(require(state, "x"), inbox.opened("f", mine))
        for peer in party.others:
            share += randomness.correlated(product.kind(me, peer, block, mine.shape[1]), "w")
        return {target: share}
    if not product.transposed:
        return {target: state[target]}
    x = sparse.csr_from_state(state, block.widths[me])
    return {target: product.of(x, mine), **sparse.receive_encrypted(engine, party, x, inbox, randomness)}


def _helped(
    product: CrossProduct, owner: int, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> ring.Ring:
    """My share of the product with another's matrix. `beaver`: E·V + ⟨UV⟩."""
    block, y, engine = shape_from_state(state), require(state, f"{product.source}{owner}"), product.engine(owner)
    if not block.widths[owner] or (engine is not None and product.transposed):
        return product.nothing(block, owner, y.shape[1])
    if engine is not None:
        return sparse.receive_products(engine, party, owner, block.rows, inbox, randomness)
    kind = product.kind(owner, party.index, block, y.shape[1])
    masked = require(state, f"e{owner}")
    return product.of(masked, randomness.correlated(kind, "v")) + randomness.correlated(kind, "w")
