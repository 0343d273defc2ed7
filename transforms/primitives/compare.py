"""CMP: the sign bit of ⟨x⟩, as a bit shared by XOR, by adding the parties' shares in a Boolean circuit.

With y_i = (⟨x⟩_i mod 2^ℓ) ≫ s (`compare_bits` = ℓ, `drop` = s), L = ℓ − s bits each:

  1. [M > 2] carry-save adders leave two addends u, v shared by XOR:
       (a, b, c) → a ⊕ b ⊕ c  and  (((a ⊕ c) ∧ (b ⊕ c)) ⊕ c) ≪ 1
  2. g = u ∧ v, p = u ⊕ v, on the bits below the sign                            (M = 2: P_0 knows u, P_1 knows v)
  3. log2 rounds reduce (g, p) pairs:  (g, p)_hi ∘ (g, p)_lo = (g_hi ⊕ p_hi·g_lo, p_hi·p_lo)
  4. sign(x) = sign(u) ⊕ sign(v) ⊕ g

Exact for |x| < 2^(ℓ−1) if s = 0. With s > 0 carries out of the dropped bits are lost: x in [0, (M−1)·2^s) may be taken
for negative, and nothing else. Bytes per value and party, M = 2: 31.5 in 7 rounds for 64-bit words, 15.5 in 6 for 32.

State: in `source`, a share of any shape; out `target`, the sign bits packed (crypto.bits). The rest stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import bits
from veilmeans.crypto.correlations import PairAnd
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.and_gate import and_round
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require, without


@dataclass(frozen=True)
class Comparison:
    """The names in the state, how many bits are looked at, and a public constant to add first."""

    source: str
    target: str
    compare_bits: int = 64
    drop: int = 0
    offset: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.compare_bits - self.drop <= 64 or not 0 <= self.drop < self.compare_bits <= 64:
            raise ValueError(f"a comparison of {self.compare_bits} bits, {self.drop} of them dropped, is not possible")

    @property
    def width(self) -> int:
        """Bits of the words that hold an addend."""
        return next(width for width in bits.WIDTHS if width >= self.compare_bits - self.drop)

    def addend(self, party: Party, state: Arrays) -> bits.Words:
        """My share's y, flat, padded to a multiple of 8, with the sign as the top bit of its word."""
        x = require(state, self.source).reshape(-1)
        if self.offset and party.first:
            x = x + np.uint64(self.offset % 2**64)
        y = np.zeros(bits.padded(x.size), np.uint64)
        np.left_shift(x, np.uint64(64 - self.compare_bits), out=y[: x.size])
        y >>= np.uint64(64 - self.compare_bits + self.drop)
        y <<= np.uint64(self.width - self.compare_bits + self.drop)
        return y.astype(bits.WIDTHS[self.width], copy=False)

    def name(self, part: str) -> str:
        return f"{self.target}.{part}"


def sign(comparison: Comparison, parties: int) -> Protocol:
    """Rounds that compute the sign bits."""
    if parties == 2:
        halves = partial(_pair_send, comparison), partial(_pair_receive, comparison)
        first = Protocol("pair", (Round("pair", *halves, "u⊕a, or v⊕b"),))
    else:
        generate = and_round(
            "generate", partial(_carriers, comparison), partial(_generated, comparison), "[u⊕a], [v⊕b]"
        )
        first = carry_save(comparison, parties) + Protocol("generate", (generate,))
    return (first + prefix(comparison)).named("sign")


def prefix(comparison: Comparison) -> Protocol:
    """The rounds that reduce (g, p) pairs to one bit, after `begin_prefix`."""
    widths = [comparison.width >> i for i in range(comparison.width.bit_length() - 1)]
    rounds = (
        and_round(
            f"prefix{width}",
            partial(_neighbours, comparison, width),
            partial(_combined, comparison, width),
            "[p_hi⊕a], [g_lo⊕b], [p_lo⊕b']",
        )
        for width in widths
    )
    return Protocol("prefix", tuple(rounds))


