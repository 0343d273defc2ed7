"""The ℓ largest of n shared values: a search for their threshold T, digit by digit, from the highest bit on.

Rows hold two bits, a = [value ≥ T] and g = [value > T], in the digits of T so far; e = a ⊕ g is set where value and T
are equal so far. At first a = 1 and g = 0. A digit has m bits, R = 2^m; for its values v and q:

  digit      δ_v = e·[digit of the value = v], for all v, in one round; A_q = g ⊕ δ_q ⊕ … ⊕ δ_{R−1}
  count      ⟨n_q⟩ = Σ ⟨A_q⟩ over all rows, by B2A, for q = 1 … R−1
  threshold  once for all rows: [b_q] = [n_q ≥ ℓ]. The digit of T is the largest q with b_q = 1 (b_0 = 1)
  choose     a ← A_0 ⊕ ⊕_q b_q·δ_{q−1} and g ← A_1 ⊕ ⊕_q b_q·δ_q, which are A_q and A_{q+1} of T's digit

After the last digit g has fewer than ℓ rows, a at least ℓ. Of the rows that have T those that come first are taken:

  ties       ⟨e⟩ and ⟨g⟩ by B2A; rank = Σ ⟨g⟩ over all rows + Σ ⟨e⟩ over the rows up to this one
  rank       [rank ≤ ℓ], a comparison                    among      g ⊕ e·[rank ≤ ℓ]: exactly ℓ rows

Nothing is opened but under masks: neither values nor T, nor a count. Rounds do not grow with n. A larger digit takes
fewer of them, and more bytes.

State over rows: "largest.x", planes of bits, the highest first (`primitives.bit_decomposition`); out `Largest.target`,
a packed row. Of `threshold`: "largest.n" (R − 1) in, "largest.b" (a packed word) out, which all rows get. Between
`ties` and `rank` the sums of other rows come as "largest.before" (1), by the numbers of shards, "largest.shard" (1).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto.correlations import ProductGroups, Sum
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a
from veilmeans.transforms.primitives.compare import Comparison, conjunction, sign
from veilmeans.transforms.primitives.masked_opening import MaskedOpening, OpenedGroups, open_masked
from veilmeans.transforms.products.cross_product import filled_rows
from veilmeans.transforms.rounds.protocol import Protocol, require, without

PLANES, COUNTS, BELOW = "largest.x", "largest.n", "largest.b"
BEFORE, SHARD = "largest.before", "largest.shard"
_AT_LEAST, _ABOVE, _EQUAL, _BITS, _HOT = "largest.a", "largest.g", "largest.d", "largest.bits", "largest.hot"
_RANK, _TAKEN = "largest.rank", "largest.taken"


@dataclass(frozen=True)
class Largest:
    """The public parameters: ℓ, the bits of a value, those of a digit, and the bits of a number of rows."""

    target: str
    count: int
    width: int
    digit_bits: int
    row_bits: int

    @property
    def digits(self) -> list[slice]:
        """The planes of each digit; the last may be smaller."""
        return [slice(i, min(i + self.digit_bits, self.width)) for i in range(0, self.width, self.digit_bits)]

    def digit_size(self, digit: int) -> int:
        """m, the bits of one digit."""
        return min(self.digit_bits, self.width - digit * self.digit_bits)


# over rows
def begin(values: str, party: Party, state: Arrays) -> Arrays:
    """Set a and g before the first digit: all rows may be among the largest; what fills shard and words up may not."""
    rows = bits.first_lanes(filled_rows(state), state[values].size)
    nothing = np.zeros_like(rows)
    return {**state, _AT_LEAST: rows if party.first else nothing, _ABOVE: nothing}


def count_digit(how: Largest, digit: int) -> Protocol:
    """Compute the counts n_q of a digit, in two rounds."""
    size = how.digit_size(digit)
    opening = MaskedOpening(_BITS, (ProductGroups(1, size + 1, _products(size + 1)),))
    steps = partial(_digit_planes, how.digits[digit]), partial(_split_by_digit, size)
    split = open_masked("digit", opening, *steps, "[e⊕λ], [x⊕λ]")
    count = Protocol("count", (b2a(_BITS, None, _HOT),)).then(_count)
    return Protocol("digit", (split,)) + count


def _products(factors: int) -> tuple[Sum, ...]:
    """All products of two factors or more, by the number whose bits they are."""
    subsets = ([f for f in range(factors) if number >> f & 1] for number in range(1 << factors))
    return tuple((tuple((f,) for f in subset),) for subset in subsets if len(subset) > 1)


def _digit_planes(digit: slice, _party: Party, state: Arrays) -> tuple[Arrays, Array]:
    """The bits of the digit, the lowest first, and e."""
    equal = state[_AT_LEAST] ^ state[_ABOVE]
    return state, np.concatenate([state[PLANES][digit][::-1], equal[None]])


def _split_by_digit(size: int, _party: Party, state: Arrays, opened: Iterator[OpenedGroups]) -> Arrays:
    """Set δ_v, from the products Π_{j∈S} x_j·e of all sets S of the digit's bits, and A_1 … A_{R−1}.

    Π_{j∈T} z_j = ⊕_{J⊆T} m_{T∖J} λ_J, and [x = v] = ⊕_{S⊇v} Π_{j∈S} x_j.
    """
    (group,) = opened
    m, table = group.values[0], _mask_products(group, size + 1)
    for j in range(size + 1):
        pairs = table.reshape(-1, 2, 1 << j, m.shape[1])
        pairs[:, 1] ^= m[j] & pairs[:, 0]
    equal = table[1 << size :].copy()
    for j in range(size):
        pairs = equal.reshape(-1, 2, 1 << j, m.shape[1])
        pairs[:, 0] ^= pairs[:, 1]
    above = np.bitwise_xor.accumulate(equal[::-1], axis=0)[::-1] ^ state[_ABOVE]
    return {**state, _EQUAL: equal, _ABOVE: above[1:], _BITS: above[1:].reshape(-1)}


def _mask_products(group: OpenedGroups, factors: int) -> Array:
    """Π_{j∈J} λ_j for all sets J, by number."""
    table = np.empty((1 << factors, group.mask.shape[2]), np.uint64)
    table[0] = group.one
    table[[1 << j for j in range(factors)]] = group.mask[0]
    table[[number for number in range(1 << factors) if number.bit_count() > 1]] = group.sums[0]
    return table


def _count(_party: Party, state: Arrays) -> Arrays:
    rows = require(state, _HOT).reshape(bits.LANES, len(state[_ABOVE]), -1)
    return {**without(state, _BITS, _HOT), COUNTS: rows.sum(axis=(0, 2), dtype=ring.DTYPE)}


def choose_digit(how: Largest, digit: int) -> Protocol:
    """Move a and g to the digit of T, in one round."""
    values = 1 << how.digit_size(digit)
    equal, above = (tuple(((q,), (values - 1 + q + shift,)) for q in range(values - 1)) for shift in (0, 1))
    opening = MaskedOpening(_BITS, (ProductGroups(1, 2 * values - 1, (equal, above)),))
    return Protocol("choose", (open_masked("choose", opening, _chosen_planes, _choose, "[b⊕λ], [δ⊕λ']"),))


def _chosen_planes(party: Party, state: Arrays) -> tuple[Arrays, Array]:
    """b_q = ¬[n_q < ℓ], the same for all rows, and δ_v."""
    equal = state[_EQUAL]
    below = bits.unpack(state[BELOW], len(equal) - 1).astype(bool) ^ party.first
    chosen = np.broadcast_to(np.where(below, bits.ONES, np.uint64(0))[:, None], (len(below), equal.shape[1]))
    return {**without(state, BELOW, COUNTS, _EQUAL), _ABOVE: state[_ABOVE][0]}, np.concatenate([chosen, equal])


def _choose(_party: Party, state: Arrays, opened: Iterator[OpenedGroups]) -> Arrays:
    (group,) = opened
    last = len(group.values[0]) // 2
    moved = [_sum_of_products(group, slice(last + shift, 2 * last + shift)) ^ group.sums[0, shift] for shift in (0, 1)]
    return {**state, _AT_LEAST: state[_AT_LEAST] ^ moved[0], _ABOVE: state[_ABOVE] ^ moved[1]}


def _sum_of_products(group: OpenedGroups, second: slice) -> Array:
    """⊕_q (m_q m'_q ⊕ m_q [λ'_q] ⊕ m'_q [λ_q]), for the first factors and those in `second`."""
    m, mask = group.values[0], group.mask[0]
    count = second.stop - second.start
    terms = (m[:count] & mask[second]) ^ (m[second] & (mask[:count] ^ (m[:count] & group.one)))
    result: Array = np.bitwise_xor.reduce(terms, axis=0)
    return result


