"""F_SCU's division: ⟨μ'⟩ = ⟨s⟩ / ⟨n⟩ for k counts in 0 … 2^m − 1; an empty cluster keeps its centroid.

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

from collections.abc import Sequence
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
_NEWTON_START = 2.9142


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
        """Low bits of s·v that are cut off before the last product, so that it has room."""
        return max(0, self.count_bits + self.magnitude - _PRECISION)


def reciprocal(division: Division, parties: int) -> Protocol:
    """Compute the reciprocals of the counts, on k values."""
    m = division.count_bits
    comparison = Comparison("div.x", "div.lt", compare_bits=m + 2)
    protocol = (
        sign(comparison, parties).after(partial(_subtract_powers, m))
        + Protocol("b2a", (b2a("div.lt", "div.x", "div.less"),)).then(_compute_scale)
        + multiply("n", "v", "div.z").then(partial(_start_newton, m))
    )
    for _ in range(_NEWTON_STEPS):
        protocol += (
            multiply("div.z", "y", "div.w")
            + truncate(Truncation("div.w", _PRECISION)).then(_two_minus)
            + multiply("y", "div.w", "y")
            + truncate(Truncation("y", _PRECISION))
        )
    return protocol.then(partial(_drop, ("div.z", "div.w"))).named("reciprocal")


def divide(division: Division) -> Protocol:
    """Divide the sums by the counts, on k × w values."""
    protocol = (
        multiply("s", "div.v", "div.q").after(partial(_broadcast_to, "s", "v")).then(partial(_drop, ("s", "div.v")))
    )
    if division.surplus:
        protocol += truncate(Truncation("div.q", division.surplus))
    protocol += multiply("div.q", "div.y", "div.q").after(partial(_broadcast_to, "div.q", "y"))
    protocol += truncate_exactly(Truncation("div.q", _PRECISION + division.count_bits - division.surplus))
    keep_empty = multiply("div.empty", "div.difference", "div.difference").after(_subtract_quotient).then(_add_quotient)
    return (protocol + keep_empty).named("divide")


def _subtract_powers(m: int, party: Party, state: Arrays) -> Arrays:
    """n − 2^i, i = 0 … m−1, whose signs are lt_i."""
    count = require(state, "n")
    powers = ring.DTYPE(1) << np.arange(m, dtype=ring.DTYPE)[:, None]
    x = np.broadcast_to(count, (m, count.size))
    return {**state, "div.x": x - powers if party.first else x.copy()}


def _compute_scale(party: Party, state: Arrays) -> Arrays:
    """Compute v from the lt_i, and keep lt_0."""
    less = require(state, "div.less")
    m, k = less.shape
    lt_m = np.full((1, k), 1 if party.first else 0, ring.DTYPE)
    highest_bit = np.concatenate([less[1:], lt_m]) - less
    weights = ring.DTYPE(1) << np.arange(m - 1, -1, -1, dtype=ring.DTYPE)[:, None]
    rest = without(state, "div.x", "div.lt", "div.less")
    return {**rest, "v": ring.column_sums(highest_bit * weights), "empty": less[0].copy()}


def _start_newton(m: int, party: Party, state: Arrays) -> Arrays:
    """Compute z with 30 fractional bits, and the first y."""
    z = require(state, "div.z") << ring.DTYPE(_PRECISION - m)
    y = ring.DTYPE(0) - (z << ring.DTYPE(1))
    if party.first:
        y = y + ring.DTYPE(round(_NEWTON_START * 2**_PRECISION))
    return {**state, "div.z": z, "y": y}


def _two_minus(party: Party, state: Arrays) -> Arrays:
    """2 − z·y."""
    two = ring.DTYPE(2 << _PRECISION) if party.first else ring.DTYPE(0)
    return {**state, "div.w": two - require(state, "div.w")}


def _drop(names: Sequence[str], _party: Party, state: Arrays) -> Arrays:
    return without(state, *names)


def _broadcast(column: ring.Ring, table: ring.Ring) -> ring.Ring:
    """Repeat one value per row over all columns of a table."""
    return np.broadcast_to(column[:, None], table.shape).copy()


def _broadcast_to(table: str, name: str, _party: Party, state: Arrays) -> Arrays:
    return {**without(state, name), f"div.{name}": _broadcast(require(state, name), require(state, table))}


def _subtract_quotient(_party: Party, state: Arrays) -> Arrays:
    """μ − q, and lt_0 in the same shape."""
    difference = require(state, "mu") - require(state, "div.q")
    rest = without(state, "empty", "div.y")
    return {**rest, "div.difference": difference, "div.empty": _broadcast(require(state, "empty"), difference)}


def _add_quotient(_party: Party, state: Arrays) -> Arrays:
    """q + lt_0·(μ − q)."""
    new = require(state, "div.q") + require(state, "div.difference")
    return {**without(state, "div.q", "div.difference", "div.empty"), "new": new}
