"""F_SCU's division: ⟨μ'⟩ = ⟨s⟩ / ⟨n⟩ for k counts in 0 … 2^m − 1; an empty cluster keeps its centroid.

`scale`, once for all columns, from the counts alone. The intervals [t_j, t_{j+1}) divide each octave [2^i, 2^(i+1))
into B equal ones, or into single counts where it has no more than B; interval j has w_j = 2^(m−1−i), which brings
z = n·w / 2^m into [½, 1), and y_j ≈ 1/z in its middle, with Q fractional bits:
  1. lt_j = [n < t_j], all k·J comparisons in one batch
  2. ⟨lt_j⟩ and ⟨lt_j·n⟩ by bit injection, n masked once for all j. Linear in these, and so local:
       w, y_0 and n·w·y_0, of the interval that has n;  ε = n·w·y_0 / 2^(m+Q) − 1, exactly; |ε| ≤ 1.5 / (2B + 1)
`refine`, beside `numerator`:
  3. ε² and y_0·(1 − ε) in one round, 4. both truncated to F = 30 fractional bits
  5. y = y_0·(1 − ε)·(1 + ε²) = (1 − ε⁴) / z, 6. truncated to F bits
`numerator`, over any of the columns:
  3. ⟨s·w⟩ and ⟨empty·μ⟩ in one round, empty = lt_0 = [n < 1], 4. s·w less its surplus of low bits
`quotient`, over the same columns:
  7. (s·w / 2^m)·y, 8. truncated;  μ' = that + empty·μ

Of an empty cluster s = w = 0, and truncation leaves 0 as it is: it keeps μ, exactly, and nobody learns that it was
empty. Truncations round at random (`primitives.truncate`): μ' is off by one in its last place, and a little by y.

State of `scale`: in "n" (k); beside it out "w", "y", "e" (ε) and "empty" (k). `refine`: in "y" and "e", out "y".
State of `numerator`: in "s" (k × c), "mu" (k × c), "w", "empty"; out "s" and "kept" (k × c). `quotient`: in these and
"y", out "mu".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.truncate import Truncation, truncate
from veilmeans.transforms.rounds.protocol import Protocol, merge_rounds, require, without

_PRECISION = 30
_MOST_INTERVAL_BITS = 7
_SPARE_BITS = 4


@dataclass(frozen=True)
class Division:
    """Bounds of a division: counts are below 2^m, m = `count_bits`, and |s| ≤ n · 2^magnitude, in its last bit."""

    count_bits: int
    magnitude: int

    def __post_init__(self) -> None:
        if not 1 <= self.count_bits <= _PRECISION:
            raise ValueError(f"counts of {self.count_bits} bits are not possible: 1 to {_PRECISION} bits are")
        if self.magnitude > 2 * _PRECISION - 1:
            raise ValueError(f"numerators of {self.magnitude} bits per row are too large to divide")

    @property
    def surplus(self) -> int:
        """Low bits of s·w that are cut off before the last product, so that it has room."""
        return max(0, self.count_bits + self.magnitude - _PRECISION)

    @property
    def interval_bits(self) -> int:
        """log2 B: ε⁴·2^magnitude is about a quarter of the last place, but for very large values."""
        return min(_MOST_INTERVAL_BITS, max(1, -(-(self.magnitude + 2) // 4) - 1))

    @property
    def start_bits(self) -> int:
        """Q, the fractional bits of y_0: as many as leave ε² below 2^62."""
        return self.interval_bits + 1 + min(_SPARE_BITS, _PRECISION - self.count_bits)

    @property
    def error_bits(self) -> int:
        """Fractional bits of ε."""
        return self.count_bits + self.start_bits

    @property
    def thresholds(self) -> list[int]:
        """All t_j, ascending; the first is 1."""
        octaves = range(self.count_bits)
        steps = [1 << max(0, i - self.interval_bits) for i in octaves]
        return [t for i, step in zip(octaves, steps, strict=True) for t in range(1 << i, 1 << (i + 1), step)]

    def intervals(self) -> tuple[list[int], list[int]]:
        """Compute w_j and y_j of all intervals."""
        ends = [*self.thresholds[1:], 1 << self.count_bits]
        scales = [1 << (self.count_bits - t.bit_length()) for t in self.thresholds]
        doubled = [(first + end - 1) * w for first, end, w in zip(self.thresholds, ends, scales, strict=True)]
        return scales, [((2 << self.error_bits) + each // 2) // each for each in doubled]


def scale(division: Division, parties: int) -> Protocol:
    """Bring the k counts to a common scale, with a first reciprocal and its error."""
    comparison = Comparison("div.x", "div.lt", compare_bits=division.count_bits + 2)
    injection = Protocol("inject", (inject("div.lt", "n", "div.ltn", like="div.x", bit_target="div.less"),))
    compare = sign(comparison, parties).after(partial(_subtract_thresholds, division))
    return (compare + injection.then(partial(_look_up, division))).named("scale")


def refine(division: Division) -> Protocol:
    """Refine the first reciprocals, on k values."""
    m, q = division.count_bits, division.start_bits
    shifts = {"div.square": 2 * division.error_bits - _PRECISION, "y": m + 2 * q - _PRECISION}
    products = multiply("div.left", "div.right", "div.products").after(partial(_first_factors, division))
    protocol = products.then(partial(_split_products, shifts))
    cuts = [Truncation(name, shift).round for name, shift in shifts.items() if shift > 0]
    if cuts:
        protocol += Protocol("truncate", (merge_rounds("truncate", *cuts),))
    last = multiply("y", "div.square", "y").after(_one_plus_square).then(partial(_drop, ("div.square",)))
    return (protocol + last + truncate(Truncation("y", _PRECISION))).named("refine")


def numerator(division: Division) -> Protocol:
    """Scale the sums, and select the centroids of empty clusters, on k × c values."""
    protocol = multiply("div.left", "div.right", "div.products").after(_sums_and_centroids).then(_split_sums)
    if division.surplus:
        protocol += truncate(Truncation("s", division.surplus))
    return protocol.named("numerator")


def quotient(division: Division) -> Protocol:
    """Multiply the scaled sums by the reciprocals, on k × c values."""
    product = multiply("s", "div.y", "s").after(_broadcast_reciprocal)
    cut = truncate(Truncation("s", _PRECISION + division.count_bits - division.surplus))
    return (product + cut).then(_add_kept).named("quotient")


def _subtract_thresholds(division: Division, party: Party, state: Arrays) -> Arrays:
    """n − t_j, whose signs are lt_j."""
    count = require(state, "n")
    thresholds = np.array(division.thresholds, ring.DTYPE)[:, None]
    x = np.broadcast_to(count, (len(thresholds), count.size))
    return {**state, "div.x": x - thresholds if party.first else x.copy()}


def _look_up(division: Division, party: Party, state: Arrays) -> Arrays:
    """Compute w, y_0 and ε from the lt_j and lt_j·n; with lt_J = 1, [t_j ≤ n < t_{j+1}] = lt_{j+1} − lt_j."""
    less, less_times_n, n = (require(state, name) for name in ("div.less", "div.ltn", "n"))
    one = np.full((1, n.size), 1 if party.first else 0, ring.DTYPE)
    within = np.diff(np.concatenate([less, one]), axis=0)
    n_within = np.diff(np.concatenate([less_times_n, n[None, :]]), axis=0)
    w, y = (np.array(values, ring.DTYPE)[:, None] for values in division.intervals())
    whole = (one[0] - less[0]) << ring.DTYPE(division.error_bits)
    found = {
        "w": ring.column_sums(within * w),
        "y": ring.column_sums(within * y),
        "e": ring.column_sums(n_within * (w * y)) - whole,
        "empty": less[0].copy(),
    }
    return {**without(state, "div.x", "div.lt", "div.less", "div.ltn"), **found}


def _first_factors(division: Division, party: Party, state: Arrays) -> Arrays:
    """ε and y_0, to be multiplied by ε and 1 − ε."""
    e, y = require(state, "e"), require(state, "y")
    one = ring.DTYPE(1 << division.error_bits) if party.first else ring.DTYPE(0)
    return {**without(state, "e"), "div.left": np.stack([e, y]), "div.right": np.stack([e, one - e])}


def _split_products(shifts: dict[str, int], _party: Party, state: Arrays) -> Arrays:
    """Name ε² and y_0·(1 − ε); those with fewer fractional bits than F get them here."""
    parts = dict(zip(shifts, require(state, "div.products"), strict=True))
    up = {name: part << ring.DTYPE(max(0, -shifts[name])) for name, part in parts.items()}
    return {**without(state, "div.left", "div.right", "div.products"), **up}


def _one_plus_square(party: Party, state: Arrays) -> Arrays:
    one = ring.DTYPE(1 << _PRECISION) if party.first else ring.DTYPE(0)
    return {**state, "div.square": require(state, "div.square") + one}


def _sums_and_centroids(_party: Party, state: Arrays) -> Arrays:
    """s and μ, to be multiplied by w and empty in their shape."""
    s, mu = require(state, "s"), require(state, "mu")
    right = np.stack([_broadcast(require(state, name), s) for name in ("w", "empty")])
    return {**without(state, "s", "mu", "w", "empty"), "div.left": np.stack([s, mu]), "div.right": right}


def _split_sums(_party: Party, state: Arrays) -> Arrays:
    s, kept = require(state, "div.products")
    return {**without(state, "div.left", "div.right", "div.products"), "s": s, "kept": kept}


def _broadcast_reciprocal(_party: Party, state: Arrays) -> Arrays:
    return {**without(state, "y"), "div.y": _broadcast(require(state, "y"), require(state, "s"))}


def _add_kept(_party: Party, state: Arrays) -> Arrays:
    """The quotient, or μ of an empty cluster, whose quotient is 0."""
    return {**without(state, "s", "kept", "div.y"), "mu": require(state, "s") + require(state, "kept")}


def _drop(names: Sequence[str], _party: Party, state: Arrays) -> Arrays:
    return without(state, *names)


def _broadcast(column: ring.Ring, table: ring.Ring) -> ring.Ring:
    """Repeat one value per row over all columns of a table."""
    return np.broadcast_to(column[:, None], table.shape).copy()
