"""CMP: the sign bit of ⟨x⟩, as a bit shared by XOR, by adding the parties' shares in a Boolean circuit.

With y_i = (⟨x⟩_i mod 2^ℓ) ≫ s (`compare_bits` = ℓ, `drop` = s), L = ℓ − s bits each:

  1. [M > 2] carry-save adders leave two addends u, v shared by XOR:
       (a, b, c) → a ⊕ b ⊕ c  and  (((a ⊕ c) ∧ (b ⊕ c)) ⊕ c) ≪ 1
  2. g = u ∧ v, p = u ⊕ v, on the bits below the sign                            (M = 2: P_0 knows u, P_1 knows v)
  3. log2 rounds reduce (g, p) pairs:  (g, p)_hi ∘ (g, p)_lo = (g_hi ⊕ p_hi·g_lo, p_hi·p_lo)
  4. sign(x) = sign(u) ⊕ sign(v) ⊕ g

Exact for |x| < 2^(ℓ−1) if s = 0. With s > 0 carries out of the dropped bits are lost: x in [0, (M−1)·2^s) may be taken
for negative, and nothing else. Bytes per value and party, M = 2: 31.5 in 7 rounds for 64-bit words, 15.5 in 6 for 32.

State: in `source`, a share of any shape; out `target`, the sign bits packed (crypto.bits). Other arrays stay.
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
    """The names in the state, the number of bits to compare, and a public constant to add before."""

    source: str
    target: str
    compare_bits: int = 64
    drop: int = 0
    offset: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.compare_bits - self.drop <= 64 or not 0 <= self.drop < self.compare_bits <= 64:
            raise ValueError(f"a comparison of {self.compare_bits} bits with {self.drop} dropped is not possible")

    @property
    def width(self) -> int:
        """Bits of the words that hold an addend."""
        return next(width for width in bits.WORD_TYPES if width >= self.compare_bits - self.drop)

    def addend(self, party: Party, state: Arrays) -> bits.Words:
        """Compute y of this party's share, flat, padded to a multiple of 8, its sign as the top bit of its word."""
        x = require(state, self.source).reshape(-1)
        if self.offset and party.first:
            x = x + np.uint64(self.offset % 2**64)
        y = np.zeros(bits.padded_count(x.size), np.uint64)
        np.left_shift(x, np.uint64(64 - self.compare_bits), out=y[: x.size])
        y >>= np.uint64(64 - self.compare_bits + self.drop)
        y <<= np.uint64(self.width - self.compare_bits + self.drop)
        return y.astype(bits.WORD_TYPES[self.width], copy=False)

    def name(self, part: str) -> str:
        """The name of an intermediate array in the state."""
        return f"{self.target}.{part}"


def sign(comparison: Comparison, parties: int) -> Protocol:
    """Compute the sign bits."""
    if parties == 2:
        pair = Round("pair", partial(_send_pair, comparison), partial(_receive_pair, comparison), "u⊕a, or v⊕b")
        first = Protocol("pair", (pair,))
    else:
        halves = partial(_both_addends, comparison), partial(_begin_with_products, comparison)
        generate = and_round("generate", *halves, "[u⊕a], [v⊕b]")
        first = carry_save(comparison, parties) + Protocol("generate", (generate,))
    return (first + prefix(comparison)).named("sign")


def prefix(comparison: Comparison) -> Protocol:
    """Reduce (g, p) pairs to one bit, after `begin_prefix`."""
    rounds = []
    for width in [comparison.width >> i for i in range(comparison.width.bit_length() - 1)]:
        halves = partial(_adjacent_pairs, comparison, width), partial(_combine_pairs, comparison, width)
        rounds.append(and_round(f"prefix{width}", *halves, "[p_hi⊕a], [g_lo⊕b], [p_lo⊕b']"))
    return Protocol("prefix", tuple(rounds))


