"""F_SCU's division: ⟨μ'⟩ = ⟨s⟩ / ⟨n⟩ for k counts in 0 … 2^m − 1, an empty cluster keeping what it had.

`reciprocal`, once for all columns, from the counts alone:
  1. lt_i = [n < 2^i] for i = 0 … m−1, m·k comparisons in one batch, then B2A
  2. v = Σ_i (lt_{i+1} − lt_i)·2^(m−1−i), with lt_m = 1: the power of two that brings n·v into [2^(m−1), 2^m)
  3. ⟨n·v⟩; z = n·v / 2^m is in [½, 1)
  4. Newton for y = 1/z with F = 30 fractional bits:  y ← y·(2 − z·y), from 2.9142 − 2z; error 2^-28 after three steps

`divide`, over any of the columns:
  5. ⟨s·v⟩, less its surplus of low bits
  6. q = (s·v / 2^m)·y, truncated exactly
  7. μ' = q + lt_0·(μ − q): an empty cluster (n = 0) keeps μ, and nobody learns that it was empty

State of `reciprocal`: in "n" (k); beside it out "v" (k), "y" (k, 30 fractional bits) and "empty" (k: lt_0).
State of `divide`: in "s" (k × w, f fractional bits), "mu" (k × w), "v", "y", "empty"; out "new" (k × w) and "mu".
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.truncate import Truncation, truncate, truncate_exactly
from veilmeans.transforms.rounds.protocol import Protocol, require, without

_PRECISION = 30
_NEWTON_STEPS = 3
_START = 2.9142


@dataclass(frozen=True)
class Division:
    """`count_bits` m: counts are below 2^m. `magnitude`: |s| ≤ n · 2^magnitude, in its last bit."""

    count_bits: int
    magnitude: int

    def __post_init__(self) -> None:
        if not 1 <= self.count_bits <= _PRECISION:
            raise ValueError(f"counts of {self.count_bits} bits cannot be divided by: 1 to {_PRECISION} can")
        if self.magnitude > 2 * _PRECISION - 1:
            raise ValueError(f"numerators of {self.magnitude} bits per row are too large to divide")

    @property
    def surplus(self) -> int:
        """Low bits of s·v that are cut off before the last product, so that it has room."""
        return max(0, self.count_bits + self.magnitude - _PRECISION)


def reciprocal(division: Division, parties: int) -> Protocol:
    """The rounds on k values."""
    m = division.count_bits
    comparison = Comparison("div.x", "div.lt", compare_bits=m + 2)
    protocol = (
        sign(comparison, parties).after(partial(_against_powers, m))
        + Protocol("b2a", (b2a("div.lt", "div.x", "div.less"),)).then(_scale)
        + multiply("n", "v", "div.z").then(partial(_normalised, m))
    )
    for _ in range(_NEWTON_STEPS):
        protocol += (
            multiply("div.z", "y", "div.w")
            + truncate(Truncation("div.w", _PRECISION)).then(_two_minus)
            + multiply("y", "div.w", "y")
            + truncate(Truncation("y", _PRECISION))
        )
    return protocol.then(_reciprocal_only).named("reciprocal")


def divide(division: Division) -> Protocol:
    """The rounds on k × w values."""
    protocol = multiply("s", "div.v", "div.q").after(_spread_scale).then(_scaled)
    if division.surplus:
        protocol += truncate(Truncation("div.q", division.surplus))
    protocol += multiply("div.q", "div.y", "div.q").after(_spread_inverse)
    protocol += truncate_exactly(Truncation("div.q", _PRECISION + division.count_bits - division.surplus))
    return (protocol + multiply("div.empty", "div.back", "div.back").after(_way_back).then(_finish)).named("divide")


def _against_powers(m: int, party: Party, state: Arrays) -> Arrays:
    count = require(state, "n")
    powers = ring.DTYPE(1) << np.arange(m, dtype=ring.DTYPE)[:, None]
    x = np.broadcast_to(count, (m, count.size))
    return {**state, "div.x": x - powers if party.first else x.copy()}


def _scale(party: Party, state: Arrays) -> Arrays:
    """v, and lt_0."""
    less = require(state, "div.less")
    m, k = less.shape
    above = np.full((1, k), 1 if party.first else 0, ring.DTYPE)
    highest = np.concatenate([less[1:], above]) - less
    weights = ring.DTYPE(1) << np.arange(m - 1, -1, -1, dtype=ring.DTYPE)[:, None]
    rest = without(state, "div.x", "div.lt", "div.less")
    return {**rest, "v": ring.column_sums(highest * weights), "empty": less[0].copy()}


def _normalised(m: int, party: Party, state: Arrays) -> Arrays:
    """z with 30 fractional bits, and Newton's start."""
    z = require(state, "div.z") << ring.DTYPE(_PRECISION - m)
    y = ring.DTYPE(0) - (z << ring.DTYPE(1))
    if party.first:
        y = y + ring.DTYPE(round(_START * 2**_PRECISION))
    return {**state, "div.z": z, "y": y}


def _two_minus(party: Party, state: Arrays) -> Arrays:
    two = ring.DTYPE(2 << _PRECISION) if party.first else ring.DTYPE(0)
    return {**state, "div.w": two - require(state, "div.w")}


def _reciprocal_only(party: Party, state: Arrays) -> Arrays:
    del party
    return without(state, "div.z", "div.w")


def _across(row: ring.Ring, table: ring.Ring) -> ring.Ring:
    """One value for each row of a table."""
    return np.broadcast_to(row[:, None], table.shape).copy()


def _spread_scale(party: Party, state: Arrays) -> Arrays:
    del party
    return {**without(state, "v"), "div.v": _across(require(state, "v"), require(state, "s"))}


def _scaled(party: Party, state: Arrays) -> Arrays:
    del party
    return without(state, "s", "div.v")


def _spread_inverse(party: Party, state: Arrays) -> Arrays:
    del party
    return {**without(state, "y"), "div.y": _across(require(state, "y"), require(state, "div.q"))}


def _way_back(party: Party, state: Arrays) -> Arrays:
    """μ − q, and lt_0 for all of it."""
    del party
    back = require(state, "mu") - require(state, "div.q")
    rest = without(state, "empty", "div.y")
    return {**rest, "div.back": back, "div.empty": _across(require(state, "empty"), back)}


def _finish(party: Party, state: Arrays) -> Arrays:
    del party
    new = require(state, "div.q") + require(state, "div.back")
    return {**without(state, "div.q", "div.back", "div.empty"), "new": new}
