"""Cross products X·⟨Y⟩, X known to its owner and Y shared: SMUL of matrices with a fixed operand.

For every owner P_i and every other party P_j (paper: X_A·⟨μ⟩_B and the like; products of what one party has are local):

  once per run    P_i sends E_ij = X_i − U_ij to P_j                     (U_ij uniform, known to P_i alone)
  per product     P_j sends F_ij = ⟨Y⟩_j − V_ij to P_i                   (V_ij uniform, fresh, known to P_j alone)
                  P_i: X_i·F_ij + ⟨U_ij·V_ij⟩_i       P_j: E_ij·V_ij + ⟨U_ij·V_ij⟩_j

because X·Y_j = X·(F + V) = X·F + (E + U)·V. X does not change during a run, so neither need its mask; a product moves
only Y-sized messages. `transposed` products use the same E for Xᵀ·⟨Y⟩.

State: "x" this party's own matrix, "e0", "e1", … the others' masked ones (after `mask_operand`); `source`0, `source`1 …
the shares of the right operands, one for each owner's matrix; out `target`0, `target`1, …, the shares of the products.
"""

from dataclasses import dataclass
from functools import partial

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
    kinds = {peer: Operand(party.index, peer, x.shape, _STAGE) for peer in party.others}
    return Sent(state, to={peer: {"e": x - randomness.correlated(kind, "u")} for peer, kind in kinds.items()})


def _keep_masked(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del party, randomness
    return {**state, **{f"e{peer}": _matrix(inbox, peer) for peer in inbox.messages}}


def _matrix(inbox: Inbox, peer: int) -> ring.Ring:
    matrix = inbox.messages[peer].get("e")
    if matrix is None or matrix.ndim != 2 or matrix.dtype != ring.DTYPE:
        raise RefusedError(f"{inbox.party.names[peer]} sent no masked matrix where one was due")
    return matrix


def _send(product: CrossProduct, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    messages = {}
    for owner in party.others:
        y = require(state, f"{product.source}{owner}")
        kind = product.kind(owner, party.index, require(state, f"e{owner}"), y.shape[1])
        messages[owner] = {"f": y - randomness.correlated(kind, "v")}
    return Sent(state, to=messages)


def _receive(product: CrossProduct, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    x, mine = require(state, "x"), require(state, f"{product.source}{party.index}")
    right = inbox.opened("f", mine)
    shares = {party.index: product.of(x, right)}
    for peer in party.others:
        kind = product.kind(party.index, peer, x, mine.shape[1])
        shares[party.index] = shares[party.index] + randomness.correlated(kind, "w")
    for owner in party.others:
        e, y = require(state, f"e{owner}"), require(state, f"{product.source}{owner}")
        kind = product.kind(owner, party.index, e, y.shape[1])
        shares[owner] = product.of(e, randomness.correlated(kind, "v")) + randomness.correlated(kind, "w")
    return {**state, **{f"{product.target}{owner}": share for owner, share in shares.items()}}