def _send_pair(comparison: Comparison, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    word = _below_sign(comparison.addend(party, state))
    return Sent(state, {"m": word ^ randomness.correlated(PairAnd(word.shape, word.dtype.type), "ab"[party.index])})


def _receive_pair(comparison: Comparison, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    """u∧v = u∧F ⊕ E∧b ⊕ a∧b with E = u⊕a and F = v⊕b."""
    addend = comparison.addend(party, state)
    word = _below_sign(addend)
    kind = PairAnd(word.shape, word.dtype.type)
    theirs = inbox.from_peer(1 - party.index, "m", word)
    known: Array = word if party.first else randomness.correlated(kind, "b")
    g: Array = (known & theirs) ^ randomness.correlated(kind, "c")
    return begin_prefix(comparison, state, g, word, _sign_bits(addend))


def begin_prefix(comparison: Comparison, state: Arrays, g: bits.Words, p: bits.Words, signs: bits.Packed) -> Arrays:
    """Make the state before the first prefix level; `signs` is added to the resulting bit."""
    pairs = {comparison.name("g"): bits.reverse_index(g), comparison.name("p"): bits.reverse_index(p)}
    return {**state, **pairs, comparison.name("sign"): signs}


def _adjacent_pairs(comparison: Comparison, width: int, _party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    """Select p_hi, to be ANDed with g_lo and p_lo; the last level needs no p."""
    (_, g_lo), (p_hi, p_lo) = (bits.halves(state[comparison.name(name)], width) for name in "gp")
    return p_hi, [g_lo] if width == 2 else [g_lo, p_lo]


def _combine_pairs(
    comparison: Comparison, width: int, _party: Party, state: Arrays, products: Sequence[Array]
) -> Arrays:
    g_hi, _ = bits.halves(state[comparison.name("g")], width)
    g = g_hi ^ products[0]
    rest = without(state, comparison.name("g"), comparison.name("p"))
    if width > 2:
        return {**rest, comparison.name("g"): g, comparison.name("p"): products[1]}
    return {**without(rest, comparison.name("sign")), comparison.target: g ^ state[comparison.name("sign")]}


def _below_sign(word: bits.Words) -> bits.Words:
    """Shift the bits below the sign up; a zero enters at the bottom, where no carry begins."""
    result: bits.Words = word << word.dtype.type(1)
    return result


def _sign_bits(word: bits.Words) -> bits.Packed:
    """Pack the sign bits."""
    return bits.pack((word >> word.dtype.type(word.dtype.itemsize * 8 - 1)).astype(np.uint8))


def carry_save(comparison: Comparison, parties: int) -> Protocol:
    """Reduce M addends to two; no round for M = 2."""
    rounds: list[Round] = []
    addend_count = parties
    while addend_count > 2:
        halves = partial(_differences, comparison), partial(_save_carries, comparison)
        rounds.append(and_round(f"addends{len(rounds)}", *halves, "[(a⊕c)⊕r], [(b⊕c)⊕r']"))
        addend_count = addend_count // 3 * 2 + addend_count % 3
    return Protocol("carry-save", tuple(rounds))


def addends(comparison: Comparison, party: Party, state: Arrays) -> bits.Words:
    """This party's XOR share of the addends: before the first round, its own word in its row and zeros elsewhere."""
    if comparison.name("addends") in state:
        return state[comparison.name("addends")]
    word = comparison.addend(party, state)
    rows = np.zeros((party.count, word.size), word.dtype)
    rows[party.index] = word
    return rows


def _in_threes(rows: bits.Words) -> tuple[bits.Words, bits.Words, bits.Words, bits.Words]:
    """Split rows into threes, a, b and c of each, and the one or two that remain."""
    end = len(rows) // 3 * 3
    return rows[0:end:3], rows[1:end:3], rows[2:end:3], rows[end:]


def _differences(comparison: Comparison, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    a, b, c, _ = _in_threes(addends(comparison, party, state))
    return a ^ c, [b ^ c]


def _save_carries(comparison: Comparison, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    rows = addends(comparison, party, state)
    a, b, c, remaining = _in_threes(rows)
    carry = (products[0] ^ c) << rows.dtype.type(1)
    return {**state, comparison.name("addends"): np.concatenate([a ^ b ^ c, carry, remaining])}


def _both_addends(comparison: Comparison, party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    u, v = _below_sign(addends(comparison, party, state))
    return u, [v]


def _begin_with_products(comparison: Comparison, party: Party, state: Arrays, products: Sequence[Array]) -> Arrays:
    u, v = addends(comparison, party, state)
    p = u ^ v
    rest = without(state, comparison.name("addends"))
    return begin_prefix(comparison, rest, products[0], _below_sign(p), _sign_bits(p))
