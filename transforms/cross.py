"""Cross products X·⟨Y⟩, X known to its owner and Y shared: SMUL of matrices with a fixed operand.

For every owner P_i and every other party P_j (paper: X_A·⟨μ⟩_B and the like; products of what one party has are local):

  once per run    P_i sends E_ij = X_i − U_ij to P_j                     (U_ij uniform, known to P_i alone)
  per product     P_j sends F_ij = ⟨Y⟩_j − V_ij to P_i                   (V_ij uniform, fresh, known to P_j alone)
                  P_i: X_i·F_ij + ⟨U_ij·V_ij⟩_i       P_j: E_ij·V_ij + ⟨U_ij·V_ij⟩_j

because X·Y_j = X·(F + V) = X·F + (E + U)·V. X does not change during a run, so neither need its mask; a product moves
only Y-sized messages. `transposed` products use the same E for Xᵀ·⟨Y⟩. A matrix without columns (a party that owns none
of the rows) takes part in no product: nothing is sent for it.

State: "x" this party's own matrix, "e0", "e1", … the others' masked ones (after `mask_operand`); `source`0, `source`1 …
the shares of the right operands, one for each owner's matrix; out `target`0, `target`1, …, the shares of the products.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import MatMul, Operand
from veilmeans.crypto.products import matmul
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.randomness import Randomness
from veilmeans.transforms.rounds import Inbox, Protocol, Round, Sent, require

_STAGE = "operand"


@dataclass(frozen=True)
class CrossProduct:
    """X_i·⟨source_i⟩ for every owner i, or X_iᵀ·⟨source_i⟩."""

    source: str
    target: str
    transposed: bool = False

    def kind(self, owner: int, peer: int, matrix: ring.Ring, columns: int) -> MatMul:
        rows, inner = matrix.shape[::-1] if self.transposed else matrix.shape
        return MatMul(owner, peer, rows, inner, columns, _STAGE, self.transposed)

    def of(self, matrix: ring.Ring, right: ring.Ring) -> ring.Ring:
        return matmul(matrix.T if self.transposed else matrix, right)


def mask_operand() -> Protocol:
    """The round, once per run, in which every owner sends its masked matrix."""
    return Protocol("operand", (Round("operand", _send_masked, _keep_masked, "X − U"),))


def cross(product: CrossProduct) -> Protocol:
    """One round for all cross products of all owners."""
    step = Round("cross", partial(_send, product), partial(_receive, product), "⟨Y⟩ − V, to each owner")
    return Protocol("cross", (step,))


def _send_masked(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    x = require(state, "x")
    if not x.shape[1]:
        return Sent(state, to={peer: {} for peer in party.others})
    kinds = {peer: Operand(party.index, peer, x.shape, _STAGE) for peer in party.others}
    return Sent(state, to={peer: {"e": x - randomness.correlated(kind, "u")} for peer, kind in kinds.items()})


def _keep_masked(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del party, randomness
    rows = len(require(state, "x"))
    return {**state, **{f"e{peer}": _matrix(inbox, peer, rows) for peer in inbox.messages}}


def _matrix(inbox: Inbox, peer: int, rows: int) -> ring.Ring:
    """A peer's masked matrix; nothing stands for one without columns."""
    matrix = inbox.messages[peer].get("e", np.zeros((rows, 0), ring.DTYPE))
    if matrix.ndim != 2 or matrix.dtype != ring.DTYPE or len(matrix) != rows:
        raise RefusedError(f"{inbox.party.names[peer]} sent no masked matrix of {rows:,} rows where one was due")
    return matrix


def _send(product: CrossProduct, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    messages = {}
    for owner in party.others:
        e, y = require(state, f"e{owner}"), require(state, f"{product.source}{owner}")
        if e.shape[1]:
            kind = product.kind(owner, party.index, e, y.shape[1])
            messages[owner] = {"f": y - randomness.correlated(kind, "v")}
        else:
            messages[owner] = {}
    return Sent(state, to=messages)


def _receive(product: CrossProduct, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    shares = {f"{product.target}{party.index}": _owned(product, party, state, inbox, randomness)}
    for owner in party.others:
        shares[f"{product.target}{owner}"] = _helped(product, owner, party, state, randomness)
    return {**state, **shares}


def _owned(product: CrossProduct, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> ring.Ring:
    """My share of the product with my own matrix: X·(⟨Y⟩_me + Σ F) + Σ ⟨UV⟩."""
    x, mine = require(state, "x"), require(state, f"{product.source}{party.index}")
    if not x.shape[1]:
        return product.of(x, mine)
    share = product.of(x, inbox.opened("f", mine))
    for peer in party.others:
        share += randomness.correlated(product.kind(party.index, peer, x, mine.shape[1]), "w")
    return share


def _helped(product: CrossProduct, owner: int, party: Party, state: Arrays, randomness: Randomness) -> ring.Ring:
    """My share of the product with another's matrix: E·V + ⟨UV⟩."""
    e, y = require(state, f"e{owner}"), require(state, f"{product.source}{owner}")
    if not e.shape[1]:
        return product.of(e, y)
    kind = product.kind(owner, party.index, e, y.shape[1])
    return product.of(e, randomness.correlated(kind, "v")) + randomness.correlated(kind, "w")