def count_ties() -> Protocol:
    """Count the rows above T, and those at T up to each row, within a shard."""
    return Protocol("ties", (b2a(_BITS, None, _HOT),)).after(_tied_and_above).then(_rank_within_shard)


def _tied_and_above(_party: Party, state: Arrays) -> Arrays:
    tied = state[_AT_LEAST] ^ state[_ABOVE]
    return {**without(state, PLANES), _BITS: np.concatenate([tied, state[_ABOVE]])}


def _rank_within_shard(_party: Party, state: Arrays) -> Arrays:
    """Set the ranks, and as counts those of the shard's ties and of its rows above."""
    words = len(state[_ABOVE])
    tied, above = bits.from_lanes(require(state, _HOT), 2, bits.LANES * words)
    ranks = np.cumsum(tied, dtype=ring.DTYPE)
    counts = np.array([ranks[-1], above.sum(dtype=ring.DTYPE)], ring.DTYPE)
    return {**without(state, _BITS, _HOT), _RANK: ranks, COUNTS: counts}


def counts_before(shards: Iterable[int], state: Arrays) -> dict[int, Arrays]:
    """Cut a shard's counts by the shards whose ranks they add to: rows above T to all, ties to later ones."""
    shard, (tied, above) = int(state[SHARD][0]), np.split(require(state, COUNTS), 2)
    return {later: {BEFORE: above + tied if shard < later else above} for later in shards}


