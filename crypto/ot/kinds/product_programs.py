"""Sums of products of two parties' bits, compiled into oblivious transfers.

Party 0 knows bits s_0 …, party 1 bits t_0 …; wanted are XOR shares of polynomials f(s, t). Terms of s or of t alone are
local. The others are split variable by variable. If v is a variable of the chooser, f = f⁰ ⊕ v·f¹ and

  [v·f¹] = v·x ⊕ v·y        x, y: the chooser's and the other's share of f¹, a polynomial of the variables before
  v·y     is one bit of the OT whose choice bit is v: the other sends y ⊕ m_0 ⊕ m_1 and keeps m_0

So a variable costs one OT in however many products it is, and each independent f¹ (an entry) costs one bit. An entry
that is a single variable without a value yet costs nothing: m_0 ⊕ m_1 becomes its value. Two plans are tried, and the
cheaper one is taken, an OT at 0.4 bits: all variables of one party (one message, whatever the degree), or those of both
for a few masks (an AND of two shared bits: two OTs and no message), if no bit to send depends on a received one.

A comparison of 32 bits, both ways, grouped by choice bit like this, and by 1-of-2^r OTs (2^r − 1 rows of all sums):

| radices | COTs | bits sent | bytes in all | COTs and bits, 1-of-2^r |
|---|---|---|---|---|
| (1,2,2,2,2,2) | 91 | 0 | 4.6 | 117, 407 |
| (2,2,2,2,2) | 61 | 45 | 8.7 | 72, 347 |
| (2,2,2,4) | 61 | 73 | 12.2 | 71, 1,009 |
| (3,3,4) | 51 | 188 | 26.1 | 54, 2,118 |
| (2,4,4) | 64 | 239 | 33.1 | 64, 8,425 |
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import permutations
from operator import or_

Monomial = tuple[int, int]
"""A product: the variables of party 0 and those of party 1, as sets of bits."""
Polynomial = frozenset[Monomial]
Variable = tuple[int, int]
"""Party, number."""
BITS_PER_OT = 0.4
ALL_ORDERS = 5
"""Variables up to which all orders are tried."""
_MOST_MASKS = 7
"""Masks up to which plans with both parties' variables are tried."""


@dataclass(frozen=True)
class Step:
    """One OT, whose choice bit is `variable`, a bit of `chooser`.

    entries[e]: functions before this step, and the other party's own terms; their shares add up to y. `free`: entry ->
    the other party's variable of which it is the value. functions[i]: functions before this step, and entries, that add
    up to function i after it.
    """

    chooser: int
    variable: int
    entries: tuple[tuple[tuple[int, ...], Polynomial], ...]
    free: dict[int, int]
    functions: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class Program:
    """OTs in their order; outputs[i]: functions after the last one, and both parties' own terms."""

    steps: tuple[Step, ...]
    outputs: tuple[tuple[tuple[int, ...], tuple[Polynomial, Polynomial]], ...]

    @property
    def sent_bits(self) -> int:
        """Bits that the parties send, beyond those of the OTs."""
        return sum(len(step.entries) - len(step.free) for step in self.steps)

    @property
    def cost(self) -> float:
        """Bits in all."""
        return BITS_PER_OT * len(self.steps) + self.sent_bits

    def needs_one_message(self) -> bool:
        """True if no bit to send depends on a received one."""
        waits: list[set[int]] = []  # for each function the parties whose share depends on received bits
        for step in self.steps:
            products: list[set[int]] = []
            for number, (functions, _) in enumerate(step.entries):
                depends = _union(waits[f] for f in functions)
                if number not in step.free and 1 - step.chooser in depends:
                    return False
                products.append({step.chooser} if number not in step.free or step.chooser in depends else set())
            waits = [
                _union([*(waits[f] for f in functions), *(products[e] for e in entries)])
                for functions, entries in step.functions
            ]
        return True


def _union(sets: Iterable[set[int]]) -> set[int]:
    return set().union(*sets)


@lru_cache(maxsize=256)
def compile_program(polynomials: tuple[Polynomial, ...], chooser: int) -> Program:
    """Compile the cheapest program of those tried; `chooser` is the one party that chooses, or chooses first."""
    mixed = [_terms(each, (True, True)) for each in polynomials]
    candidates = (_program(polynomials, mixed, order) for order in _orders(mixed, chooser))
    return min((each for each in candidates if each and each.needs_one_message()), key=lambda each: each.cost)


def multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    """left · right, where x² = x."""
    product: set[Monomial] = set()
    for a, b in left:
        for c, d in right:
            product ^= {(a | c, b | d)}
    return frozenset(product)


