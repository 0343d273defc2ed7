"""The comparison before masked evaluation, as a baseline: (g, p) pairs reduced by a round of ANDs for each halving.

g = u ∧ v, p = u ⊕ v on the bits below the sign; then (g, p)_hi ∘ (g, p)_lo = (g_hi ⊕ p_hi·g_lo, p_hi·p_lo). Two
parties, of which P_0 knows u and P_1 knows v; 6 rounds and 15.5 bytes a party for 32 bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto.correlations import CorrelationPart
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require, without

Words = NDArray[np.unsignedinteger[Any]]
WORD_TYPES: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass(frozen=True)
class And:
    """[a], [b0] … uniform and [c0] = [a∧b0] …: one left operand for several right ones."""

    shape: tuple[int, ...]
    dtype: type[np.unsignedinteger[Any]]
    outputs: int
    name: str = "and"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return self._parts("a", *(f"b{i}" for i in range(self.outputs)))

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return self._parts(*(f"c{i}" for i in range(self.outputs)))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {f"c{i}": values["a"] & values[f"b{i}"] for i in range(self.outputs)}

    def _parts(self, *names: str) -> tuple[CorrelationPart, ...]:
        return tuple(CorrelationPart(name, self.shape, (0, 1), "xor", self.dtype) for name in names)


@dataclass(frozen=True)
class PairAnd:
    """a known to party 0, b known to party 1, [c] = [a∧b]."""

    shape: tuple[int, ...]
    dtype: type[np.unsignedinteger[Any]]
    name: str = "pairand"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return tuple(CorrelationPart(name, self.shape, (i,), "xor", self.dtype) for i, name in enumerate("ab"))

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("c", self.shape, (0, 1), "xor", self.dtype),)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {"c": values["a"] & values["b"]}


def padded_count(count: int) -> int:
    """Round up to a multiple of 8."""
    return -(-count // 8) * 8


def pack(bits: NDArray[Any]) -> NDArray[np.uint8]:
    """Pack n zeros and ones into n/8 bytes."""
    padded = np.zeros(padded_count(bits.size), np.uint8)
    padded[: bits.size] = bits
    eighths = padded.reshape(8, -1)
    packed: NDArray[np.uint8] = eighths[0].copy()
    for b in range(1, 8):
        packed |= eighths[b] << np.uint8(b)
    return packed


def unpack(packed: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Unpack the first `count` bits, one byte each."""
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    return ((packed[None, :] >> shifts) & np.uint8(1)).reshape(-1)[:count]


