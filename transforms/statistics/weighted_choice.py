"""A secret choice: one of n rows, each with a probability proportional to its secret weight, by the inverse CDF.

Weights v_i ≥ 0 are integers, and T = Σ v_i < 2^31. With a secret r, uniform in 0 … 2^31 − 1, the choice is the first
row i with S_i = v_0 + … + v_i > r·T / 2^31: exactly, without a division, as S_i·2^31 > r·T.

`draw`, from randomness alone:
  1. r's 31 bits are XORs of the parties' own random bits, uniform if one of them is; B2A, r = Σ_b 2^b·r_b
`limit`, once for all row shards:
  2. t = r·T, and the sum of all weights before each shard, which is local
`choose`, over row shards:
  3. b_i = [S_i·2^31 > t] for all rows, and for the sum before the shard: one batch of comparisons, exact, so that b is
     ascending over all shards; the last row's is 1 by definition, so that some row is chosen even if all weights are 0
  4. B2A, and hot_i = b_i − b_{i−1}: one-hot over all rows of all shards

Several choices, of independent weights, share all rounds: arrays have an axis of c choices.

State of `draw`: out "r" (c). `limit`: in "r" and "sums" (shards × c), out "t" (c) and "before" (shards × c). `choose`:
in "v" (c × n), "before" (c), "t", "shape", and "number", the shard's; out "hot" (n × c).
"""

from functools import partial

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.products.cross_product import filled_rows
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Protocol, Round, Sent, require, without

WEIGHT_BITS = 31
"""The sum of all weights is below 2^WEIGHT_BITS."""
_DRAWN_BITS = 31
_BITS, _HOT, _LIKE, _ABOVE = "draw.bits", "draw.hot", "draw.like", "choose.above"


def draw(choices: int) -> Protocol:
    """Draw a secret uniform number for each choice, in one round."""
    convert = b2a(_BITS, _LIKE, _HOT)
    step = Round("b2a", partial(_send_drawn, choices, convert), convert.receive, convert.sends)
    return Protocol("draw", (step,)).then(_number_from_bits)


def limit() -> Protocol:
    """Multiply each drawn number by the sum of all weights, in one round."""
    return multiply("r", "limit.total", "t").after(_add_up).then(_keep_limit).named("limit")


def choose(last: int, parties: int) -> Protocol:
    """Choose a row for each choice; `last`: the number of the last row shard."""
    comparison = Comparison("choose.x", _ABOVE, compare_bits=WEIGHT_BITS + _DRAWN_BITS + 1)
    convert = Protocol("b2a", (b2a(_ABOVE, "choose.x", "choose.hot"),)).then(partial(_difference, last))
    return (sign(comparison, parties).after(_subtract) + convert).named("choose")


def _send_drawn(choices: int, convert: Round, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    drawn = randomness.uniform("draw", (choices * _DRAWN_BITS,)) & ring.DTYPE(1)
    return convert.send(party, {**state, _BITS: bits.pack(drawn), _LIKE: np.zeros_like(drawn)}, randomness)


def _number_from_bits(_party: Party, state: Arrays) -> Arrays:
    drawn = require(state, _HOT).reshape(-1, _DRAWN_BITS)
    return {"r": ring.column_sums((drawn << np.arange(_DRAWN_BITS, dtype=ring.DTYPE)).T)}


def _add_up(_party: Party, state: Arrays) -> Arrays:
    """The sum of all weights, and of those before each shard."""
    sums = require(state, "sums")
    up_to = np.cumsum(sums, axis=0, dtype=ring.DTYPE)
    return {"r": state["r"], "limit.total": up_to[-1], "before": up_to - sums}


def _keep_limit(_party: Party, state: Arrays) -> Arrays:
    return {"t": state["t"], "before": state["before"]}


def _subtract(_party: Party, state: Arrays) -> Arrays:
    """t − S·2^31 before the shard's first row and after each row: negative where the limit is passed."""
    weights, before = require(state, "v"), require(state, "before")
    up_to = np.cumsum(np.concatenate([before[:, None], weights], axis=1), axis=1, dtype=ring.DTYPE)
    x = require(state, "t")[:, None] - (up_to << ring.DTYPE(_DRAWN_BITS))
    return {**without(state, "v", "before", "t"), "choose.x": x}


def _difference(last: int, party: Party, state: Arrays) -> Arrays:
    """b_i − b_{i−1}, where b of the very last row is 1, and of the padding after it."""
    above = require(state, "choose.hot").copy()
    if int(state["number"][0]) == last:
        above[:, filled_rows(state) :] = int(party.first)
    hot = above[:, 1:] - above[:, :-1]
    return {**without(state, "choose.hot", "choose.x", _ABOVE, "number"), "hot": np.ascontiguousarray(hot.T)}
