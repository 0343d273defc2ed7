"""F_min^k by a batched comparison tree: the position of the minimum of k values, in few bytes.

All pairs of a level, over all rows of a shard, are one batch. For a pair of nodes, left and right:

  1. CMP:  b = sign(left − right − loss)        (ties go to the lower index; equal values may differ by less than loss)
  2. in one round:  min = right + b·(left − right)             (bit injection)
                    c_j ← c_j·b on the left, c_j·¬b on the right, for the positions c_j below the pair

Positions stay XOR-shared bits at all levels. Below a node exactly one position is set, so the last one follows from the
others: [c_last·b] = [b] ⊕ ⊕_j [c_j·b], and b is opened once for all positions of its pair. The root needs no minimum
unless it is asked for. An odd node passes to the next level unchanged.

State: in `source`, rounded distances k × n (`primitives.argmin`); out `target`, the one-hot positions as XOR-shared
bits, a packed row for each of the k; and in `least` the minimum (1 × n), unless `least` is None.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import bits
from veilmeans.crypto.correlations import ProductGroups
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import inject
from veilmeans.transforms.primitives.compare import Comparison, Radices, sign
from veilmeans.transforms.primitives.masked_opening import MaskedOpening, OpenedGroups, open_masked
from veilmeans.transforms.rounds.protocol import Protocol, merge_rounds, without

Groups = list[tuple[int, ...]]
"""The nodes of a level, each as the positions below it."""
_BIT, _DIFFERENCE, _CHOSEN, _NODES = "min.b", "min.x", "min.bx", "min.nodes"


@dataclass(frozen=True)
class ArgminTree:
    """The names in the state, the comparisons' width and radices; equal values may differ by less than `loss`."""

    source: str
    target: str
    width: int
    loss: int = 1
    least: str | None = None
    radices: Radices = ()


def argmin_tree(tree: ArgminTree, k: int, parties: int) -> Protocol:
    """Find the position of the smallest of k ≥ 2 distances."""
    groups: Groups = [(i,) for i in range(k)]
    protocol = Protocol("min", ())
    while len(groups) > 1:
        protocol += _level(tree, groups, parties)
        groups = _merge_pairs(groups)
    return protocol.after(partial(_begin, tree)).then(partial(_finish, tree)).named("min")


def _level(tree: ArgminTree, groups: Groups, parties: int) -> Protocol:
    comparison = Comparison(_DIFFERENCE, _BIT, tree.width, offset=-tree.loss, radices=tree.radices)
    compare = sign(comparison, parties).after(_subtract)
    choose = []
    if len(groups) > 2 or tree.least is not None:
        choose.append(inject(_BIT, _DIFFERENCE, _CHOSEN))
    if any(len(group) > 1 for group in _paired(groups)):
        steps = partial(_bits_and_positions, tree, groups), partial(_multiply_positions, tree, groups)
        choose.append(open_masked("positions", _opening(groups), *steps, "[b⊕λ], [c⊕λ']"))
    else:
        compare = compare.then(partial(_set_positions, tree, groups, {}))
    if not choose:
        return compare.then(_drop_bits)
    return compare + Protocol("choose", (merge_rounds("choose", *choose),)).then(_keep_minimum).then(_drop_bits)


def _merge_pairs(groups: Groups) -> Groups:
    pairs = [groups[i] + groups[i + 1] for i in range(0, len(groups) - 1, 2)]
    return [*pairs, *groups[2 * len(pairs) :]]


