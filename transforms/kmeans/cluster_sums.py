"""F_SCU's numerator and denominator over one row shard: ⟨Cᵀ·X⟩ (k × d) and ⟨1ᵀ·C⟩ (k), to be added over the shards.

`convert`, with the assignment:
  1. B2A of the first k − 1 one-hot rows; the last is 1 − Σ of the others. The counts are sums of these rows
`update`, beside the first round on the counts:
  2. X_iᵀ·C for every owner i, of the first k − 1 clusters        (`transforms.products.cross_product`, transposed)
  3. the last cluster's sum is the sum of all rows, which an owner knows, less the other clusters'; if some rows are in
     none (`kmeans.outliers`), all k are multiplied

State of `convert`: "c", one-hot positions as packed XOR shares, k rows, and "shape"; beside them out "n" (k) and "hot"
(n × k − 1), shares. State of `update`: "hot" and the operands of the cross products; out "s", a share, and the
ciphertexts of an owner that uses `he`, whose summand of "s" is added later (`he_product.unmask`).
"""

from functools import partial

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto.ring_matmul import sparse_matmul_transposed
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a
from veilmeans.transforms.products.cross_product import CrossProduct, cross, own_matrix, shape_from_state
from veilmeans.transforms.products.he_product import OwnerProducts
from veilmeans.transforms.rounds.protocol import Protocol, local_round, require, without


def convert(k: int) -> Protocol:
    """Convert the assignment to shares by sum, and count rows, in one round; with one cluster nothing is sent."""
    if k == 1:
        return Protocol("convert", (local_round("count", _count_all_rows),))
    to_sums = Protocol("b2a", (b2a("upd.bits", None, "upd.hot"),)).after(_select_bits)
    return to_sums.then(_count_rows).named("convert")


def update(k: int, engines: OwnerProducts = (), all_clusters: bool = False) -> Protocol:
    """Compute the sums in one round; with one cluster nothing is sent.

    `all_clusters`: rows may be in no cluster, so that the last one's sum does not follow from the others'.
    """
    if k == 1 and not all_clusters:
        return Protocol("update", (local_round("sum", _sum_one_cluster),))
    product = CrossProduct("upd.c", "upd.s", transposed=True, engines=tuple(engines))
    return cross(product).after(_copy_operand).then(partial(_join_sums, all_clusters)).named("update")


def _count_all_rows(party: Party, state: Arrays) -> Arrays:
    return {**state, "n": _row_count(party, state)}


def _sum_one_cluster(party: Party, state: Arrays) -> Arrays:
    """Sum all rows, for k = 1."""
    return {"s": _sum_of_all_rows(party, state)}


def _select_bits(_party: Party, state: Arrays) -> Arrays:
    """Select the one-hot rows of the first k − 1 clusters."""
    return {**state, "upd.bits": state["c"][:-1].reshape(-1)}


def _count_rows(party: Party, state: Arrays) -> Arrays:
    """Set C (n × k − 1), and the rows of each cluster."""
    hot = _hot_rows(state, shape_from_state(state).rows)
    counts = ring.column_sums(hot.T)
    last_count = _row_count(party, state) - ring.column_sums(counts[:, None])
    rest = without(state, "upd.bits", "upd.hot")
    return {**rest, "hot": np.ascontiguousarray(hot.T), "n": np.concatenate([counts, last_count])}


def _hot_rows(state: Arrays, rows: int) -> ring.Ring:
    """Reorder the converted bits from the order in which they were packed to (k − 1) × n."""
    return bits.from_lanes(require(state, "upd.hot"), len(state["c"]) - 1, rows)


def _copy_operand(party: Party, state: Arrays) -> Arrays:
    """Set C as the right operand of every owner's product."""
    c = require(state, "hot")
    return {**without(state, "hot", "c", "n"), **{f"upd.c{i}": c for i in range(party.count)}}


def _join_sums(all_clusters: bool, party: Party, state: Arrays) -> Arrays:
    """Put the owners' columns side by side, and add the last cluster."""
    sums = np.concatenate([require(state, f"upd.s{i}") for i in range(party.count)]).T
    if not all_clusters:
        last_sum = _sum_of_all_rows(party, state) - ring.column_sums(sums)[None, :]
        sums = np.concatenate([sums, last_sum])
    ciphertexts = {name: array for name, array in state.items() if name.startswith("z")}
    return {"s": np.ascontiguousarray(sums), **ciphertexts}


def _row_count(party: Party, state: Arrays) -> ring.Ring:
    """Share the public number of rows."""
    return np.array([shape_from_state(state).rows if party.first else 0], ring.DTYPE)


def _sum_of_all_rows(party: Party, state: Arrays) -> ring.Ring:
    """Sum this party's own columns over all rows, 1 × d; a share, in which all other columns are zero."""
    shard, matrix = shape_from_state(state), own_matrix(party, state)
    sums = np.zeros((1, sum(shard.widths)), ring.DTYPE)
    if isinstance(matrix, np.ndarray):
        own = ring.column_sums(matrix)
    else:
        own = sparse_matmul_transposed(matrix, np.ones((shard.rows, 1), ring.DTYPE))[:, 0]
    sums[0, shard.columns(party.index)] = own
    return sums
