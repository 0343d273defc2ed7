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


def deal_ots(requests: Sequence[OtRequest]) -> tuple[list[OtSide], list[OtSide]]:
    """Ideal random OTs: party 0's and party 1's sides of the requests."""
    parties: tuple[list[OtSide], list[OtSide]] = ([], [])
    rng = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    for request in requests:
        shape = (request.width, request.count // (64 if request.form == "planes" else 1))
        zero, one = (rng.integers(0, 2**64, shape, np.uint64) for _ in range(2))
        if request.form == "planes":
            c = rng.integers(0, 2**64, shape[1], np.uint64)
            parties[request.chooser].append(OtSide(zero ^ (c & (zero ^ one)), c))
            parties[1 - request.chooser].append(OtSide(zero, zero ^ one))
        else:
            c = rng.integers(0, 2, shape[1], np.uint8)
            parties[request.chooser].append(OtSide(np.where(c == 1, one, zero), c))
            parties[1 - request.chooser].append(OtSide(zero, one))
    return parties


def make_by_ot(kind: Kind) -> list[dict[str, Array]]:
    """Both parties' parts of a kind, over ideal OTs; messages are checked against their shapes."""
    recipe = recipe_for(kind)
    sides, keys = deal_ots(recipe.requests()), [os.urandom(32), os.urandom(32)]
    messages = [recipe.message(party, sides[party], keys[party]) for party in range(2)]
    for party, message in enumerate(messages):
        found = {name: (array.shape, array.dtype.type) for name, array in message.items()}
        assert found == recipe.message_shapes(party)
    return [recipe.parts(party, sides[party], keys[party], messages[1 - party]) for party in range(2)]


def check_kind(kind: Kind, parts: Sequence[Mapping[str, Array]]) -> None:
    """Reconstruct every part; its shape and type are the kind's, and the determined ones are what they must be."""
    values = {}
    for part in (*kind.uniform_parts(), *kind.determined_parts()):
        shares = [parts[holder][part.name] for holder in part.holders]
        assert all((share.shape, share.dtype) == (part.shape, part.dtype) for share in shares), part
        values[part.name] = part.reconstruct(shares)
    for name, expected in kind.determine(values).items():
        assert np.array_equal(values[name], expected), name
