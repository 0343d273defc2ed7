"""F_SCU's division: ⟨μ⟩ = ⟨numerator⟩ / ⟨count⟩ for k counts in 0 … 2^m − 1, an empty cluster keeping what it had.

  1. lt_i = [count < 2^i] for i = 0 … m−1, m·k comparisons in one batch, then B2A
  2. v = Σ_i (lt_{i+1} − lt_i)·2^(m−1−i), with lt_m = 1: the power of two that brings count·v into [2^(m−1), 2^m)
  3. ⟨count·v⟩ and ⟨numerator·v⟩ in one round; z = count·v / 2^m is in [½, 1)
  4. Newton for y = 1/z with F = 30 fractional bits:  y ← y·(2 − z·y), from 2.9142 − 2z; error 2^-28 after three steps
  5. μ = (numerator·v / 2^m)·y, truncated exactly
  6. μ ← μ + lt_0·(before − μ): an empty cluster (count = 0) keeps `before`, and nobody learns that it was empty

State: in `numerator` (k × d, f fractional bits), `count` (k), `before` (k × d); out `target` (k × d).
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.compare import Comparison, sign
from veilmeans.transforms.inject import to_arithmetic
from veilmeans.transforms.multiply import multiply
from veilmeans.transforms.rounds import Protocol, require, without
from veilmeans.transforms.truncate import Truncation, truncate, truncate_exactly

_PRECISION = 30
_NEWTON_STEPS = 3
_START = 2.9142


@dataclass(frozen=True)
class Division:
    """`count_bits` m: counts are below 2^m. `magnitude`: |numerator| ≤ count · 2^magnitude, in its last bit."""

    numerator: str
    count: str
    before: str
    target: str
    count_bits: int
    magnitude: int

    def __post_init__(self) -> None:
        if not 1 <= self.count_bits <= _PRECISION:
            raise ValueError(f"counts of {self.count_bits} bits cannot be divided by: 1 to {_PRECISION} can")
        if self.magnitude > 2 * _PRECISION - 1:
            raise ValueError(f"numerators of {self.magnitude} bits per row are too large to divide")

    @property
    def surplus(self) -> int:
        """Low bits of numerator·v that are cut off before the last product, so that it has room."""
        return max(0, self.count_bits + self.magnitude - _PRECISION)


def divide(division: Division, parties: int) -> Protocol:
    """All rounds of the division."""
    m = division.count_bits
    comparison = Comparison("div.x", "div.lt", compare_bits=m + 2)
    protocol = (
        sign(comparison, parties).after(partial(_against_powers, division))
        + Protocol("b2a", (to_arithmetic("div.lt", "div.x", "div.less"),)).then(partial(_scale, division))
        + multiply("div.n", "div.v", "div.n").then(partial(_normalised, division))
    )
    if division.surplus:
        protocol += truncate(Truncation("div.n", division.surplus))
    for _ in range(_NEWTON_STEPS):
        protocol += (
            multiply("div.z", "div.y", "div.w")
            + truncate(Truncation("div.w", _PRECISION)).then(_two_minus)
            + multiply("div.y", "div.w", "div.y")
            + truncate(Truncation("div.y", _PRECISION))
        )
    protocol += multiply("div.n", "div.y", "div.q").after(_spread)
    protocol += truncate_exactly(Truncation("div.q", _PRECISION + m - division.surplus))
    choose = multiply("div.empty", "div.n", "div.n").after(partial(_from_before, division))
    return (protocol + choose.then(partial(_finish, division))).named("divide")


def _against_powers(division: Division, party: Party, state: Arrays) -> Arrays:
    count = require(state, division.count)
    powers = ring.DTYPE(1) << np.arange(division.count_bits, dtype=ring.DTYPE)[:, None]
    x = np.broadcast_to(count, (division.count_bits, count.size))
    return {**state, "div.x": x - powers if party.first else x.copy()}


def _scale(division: Division, party: Party, state: Arrays) -> Arrays:
    """v, and what is to be multiplied with it: the numerator, and the count as one more column."""
    less = require(state, "div.less")
    m, k = less.shape
    above = np.full((1, k), 1 if party.first else 0, ring.DTYPE)
    highest = np.concatenate([less[1:], above]) - less
    weights = ring.DTYPE(1) << np.arange(m - 1, -1, -1, dtype=ring.DTYPE)[:, None]
    v = ring.column_sums(highest * weights)
    wide = np.concatenate([require(state, division.numerator), require(state, division.count)[:, None]], axis=1)
    rest = without(state, "div.x", "div.lt", "div.less")
    return {**rest, "div.n": wide, "div.v": np.broadcast_to(v[:, None], wide.shape).copy(), "div.empty": less[0]}


def _normalised(division: Division, party: Party, state: Arrays) -> Arrays:
    """Split the products again; z with 30 fractional bits, and Newton's start."""
    wide = require(state, "div.n")
    z = wide[:, -1] << ring.DTYPE(_PRECISION - division.count_bits)
    y = ring.DTYPE(0) - (z << ring.DTYPE(1))
    if party.first:
        y = y + ring.DTYPE(round(_START * 2**_PRECISION))
    return {**without(state, "div.v"), "div.n": np.ascontiguousarray(wide[:, :-1]), "div.z": z, "div.y": y}


def _two_minus(party: Party, state: Arrays) -> Arrays:
    two = ring.DTYPE(2 << _PRECISION) if party.first else ring.DTYPE(0)
    return {**state, "div.w": two - require(state, "div.w")}


def _spread(party: Party, state: Arrays) -> Arrays:
    """One reciprocal for each row of the numerator."""
    del party
    y, n = require(state, "div.y"), require(state, "div.n")
    return {**without(state, "div.z", "div.w"), "div.y": np.broadcast_to(y[:, None], n.shape).copy()}


def _from_before(division: Division, party: Party, state: Arrays) -> Arrays:
    del party
    missing = require(state, division.before) - require(state, "div.q")
    empty = np.broadcast_to(require(state, "div.empty")[:, None], missing.shape).copy()
    return {**without(state, "div.y"), "div.n": missing, "div.empty": empty}


def _finish(division: Division, party: Party, state: Arrays) -> Arrays:
    del party
    result = require(state, "div.q") + require(state, "div.n")
    return {**without(state, "div.q", "div.n", "div.empty"), division.target: result}
