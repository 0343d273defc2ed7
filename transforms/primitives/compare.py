"""CMP: the sign bit of ⟨x⟩, as a bit shared by XOR, by adding the parties' shares in a Boolean circuit.

With y_i = (⟨x⟩_i mod 2^ℓ) ≫ s (`compare_bits` = ℓ, `drop` = s), L = ℓ − s bits each, in planes:

  1. [M > 2] carry-save adders leave two addends u, v shared by XOR:
       (a, b, c) → a ⊕ b ⊕ c  and  (((a ⊕ c) ∧ (b ⊕ c)) ⊕ c) ≪ 1
  2. one round for each radix r_1, r_2, …: the L − 1 bits below the sign in groups of r_1 bits, whose carries in groups
     of r_2, … (`primitives.carry_groups`), down to one carry G                  (M = 2: P_0 knows u, P_1 knows v)
  3. sign(x) = sign(u) ⊕ sign(v) ⊕ G

Exact for |x| < 2^(ℓ−1) if s = 0. With s > 0 carries out of the dropped bits are lost: x in [0, (M−1)·2^s) may be taken
for negative, and nothing else. Larger radices: fewer rounds and bytes, more dealt. M = 2, bytes a party, dealt bytes:

  L = 32   (3, 3, 4)  3 rounds   6.75   18.0             L = 64   (4, 4, 4)  3 rounds  12.0   59.6

State: in `source`, a share of any shape, of 32 or 64 bits; out `target`, the sign bits packed (crypto.bits). Other
arrays stay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import bits
from veilmeans.crypto.correlations import BitProducts, ProductGroups
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.carry_groups import CarryGroups, combine, dealt_bits, levels, opened_bits
from veilmeans.transforms.primitives.masked_opening import MaskedOpening, OpenedGroups, open_masked
from veilmeans.transforms.rounds.protocol import Protocol, Round, without

Radices = tuple[int, ...]
LARGEST_RADIX = 4
"""A larger one halves no more rounds, and what is dealt doubles with each bit or block."""
DEALT_WEIGHT = 0.25
"""The price of a dealt bit where a bit that is sent online costs 1."""


@dataclass(frozen=True)
class Comparison:
    """The names in the state, the number of bits to compare, and a public constant to add before.

    `radices`: the sizes of groups, a round each; default: `choose_radices` of the width.
    """

    source: str
    target: str
    compare_bits: int = 64
    drop: int = 0
    offset: int = 0
    radices: Radices = ()

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 64 or not 0 <= self.drop < self.compare_bits <= 64:
            raise ValueError(f"a comparison of {self.compare_bits} bits with {self.drop} dropped is not possible")

    @property
    def width(self) -> int:
        """L, the bits of an addend."""
        return self.compare_bits - self.drop

    def addend(self, party: Party, state: Arrays) -> bits.Packed:
        """Compute the L planes of this party's y."""
        x = state[self.source].reshape(-1)
        if self.offset and party.first:
            x = x + x.dtype.type(self.offset % 2 ** (8 * x.itemsize))
        return bits.to_planes(x >> x.dtype.type(self.drop) if self.drop else x, self.width)

    def name(self, part: str) -> str:
        """The name of an intermediate array in the state."""
        return f"{self.target}.{part}"


@lru_cache(maxsize=256)
def choose_radices(width: int, parties: int = 2, dealt_weight: float = DEALT_WEIGHT) -> Radices:
    """Choose the radices of the fewest rounds for words of `width` bits; among those the cheapest in bits."""
    rounds = 1
    while LARGEST_RADIX**rounds < width - 1:
        rounds += 1
    return min(
        fitting_radices(width, rounds),
        key=lambda each: sent_bits(width, each, parties) + dealt_weight * stored_bits(width, each),
    )


def fitting_radices(width: int, rounds: int) -> list[Radices]:
    """All radices of so many rounds that reduce words of `width` bits to one carry."""
    return [each for each in product(range(1, LARGEST_RADIX + 1), repeat=rounds) if _fits(width - 1, each)]


