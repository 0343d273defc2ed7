"""F_min^k: the nearest of k, by a batched comparison tree.

All pairs of a level, over all rows of a shard, are one batch. For a pair of nodes, left and right:

  1. CMP:  b = [left ≤ right] = sign(left − right − 1)        (ties go to the lower index)
  2. in one round:  min = right + b·(left − right)             (bit injection)
                    c_j ← c_j ∧ b on the left, c_j ∧ ¬b on the right, for the positions c_j below the pair

Positions stay XOR-shared bits down the tree. The root needs no minimum unless it is asked for. An odd node passes up.

State: in `source`, distances k × n as shares; out `target`, the one-hot positions as XOR-shared bits, one packed row of
⌈n/8⌉ bytes for each of the k; and in `least` the minimum (1 × n), if it is wanted.
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
from veilmeans.transforms.rounds.protocol import Protocol, local, require, together, without

Groups = list[tuple[int, ...]]
"""The nodes of a level, each as the positions below it."""
_BIT, _DIFFERENCE, _CHOSEN = "min.b", "min.x", "min.bx"


@dataclass(frozen=True)
class ArgminTree:
    """Names in the state, and how the comparisons are done."""

    source: str = "d"
    target: str = "c"
    least: str | None = None
    compare_bits: int = 64
    drop: int = 0


def argmin(tree: ArgminTree, k: int, parties: int) -> Protocol:
    """The rounds of a tree over k distances."""
    groups: Groups = [(i,) for i in range(k)]
    protocol = Protocol("min", (local("leaves", partial(_leaves, tree)),) if k == 1 else ())
    while len(groups) > 1:
        protocol += _level(tree, groups, parties)
        groups = _merged(groups)
    return protocol.then(partial(_cleared, tree)).named("min")


def _level(tree: ArgminTree, groups: Groups, parties: int) -> Protocol:
    comparison = Comparison(_DIFFERENCE, _BIT, tree.compare_bits, tree.drop, offset=-1)
    compare = sign(comparison, parties).after(partial(_subtract, tree))
    choose = []
    if len(groups) > 2 or tree.least is not None:
        choose.append(inject(_BIT, _DIFFERENCE, _CHOSEN))
    if any(len(group) > 1 for group in groups):
        halves = partial(_operands, tree, groups), partial(_narrowed, tree, groups)
        choose.append(and_round("positions", *halves, "[c⊕a], [b⊕a']"))
    else:
        compare = compare.then(partial(_first_positions, tree))
    if not choose:
        return compare
    return compare + Protocol("choose", (together("choose", *choose),)).then(partial(_keep_minimum, tree))


def _merged(groups: Groups) -> Groups:
    pairs = [groups[i] + groups[i + 1] for i in range(0, len(groups) - 1, 2)]
    return [*pairs, *groups[2 * len(pairs) :]]


def _pairs(d: ring.Ring) -> tuple[ring.Ring, ring.Ring, ring.Ring]:
    """Left nodes, right nodes, and the odd one that passes up (or none)."""
    whole = len(d) // 2 * 2
    return d[0:whole:2], d[1:whole:2], d[whole:]


def _subtract(tree: ArgminTree, party: Party, state: Arrays) -> Arrays:
    del party
    left, right, _ = _pairs(require(state, tree.source))
    return {**state, _DIFFERENCE: left - right}


def _keep_minimum(tree: ArgminTree, party: Party, state: Arrays) -> Arrays:
    del party
    if _CHOSEN not in state:
        return state
    _, right, odd = _pairs(require(state, tree.source))
    least = np.concatenate([right + state[_CHOSEN], odd])
    return {**without(state, _CHOSEN, _BIT, _DIFFERENCE), tree.source: least}


def _bit_rows(state: Arrays) -> bits.Packed:
    """The comparison's bits, one packed row for each pair."""
    pairs, rows = state[_DIFFERENCE].shape
    return bits.pack_rows(bits.unpack(state[_BIT], pairs * rows).reshape(pairs, rows))


def _inverted(party: Party, row: Array) -> Array:
    return row ^ np.uint8(0xFF) if party.first else row


def _ones(party: Party, rows: int) -> Array:
    """A packed row of the public constant 1."""
    return np.full(bits.padded(rows) // 8, 0xFF if party.first else 0, np.uint8)


def _leaves(tree: ArgminTree, party: Party, state: Arrays) -> Arrays:
    """k = 1: every row belongs to the one cluster."""
    return {**state, tree.target: _ones(party, state[tree.source].shape[1])[None, :]}


def _first_positions(tree: ArgminTree, party: Party, state: Arrays) -> Arrays:
    """Below the first comparisons: b on the left, ¬b on the right, 1 at an odd leaf."""
    k, rows = state[tree.source].shape
    positions = np.empty((k, bits.padded(rows) // 8), np.uint8)
    chosen = _bit_rows(state)
    positions[0 : 2 * len(chosen) : 2] = chosen
    positions[1 : 2 * len(chosen) : 2] = _inverted(party, chosen)
    positions[2 * len(chosen) :] = _ones(party, rows)
    return {**state, tree.target: positions}


def _below(groups: Groups) -> list[int]:
    """The positions below a pair, in the order of the pairs."""
    return [position for group in groups[: len(groups) // 2 * 2] for position in group]


def _operands(tree: ArgminTree, groups: Groups, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    """The positions below a pair, and the bit each of them is multiplied with."""
    operands: list[Array] = []
    for pair, row in enumerate(_bit_rows(state)):
        operands += [row] * len(groups[2 * pair])
        operands += [_inverted(party, row)] * len(groups[2 * pair + 1])
    return state[tree.target][_below(groups)], [np.stack(operands)]


def _narrowed(tree: ArgminTree, groups: Groups, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    del party
    positions = state[tree.target].copy()
    positions[_below(groups)] = products[0]
    return {**state, tree.target: positions}


def _cleared(tree: ArgminTree, party: Party, state: Arrays) -> Arrays:
    """Leave the positions, and the minimum if it is wanted."""
    del party
    rest = without(state, tree.source, _BIT, _DIFFERENCE, _CHOSEN)
    return rest if tree.least is None else {**rest, tree.least: state[tree.source]}
