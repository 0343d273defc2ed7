"""F_min^k: the position of the minimum of k values, by a batched comparison tree.

All pairs of a level, over all rows of a shard, are one batch. For a pair of nodes, left and right:

  1. CMP:  b = [left ≤ right] = sign(left − right − 1)        (ties go to the lower index)
  2. in one round:  min = right + b·(left − right)             (bit injection)
                    c_j ← c_j ∧ b on the left, c_j ∧ ¬b on the right, for the positions c_j below the pair

Positions stay XOR-shared bits at all levels. The root needs no minimum unless it is asked for. An odd node passes to
the next level unchanged.

State: in `source`, distances k × n as shares; out `target`, the one-hot positions as XOR-shared bits, one packed row of
⌈n/8⌉ bytes for each of the k; and in `least` the minimum (1 × n), unless `least` is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.and_gate import and_round
from veilmeans.transforms.primitives.bit_injection import inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.rounds.protocol import Protocol, local_round, merge_rounds, require, without

Groups = list[tuple[int, ...]]
"""The nodes of a level, each as the positions below it."""
_BIT, _DIFFERENCE, _CHOSEN = "min.b", "min.x", "min.bx"


@dataclass(frozen=True)
class ArgminTree:
    """The names in the state, and the bits of the comparisons (`primitives.compare`)."""

    source: str = "d"
    target: str = "c"
    least: str | None = None
    compare_bits: int = 64
    drop: int = 0


def argmin(tree: ArgminTree, k: int, parties: int) -> Protocol:
    """Find the position of the smallest of k distances."""
    groups: Groups = [(i,) for i in range(k)]
    protocol = Protocol("min", (local_round("leaves", partial(_single_leaf, tree)),) if k == 1 else ())
    while len(groups) > 1:
        protocol += _level(tree, groups, parties)
        groups = _merge_pairs(groups)
    return protocol.then(partial(_drop_intermediates, tree)).named("min")


def _level(tree: ArgminTree, groups: Groups, parties: int) -> Protocol:
    comparison = Comparison(_DIFFERENCE, _BIT, tree.compare_bits, tree.drop, offset=-1)
    compare = sign(comparison, parties).after(partial(_subtract, tree))
    choose = []
    if len(groups) > 2 or tree.least is not None:
        choose.append(inject(_BIT, _DIFFERENCE, _CHOSEN))
    if any(len(group) > 1 for group in groups):
        halves = partial(_positions_and_bits, tree, groups), partial(_update_positions, tree, groups)
        choose.append(and_round("positions", *halves, "[c⊕a], [b⊕a']"))
    else:
        compare = compare.then(partial(_first_positions, tree))
    if not choose:
        return compare
    return compare + Protocol("choose", (merge_rounds("choose", *choose),)).then(partial(_keep_minimum, tree))


def _merge_pairs(groups: Groups) -> Groups:
    pairs = [groups[i] + groups[i + 1] for i in range(0, len(groups) - 1, 2)]
    return [*pairs, *groups[2 * len(pairs) :]]


def _pairs(d: ring.Ring) -> tuple[ring.Ring, ring.Ring, ring.Ring]:
    """Split into left nodes, right nodes, and the odd node without a pair (or none)."""
    end = len(d) // 2 * 2
    return d[0:end:2], d[1:end:2], d[end:]


def _subtract(tree: ArgminTree, _party: Party, state: Arrays) -> Arrays:
    left, right, _ = _pairs(require(state, tree.source))
    return {**state, _DIFFERENCE: left - right}


def _keep_minimum(tree: ArgminTree, _party: Party, state: Arrays) -> Arrays:
    if _CHOSEN not in state:
        return state
    _, right, odd = _pairs(require(state, tree.source))
    least = np.concatenate([right + state[_CHOSEN], odd])
    return {**without(state, _CHOSEN, _BIT, _DIFFERENCE), tree.source: least}


def _bit_rows(state: Arrays) -> bits.Packed:
    """Pack the comparison's bits into one row for each pair."""
    pairs, rows = state[_DIFFERENCE].shape
    return bits.pack_rows(bits.unpack(state[_BIT], pairs * rows).reshape(pairs, rows))


def _invert(party: Party, row: Array) -> Array:
    """¬row, for XOR shares."""
    return row ^ np.uint8(0xFF) if party.first else row


def _ones(party: Party, rows: int) -> Array:
    """Share the public constant 1, as a packed row."""
    return np.full(bits.padded_count(rows) // 8, 0xFF if party.first else 0, np.uint8)


def _single_leaf(tree: ArgminTree, party: Party, state: Arrays) -> Arrays:
    """Set the position for k = 1: every row belongs to the one cluster."""
    return {**state, tree.target: _ones(party, state[tree.source].shape[1])[None, :]}


def _first_positions(tree: ArgminTree, party: Party, state: Arrays) -> Arrays:
    """Set the positions after the first comparisons: b on the left, ¬b on the right, 1 at an odd leaf."""
    k, rows = state[tree.source].shape
    positions = np.empty((k, bits.padded_count(rows) // 8), np.uint8)
    chosen = _bit_rows(state)
    positions[0 : 2 * len(chosen) : 2] = chosen
    positions[1 : 2 * len(chosen) : 2] = _invert(party, chosen)
    positions[2 * len(chosen) :] = _ones(party, rows)
    return {**state, tree.target: positions}


def _below_pairs(groups: Groups) -> list[int]:
    """List the positions below a pair, in the order of the pairs."""
    return [position for group in groups[: len(groups) // 2 * 2] for position in group]


def _positions_and_bits(tree: ArgminTree, groups: Groups, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    """Select the positions below a pair, and the bit that each of them is ANDed with."""
    rows: list[Array] = []
    for pair, row in enumerate(_bit_rows(state)):
        rows += [row] * len(groups[2 * pair])
        rows += [_invert(party, row)] * len(groups[2 * pair + 1])
    return state[tree.target][_below_pairs(groups)], [np.stack(rows)]


def _update_positions(
    tree: ArgminTree, groups: Groups, _party: Party, state: Arrays, products: Sequence[Array]
) -> Arrays:
    positions = state[tree.target].copy()
    positions[_below_pairs(groups)] = products[0]
    return {**state, tree.target: positions}


def _drop_intermediates(tree: ArgminTree, _party: Party, state: Arrays) -> Arrays:
    """Keep the positions, and the minimum if it is asked for."""
    rest = without(state, tree.source, _BIT, _DIFFERENCE, _CHOSEN)
    return rest if tree.least is None else {**rest, tree.least: state[tree.source]}
