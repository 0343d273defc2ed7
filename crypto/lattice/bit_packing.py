"""Words of few bits, packed one after the other into words of 64 bits, from the lowest bit up."""

import numpy as np

from veilmeans.crypto.lattice.kernel import Word, Words, kernel


def pack(values: Words, width: int) -> Words:
    """Pack values below 2^width, width < 64; the last word is filled up with zeros."""
    size = -(-values.size * width // 64)
    out = np.zeros(size + 1, Word)
    _pack(values.reshape(-1), width, out)
    return out[:size]


def unpack(packed: Words, width: int, count: int) -> Words:
    """Unpack the first `count` values of `width` bits."""
    padded, out = np.append(packed, Word(0)), np.empty(count, Word)
    _unpack(padded, width, out)
    return out


@kernel
def _pack(values: Words, width: int, out: Words) -> None:
    for j in range(values.size):
        word, shift = j * width >> 6, Word(j * width & 63)
        out[word] |= values[j] << shift
        out[word + 1] |= values[j] >> Word(1) >> (Word(63) - shift)


@kernel
def _unpack(packed: Words, width: int, out: Words) -> None:
    mask = (Word(1) << Word(width)) - Word(1)
    for j in range(out.size):
        word, shift = j * width >> 6, Word(j * width & 63)
        out[j] = (packed[word] >> shift | packed[word + 1] << Word(1) << (Word(63) - shift)) & mask
