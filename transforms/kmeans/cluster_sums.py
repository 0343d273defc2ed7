"""F_SCU's numerator and denominator over one row shard: ⟨Cᵀ·X⟩ (k × d) and ⟨1ᵀ·C⟩ (k), to be added over the shards.

`convert`, with the assignment:
  1. B2A of the first k − 1 one-hot rows; the last is 1 − Σ of the others. The counts are sums of these rows
`update`, beside the first round on the counts:
  2. X_iᵀ·C for every owner i, of the first k − 1 clusters        (`transforms.products.cross_product`, transposed)
  3. the last cluster's sum is the sum of all rows, which an owner knows, less the other clusters'; if some rows are in
     none (`statistics.outliers`), all k are multiplied

Rows that fill a shard up are in no cluster: which they are is public, so every party sets its shares of C to 0 there.

Several starts share all rounds: "c" has the rows of all of them, k × s·W words, and what comes out has one start after
the other.

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
from veilmeans.transforms.products.cross_product import CrossProduct, cross, filled_rows, own_matrix, shape_from_state
from veilmeans.transforms.products.he_product import OwnerProducts
from veilmeans.transforms.rounds.protocol import Protocol, local_round, require, without


def group_starts(starts: int, _party: Party, state: Arrays) -> Arrays:
    """Order distances (s·k × n) so that one minimum is found for each start and row, with bits packed by starts."""
    by_cluster = require(state, "d").reshape(starts, -1, state["d"].shape[1]).swapaxes(0, 1)
    return {**state, "d": np.stack([bits.to_lanes(each).reshape(-1) for each in by_cluster])}


def convert(k: int, starts: int = 1) -> Protocol:
    """Convert the assignment to shares by sum, and count rows, in one round; with one cluster nothing is sent."""
    if k == 1:
        return Protocol("convert", (local_round("count", partial(_count_all_rows, starts)),))
    to_sums = Protocol("b2a", (b2a("upd.bits", None, "upd.hot"),)).after(_select_bits)
    return to_sums.then(partial(_count_rows, starts)).named("convert")


def update(k: int, engines: OwnerProducts = (), starts: int = 1, all_clusters: bool = False) -> Protocol:
    """Compute the sums in one round; with one cluster nothing is sent.

    `all_clusters`: rows may be in no cluster, so that the last one's sum does not follow from the others'.
    """
    if k == 1 and not all_clusters:
        return Protocol("update", (local_round("sum", partial(_sum_one_cluster, starts)),))
    product = CrossProduct("upd.c", "upd.s", transposed=True, engines=tuple(engines))
    join = _join_sums if all_clusters else partial(_add_last_clusters, starts)
    return cross(product).after(_copy_operand).then(join).named("update")


def _count_all_rows(starts: int, party: Party, state: Arrays) -> Arrays:
    return {**state, "n": np.repeat(_row_count(party, state), starts)}


def _sum_one_cluster(starts: int, party: Party, state: Arrays) -> Arrays:
    """Sum all rows, for k = 1."""
    return {"s": np.repeat(_sum_of_all_rows(party, state), starts, axis=0)}


def _select_bits(_party: Party, state: Arrays) -> Arrays:
    """Select the one-hot rows of the first k − 1 clusters."""
    return {**state, "upd.bits": state["c"][:-1].reshape(-1)}


def _count_rows(starts: int, party: Party, state: Arrays) -> Arrays:
    """Set C (n × s·(k − 1)), and the rows of each cluster."""
    hot = _hot_rows(starts, state, shape_from_state(state).rows).copy()
    hot[:, filled_rows(state) :] = 0
    counts = ring.column_sums(hot.T).reshape(starts, -1)
    last_counts = _row_count(party, state) - ring.column_sums(counts.T)
    rest = without(state, "upd.bits", "upd.hot")
    counts = np.concatenate([counts, last_counts[:, None]], axis=1)
    return {**rest, "hot": np.ascontiguousarray(hot.T), "n": counts.reshape(-1)}


def _hot_rows(starts: int, state: Arrays, rows: int) -> ring.Ring:
    """Reorder the converted bits from the order in which they were packed to s·(k − 1) × n."""
    clusters = len(state["c"]) - 1
    hot = bits.from_lanes(require(state, "upd.hot"), clusters * starts, rows)
    return hot if starts == 1 else hot.reshape(clusters, starts, rows).swapaxes(0, 1).reshape(-1, rows)


def _copy_operand(party: Party, state: Arrays) -> Arrays:
    """Set C as the right operand of every owner's product."""
    c = require(state, "hot")
    return {**without(state, "hot", "c", "n"), **{f"upd.c{i}": c for i in range(party.count)}}


def _join_sums(party: Party, state: Arrays) -> Arrays:
    """Put the owners' columns side by side."""
    sums = np.concatenate([require(state, f"upd.s{i}") for i in range(party.count)]).T
    ciphertexts = {name: array for name, array in state.items() if name.startswith("z")}
    return {"s": np.ascontiguousarray(sums), **ciphertexts}


def _add_last_clusters(starts: int, party: Party, state: Arrays) -> Arrays:
    """Put the owners' columns side by side, and add each start's last cluster."""
    joined = _join_sums(party, state)
    by_start = joined["s"].reshape(starts, -1, joined["s"].shape[1])
    last_sums = _sum_of_all_rows(party, state) - ring.column_sums(by_start.swapaxes(0, 1))
    sums = np.concatenate([by_start, last_sums[:, None]], axis=1)
    return {**joined, "s": sums.reshape(-1, sums.shape[2])}


def _row_count(party: Party, state: Arrays) -> ring.Ring:
    """Share the public number of rows."""
    return np.array([filled_rows(state) if party.first else 0], ring.DTYPE)


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
