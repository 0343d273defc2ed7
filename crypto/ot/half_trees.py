"""Half trees: many punctured GGM trees whose layers each add up to Δ, from one short message.

Sender. A tree begins with the two nodes k and k ⊕ Δ (k its own secret); a node x has the children H(x) and x ⊕ H(x), so
each layer adds up to Δ. For layer i it sends q_i ⊕ (⊕ left nodes), under a COT (q_i; t_i, c_i).
Receiver. The COTs' choice bits are its path: the hole goes left in layer i where c_i = 1. t_i opens the sum of the left
nodes where c_i = 0 and, Δ being the sum of both, that of the right ones where c_i = 1: never the side of the hole. So
it knows all nodes but the hole, and the sum of its leaves is hole ⊕ Δ: a COT in each leaf, with choice bit 1 in one.

  H(x) = AES_K(σ(x)) ⊕ σ(x)     σ(l‖r) = (l ⊕ r)‖l      one K per layer, public

Without σ the right child is AES_K(x): the receiver decrypts it, has the hole's parent, and climbs to Δ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto.ot.blocks import Blocks, choice_bits, encrypt, encryption_buffer
from veilmeans.crypto.ot.ot_kernels import grow, sigma

_TREES_AT_ONCE = 32
"""Trees that grow together: their leaves stay in a core's cache."""
Holes = NDArray[np.int64]


def grow_trees(delta: Blocks, roots: Blocks, keys: Sequence[bytes], leaves: Blocks) -> Blocks:
    """Fill trees × 2^depth leaves for the sender; return the sums of left nodes, layers × trees, depth = layers."""
    sums = np.empty((len(keys) + 1, len(roots), 2), np.uint64)
    sums[0] = roots
    workspace = _Workspace.for_leaves(leaves)
    for part in _parts(len(roots)):
        nodes = np.stack([roots[part], roots[part] ^ delta], 1)
        no_hole = np.full(len(nodes), -1, np.int64)
        for layer, key in enumerate(keys, 1):
            nodes, sides = workspace.next_layer(nodes, no_hole, key, leaves[part])
            sums[layer, part] = sides[:, 0]
    return sums


def puncture_trees(t: Blocks, message: Blocks, keys: Sequence[bytes], leaves: Blocks) -> Holes:
    """Fill trees × 2^depth leaves for the receiver from the COTs t, layers × trees; return each tree's hole."""
    known, side = message ^ t, choice_bits(t).astype(np.int64)
    holes = np.empty(t.shape[1], np.int64)
    workspace = _Workspace.for_leaves(leaves)
    for part in _parts(t.shape[1]):
        trees = np.arange(part.stop - part.start)
        nodes = np.zeros((len(trees), 2, 2), np.uint64)
        nodes[trees, side[0, part]] = known[0, part]
        hole = 1 - side[0, part]
        for layer, key in enumerate(keys, 1):
            nodes, sides = workspace.next_layer(nodes, hole, key, leaves[part])
            sibling = known[layer, part] ^ sides[trees, side[layer, part]]
            nodes[trees, 2 * hole + side[layer, part]] = sibling
            hole = 2 * hole + 1 - side[layer, part]
        nodes[trees, hole] = sides[:, 0] ^ sides[:, 1] ^ sibling
        holes[part] = hole
    return holes


def tree_hash(key: bytes, nodes: Blocks) -> Blocks:
    """H(x) of each block."""
    shuffled, encrypted = np.empty_like(nodes), encryption_buffer(len(nodes))
    _shuffle_and_encrypt(key, nodes, shuffled, encrypted)
    return shuffled ^ encrypted[:-1]


def _shuffle_and_encrypt(key: bytes, nodes: Blocks, shuffled: Blocks, encrypted: Blocks) -> None:
    sigma(nodes, shuffled)
    encrypt(key, shuffled, encrypted)


@dataclass
class _Workspace:
    """Buffers for the layers of some trees: fresh ones for each layer would cost more than the hashes."""

    shuffled: Blocks
    encrypted: Blocks
    layers: tuple[Blocks, Blocks]

    @classmethod
    def for_leaves(cls, leaves: Blocks) -> "_Workspace":
        most = min(len(leaves), _TREES_AT_ONCE) * leaves.shape[1] // 2
        blocks = [np.empty((most, 2), np.uint64) for _ in range(3)]
        return cls(blocks[0], encryption_buffer(most), (blocks[1], blocks[2]))

    def next_layer(self, nodes: Blocks, holes: Holes, key: bytes, leaves: Blocks) -> tuple[Blocks, Blocks]:
        """Make the next layer, in `leaves` if it is the last one, and its sums on both sides."""
        trees, width, _ = nodes.shape
        count = trees * width
        shuffled, encrypted = self.shuffled[:count], self.encrypted[: count + 1]
        _shuffle_and_encrypt(key, nodes.reshape(-1, 2), shuffled, encrypted)
        free = self.layers[width.bit_length() % 2]
        children = leaves if 2 * width == leaves.shape[1] else free[: 2 * count].reshape(trees, 2 * width, 2)
        sums = np.empty((trees, 2, 2), np.uint64)
        grow(nodes, shuffled, encrypted, holes, children, sums)
        return children, sums


def _parts(trees: int) -> Iterator[slice]:
    return (slice(start, min(start + _TREES_AT_ONCE, trees)) for start in range(0, trees, _TREES_AT_ONCE))
