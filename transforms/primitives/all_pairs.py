"""F_min^k by all pairs: the position of the minimum of k values, in few rounds.

  1. b_ij = [d_i ≤ d_j] = sign(d_i − d_j − 1) for all i < j, in one batch        (ties go to the lower index); values
     of which equal ones may differ by less than `loss` are raised by i·loss before
  2. open m_ij = b_ij ⊕ λ_ij; c_i = Π_{j>i} b_ij · Π_{j<i} ¬b_ji = ⊕_J m_{¬J} Π_{j∈J} λ_ij     (`masked_opening`)
  3. c_{k−1} = 1 ⊕ c_0 ⊕ … ⊕ c_{k−2}

Dealt in step 2 are the products of two masks or more, 2^(k−1) − k bits for each of the first k − 1. For k = 2 step 2
opens nothing and is left out. The order of the d_i is total, so exactly one c_i is set.

State: in `source`, rounded distances k × n (`primitives.argmin`); out `target`, the one-hot positions as XOR-shared
bits, a packed row for each of the k.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from veilmeans.crypto import bits
from veilmeans.crypto.correlations import ProductGroups
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.compare import Comparison, Radices, sign
from veilmeans.transforms.primitives.masked_opening import MaskedOpening, OpenedGroups, open_masked
from veilmeans.transforms.rounds.protocol import Protocol, without

_BIT, _DIFFERENCE = "min.b", "min.x"


@dataclass(frozen=True)
class AllPairs:
    """The names in the state, the comparisons' width and radices; equal values may differ by less than `loss`."""

    source: str
    target: str
    width: int
    loss: int = 1
    radices: Radices = ()


def all_pairs(pairs: AllPairs, k: int, parties: int) -> Protocol:
    """Find the position of the smallest of k ≥ 2 distances."""
    comparison = Comparison(_DIFFERENCE, _BIT, pairs.width, offset=-1, radices=pairs.radices)
    compare = sign(comparison, parties).after(partial(_subtract, pairs))
    if k == 2:
        return compare.then(partial(_set_two, pairs)).named("min")
    steps = partial(_bit_planes, k), partial(_multiply, pairs, k)
    choose = open_masked("choose", choice(k), *steps, "[b⊕λ]")
    return (compare + Protocol("choose", (choose,))).named("min")


def _all(k: int) -> list[tuple[int, int]]:
    return list(combinations(range(k), 2))


def _factors(k: int, i: int) -> list[int]:
    """The numbers of the pairs with d_i."""
    return [number for number, pair in enumerate(_all(k)) if i in pair]


def choice(k: int) -> MaskedOpening:
    """The opening of all pairs' bits."""
    products = []
    for i in range(k - 1):
        factors = _factors(k, i)
        subsets = ([f for bit, f in enumerate(factors) if number >> bit & 1] for number in range(1 << len(factors)))
        products += [(tuple((f,) for f in reversed(subset)),) for subset in subsets if len(subset) > 1]
    return MaskedOpening("min.c", (ProductGroups(1, len(_all(k)), tuple(products)),))


def _subtract(pairs: AllPairs, party: Party, state: Arrays) -> Arrays:
    """d_i − d_j of all pairs, in an order in which their bits are packed by rows."""
    lanes = bits.to_lanes(state[pairs.source])
    k = lanes.shape[1]
    if pairs.loss > 1 and party.first:
        lanes += np.arange(0, k * pairs.loss, pairs.loss, dtype=lanes.dtype)[:, None]
    differences = np.empty((lanes.shape[0], len(_all(k)), lanes.shape[2]), lanes.dtype)
    for number, (i, j) in enumerate(_all(k)):
        np.subtract(lanes[:, i], lanes[:, j], out=differences[:, number])
    return {**without(state, pairs.source), _DIFFERENCE: differences}


def _set_two(pairs: AllPairs, party: Party, state: Arrays) -> Arrays:
    chosen, ones = state[_BIT], bits.ONES if party.first else np.uint64(0)
    return {**without(state, _BIT, _DIFFERENCE), pairs.target: np.stack([chosen, chosen ^ ones])}


def _bit_planes(k: int, _party: Party, state: Arrays) -> tuple[Arrays, Array]:
    return without(state, _BIT, _DIFFERENCE), state[_BIT].reshape(len(_all(k)), -1)


def _multiply(pairs: AllPairs, k: int, party: Party, state: Arrays, opened: Iterator[OpenedGroups]) -> Arrays:
    """Fold each c_i over its factors, (f_J) ← f_{J∪{j}} ⊕ x_j f_J from the top; x = m, or ¬m for ¬b."""
    (group,) = opened
    values, masks, dealt, start = group.values[0], group.mask[0], group.sums[0], 0
    positions = np.empty((k, values.shape[1]), np.uint64)
    ones = bits.ONES if party.first else np.uint64(0)
    several = [number for number in range(1 << k - 1) if number.bit_count() > 1]
    for i in range(k - 1):
        factors = _factors(k, i)
        table = np.empty((1 << k - 1, values.shape[1]), np.uint64)
        table[0] = ones
        table[[1 << bit for bit in range(k - 1)]] = masks[factors]
        table[several] = dealt[start : start + len(several)]
        start += len(several)
        for bit in reversed(range(k - 1)):
            pair = _all(k)[factors[bit]]
            table = table[1 << bit :] ^ ((values[factors[bit]] ^ (bits.ONES * (pair[0] != i))) & table[: 1 << bit])
        positions[i] = table[0]
    positions[k - 1] = np.bitwise_xor.reduce(positions[:-1], axis=0) ^ ones
    return {**state, pairs.target: positions}
