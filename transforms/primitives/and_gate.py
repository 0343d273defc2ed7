"""AND of words shared by XOR: one left operand with one or several right ones, element by element, in one round.

Correlated randomness: [a], [b_i] uniform and [c_i] = [a∧b_i].
  1. open d = x ⊕ a and e_i = y_i ⊕ b_i                             (all uniform: they reveal nothing)
  2. [x∧y_i] = [c_i] ⊕ d∧[b_i] ⊕ e_i∧[a] ⊕ [i = 0]·d∧e_i

Every round of the comparison, of A2B and of the argmin tree's positions is one of these, with local work around it.
"""

from collections.abc import Callable, Sequence
from functools import partial

from veilmeans.crypto.correlations import And
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Round, Sent

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
    kind = And(party.count, left.shape, left.dtype.type, len(rights))
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
