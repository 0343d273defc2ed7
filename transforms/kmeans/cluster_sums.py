"""F_SCU's numerator and denominator over one shard: ⟨Cᵀ·X⟩ (k × d) and ⟨1ᵀ·C⟩ (k), to be added over the shards.

  1. B2A of the first k − 1 one-hot rows; the last is 1 − Σ of the others
  2. X_iᵀ·C for every owner i, of the first k − 1 clusters        (`transforms.products.cross_product`, transposed)
  3. the last cluster's sum is that of all rows, which an owner knows, less the others'

State: the operands of the cross products; "c", one-hot positions as packed XOR shares, k rows; out "s" and "n", shares,
and the ciphertexts of an owner that uses `he`, whose part of "s" is still to come (`sparse.unmask`).
"""

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.ring_matmul import sparse_matmul_transposed
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a
from veilmeans.transforms.products.cross_product import CrossProduct, cross, own_matrix, shape_from_state
from veilmeans.transforms.products.he_product import OwnerProducts
from veilmeans.transforms.rounds.protocol import Protocol, local, require


def update(k: int, engines: OwnerProducts = ()) -> Protocol:
    """Two rounds; none in which anything is sent where there is one cluster."""
    if k == 1:
        return Protocol("update", (local("sum", _sum_all),))
    convert = Protocol("b2a", (b2a("upd.bits", None, "upd.hot"),)).after(_leave_out_last)
    product = CrossProduct("upd.c", "upd.s", transposed=True, engines=tuple(engines))
    products = cross(product).after(_spread).then(_finish)
    return (convert + products).named("update")


def _sum_all(party: Party, state: Arrays) -> Arrays:
    """k = 1: all rows belong to the one cluster."""
    return {"s": _everything(party, state), "n": _count(party, state)}


def _leave_out_last(party: Party, state: Arrays) -> Arrays:
    del party
    return {**state, "upd.bits": state["c"][:-1].reshape(-1)}


def _hot_rows(state: Arrays, rows: int) -> ring.Ring:
    """The converted bits as (k − 1) × n, out of the order in which they were packed."""
    packed_rows, width = state["c"][:-1].shape
    in_order = require(state, "upd.hot").reshape(8, packed_rows, width).transpose(1, 0, 2)
    return in_order.reshape(packed_rows, 8 * width)[:, :rows]


def _spread(party: Party, state: Arrays) -> Arrays:
    """C (n × k − 1), once for each owner."""
    hot = _hot_rows(state, shape_from_state(state).rows)
    right = np.ascontiguousarray(hot.T)
    kept = {name: array for name, array in state.items() if name not in ("upd.bits", "upd.hot", "c")}
    return {**kept, "n": ring.column_sums(hot.T), **{f"upd.c{i}": right for i in range(party.count)}}


def _finish(party: Party, state: Arrays) -> Arrays:
    sums = np.concatenate([require(state, f"upd.s{i}") for i in range(party.count)]).T
    last = _everything(party, state) - ring.column_sums(sums)[None, :]
    counts = require(state, "n")
    rest = _count(party, state) - ring.column_sums(counts[:, None])
    found = {name: array for name, array in state.items() if name.startswith("z")}
    return {"s": np.concatenate([sums, last]), "n": np.concatenate([counts, rest]), **found}


def _count(party: Party, state: Arrays) -> ring.Ring:
    """The public number of rows, as a share."""
    return np.array([shape_from_state(state).rows if party.first else 0], ring.DTYPE)


def _everything(party: Party, state: Arrays) -> ring.Ring:
    """The sums of all rows, 1 × d, of my own columns; those of the others are zero to me."""
    block, matrix = shape_from_state(state), own_matrix(party, state)
    sums = np.zeros((1, sum(block.widths)), ring.DTYPE)
    ones = np.ones((block.rows, 1), ring.DTYPE)
    dense = isinstance(matrix, np.ndarray)
    sums[0, block.columns(party.index)] = (
        ring.column_sums(matrix) if dense else sparse_matmul_transposed(matrix, ones)[:, 0]
    )
    return sums
