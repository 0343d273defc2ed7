"""Bits in words, as a comparison needs them: index reversal, halving, and single bits packed eight to a byte.

A level of the comparison combines adjacent bits of a word. After the bits of each word have been permuted by reversing
their index, adjacent bits lie in opposite halves of the word, at every level: a level is a view with narrower words.
Below a byte, the first half of the values is stored beside the second half, so that words can be halved further.

Packed layout of n bits (n a multiple of 8): bit b of byte j belongs to value j + b·n/8.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger[Any]]
Packed = NDArray[np.uint8]
WORD_TYPES: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
"""Bits of a word -> its type."""


def padded_count(count: int) -> int:
    """Round up to a multiple of 8."""
    return -(-count // 8) * 8


def pack(bits: NDArray[Any]) -> Packed:
    """Pack n zeros and ones into n/8 bytes; n is padded with zeros to a multiple of 8."""
    packed: Packed = pack_rows(bits.reshape(1, -1))[0]
    return packed


def unpack(packed: Packed, count: int) -> Packed:
    """Unpack the first `count` bits, one byte each."""
    bits: Packed = unpack_rows(packed[None, :], count)[0]
    return bits


def pack_rows(bits: NDArray[Any]) -> Packed:
    """Pack each row of zeros and ones by itself."""
    rows, count = bits.shape
    padded = np.zeros((rows, padded_count(count)), np.uint8)
    padded[:, :count] = bits
    eighths = padded.reshape(rows, 8, -1)
    packed = eighths[:, 0].copy()
    for b in range(1, 8):
        packed |= eighths[:, b] << np.uint8(b)
    return packed


def unpack_rows(packed: Packed, count: int) -> Packed:
    """Unpack the first `count` bits of each row."""
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    return ((packed[:, None, :] >> shifts) & np.uint8(1)).reshape(len(packed), -1)[:, :count]


def reverse_index(words: Words) -> Words:
    """Permute the bits of each word by reversing the binary digits of their index (delta swaps)."""
    width = words.dtype.itemsize * 8
    digits = width.bit_length() - 1
    result = words
    for low in range(digits // 2):
        result = _swap_index_digits(result, low, digits - 1 - low)
    return result


def _swap_index_digits(words: Words, low: int, high: int) -> Words:
    """Exchange the bits whose index has digit `low` set and `high` clear with those where it is the other way round."""
    width = words.dtype.itemsize * 8
    word_type = words.dtype.type
    distance = word_type((1 << high) - (1 << low))
    mask = word_type(sum(1 << i for i in range(width) if i >> low & 1 and not i >> high & 1))
    exchanged = (words ^ (words >> distance)) & mask
    result: Words = words ^ exchanged ^ (exchanged << distance)
    return result


def halves(words: Words, width: int) -> tuple[Words, Words]:
    """Split each value's `width` bits into a high and a low half, in words half as wide; denser below a byte."""
    if width > 8:
        narrow = words.view(WORD_TYPES[width // 2]).reshape(-1, 2)
        return np.ascontiguousarray(narrow[:, 1]), np.ascontiguousarray(narrow[:, 0])
    shift = np.uint8(width // 2)
    mask = np.uint8({8: 0x0F, 4: 0x33, 2: 0x55}[width])
    first, second = np.split(words, 2)
    high = ((first >> shift) & mask) | (second & ~mask)
    low = (first & mask) | ((second & mask) << shift)
    return high, low
