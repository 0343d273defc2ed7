"""Carries through groups of neighbours, by masked evaluation: generate and propagate of r bits, or of R blocks.

Inputs: bits a_j, b_j of two addends, opened as α = a ⊕ s and β = b ⊕ t; x = α ⊕ β, w = s ⊕ t, W_J = Π_{j∈J} w_j:
  P = Π_j (a_j ⊕ b_j) = ⊕_J x_{¬J} W_J               G = ⊕_i a_i b_i Π_i,  Π_i = Π_{j>i} (a_j ⊕ b_j)
  G = ⊕_i [α_i β_i Π_i ⊕ β_i (w_i Π_i)] ⊕ ⊕_K x_K V_K
  V_K = t_k W_{(k,r)∖K} ⊕ ⊕_{i<k} s_i t_i W_{(i,r)∖K}    k = min K; for K = ∅ k = r, and there is no first term
Blocks: p_j = P_j ⊕ q_j and g_i = G_i ⊕ h_i opened, but for the top G_{R−1}, which is only added; W_J = Π_{j∈J} q_j:
  P = ⊕_J p_{¬J} W_J               G = G_{R−1} ⊕ ⊕_{i<R−1} g_i Π_i ⊕ ⊕_{K⊆[1,R)} p_K V_K
  V_K = ⊕_{i<k, i<R−1} h_i W_{(i,R)∖K}

Dealt are W_J of two factors or more, and V_K but the last, which is linear (t_0, or h_0): 1, 4, 11, 26 bits a group of
1, 2, 3, 4 inputs; 18 a group of 4 blocks. The lowest group has no carry into it: it needs no P, and of its lowest block
none either, so 11 for 4 blocks.

The sums over J and K are folded from the top: (f_J) ← f_{J∪{j}} ⊕ x_j f_J. With V_K at J = ¬K both fold alike, and
W_∅ is Π_j then, W_{{j}} is w_j Π_j. All groups and all V and W fold in the same numpy calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from veilmeans.crypto.bit_loops import combine_groups, compiling_pays
from veilmeans.crypto.correlations import Factor, Product, ProductGroups, Sum
from veilmeans.schemas.arrays import Array
from veilmeans.transforms.primitives.masked_opening import OpenedGroups


@dataclass(frozen=True)
class CarryGroups:
    """`count` groups of `size` neighbours from number `start` on: of bits of two addends (`inputs`), or of blocks."""

    inputs: bool
    start: int
    size: int
    count: int

    @property
    def lowest(self) -> bool:
        return self.start == 0

    @property
    def passes(self) -> bool:
        """True of a single block at the bottom: its carry passes as it is, and nothing is opened."""
        return self.size == 1 and not self.inputs

    @property
    def first_factor(self) -> int:
        """The number of the lowest member whose P is opened."""
        return int(self.lowest and not self.inputs)

    @property
    def top(self) -> slice:
        """The top members of all groups, by their numbers."""
        return slice(self.start + self.size - 1, self.start + self.size * self.count, self.size)

    def products(self) -> ProductGroups:
        """The mask bits of a group, and the sums of products of them that are dealt."""
        masks = 2 * self.size if self.inputs else 2 * self.size - 1 - self.first_factor
        return ProductGroups(self.count, masks, _sums(self.inputs, self.size, self.lowest))


def _subset(members: Sequence[int], number: int) -> tuple[int, ...]:
    return tuple(member for bit, member in enumerate(members) if number >> bit & 1)


def _folded(inputs: bool, size: int) -> range:
    """The members over whose subsets V_K goes."""
    return range(0 if inputs else 1, size)


@cache
def _sums(inputs: bool, size: int, lowest: bool) -> tuple[Sum, ...]:
    """V at J ≠ ∅; W_J for |J| ≥ 2; for blocks that are not the lowest W_{J∪{0}} for J ≠ ∅."""
    members = _folded(inputs, size)
    subsets = [_subset(members, number) for number in range(1 << len(members))]
    first = int(lowest)

    def factor(j: int) -> Factor:
        return (j, size + j) if inputs else (size - 1 + j - first,)

    def above(i: int, chosen: Sequence[int]) -> Product:
        """W_{(i,r)∩J}, the highest factor first, so that products share their beginnings."""
        return tuple(factor(j) for j in reversed(chosen) if j > i)

    def v(chosen: tuple[int, ...]) -> Sum:
        least = min((j for j in members if j not in chosen), default=size)
        terms = [
            (*above(i, chosen), *(((i,), (size + i,)) if inputs else ((i,),)))
            for i in range(min(least, size if inputs else size - 1))
        ]
        return (*([(*above(least, chosen), (size + least,))] if inputs and least < size else []), *terms)

    sums = [v(chosen) for chosen in subsets[1:]]
    sums += [(above(-1, chosen),) for chosen in subsets if len(chosen) > 1]
    if not inputs and not lowest:
        sums += [(above(-1, (0, *chosen)),) for chosen in subsets[1:]]
    return tuple(sums)


def combine(groups: CarryGroups, opened: OpenedGroups, tops: Array | None, out: Array) -> None:
    """Write [G] of all groups, then [P] unless they are the lowest, to `out`; `tops`: [G_{R−1}] of blocks."""
    terms = _input_terms(groups, opened) if groups.inputs else _block_terms(groups, opened)
    aligned = all(each.flags.aligned and each.flags.c_contiguous for each in (opened.values, opened.sums))
    if aligned and compiling_pays(*out.shape):
        kind = opened.sums, opened.one, groups.inputs, groups.lowest
        left, right, right_from, single, single_from, last = terms
        combine_groups(left, right, right_from, single, single_from, np.ascontiguousarray(last), *kind, out)
    else:
        _combine_by_planes(groups, opened, terms, out)
    if tops is not None:
        out[: groups.count] ^= tops


Terms = tuple[Array, Array, int, Array, int, Array]
"""α or g; β or p, and their first row; shares of w or q, and their first row; shares of t_0 or h_0."""


def _input_terms(groups: CarryGroups, opened: OpenedGroups) -> Terms:
    size, mask = groups.size, opened.mask
    if opened.others is None:
        return opened.values, opened.values, size, mask[:, :size] ^ mask[:, size:], 0, mask[:, size]
    return opened.values, opened.others, 0, mask, 0, np.zeros_like(mask[:, 0]) if opened.one else mask[:, 0]


def _block_terms(groups: CarryGroups, opened: OpenedGroups) -> Terms:
    """The opened planes of a group are g_0 … g_{R−2}, then p_0 (not of the lowest), p_1 … p_{R−1}."""
    above = groups.size - 1
    return opened.values, opened.values, above, opened.mask, above, opened.mask[:, 0]


def _combine_by_planes(groups: CarryGroups, opened: OpenedGroups, terms: Terms, out: Array) -> None:
    """Combine with numpy, all groups and subsets at once."""
    left, right, right_from, single, single_from, last = terms
    skip = int(not groups.inputs and not groups.lowest)
    factors, shares = right[:, right_from + skip :], single[:, single_from + skip :]
    table = _table(opened, last, shares, single[:, single_from] if skip else None)
    g = np.zeros_like(table[1, :, 0])
    for i in reversed(range(factors.shape[1])):
        x = factors[:, i]
        if groups.inputs:
            g ^= left[:, i] & x & table[0, :, 0]
            g ^= x & table[0, :, 1 << i]
            x = x ^ left[:, i]
        elif i < factors.shape[1] - 1:
            g ^= left[:, i + 1] & table[0, :, 0]
        table = _fold(table, x)
    g ^= table[1, :, 0]
    out[: groups.count] = g if groups.inputs else g ^ (left[:, 0] & table[0, :, 0])
    if skip:
        out[groups.count :] = table[2, :, 0] ^ (right[:, right_from] & table[0, :, 0])
    elif not groups.lowest:
        out[groups.count :] = table[0, :, 0]


def _table(opened: OpenedGroups, last: Array, singles: Array, zero: Array | None) -> Array:
    """Arrange what is dealt and what is linear as columns × count × subsets × W: W_J, V at J, and W_{J∪{0}}."""
    count, factors, words = singles.shape
    subsets, dealt = 1 << factors, opened.sums
    table = np.empty((2 if zero is None else 3, count, subsets, words), np.uint64)
    table[0, :, 0], table[1, :, 0] = opened.one, last
    table[0, :, 1 << np.arange(factors)] = singles.swapaxes(0, 1)
    table[1, :, 1:] = dealt[:, : subsets - 1]
    several = [number for number in range(subsets) if number.bit_count() > 1]
    table[0, :, several] = dealt[:, subsets - 1 : subsets - 1 + len(several)].swapaxes(0, 1)
    if zero is not None:
        table[2, :, 0] = zero
        table[2, :, 1:] = dealt[:, subsets - 1 + len(several) :]
    return table


def _fold(table: Array, x: Array) -> Array:
    """(f_J) ← f_{J∪{j}} ⊕ x_j f_J for the highest j."""
    half = table.shape[2] // 2
    folded: Array = table[:, :, :half]
    folded &= x[:, None]
    folded ^= table[:, :, half:]
    return folded


def levels(bits_below: int, radices: Sequence[int]) -> list[list[CarryGroups]]:
    """Cut so many bits into groups, level by level: the lowest group, perhaps smaller, and the others."""
    result, left = [], bits_below
    for number, radix in enumerate(radices):
        above = -(-left // radix) - 1
        low = left - above * radix
        lowest = CarryGroups(number == 0, 0, low, 1)
        result.append([lowest] + ([CarryGroups(lowest.inputs, low, radix, above)] if above else []))
        left = above + 1
    if left != 1 or min(radices[1:], default=2) < 2:
        raise ValueError(f"radices {tuple(radices)} do not reduce {bits_below} bits to one")
    return result


def opened_bits(level: Sequence[CarryGroups], parties: int) -> int:
    """The bits that a party sends of a level."""
    known = 2 if parties == 2 and level[0].inputs else 1
    return sum(each.count * each.products().masks for each in level) // known


def dealt_bits(level: Sequence[CarryGroups]) -> int:
    """The bits that are dealt for a level."""
    return sum(each.count * len(each.products().sums) for each in level)
