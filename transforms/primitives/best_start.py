"""The best of several starts: its centroids and counts, chosen on shares. Nobody learns which it is.

Start i has the inertia Σ|x|² − E_i, E_i = Σ_j n_j·|μ_j|² over its clusters: the least inertia is the largest E.

`choose_best`, once:
  1. |μ_j|² truncated to f fractional bits, 2. times n_j; E_i are sums of these
  3. the position of the least −E_i, as bits (`primitives.argmin`), by all pairs or a tree; equal ones: the first start
  4. B2A: ⟨best_i⟩, one of which is 1
`take_best`, over column shards, and `take_counts`, once, beside it:
  5. Σ_i best_i·μ_i and Σ_i best_i·n_i, one product

State of `choose_best`: in "u" (s·k) and "n" (s·k), all starts one after the other; out "best" (s) and "n". `take_best`:
in "mu" (s·k × c) and "best", out "mu" (k × c). `take_counts`: in "n" (s·k) and "best", out "n" (k).
"""

from functools import partial

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto import fixed_point as fixed
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.kmeans_config import MOST_CLUSTERS_BY_PAIRS
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.argmin import Argmin, argmin
from veilmeans.transforms.primitives.bit_injection import b2a
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.truncate import Truncation, truncate
from veilmeans.transforms.rounds.protocol import Protocol, require

_WEIGHED, _BITS, _HOT, _LEFT, _RIGHT = "start.e", "start.c", "start.hot", "start.x", "start.best"


def choose_best(starts: int, parties: int) -> Protocol:
    """Find the start of the least inertia."""
    method = "pairs" if starts <= MOST_CLUSTERS_BY_PAIRS else "tree"
    least = argmin(Argmin(_WEIGHED, _BITS, method=method), starts, parties)  # type: ignore[arg-type]
    weigh = multiply("u", "n", _WEIGHED).then(partial(_add_up, starts))
    convert = Protocol("b2a", (b2a(_BITS, None, _HOT),)).after(_flatten).then(partial(_keep_best, starts))
    return (truncate(Truncation("u", fixed.FRACTION_BITS)) + weigh + least + convert).named("choose-best")


def take_best(starts: int) -> Protocol:
    """Take the best start's centroids, in one round."""
    return _take("mu", starts).named("take-best")


def take_counts(starts: int) -> Protocol:
    """Take the best start's counts, in one round."""
    return _take("n", starts).named("take-counts")


def _take(name: str, starts: int) -> Protocol:
    product = multiply(_LEFT, _RIGHT, _LEFT).after(partial(_repeat_best, name, starts))
    return product.then(partial(_add_starts, name, starts))


def _add_up(starts: int, _party: Party, state: Arrays) -> Arrays:
    """−E_i of each start, starts × 1."""
    weighed = require(state, _WEIGHED).reshape(starts, -1)
    return {"n": state["n"], _WEIGHED: -ring.column_sums(weighed.T)[:, None]}


def _flatten(_party: Party, state: Arrays) -> Arrays:
    return {"n": state["n"], _BITS: state[_BITS].reshape(-1)}


def _keep_best(starts: int, _party: Party, state: Arrays) -> Arrays:
    hot = bits.from_lanes(require(state, _HOT), starts, 1)
    return {"n": state["n"], "best": np.ascontiguousarray(hot[:, 0])}


def _repeat_best(name: str, starts: int, _party: Party, state: Arrays) -> Arrays:
    """The values of all starts, and beside each the bit of its start."""
    values, best = require(state, name), require(state, "best")
    repeated = np.repeat(best, len(values) // starts).reshape(-1, *(1,) * (values.ndim - 1))
    return {_LEFT: values, _RIGHT: np.ascontiguousarray(np.broadcast_to(repeated, values.shape))}


def _add_starts(name: str, starts: int, _party: Party, state: Arrays) -> Arrays:
    products = require(state, _LEFT)
    return {name: ring.column_sums(products.reshape(starts, -1, *products.shape[1:]))}