def _paired(groups: Groups) -> Groups:
    return groups[: len(groups) // 2 * 2]


def _begin(tree: ArgminTree, party: Party, state: Arrays) -> Arrays:
    """Order the values so that bits of comparisons are packed by rows; every position is set below its own leaf."""
    values = state[tree.source]
    ones = np.full((len(values), bits.word_count(values.shape[1])), bits.ONES if party.first else 0, np.uint64)
    sizes = {f"{_NODES}.rows": np.array([values.shape[1]])}
    return {**without(state, tree.source), _NODES: bits.to_lanes(values), tree.target: ones, **sizes}


def _pairs(nodes: Array) -> tuple[Array, Array, Array]:
    """Split into left nodes, right nodes, and the odd node without a pair (or none)."""
    end = nodes.shape[1] // 2 * 2
    return nodes[:, 0:end:2], nodes[:, 1:end:2], nodes[:, end:]


def _subtract(_party: Party, state: Arrays) -> Arrays:
    left, right, _ = _pairs(state[_NODES])
    return {**state, _DIFFERENCE: left - right}


def _keep_minimum(_party: Party, state: Arrays) -> Arrays:
    if _CHOSEN not in state:
        return state
    _, right, odd = _pairs(state[_NODES])
    return {**state, _NODES: np.concatenate([right + state[_CHOSEN], odd], axis=1)}


def _drop_bits(_party: Party, state: Arrays) -> Arrays:
    return without(state, _BIT, _DIFFERENCE, _CHOSEN)


# positions
def _opening(groups: Groups) -> MaskedOpening:
    """The opening of b, for each pair with several positions below a node, and all those positions but the last."""
    pairs = []
    for left, right in zip(groups[0::2], groups[1::2], strict=False):
        opened = len(left) + len(right) - 2
        if opened:
            pairs.append(ProductGroups(1, 1 + opened, tuple((((0,), (1 + j,)),) for j in range(opened))))
    return MaskedOpening("min.c", tuple(pairs))


def _opened_positions(groups: Groups) -> list[tuple[int, tuple[int, ...]]]:
    """The pairs with several positions below a node, and those positions that are opened."""
    pairs = zip(groups[0::2], groups[1::2], strict=False)
    opened = [(number, (*left[:-1], *right[:-1])) for number, (left, right) in enumerate(pairs)]
    return [(number, positions) for number, positions in opened if positions]


def _bit_rows(state: Arrays) -> Array:
    """The comparisons' bits, a packed row for each pair."""
    return state[_BIT].reshape(state[_DIFFERENCE].shape[1], -1)


def _bits_and_positions(tree: ArgminTree, groups: Groups, _party: Party, state: Arrays) -> tuple[Arrays, Array]:
    chosen, positions = _bit_rows(state), state[tree.target]
    planes: list[Array] = []
    for pair, opened in _opened_positions(groups):
        planes += [chosen[pair : pair + 1], positions[list(opened)]]
    return state, np.concatenate(planes)


def _multiply_positions(
    tree: ArgminTree, groups: Groups, party: Party, state: Arrays, opened: Iterator[OpenedGroups]
) -> Arrays:
    """[b·c_j] = m_b m_j ⊕ m_b [λ_j] ⊕ m_j [λ_b] ⊕ [λ_b λ_j]."""
    products: dict[int, Array] = {}
    for (_, positions), pair in zip(_opened_positions(groups), opened, strict=True):
        (m, masks, dealt) = pair.values[0], pair.mask[0], pair.sums[0]
        shares = (m[0] & masks[1:]) ^ (m[1:] & (masks[0] ^ (m[0] & pair.one))) ^ dealt
        products |= dict(zip(positions, shares, strict=True))
    return _set_positions(tree, groups, products, party, state)


def _set_positions(tree: ArgminTree, groups: Groups, products: dict[int, Array], party: Party, state: Arrays) -> Arrays:
    """Set c_j·b on the left and c_j·¬b on the right of each pair; the last position of a node from the others."""
    positions, chosen = state[tree.target].copy(), _bit_rows(state)
    ones = bits.ONES if party.first else np.uint64(0)
    for pair, (left, right) in enumerate(zip(groups[0::2], groups[1::2], strict=False)):
        for position in left[:-1]:
            positions[position] = products[position]
        for position in right[:-1]:
            positions[position] ^= products[position]
        for node, bit in ((left, chosen[pair]), (right, chosen[pair] ^ ones)):
            positions[node[-1]] = _xor(bit, positions[list(node[:-1])])
    return {**state, tree.target: positions}


def _xor(row: Array, rows: Sequence[Array] | Array) -> Array:
    result: Array = row ^ np.bitwise_xor.reduce(rows, axis=0) if len(rows) else row
    return result


def _finish(tree: ArgminTree, _party: Party, state: Arrays) -> Arrays:
    """Keep the positions, and the minimum if it is asked for."""
    rest = without(state, _NODES, f"{_NODES}.rows")
    if tree.least is None:
        return rest
    return {**rest, tree.least: bits.from_lanes(state[_NODES], 1, int(state[f"{_NODES}.rows"][0]))}
