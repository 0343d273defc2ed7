"""A2B: the bits of ⟨x⟩, each shared by XOR, with all carries at once (Kogge and Stone's adder, of radix up to 4).

For 0 ≤ x < 2^ℓ (`width`), with two addends u + v = x mod 2^ℓ in planes (`primitives.compare` has how M shares become
two), and (G_i, P_i) generate and propagate of some bits up to bit i:

  1. one round for each radix r_1, r_2, …: (G_i, P_i) of r_1 bits up to i, then of r_2 such groups side by side, …,
     until each reaches down to bit 0, for all i at once                              (`primitives.carry_groups`)
  2. bit i of x is u_i ⊕ v_i ⊕ G_{i−1}

Carries are those of all ℓ bits, but only the bits from `drop` on come out: they are ⌊x / 2^drop⌋ exactly.

State: in `source`, n values as shares; out `target`, ℓ − drop planes (crypto.bits), the highest bit first. Other arrays
stay.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.carry_groups import CarryGroups, combine
from veilmeans.transforms.primitives.compare import LARGEST_RADIX, Comparison, Radices, carry_save
from veilmeans.transforms.primitives.masked_opening import MaskedOpening, OpenedGroups, open_masked
from veilmeans.transforms.rounds.protocol import Protocol, Round, without


@dataclass(frozen=True)
class BitDecomposition:
    """The names in the state, the bits of a value, and how many low ones are left out."""

    source: str
    target: str
    width: int
    drop: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 64 or not 0 <= self.drop < self.width - 1:
            raise ValueError(f"{self.width} bits without the {self.drop} lowest are not possible")

    @property
    def radices(self) -> Radices:
        return _choose_radices(self.width - 1, self.width - max(1, self.drop))

    @property
    def levels(self) -> list["_Level"]:
        """The groups of each round: of all bits below the highest, and last of those whose carries are used."""
        result, reach = [], 1
        for number, radix in enumerate(self.radices):
            last = number == len(self.radices) - 1
            result.append(_Level(number == 0, last, radix, reach, max(0, self.drop - 1) if last else 0, self.width - 1))
            reach *= radix
        return result

    @property
    def addition(self) -> Comparison:
        """The addends, as a comparison has them."""
        return Comparison(self.source, self.target, self.width)

    def name(self, part: str) -> str:
        return f"{self.target}.{part}"


@lru_cache(maxsize=64)
def _choose_radices(below: int, used: int) -> Radices:
    """Choose the radices of the fewest rounds that reach over so many bits; among those the fewest bits opened."""
    rounds = 1
    while LARGEST_RADIX**rounds < below:
        rounds += 1
    reaching = [each for each in product(range(1, LARGEST_RADIX + 1), repeat=rounds) if prod(each) >= below]

    def opened(radices: Radices) -> int:
        return sum(
            (used if number == rounds - 1 else below) * (radix if number == 0 else 2 * radix - 1)
            for number, radix in enumerate(radices)
        )

    return min(reaching, key=opened)


@dataclass(frozen=True)
class _Level:
    """The groups of one round: for each i from `first` to `end` − 1, `radix` neighbours at i, i − reach, …."""

    inputs: bool
    last: bool
    radix: int
    reach: int
    first: int
    end: int

    @property
    def groups(self) -> CarryGroups:
        """The last groups reach down to bit 0, where no carry comes in: they need no P."""
        return CarryGroups(self.inputs, 0 if self.last else 1, self.radix, self.end - self.first)

    @property
    def members(self) -> NDArray[np.intp]:
        """The numbers of each group's members, the lowest first; below bit 0 there is nothing, as `end` says."""
        highest = np.arange(self.first, self.end)[:, None]
        numbers = highest - self.reach * np.arange(self.radix - 1, -1, -1)
        return np.where(numbers < 0, self.end, numbers)


def decompose(how: BitDecomposition, parties: int) -> Protocol:
    """Compute the bits of all values."""
    first, *rest = how.levels
    opening = MaskedOpening(how.target, (first.groups.products(),), known=parties == 2)
    planes = partial(_own_bits if parties == 2 else _both_addends, how, first)
    inputs = open_masked("bits", opening, planes, partial(_combine, how, first), "[u⊕s], [v⊕t]")
    rounds = (*carry_save(how.addition, parties).rounds, inputs, *(_carry_round(how, level) for level in rest))
    return Protocol("decompose", rounds)


def _carry_round(how: BitDecomposition, level: _Level) -> Round:
    opening = MaskedOpening(how.target, (level.groups.products(),))
    steps = partial(_block_planes, how, level), partial(_combine, how, level)
    return open_masked("carries", opening, *steps, "[G⊕h], [P⊕q]")


def _rows(planes: Array, numbers: NDArray[np.intp]) -> Array:
    """The planes with these numbers; one after the last is zero."""
    return np.concatenate([planes, np.zeros_like(planes[:1])])[numbers]


def _own_bits(how: BitDecomposition, level: _Level, party: Party, state: Arrays) -> tuple[Arrays, Array]:
    planes = how.addition.addend(party, state)
    return {**state, how.name("sum"): planes}, _rows(planes[:-1], level.members.reshape(-1))


def _both_addends(how: BitDecomposition, level: _Level, _party: Party, state: Arrays) -> tuple[Arrays, Array]:
    u, v = state[how.addition.name("addends")]
    by_group = np.concatenate([_rows(each[:-1], level.members) for each in (u, v)], axis=1)
    rest = without(state, how.addition.name("addends"))
    return {**rest, how.name("sum"): u ^ v}, by_group.reshape(-1, u.shape[1])


def _block_planes(how: BitDecomposition, level: _Level, _party: Party, state: Arrays) -> tuple[Arrays, Array]:
    """Select g_0 … g_{R−2} and then the p of each group; the top G are kept."""
    g, p = np.split(state[how.name("c")], 2)
    generate, propagate = _rows(g, level.members[:, :-1]), _rows(p, level.members[:, int(level.last) :])
    rest = {**without(state, how.name("c")), how.name("g"): g[level.first : level.end]}
    return rest, np.concatenate([generate, propagate], axis=1).reshape(-1, g.shape[1])


def _combine(
    how: BitDecomposition, level: _Level, _party: Party, state: Arrays, opened: Iterator[OpenedGroups]
) -> Arrays:
    """Compute [G_i], and [P_i] unless this is the last level; then the bits."""
    groups, total = level.groups, state[how.name("sum")]
    shares = np.empty((groups.count * (1 if level.last else 2), total.shape[1]), np.uint64)
    combine(groups, next(opened), state.get(how.name("g")), shares)
    rest = without(state, how.name("g"))
    if not level.last:
        return {**rest, how.name("c"): shares}
    total = total[how.drop :].copy()
    total[len(total) - len(shares) :] ^= shares
    return {**without(rest, how.name("sum")), how.target: total[::-1].copy()}