def reverse_index(words: Words) -> Words:
    """Permute the bits of each word by reversing the binary digits of their index (delta swaps)."""
    width = words.dtype.itemsize * 8
    digits = width.bit_length() - 1
    result = words
    for low in range(digits // 2):
        result = _swap_index_digits(result, low, digits - 1 - low)
    return result


def _swap_index_digits(words: Words, low: int, high: int) -> Words:
    """Exchange the bits whose index has digit `low` set and `high` clear with those where it is the other way round."""
    width = words.dtype.itemsize * 8
    word_type = words.dtype.type
    distance = word_type((1 << high) - (1 << low))
    mask = word_type(sum(1 << i for i in range(width) if i >> low & 1 and not i >> high & 1))
    exchanged = (words ^ (words >> distance)) & mask
    result: Words = words ^ exchanged ^ (exchanged << distance)
    return result


def halves(words: Words, width: int) -> tuple[Words, Words]:
    """Split each value's `width` bits into a high and a low half, in words half as wide; denser below a byte."""
    if width > 8:
        narrow = words.view(WORD_TYPES[width // 2]).reshape(-1, 2)
        return np.ascontiguousarray(narrow[:, 1]), np.ascontiguousarray(narrow[:, 0])
    shift = np.uint8(width // 2)
    mask = np.uint8({8: 0x0F, 4: 0x33, 2: 0x55}[width])
    first, second = np.split(words, 2)
    high = ((first >> shift) & mask) | (second & ~mask)
    low = (first & mask) | ((second & mask) << shift)
    return high, low


Operands = Callable[[Party, Arrays], tuple[Array, Sequence[Array]]]
"""The left operand and the right ones, all of one shape and type, from the state."""
Finish = Callable[[Party, Arrays, Sequence[Array]], Arrays]
"""The state after the round, from the shares of the products."""


def and_round(name: str, operands: Operands, finish: Finish, sends: str) -> Round:
    """Make a round that computes the AND of the `operands` and passes the products to `finish`."""
    return Round(name, partial(_send, operands), partial(_receive, operands, finish), sends)


def _mask(operands: Operands, party: Party, state: Arrays, randomness: Randomness) -> tuple[And, dict[str, Array]]:
    """Mask this party's shares of all operands."""
    left, rights = operands(party, state)
    kind = And(left.shape, left.dtype.type, len(rights))
    message: dict[str, Array] = {"d": left ^ randomness.correlated(kind, "a")}
    for i, right in enumerate(rights):
        message[f"e{i}"] = right ^ randomness.correlated(kind, f"b{i}")
    return kind, message


def _send(operands: Operands, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    return Sent(state, _mask(operands, party, state, randomness)[1])


def _receive(
    operands: Operands, finish: Finish, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    kind, mine = _mask(operands, party, state, randomness)
    opened = {name: inbox.open_xor(name, array) for name, array in mine.items()}
    shares = [_product(party, kind, opened["d"], opened[f"e{i}"], i, randomness) for i in range(kind.outputs)]
    return finish(party, state, shares)


def _product(party: Party, kind: And, d: Array, e: Array, output: int, randomness: Randomness) -> Array:
    """Compute this party's share of one product from the opened d and e."""
    z: Array = randomness.correlated(kind, f"c{output}") ^ (d & randomness.correlated(kind, f"b{output}"))
    z ^= e & randomness.correlated(kind, "a")
    if party.first:
        z ^= d & e
    return z


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
        return next(width for width in WORD_TYPES if width >= self.compare_bits - self.drop)

    def addend(self, party: Party, state: Arrays) -> Words:
        """Compute y of this party's share, flat, padded to a multiple of 8, its sign as the top bit of its word."""
        x = require(state, self.source).reshape(-1)
        if self.offset and party.first:
            x = x + np.uint64(self.offset % 2**64)
        y = np.zeros(padded_count(x.size), np.uint64)
        np.left_shift(x, np.uint64(64 - self.compare_bits), out=y[: x.size])
        y >>= np.uint64(64 - self.compare_bits + self.drop)
        y <<= np.uint64(self.width - self.compare_bits + self.drop)
        return y.astype(WORD_TYPES[self.width], copy=False)

    def name(self, part: str) -> str:
        """The name of an intermediate array in the state."""
        return f"{self.target}.{part}"


def sign(comparison: Comparison) -> Protocol:
    """Compute the sign bits, of two parties."""
    pair = Round("pair", partial(_send_pair, comparison), partial(_receive_pair, comparison), "u⊕a, or v⊕b")
    return (Protocol("pair", (pair,)) + prefix(comparison)).named("sign")


def prefix(comparison: Comparison) -> Protocol:
    """Reduce (g, p) pairs to one bit, after `begin_prefix`."""
    rounds = []
    for width in [comparison.width >> i for i in range(comparison.width.bit_length() - 1)]:
        steps = partial(_adjacent_pairs, comparison, width), partial(_combine_pairs, comparison, width)
        rounds.append(and_round(f"prefix{width}", *steps, "[p_hi⊕a], [g_lo⊕b], [p_lo⊕b']"))
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


def begin_prefix(comparison: Comparison, state: Arrays, g: Words, p: Words, signs: NDArray[np.uint8]) -> Arrays:
    """Make the state before the first prefix level; `signs` is added to the resulting bit."""
    pairs = {comparison.name("g"): reverse_index(g), comparison.name("p"): reverse_index(p)}
    return {**state, **pairs, comparison.name("sign"): signs}


def _adjacent_pairs(comparison: Comparison, width: int, _party: Party, state: Arrays) -> tuple[Array, list[Array]]:
    """Select p_hi, to be ANDed with g_lo and p_lo; the last level needs no p."""
    (_, g_lo), (p_hi, p_lo) = (halves(state[comparison.name(name)], width) for name in "gp")
    return p_hi, [g_lo] if width == 2 else [g_lo, p_lo]


def _combine_pairs(
    comparison: Comparison, width: int, _party: Party, state: Arrays, products: Sequence[Array]
) -> Arrays:
    g_hi, _ = halves(state[comparison.name("g")], width)
    g = g_hi ^ products[0]
    rest = without(state, comparison.name("g"), comparison.name("p"))
    if width > 2:
        return {**rest, comparison.name("g"): g, comparison.name("p"): products[1]}
    return {**without(rest, comparison.name("sign")), comparison.target: g ^ state[comparison.name("sign")]}


def _below_sign(word: Words) -> Words:
    """Shift the bits below the sign up; a zero enters at the bottom, where no carry begins."""
    result: Words = word << word.dtype.type(1)
    return result


def _sign_bits(word: Words) -> NDArray[np.uint8]:
    """Pack the sign bits."""
    return pack((word >> word.dtype.type(word.dtype.itemsize * 8 - 1)).astype(np.uint8))
