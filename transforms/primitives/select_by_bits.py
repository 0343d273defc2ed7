"""MUX of k values: ⟨Σ_j c_j·x_j⟩ for one-hot bits c, in one round.

  Σ_j c_j·x_j = x_{k−1} + Σ_{j<k−1} c_j·(x_j − x_{k−1})                        (`primitives.bit_injection`)

State: in `bits`, k packed rows (crypto.bits) shared by XOR, and `values`, k × n, shared by sum; out `target`, n values.
With k = 1 nothing is sent. `values` is dropped, other arrays stay.
"""

from functools import partial

import numpy as np

from veilmeans.crypto import bits as bit_rows
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import inject
from veilmeans.transforms.rounds.protocol import Protocol, local_round, require, without

_BITS, _VALUES, _CHOSEN = "select.b", "select.x", "select.bx"


def select_by_bits(bits: str, values: str, target: str, k: int) -> Protocol:
    """Select one of k values by one-hot bits."""
    if k == 1:
        return Protocol("select", (local_round("select", partial(_only_value, values, target)),))
    chosen = Protocol("select", (inject(_BITS, _VALUES, _CHOSEN),))
    return chosen.after(partial(_differences, bits, values)).then(partial(_add_last, values, target))


def _only_value(values: str, target: str, _party: Party, state: Arrays) -> Arrays:
    return {**without(state, values), target: require(state, values)[0]}


def _differences(bits: str, values: str, _party: Party, state: Arrays) -> Arrays:
    """x_j − x_{k−1}, in the order of the packed bits."""
    x = require(state, values)
    return {**state, _BITS: state[bits][:-1].reshape(-1), _VALUES: bit_rows.to_lanes(x[:-1] - x[-1])}


def _add_last(values: str, target: str, _party: Party, state: Arrays) -> Arrays:
    x = require(state, values)
    chosen = bit_rows.from_lanes(require(state, _CHOSEN), len(x) - 1, x.shape[1])
    rest = without(state, values, _BITS, _VALUES, _CHOSEN)
    return {**rest, target: x[-1] + ring.column_sums(np.ascontiguousarray(chosen))}