def _orders(mixed: Sequence[Polynomial], chooser: int) -> Iterator[tuple[Variable, ...]]:
    used = [reduce(or_, (term[party] for each in mixed for term in each), 0) for party in range(2)]
    variables = [v for v in range(used[chooser].bit_length()) if used[chooser] >> v & 1]
    for order in permutations(variables) if len(variables) <= ALL_ORDERS else [tuple(variables)]:
        yield tuple((chooser, v) for v in order)
    if used[0] == used[1] and len(variables) <= _MOST_MASKS:
        for count in range(1, min(3, len(variables))):
            for order in permutations(variables, count):
                yield tuple((party, v) for v in order for party in (chooser, 1 - chooser))


def _terms(polynomial: Polynomial, parties: tuple[bool, bool]) -> Polynomial:
    """The terms with variables of exactly these parties."""
    return frozenset(term for term in polynomial if (term[0] > 0, term[1] > 0) == parties)


def _program(
    polynomials: Sequence[Polynomial], mixed: Sequence[Polynomial], order: Sequence[Variable]
) -> Program | None:
    """Split from the last variable to the first; None if products are left."""
    wanted = Basis(mixed)
    needed, found = wanted.elements, []
    for party, v in reversed(order):
        split = _Split.of(needed, party, v)
        found.append(split)
        needed = split.before.elements
    if needed:
        return None
    taken = [0, 0]
    for party, v in order:
        taken[party] |= 1 << v
    steps = tuple(split.step(taken) for split in reversed(found))
    own = [(_terms(each, (True, False)), _terms(each, (False, True))) for each in polynomials]
    outputs = tuple((wanted.combination(each), parts) for each, parts in zip(mixed, own, strict=True))
    return Program(steps, outputs)


class Basis:
    """A reduced basis of a span of polynomials: a single variable that is in the span is an element."""

    def __init__(self, polynomials: Iterable[Polynomial]) -> None:
        rows: dict[Monomial, Polynomial] = {}
        for polynomial in polynomials:
            rest = reduce(lambda left, pivot: left ^ rows[pivot], polynomial & rows.keys(), polynomial)
            if rest:
                pivot = max(rest)
                rows = {key: row ^ rest if pivot in row else row for key, row in rows.items()}
                rows[pivot] = rest
        self.pivots = sorted(rows)
        self.elements = [rows[pivot] for pivot in self.pivots]

    def combination(self, polynomial: Polynomial) -> tuple[int, ...]:
        """The elements that add up to a polynomial of the span."""
        return tuple(number for number, pivot in enumerate(self.pivots) if pivot in polynomial)


@dataclass(frozen=True)
class _Split:
    """f = f⁰ ⊕ v·f¹ for all functions that are needed after the OT of v."""

    party: int
    variable: int
    without: list[Polynomial]
    derived: list[Polynomial]
    entries: Basis
    mixed: list[Polynomial]
    before: Basis

    @classmethod
    def of(cls, needed: Sequence[Polynomial], party: int, v: int) -> "_Split":
        bit = 1 << v
        without = [frozenset(term for term in each if not term[party] & bit) for each in needed]
        derived = [frozenset(_drop(term, party, bit) for term in each if term[party] & bit) for each in needed]
        entries = Basis(derived)
        mixed = [_terms(each, (True, True)) for each in entries.elements]
        return cls(party, v, without, derived, entries, mixed, Basis([*without, *mixed]))

    def step(self, taken: list[int]) -> Step:
        """The OT; `taken`: the variables of each party that have a value, to which free entries are added."""
        other, free = 1 - self.party, {}
        for number, entry in enumerate(self.entries.elements):
            first = next(iter(entry))
            if len(entry) == 1 and first[self.party] == 0 and first[other].bit_count() == 1:
                if not taken[other] & first[other]:
                    free[number] = first[other].bit_length() - 1
                taken[other] |= first[other]
        own = (False, True) if other else (True, False)
        described = tuple(
            (self.before.combination(mixed), _terms(entry, own))
            for mixed, entry in zip(self.mixed, self.entries.elements, strict=True)
        )
        functions = tuple(
            (self.before.combination(rest), self.entries.combination(each))
            for rest, each in zip(self.without, self.derived, strict=True)
        )
        return Step(self.party, self.variable, described, free, functions)


def _drop(term: Monomial, party: int, bit: int) -> Monomial:
    return (term[0] ^ bit, term[1]) if party == 0 else (term[0], term[1] ^ bit)
