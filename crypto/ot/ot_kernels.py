"""Loops over blocks, compiled by numba at their first use and cached on disk where that can be written."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from veilmeans.crypto.ot.blocks import Blocks
from veilmeans.schemas.arrays import Array

_ONE = np.uint64(1)
_EVEN = np.uint64(2**64 - 2)
_FEW_BITS = 16


def sigma(nodes: Blocks, out: Blocks) -> None:
    """out = σ(x) = (l ⊕ r)‖l for each block x = l‖r."""
    _compiled(_sigma, "w2 W2")(nodes, out)


def grow(nodes: Blocks, shuffled: Blocks, encrypted: Blocks, holes: Array, children: Blocks, sums: Blocks) -> None:
    """Make each tree's next layer from H(x) = encrypted ⊕ shuffled: left H(x), right x ⊕ H(x).

    The children of a hole are 0. sums[tree] = (⊕ left children, ⊕ right children).
    """
    _compiled(_grow, "w3 w2 w2 i1 W3 W3")(nodes, shuffled, encrypted, holes, children, sums)


def add_encoded(secret: Blocks, draws: Array, bits: int, out: Blocks) -> None:
    """out_j = (out_j without its lowest bit) ⊕ ten blocks of `secret`, whose indices are in the three words draws_j."""
    _compiled(_add_encoded, "w2 w2 i0 W2")(secret, draws, bits, out)


def transpose_words(words: Array, out: Array) -> None:
    """Transpose 64 × 64 bits: bit j of out[r, w] is bit r of words[w, j]."""
    _compiled(_transpose_words, "w2 W2")(words, out)


def take_planes(strings: Blocks, word: int, out: Array) -> None:
    """Take bits of one word of strings, blocks × 256 × 2: bit j of out[e, w] is bit e of string 64·w + j.

    A few bits one by one, many by a transposition.
    """
    if len(out) <= _FEW_BITS:
        _compiled(_take_planes, "s3 i0 W2")(strings, word, out)
    else:
        planes = np.empty((64, out.shape[1]), np.uint64)
        words = np.ascontiguousarray(strings[:, :, word]).reshape(-1, 64)
        transpose_words(words[: out.shape[1]], planes)
        out[:] = planes[: len(out)]


def _sigma(nodes, out):  # type: ignore[no-untyped-def]
    for i in range(len(nodes)):
        left = nodes[i, 0]
        out[i, 0] = left ^ nodes[i, 1]
        out[i, 1] = left


def _grow(nodes, shuffled, encrypted, holes, children, sums):  # type: ignore[no-untyped-def]
    width = nodes.shape[1]
    for tree in range(len(nodes)):
        left0 = left1 = right0 = right1 = np.uint64(0)
        for j in range(width):
            i = tree * width + j
            low, high = encrypted[i, 0] ^ shuffled[i, 0], encrypted[i, 1] ^ shuffled[i, 1]
            if j == holes[tree]:
                children[tree, 2 * j, 0] = children[tree, 2 * j, 1] = np.uint64(0)
                children[tree, 2 * j + 1, 0] = children[tree, 2 * j + 1, 1] = np.uint64(0)
                continue
            other_low, other_high = nodes[tree, j, 0] ^ low, nodes[tree, j, 1] ^ high
            children[tree, 2 * j, 0], children[tree, 2 * j, 1] = low, high
            children[tree, 2 * j + 1, 0], children[tree, 2 * j + 1, 1] = other_low, other_high
            left0 ^= low
            left1 ^= high
            right0 ^= other_low
            right1 ^= other_high
        sums[tree, 0, 0], sums[tree, 0, 1] = left0, left1
        sums[tree, 1, 0], sums[tree, 1, 1] = right0, right1


def _add_encoded(secret, draws, bits, out):  # type: ignore[no-untyped-def]
    b = np.uint64(bits)
    bb = np.uint64(2 * bits)
    mask = (_ONE << b) - _ONE
    for j in range(len(out)):
        u, v, w = draws[j, 0], draws[j, 1], draws[j, 2]
        last = ((u >> np.uint64(54)) | ((v >> np.uint64(54)) << np.uint64(10))) & mask
        i0, i1, i2 = u & mask, (u >> b) & mask, (u >> bb) & mask
        i3, i4, i5 = v & mask, (v >> b) & mask, (v >> bb) & mask
        i6, i7, i8 = w & mask, (w >> b) & mask, (w >> bb) & mask
        low = secret[i0, 0] ^ secret[i1, 0] ^ secret[i2, 0] ^ secret[i3, 0] ^ secret[i4, 0]
        low ^= secret[i5, 0] ^ secret[i6, 0] ^ secret[i7, 0] ^ secret[i8, 0] ^ secret[last, 0]
        high = secret[i0, 1] ^ secret[i1, 1] ^ secret[i2, 1] ^ secret[i3, 1] ^ secret[i4, 1]
        high ^= secret[i5, 1] ^ secret[i6, 1] ^ secret[i7, 1] ^ secret[i8, 1] ^ secret[last, 1]
        out[j, 0] = (out[j, 0] & _EVEN) ^ low
        out[j, 1] ^= high


def _transpose_words(words, out):  # type: ignore[no-untyped-def]
    z = np.empty(64, np.uint64)
    ones = np.uint64(2**64 - 1)
    for group in range(len(words)):
        for j in range(64):
            z[j] = words[group, j]
        d = 32
        while d:
            shift = np.uint64(d)
            keep = ones // ((_ONE << shift) + _ONE)
            for start in range(0, 64, 2 * d):
                for i in range(start, start + d):
                    moved = ((z[i] >> shift) ^ z[i + d]) & keep
                    z[i + d] ^= moved
                    z[i] ^= moved << shift
            d //= 2
        for r in range(64):
            out[r, group] = z[r]


def _take_planes(strings, word, out):  # type: ignore[no-untyped-def]
    for group in range(out.shape[1]):
        block, first = group // 4, group % 4 * 64
        for e in range(len(out)):
            bits = np.uint64(0)
            for j in range(64):
                bits |= ((strings[block, first + j, word] >> np.uint64(e)) & _ONE) << np.uint64(j)
            out[e, group] = bits


@cache
def _compiled(loop: Callable[..., None], operands: str) -> Callable[..., Any]:
    """Compile a loop once; without numba's cache where none can be written.

    `operands`: for each one its type and number of dimensions; w: words, s: words with strides, i: integers, W: words
    that are written.
    """
    from numba import njit, types

    def operand(kind: str, dimensions: int) -> Any:
        element = types.int64 if kind == "i" else types.uint64
        order = "A" if kind == "s" else "C"
        return types.Array(element, dimensions, order, readonly=kind.islower()) if dimensions else element

    signature = types.void(*(operand(each[0], int(each[1])) for each in operands.split()))
    try:
        return njit(signature, cache=True, nogil=True)(loop)  # type: ignore[no-any-return]
    except RuntimeError:
        return njit(signature, nogil=True)(loop)  # type: ignore[no-any-return]
