"""Shr and Rec: each party shares its own columns with all others; all parties open a shared value. One round each.

SHARE   ⟨x⟩_j uniform for j ≠ i, ⟨x⟩_i = x − Σ_{j≠i} ⟨x⟩_j; the shares of all parties' columns stand side by side
        State: in "x" (rows × own columns); out "x" (rows × all columns), a share
OPEN    x = Σ_i ⟨x⟩_i
        State: in "x", a share; out "x", the value

`commit_first` makes two rounds of one that opens something, so that nobody chooses its share when it knows the others':

  1. P_i sends P_j  c_ij = SHA-256(r_ij · m_ij), r_ij uniform (256 bits), m_ij what it will send
  2. P_i sends P_j  m_ij and r_ij, and P_j refuses what it has no commitment to

P_i sends m_ij only when it has all commitments. A broadcast has one commitment for all.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require, without


def send_share(_party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    """Send this party's share of "x" to all."""
    return Sent(state, {"x": require(state, "x")})


def sum_shares(_party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    """Add up all parties' shares of "x"."""
    return {"x": inbox.open_sum("x", require(state, "x"))}


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


def commit_first(opening: Round) -> tuple[Round, Round]:
    """Make two rounds of one that opens something: commitments to all messages, then the messages."""
    commit = Round("commit", partial(_send_commitments, opening), _keep_commitments, "SHA-256(r · m) of what follows")
    send, receive = partial(_send_committed, opening), partial(_receive_committed, opening)
    return replace(commit, broadcast=opening.broadcast), replace(opening, send=send, receive=receive)


_NONCE, _COMMITMENT = "commit.nonce", "commit.to"  # names in states and messages; no opening has such


def _send_commitments(opening: Round, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    sent = opening.send(party, state, randomness)
    nonces = {i: randomness.uniform(f"nonce{i}", (4,)) for i in ((party.index,) if sent.to is None else party.others)}
    state = {**state, **{f"{_NONCE}{i}": nonce for i, nonce in nonces.items()}}
    if sent.to is None:
        return Sent(state, {_COMMITMENT: _commitment(nonces[party.index], sent.message)})
    return Sent(state, to={i: {_COMMITMENT: _commitment(nonces[i], each)} for i, each in sent.to.items()})


def _keep_commitments(_party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    like = np.zeros(hashlib.sha256().digest_size, np.uint8)
    return {**state, **{f"{_COMMITMENT}{i}": inbox.from_peer(i, _COMMITMENT, like) for i in inbox.messages}}


def _send_committed(opening: Round, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    """Send what was committed to, with its nonce. The state stays as it was, for the receive."""
    sent = opening.send(party, _uncommitted(state), randomness)
    kept = {name: array for name, array in state.items() if name.startswith((_NONCE, _COMMITMENT))}
    if sent.to is None:
        return Sent({**sent.state, **kept}, {**sent.message, _NONCE: state[f"{_NONCE}{party.index}"]})
    messages = {i: {**each, _NONCE: state[f"{_NONCE}{i}"]} for i, each in sent.to.items()}
    return Sent({**sent.state, **kept}, to=messages)


def _receive_committed(opening: Round, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    messages: dict[int, Arrays] = {}
    for i, message in inbox.messages.items():
        nonce = inbox.from_peer(i, _NONCE, np.zeros(4, ring.DTYPE))
        messages[i] = without(message, _NONCE)
        if not np.array_equal(_commitment(nonce, messages[i]), state[f"{_COMMITMENT}{i}"]):
            raise RefusedError(f"{party.names[i]} opened another share than the one that it had committed to")
    return opening.receive(party, _uncommitted(state), Inbox(party, messages), randomness)


def _uncommitted(state: Arrays) -> dict[str, Array]:
    return {name: array for name, array in state.items() if not name.startswith((_NONCE, _COMMITMENT))}


def _commitment(nonce: ring.Ring, message: Mapping[str, Array]) -> Array:
    """SHA-256 of the nonce and of the arrays, each with its name, type and shape before it."""
    digest = hashlib.sha256(b"veilmeans commitment " + nonce.astype("<u8").tobytes())
    for name, array in sorted(message.items()):
        head = f"{len(name)} {name} {array.dtype.str} {array.shape} "
        digest.update(head.encode())
        digest.update(array.tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


OPEN = Protocol("reveal", (Round("reveal", send_share, sum_shares, sends="⟨x⟩, to be opened"),))
SHARE = Protocol(
    "share", (Round("share", send_shares, receive_shares, sends="⟨x⟩_j, uniform, to each P_j", broadcast=False),)
)