def take_first(how: Largest, parties: int) -> Protocol:
    """Take the rows above T, and of those at T the first ones."""
    comparison = Comparison(_RANK, _TAKEN, how.row_bits + 1, offset=-how.count - 1)
    compare = sign(comparison, parties).after(_add_before)
    opening = MaskedOpening(_BITS, (ProductGroups(1, 2, ((((0,), (1,)),),)),))
    among = open_masked("among", opening, _tied_planes, partial(_take, how), "[e⊕λ], [taken⊕λ']")
    return compare + Protocol("among", (among,))


def _add_before(_party: Party, state: Arrays) -> Arrays:
    ranks = require(state, _RANK) + require(state, BEFORE)
    return {**without(state, BEFORE, COUNTS, SHARD), _RANK: ranks}


def _tied_planes(_party: Party, state: Arrays) -> tuple[Arrays, Array]:
    tied = state[_AT_LEAST] ^ state[_ABOVE]
    return without(state, _AT_LEAST, _RANK, _TAKEN), np.stack([tied, state[_TAKEN]])


def _take(how: Largest, _party: Party, state: Arrays, opened: Iterator[OpenedGroups]) -> Arrays:
    (group,) = opened
    return {**without(state, _ABOVE), how.target: state[_ABOVE] ^ conjunction(group)[0]}


# once for all rows
def threshold(how: Largest, parties: int) -> Protocol:
    """Compare the counts of a digit with ℓ."""
    comparison = Comparison(COUNTS, BELOW, how.row_bits + 1, offset=-how.count)
    return sign(comparison, parties).then(_only_bits)


def _only_bits(_party: Party, state: Arrays) -> Arrays:
    return {BELOW: state[BELOW]}
