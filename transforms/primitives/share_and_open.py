"""Shr and Rec: each party shares its own columns with all others; all parties open a shared value. One round each.

SHARE   ⟨x⟩_j uniform for j ≠ i, ⟨x⟩_i = x − Σ_{j≠i} ⟨x⟩_j; the shares of all parties' columns stand side by side
        State: in "x" (rows × own columns); out "x" (rows × all columns), a share
OPEN    x = Σ_i ⟨x⟩_i
        State: in "x", a share; out "x", the value
"""

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require


def send_share(_party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    """Send this party's share of "x" to all."""
    return Sent(state, {"x": require(state, "x")})


def sum_shares(_party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    """Add up all parties' shares of "x"."""
    return {"x": inbox.open_sum("x", require(state, "x"))}


OPEN = Protocol("reveal", (Round("reveal", send_share, sum_shares, sends="⟨x⟩, to be opened"),))


def send_shares(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    """Share this party's own "x": send each peer a uniform share and keep the rest."""
    x = require(state, "x")
    shares = {peer: randomness.uniform(f"share.{peer}", x.shape) for peer in party.others}
    mine = x - ring.total(shares.values())
    return Sent({"x": mine}, to={peer: {"x": share} for peer, share in shares.items()})


def receive_shares(party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    """Put the shares of all parties' columns side by side."""
    mine = require(state, "x")
    columns = [mine if i == party.index else _columns_of(inbox, i, len(mine)) for i in range(party.count)]
    return {"x": np.concatenate(columns, axis=1)}


def _columns_of(inbox: Inbox, peer: int, rows: int) -> ring.Ring:
    """Return the share of a peer's columns, or refuse it; it has as many rows as mine, and any number of columns."""
    columns = inbox.messages[peer].get("x")
    if columns is None or columns.ndim != 2 or columns.dtype != ring.DTYPE or len(columns) != rows:
        raise RefusedError(f"{inbox.party.names[peer]} did not send the expected share of {rows:,} rows")
    return columns


SHARE = Protocol("share", (Round("share", send_shares, receive_shares, sends="⟨x⟩_j, uniform, to each P_j"),))
