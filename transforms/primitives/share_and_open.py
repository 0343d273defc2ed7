"""Rec: all parties open a shared value to all, in one round: x = Σ_i ⟨x⟩_i.

State: in "x", a share; out "x", the value.
"""

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require


def send_share(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del party, randomness
    return Sent(state, {"x": require(state, "x")})


def sum_shares(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del party, randomness
    return {"x": inbox.opened("x", require(state, "x"))}


OPEN = Protocol("reveal", (Round("reveal", send_share, sum_shares, sends="⟨x⟩, to be opened"),))


def deal(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    x = require(state, "x")
    shares = {peer: randomness.uniform(f"share.{peer}", x.shape) for peer in party.others}
    mine = x - ring.total(shares.values())
    return Sent({"x": mine}, to={peer: {"x": share} for peer, share in shares.items()})


def gather(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del randomness
    mine = require(state, "x")
    blocks = [mine if i == party.index else _block(inbox, i, len(mine)) for i in range(party.count)]
    return {"x": np.concatenate(blocks, axis=1)}


def _block(inbox: Inbox, peer: int, rows: int) -> ring.Ring:
    """A peer's share: as many rows as mine, any number of columns."""
    block = inbox.messages[peer].get("x")
    if block is None or block.ndim != 2 or block.dtype != ring.DTYPE or len(block) != rows:
        raise RefusedError(f"{inbox.party.names[peer]} sent no share of {rows:,} rows where one was due")
    return block


SHARE = Protocol("share", (Round("share", deal, gather, sends="⟨x⟩_j, uniform, to each P_j"),))
