"""Silent OT extension (Ferret style) for parties that follow the protocol: many COTs from few and one short message.

With base COTs under Δ of which k are the secret and trees · depth open the trees (disjoint):
  sender      Q_j = (code · q)_j ⊕ leaf_j
  receiver    T_j = (code · t)_j ⊕ leaf_j        choice bit = (code · c)_j ⊕ [j is a hole]
The choice bits are an LPN sample with regular noise, one hole in each tree, hence pseudorandom to the sender. The code
is 10-local: an output adds ten of the k positions, drawn by AES-CTR under a public key of the round. The sender does
not wait for the receiver: its message needs its own blocks alone.

The code is the receiver's, the same with every sender: if its base COTs have the same choice bits with all of them, so
have these. The senders together then see one LPN sample, not several.

| set | trees | k | depth | cost of the best known attack, bits |
|---|---|---|---|---|
| MAIN | 1,024 | 2^18 | 12 | 136.8 |
| SETUP | 900 | 2^17 | 11 | 132.9 |
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from veilmeans.crypto.ot.blocks import Blocks, uniform_blocks
from veilmeans.crypto.ot.half_trees import grow_trees, puncture_trees
from veilmeans.crypto.ot.ot_kernels import add_encoded
from veilmeans.crypto.ot.ot_session import OtSession

_DRAWS = 1 << 14
"""Outputs of the code whose indices are drawn at once."""


@dataclass(frozen=True)
class LpnParameters:
    """A set of parameters: `trees` trees with 2^depth leaves each, and a secret of 2^secret_bits positions."""

    trees: int
    secret_bits: int
    depth: int

    def __post_init__(self) -> None:
        if self.secret_bits > 18 or self.depth < 2:
            raise ValueError("an index has at most 18 bits, and a tree at least two layers")

    @property
    def secret(self) -> int:
        return 1 << self.secret_bits

    @property
    def base(self) -> int:
        """COTs that a round uses up."""
        return self.secret + self.trees * self.depth

    @property
    def output(self) -> int:
        """COTs that a round makes."""
        return self.trees << self.depth

    def trees_for(self, count: int) -> int:
        """Trees with at least `count` leaves: a round may make fewer COTs, which are a shorter LPN sample."""
        return -(-count // (1 << self.depth))

    def cut_to(self, count: int) -> "LpnParameters":
        """The same set with the trees of `count` COTs: a shorter LPN sample, for which fewer base COTs are needed."""
        return replace(self, trees=self.trees_for(count))

    def message_shape(self, count: int) -> tuple[int, int, int]:
        """The sender's message: a block for each layer of each tree."""
        return self.depth, self.trees_for(count), 2


MAIN = LpnParameters(1024, 18, 12)
SETUP = LpnParameters(900, 17, 11)


def extend_sender(
    parameters: LpnParameters, session: OtSession, label: str, delta: Blocks, base: Blocks, count: int
) -> tuple[Blocks, Blocks]:
    """Compute the sender's `count` COTs of one round and its message; trees beyond `count` leaves are left out."""
    secret, tree_base = _split(parameters, base, count)
    trees = tree_base.shape[1]
    roots = uniform_blocks(session.secret(f"{label} roots"), trees)
    cots = np.empty((trees, 1 << parameters.depth, 2), np.uint64)
    sums = grow_trees(delta, roots, _tree_keys(parameters, session, label), cots)
    flat = cots.reshape(-1, 2)[:count]
    _encode(parameters, session, label, secret, flat)
    return flat, sums ^ tree_base


def extend_receiver(
    parameters: LpnParameters, session: OtSession, label: str, base: Blocks, message: Blocks, count: int
) -> Blocks:
    """Compute the receiver's `count` COTs of one round from the sender's message."""
    secret, tree_base = _split(parameters, base, count)
    trees = tree_base.shape[1]
    cots = np.empty((trees, 1 << parameters.depth, 2), np.uint64)
    holes = puncture_trees(tree_base, message, _tree_keys(parameters, session, label), cots)
    flat = cots.reshape(-1, 2)[:count]
    _encode(parameters, session, label, secret, flat)
    noisy = (np.arange(trees) << parameters.depth) + holes
    flat[noisy[noisy < count], 0] ^= np.uint64(1)
    return flat


def _split(parameters: LpnParameters, base: Blocks, count: int) -> tuple[Blocks, Blocks]:
    """The base COTs of the secret, and those of the trees by layer: none is used for both."""
    if len(base) != parameters.base or not 0 < count <= parameters.output:
        raise ValueError(
            f"a round makes at most {parameters.output:,} COTs from {parameters.base:,}, not {len(base):,}"
        )
    secret, trees = base[: parameters.secret], base[parameters.secret :]
    return secret, trees.reshape(parameters.depth, parameters.trees, 2)[:, : parameters.trees_for(count)]


def _tree_keys(parameters: LpnParameters, session: OtSession, label: str) -> list[bytes]:
    return session.public_keys(f"{label} layers", parameters.depth - 1)


def _encode(parameters: LpnParameters, session: OtSession, label: str, secret: Blocks, out: Blocks) -> None:
    start = 0
    for draws in _draw_indices(session.receiver_public(f"{label} code"), len(out)):
        add_encoded(secret, draws, parameters.secret_bits, out[start : start + len(draws)])
        start += len(draws)


def _draw_indices(key: bytes, count: int) -> Iterator[Blocks]:
    """Three words with ten indices for each of `count` outputs, some thousand at a time, from one AES-CTR stream."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros, draws = bytes(_DRAWS * 24), np.empty((_DRAWS, 3), np.uint64)
    for start in range(0, count, _DRAWS):
        part = draws[: min(_DRAWS, count - start)]
        stream.update_into(memoryview(zeros)[: part.nbytes], part.reshape(-1).view(np.uint8).data)
        yield part