def _fits(below: int, radices: Radices) -> bool:
    """Each level must have several groups but the last, so that no round is idle."""
    for number, radix in enumerate(radices):
        if number and radix == 1:
            return False
        below = -(-below // radix)
        if (below == 1) != (number == len(radices) - 1):
            return False
    return True


def sent_bits(width: int, radices: Radices, parties: int = 2) -> int:
    """The bits that a party sends to a peer for one comparison."""
    carry_save = 2 * (width - 1) * sum(count // 3 for count in _addend_counts(parties))
    return carry_save + sum(opened_bits(level, parties) for level in _opened_levels(width - 1, radices))


def stored_bits(width: int, radices: Radices, parties: int = 2) -> int:
    """The bits that are dealt for one comparison."""
    carry_save = (width - 1) * sum(count // 3 for count in _addend_counts(parties))
    return carry_save + sum(dealt_bits(level) for level in _opened_levels(width - 1, radices))


def opened_kinds(width: int, radices: Radices, parties: int = 2) -> list[BitProducts]:
    """The correlations of `bits.LANES` comparisons, a level each; without those of carry-save adders."""
    opened = [tuple(each.products() for each in level) for level in _opened_levels(width - 1, radices)]
    return [BitProducts(parties, 1, level, number == 0 and parties == 2) for number, level in enumerate(opened)]


def _opened_levels(below: int, radices: Radices) -> list[list[CarryGroups]]:
    """The groups in which something is opened: a single block passes as it is."""
    return [[each for each in level if not each.passes] for level in levels(below, radices)]


def sign(comparison: Comparison, parties: int) -> Protocol:
    """Compute the sign bits."""
    below = comparison.width - 1
    first, *rest = levels(below, comparison.radices or choose_radices(comparison.width, parties))
    planes = partial(_own_bits, comparison) if parties == 2 else partial(_both_addends, comparison, first)
    opening = MaskedOpening(comparison.target, tuple(each.products() for each in first), known=parties == 2)
    inputs = open_masked("bits", opening, planes, partial(_combine, comparison, first), "[u⊕s], [v⊕t]")
    rounds = (*carry_save(comparison, parties).rounds, inputs, *(_carry_round(comparison, level) for level in rest))
    return Protocol("sign", rounds)


def _carry_round(comparison: Comparison, level: Sequence[CarryGroups]) -> Round:
    """Reduce the carries of blocks to those of their groups: the shares in `c`, [G_0] … and then [P_1] …."""
    opening = MaskedOpening(comparison.target, tuple(each.products() for each in level if not each.passes))
    planes = partial(_block_planes, comparison, level)
    return open_masked("carries", opening, planes, partial(_combine, comparison, level), "[G⊕h], [P⊕q]")


def _own_bits(comparison: Comparison, party: Party, state: Arrays) -> tuple[Arrays, Array]:
    planes = comparison.addend(party, state)
    return {**state, comparison.name("sign"): planes[-1].copy()}, planes[:-1]


def _block_planes(
    comparison: Comparison, level: Sequence[CarryGroups], _party: Party, state: Arrays
) -> tuple[Arrays, Array]:
    """Select g_0 … g_{R−2} and the p of each group; the top G are kept."""
    shares = state[comparison.name("c")]
    rows, tops = _rows_of_blocks(tuple(level))
    return {**without(state, comparison.name("c")), comparison.name("g"): shares[tops]}, shares[rows]


@lru_cache(maxsize=256)
def _rows_of_blocks(level: tuple[CarryGroups, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows that are opened, in the order of the masks, and those of the top G."""
    blocks = level[-1].start + level[-1].size * level[-1].count
    opened, tops = [], []
    for each in level:
        for low in range(each.start, each.start + each.size * each.count, each.size):
            members = range(low, low + each.size)
            tops.append(members[-1])
            if not each.passes:
                opened += [*members[:-1], *(blocks + j - 1 for j in members[each.first_factor :])]
    return np.array(opened), np.array(tops)


def _combine(
    comparison: Comparison,
    level: Sequence[CarryGroups],
    _party: Party,
    state: Arrays,
    opened: Iterator[OpenedGroups],
) -> Arrays:
    """Compute [G_0] … and [P_1] … of a level's groups; after the last level, the sign."""
    tops, signs = state.get(comparison.name("g")), state[comparison.name("sign")]
    shares = np.empty((2 * sum(each.count for each in level) - 1, signs.size), np.uint64)
    start = 0
    for groups in level:
        rows = shares[start : start + groups.count * (1 if groups.lowest else 2)]
        own = None if tops is None else tops[start : start + groups.count]
        if own is not None and groups.passes:
            rows[:] = own
        else:
            combine(groups, next(opened), own, rows)
        start += groups.count
    rest = without(state, comparison.name("g"))
    if len(shares) > 1:
        return {**rest, comparison.name("c"): shares}
    return {**without(rest, comparison.name("sign")), comparison.target: shares[0] ^ signs}


# more than two parties: carry-save adders
_AND = (((0,), (1,)),)
"""The product of a group's two mask bits."""


def _addend_counts(parties: int) -> list[int]:
    """The number of addends before each carry-save round."""
    counts = [parties]
    while counts[-1] > 2:
        counts.append(counts[-1] // 3 * 2 + counts[-1] % 3)
    return counts[:-1]


def carry_save(comparison: Comparison, parties: int) -> Protocol:
    """Reduce M addends to two; no round for M = 2."""
    rounds = []
    for number, count in enumerate(_addend_counts(parties)):
        adders = ProductGroups(count // 3 * (comparison.width - 1), 2, (_AND,))
        opening = MaskedOpening(comparison.target, (adders,))
        halves = partial(_differences, comparison), partial(_save_carries, comparison)
        rounds.append(open_masked(f"addends{number}", opening, *halves, "[(a⊕c)⊕r], [(b⊕c)⊕r']"))
    return Protocol("carry-save", tuple(rounds))


def _addends(comparison: Comparison, party: Party, state: Arrays) -> Array:
    """This party's XOR share of the addends, M × L × W: before the first round its own planes, zeros elsewhere."""
    if comparison.name("addends") in state:
        return state[comparison.name("addends")]
    planes = comparison.addend(party, state)
    rows = np.zeros((party.count, *planes.shape), np.uint64)
    rows[party.index] = planes
    return rows


def _in_threes(rows: Array) -> tuple[Array, Array, Array, Array]:
    """Split rows into threes, a, b and c of each, and the one or two that remain."""
    end = len(rows) // 3 * 3
    return rows[0:end:3], rows[1:end:3], rows[2:end:3], rows[end:]


def _differences(comparison: Comparison, party: Party, state: Arrays) -> tuple[Arrays, Array]:
    """a ⊕ c and b ⊕ c of all bits but the top one, whose carry is not used."""
    rows = _addends(comparison, party, state)
    a, b, c, _ = _in_threes(rows)
    pairs = np.stack([(a ^ c)[:, :-1], (b ^ c)[:, :-1]], axis=2)
    return {**state, comparison.name("addends"): rows}, pairs.reshape(-1, rows.shape[2])


def _save_carries(comparison: Comparison, _party: Party, state: Arrays, opened: Iterator[OpenedGroups]) -> Arrays:
    rows = state[comparison.name("addends")]
    a, b, c, remaining = _in_threes(rows)
    (group,) = opened
    carry = np.zeros_like(c)
    carry[:, 1:] = c[:, :-1] ^ conjunction(group).reshape(c[:, :-1].shape)
    return {**state, comparison.name("addends"): np.concatenate([a ^ b ^ c, carry, remaining])}


def conjunction(group: OpenedGroups) -> Array:
    """[y·z] of groups of two bits with mask bits λ, κ: m_y m_z ⊕ m_y[κ] ⊕ m_z[λ] ⊕ [λκ]."""
    (y, z), (of_y, of_z) = (each.swapaxes(0, 1) for each in (group.values, group.mask))
    result: Array = (y & of_z) ^ (z & of_y) ^ (y & z & group.one) ^ group.sums[:, 0]
    return result


def _both_addends(
    comparison: Comparison, level: Sequence[CarryGroups], _party: Party, state: Arrays
) -> tuple[Arrays, Array]:
    """The bits of u and v below the sign, group by group."""
    u, v = state[comparison.name("addends")]
    planes = []
    for each in level:
        below = slice(each.start, each.start + each.size * each.count)
        planes += [word[below].reshape(each.count, each.size, -1) for word in (u, v)]
    by_group = [np.concatenate(planes[i : i + 2], axis=1).reshape(-1, u.shape[1]) for i in range(0, len(planes), 2)]
    rest = without(state, comparison.name("addends"))
    return {**rest, comparison.name("sign"): u[-1] ^ v[-1]}, np.concatenate(by_group)
