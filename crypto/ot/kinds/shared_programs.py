"""Sums of products of bits that M ≥ 3 parties share by XOR, compiled into pairwise oblivious transfers.

Each party p has shares λ_j^p of mask bits λ_j; wanted are shares of polynomials f(λ). Linear terms are local; others
are split variable by variable, f = f⁰ ⊕ v·f¹, and with y^q, party q's share of f¹ (an entry),

  v·f¹ = ⊕_p v^p·y^p ⊕ ⊕_{p≠q} v^p·y^q        v^p·y^q is one bit of an OT of q to p whose choice bit is v^p: q sends
                                               y^q ⊕ m_0 ⊕ m_1 and keeps m_0

A party's choice bits are the same in its OTs with all peers, so v^p is one of them and costs no bit. A variable costs
an OT for each ordered pair, in however many products it is, and each independent f¹ a bit for each ordered pair. An
entry that is a single variable without a value yet is free for the OTs with one peer: m_0 ⊕ m_1 becomes its value.

An entry of degree d is known after d − 1 messages: a product of r masks takes r − 1 messages, however many there are.

A comparison of 32 bits, without carry-save adders, has 61 OTs for each ordered pair, whatever its radices are:

| radices | entries | free towards one peer | messages | bytes of three parties, all links, adders included |
|---|---|---|---|---|
| (1,2,2,2,2,2) | 87 | 87 | 1 | 72 |
| (1,2,2,2,4) | 94 | 84 | 3 | 78 |
| (2,2,2,2,2) | 102 | 42 | 2 | 100 |
| (3,3,4) | 234 | 19 | 3 | 208 |
| (4,8) | 645 | 9 | 7 | 520 |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import permutations

from veilmeans.crypto.correlations import Factor, Product
from veilmeans.crypto.ot.kinds.product_programs import ALL_ORDERS, Basis, Polynomial, multiply


@dataclass(frozen=True)
class Entry:
    """f¹ = functions before the step ⊕ linear terms (masks by number); it is sent in message `level`.

    `free`: the mask whose value it is, towards one peer.
    """

    functions: tuple[int, ...]
    masks: tuple[int, ...]
    level: int
    free: int | None


@dataclass(frozen=True)
class SharedStep:
    """The OTs whose choice bits are the shares of mask `variable`.

    functions[i]: functions before this step, and entries, that add up to function i after it.
    """

    variable: int
    entries: tuple[Entry, ...]
    functions: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class SharedProgram:
    """Steps in their order; outputs[i]: functions after the last one, and masks."""

    steps: tuple[SharedStep, ...]
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    @property
    def messages(self) -> int:
        """Messages that wait for each other."""
        return max((entry.level + 1 for step in self.steps for entry in step.entries), default=0)

    def sent_bits(self, free: bool) -> int:
        """Bits that a party sends to a peer, beyond those of the OTs; `free`: to the one for which entries are free."""
        entries = (entry for step in self.steps for entry in step.entries)
        return sum(not free or entry.free is None for entry in entries)


@lru_cache(maxsize=256)
def compile_shared(sums: tuple[tuple[Product, ...], ...]) -> SharedProgram:
    """Compile the program with the fewest entries of those tried."""
    wanted = tuple(reduce(frozenset.symmetric_difference, map(_product, each)) for each in sums)
    programs = (_program(wanted, order) for order in _orders(wanted))
    return min(programs, key=lambda each: (each.sent_bits(True) + each.sent_bits(False), len(each.steps)))


def _product(factors: Product) -> Polynomial:
    return _graded(reduce(multiply, map(_factor, factors)))


def _factor(numbers: Factor) -> Polynomial:
    return reduce(frozenset.symmetric_difference, (frozenset({(1 << number, 0)}) for number in numbers))


def _graded(polynomial: Polynomial) -> Polynomial:
    """Terms as (degree, masks): elements of a basis then have the degree of their largest term."""
    return frozenset((masks.bit_count(), masks) for masks, _ in polynomial)


def _orders(wanted: Sequence[Polynomial]) -> Iterator[tuple[int, ...]]:
    """Orders of the masks: all of them if they are few."""
    used = reduce(int.__or__, (masks for each in wanted for degree, masks in each if degree > 1), 0)
    masks = _numbers(used)
    yield from permutations(masks) if len(masks) <= ALL_ORDERS else (masks, masks[::-1])


def _numbers(masks: int) -> tuple[int, ...]:
    return tuple(number for number in range(masks.bit_length()) if masks >> number & 1)


def _linear(polynomial: Polynomial) -> tuple[int, ...]:
    return tuple(sorted(masks.bit_length() - 1 for degree, masks in polynomial if degree == 1))


def _higher(polynomial: Polynomial) -> Polynomial:
    return frozenset(term for term in polynomial if term[0] > 1)


@dataclass(frozen=True)
class _Split:
    """f = f⁰ ⊕ v·f¹ of all functions that are needed after the step of v."""

    variable: int
    without: list[Polynomial]
    derived: list[Polynomial]
    entries: Basis
    before: Basis

    @classmethod
    def of(cls, needed: Sequence[Polynomial], v: int) -> "_Split":
        bit = 1 << v
        without = [frozenset(term for term in each if not term[1] & bit) for each in needed]
        derived = [frozenset((degree - 1, masks ^ bit) for degree, masks in each if masks & bit) for each in needed]
        entries = Basis(derived)
        return cls(v, without, derived, entries, Basis([*without, *map(_higher, entries.elements)]))

    def step(self, levels: Sequence[int], taken: set[int]) -> SharedStep:
        """The step; `levels`: for each function before it the messages that it needs; `taken`: masks with values."""
        entries = []
        for element in self.entries.elements:
            functions, masks = self.before.combination(_higher(element)), _linear(element)
            free = masks[0] if len(masks) == 1 and not functions and masks[0] not in taken else None
            taken.update(() if free is None else (free,))
            entries.append(Entry(functions, masks, max((levels[f] for f in functions), default=0), free))
        functions_after = tuple(
            (self.before.combination(rest), self.entries.combination(each))
            for rest, each in zip(self.without, self.derived, strict=True)
        )
        return SharedStep(self.variable, tuple(entries), functions_after)


def _program(wanted: Sequence[Polynomial], order: Sequence[int]) -> SharedProgram:
    """Split from the last mask to the first; masks that multiply nothing have no step."""
    final = Basis(map(_higher, wanted))
    needed, splits = final.elements, []
    for v in reversed(order):
        split = _Split.of(needed, v)
        if split.entries.elements:
            splits.append(split)
            needed = split.before.elements
    taken = {split.variable for split in splits}
    levels: list[int] = []
    steps = []
    for split in reversed(splits):
        step = split.step(levels, taken)
        levels = [
            max([*(levels[f] for f in functions), *(step.entries[e].level + 1 for e in entries)], default=0)
            for functions, entries in step.functions
        ]
        steps.append(step)
    outputs = tuple((final.combination(_higher(each)), _linear(each)) for each in wanted)
    return SharedProgram(tuple(steps), outputs)
