"""Shr: each party splits its columns into A-shares and deals them out, all in one round.

  1. P_i draws ⟨x⟩_j uniform for every j ≠ i and sends it to P_j;
  2. P_i keeps ⟨x⟩_i = x − Σ_{j≠i} ⟨x⟩_j.

State: in "x", this party's own columns; out "x", its share of all parties' columns, side by side in party order.
"""

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.randomness import Randomness
from veilmeans.transforms.rounds import Inbox, Protocol, Round, Sent, require


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
