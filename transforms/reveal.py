"""Rec: all parties open a shared value to all, in one round: x = Σ_i ⟨x⟩_i.

State: in "x", a share; out "x", the value.
"""

from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.randomness import Randomness
from veilmeans.transforms.rounds import Inbox, Protocol, Round, Sent, require


def show(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del party, randomness
    return Sent(state, {"x": require(state, "x")})


def add_up(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del party, randomness
    return {"x": inbox.opened("x", require(state, "x"))}


REVEAL = Protocol("reveal", (Round("reveal", show, add_up, sends="⟨x⟩, to be opened"),))
