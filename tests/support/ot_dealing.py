"""COTs and sessions of both parties, dealt for tests of oblivious transfer."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from veilmeans.crypto.correlations import Kind
from veilmeans.crypto.ot.blocks import Blocks, choice_bits, make_delta, uniform_blocks
from veilmeans.crypto.ot.kinds.ot_recipes import recipe_for
from veilmeans.crypto.ot.ot_arrays import OtRequest, OtSide
from veilmeans.crypto.ot.ot_session import OtSession
from veilmeans.crypto.ot.silent_ot import LpnParameters
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array

SMALL = LpnParameters(trees=40, secret_bits=7, depth=5)
"""Far too small to be secure, and fast."""
EVEN = np.uint64(2**64 - 2)


def sessions(seed: bytes | None = None, nonce: bytes | None = None, run: str = "s") -> tuple[OtSession, OtSession]:
    """The two parties' sides of the direction from party 0 to party 1."""
    nonce, address = nonce or os.urandom(32), Address(run, 0, "ot", 0)
    return OtSession(seed or os.urandom(32), nonce, 0, 1, address), OtSession(os.urandom(32), nonce, 0, 1, address)


def deal_cots(count: int) -> tuple[Blocks, Blocks, Blocks]:
    """Δ, the sender's blocks and the receiver's."""
    delta, q = make_delta(os.urandom(32)), uniform_blocks(os.urandom(32), count)
    q[:, 0] &= EVEN
    choices = uniform_blocks(os.urandom(32), count)[:, :1] & np.uint64(1)
    return delta, q, q ^ choices * delta


def is_correlated(delta: Blocks, q: Blocks, t: Blocks) -> bool:
    """True if t = q ⊕ c·Δ, where c is the lowest bit of t, and that of q is 0."""
    return bool((t == q ^ choice_bits(t)[:, None] * delta).all()) and not choice_bits(q).any()


def deal_ots(requests: Sequence[OtRequest], parties: int = 2) -> list[list[dict[int, OtSide]]]:
    """Ideal random OTs: each party's sides of the requests, by peer. A chooser has the same choice bits with all."""
    dealt: list[list[dict[int, OtSide]]] = [[{} for _ in requests] for _ in range(parties)]
    rng = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    for number, request in enumerate(requests):
        planes = request.form == "planes"
        shape = (request.width, request.count // (64 if planes else 1))
        c = rng.integers(0, 2**64, shape[1], np.uint64) if planes else rng.integers(0, 2, shape[1], np.uint8)
        for sender in (i for i in range(parties) if i != request.chooser):
            zero, one = (rng.integers(0, 2**64, shape, np.uint64) for _ in range(2))
            chosen = zero ^ (c & (zero ^ one)) if planes else np.where(c == 1, one, zero)
            dealt[request.chooser][number][sender] = OtSide(chosen, c)
            dealt[sender][number][request.chooser] = OtSide(zero, zero ^ one if planes else one)
    return dealt


def make_by_ot(kind: Kind, parties: int = 2) -> list[dict[str, Array]]:
    """All parties' parts of a kind, over ideal OTs; messages are checked against their shapes."""
    recipe = recipe_for(kind)
    sides, keys = deal_ots(recipe.requests(), parties), [os.urandom(32) for _ in range(parties)]
    received: list[list[dict[int, dict[str, Array]]]] = [[] for _ in range(parties)]
    for number in range(recipe.messages):
        sent = [recipe.message(i, sides[i], keys[i], received[i]) for i in range(parties)]
        for recipient in range(parties):
            received[recipient].append({i: sent[i][recipient] for i in range(parties) if i != recipient})
            for sender, message in received[recipient][-1].items():
                found = {name: (array.shape, array.dtype.type) for name, array in message.items()}
                assert found == recipe.message_shapes(number, sender, recipient)
    return [recipe.parts(i, sides[i], keys[i], received[i]) for i in range(parties)]


def check_kind(kind: Kind, parts: Sequence[Mapping[str, Array]]) -> None:
    """Reconstruct every part; its shape and type are the kind's, and the determined ones are what they must be."""
    values = {}
    for part in (*kind.uniform_parts(), *kind.determined_parts()):
        shares = [parts[holder][part.name] for holder in part.holders]
        assert all((share.shape, share.dtype) == (part.shape, part.dtype) for share in shares), part
        values[part.name] = part.reconstruct(shares)
    for name, expected in kind.determine(values).items():
        assert np.array_equal(values[name], expected), name