def _pair_send(cmp: Comparison, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    word = _below_sign(cmp.addend(party, state))
    mask = randomness.correlated(_pair_kind(word), "ab"[party.index])
    return Sent(state, {"m": word ^ mask})


def _pair_receive(cmp: Comparison, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    """u∧v = u∧F ⊕ E∧b ⊕ a∧b with E = u⊕a and F = v⊕b."""
    addend = cmp.addend(party, state)
    word = _below_sign(addend)
    kind = _pair_kind(word)
    theirs = inbox.from_peer(1 - party.index, "m", word)
    known: Array = word if party.first else randomness.correlated(kind, "b")
    masked: Array = known & theirs
    g: Array = masked ^ randomness.correlated(kind, "c")
    return begin_prefix(cmp, state, g, word, _top(addend))


def _pair_kind(word: bits.Words) -> PairAnd:
    return PairAnd(word.shape, word.dtype.type)


def begin_prefix(cmp: Comparison, state: Arrays, g: bits.Words, p: bits.Words, signs: bits.Packed) -> Arrays:
    """The state before the first prefix level; `signs` is added to the bit that comes out."""
    return {
        **state,
        cmp.name("g"): bits.reverse_index(g),
        cmp.name("p"): bits.reverse_index(p),
        cmp.name("sign"): signs,
    }


def _neighbours(cmp: Comparison, width: int, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    """p_hi, to be ANDed with g_lo and p_lo; the last level needs no p."""
    del party
    (_, g_lo), (p_hi, p_lo) = (bits.halves(state[cmp.name(name)], width) for name in "gp")
    return p_hi, [g_lo] if width == 2 else [g_lo, p_lo]


def _combined(cmp: Comparison, width: int, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    del party
    g_hi, _ = bits.halves(state[cmp.name("g")], width)
    g = g_hi ^ products[0]
    rest = without(state, cmp.name("g"), cmp.name("p"))
    if width > 2:
        return {**rest, cmp.name("g"): g, cmp.name("p"): products[1]}
    return {**without(rest, cmp.name("sign")), cmp.target: g ^ state[cmp.name("sign")]}


def _below_sign(word: bits.Words) -> bits.Words:
    """The bits below the sign, moved up; a zero comes in at the bottom, where no carry begins."""
    result: bits.Words = word << word.dtype.type(1)
    return result


def _top(word: bits.Words) -> bits.Packed:
    """The sign bits, packed."""
    return bits.pack((word >> word.dtype.type(word.dtype.itemsize * 8 - 1)).astype(np.uint8))


def carry_save(cmp: Comparison, parties: int) -> Protocol:
    """Rounds from M addends to two; none for M = 2."""
    rounds: list[Round] = []
    left = parties
    while left > 2:
        name = f"addends{len(rounds)}"
        rounds.append(and_round(name, partial(_differences, cmp), partial(_saved, cmp), "[(a⊕c)⊕r], [(b⊕c)⊕r']"))
        left = _after_save(left)
    return Protocol("carry-save", tuple(rounds))


def _after_save(addends: int) -> int:
    return addends // 3 * 2 + addends % 3


def addends(cmp: Comparison, party: Party, state: Arrays) -> bits.Words:
    """My XOR share of the addends: before the first round, my own word in my row and zeros elsewhere."""
    if cmp.name("addends") in state:
        return state[cmp.name("addends")]
    word = cmp.addend(party, state)
    rows = np.zeros((party.count, word.size), word.dtype)
    rows[party.index] = word
    return rows


def _triples(rows: bits.Words) -> tuple[bits.Words, bits.Words, bits.Words, bits.Words]:
    """Rows in threes, a, b and c of each, and what is left over."""
    whole = len(rows) // 3 * 3
    return rows[0:whole:3], rows[1:whole:3], rows[2:whole:3], rows[whole:]


def _differences(cmp: Comparison, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    a, b, c, _ = _triples(addends(cmp, party, state))
    return a ^ c, [b ^ c]


def _saved(cmp: Comparison, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    rows = addends(cmp, party, state)
    a, b, c, rest = _triples(rows)
    carry = (products[0] ^ c) << rows.dtype.type(1)
    return {**state, cmp.name("addends"): np.concatenate([a ^ b ^ c, carry, rest])}


def _carriers(cmp: Comparison, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    u, v = _below_sign(addends(cmp, party, state))
    return u, [v]


def _generated(cmp: Comparison, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    u, v = addends(cmp, party, state)
    return begin_prefix(cmp, without(state, cmp.name("addends")), products[0], _below_sign(u ^ v), _top(u ^ v))
