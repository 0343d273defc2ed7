"""Bits of many values: 64 values' bits in a word, and the same bit of all values as a plane.

Packed layout of n bits, W = ⌈n/64⌉ words, padded with zeros: bit j of word w belongs to value w + j·W ("lane" j).
A plane is the packed row of one bit of each value, so whatever is computed on planes is packed already.

Rows that are packed one by one, k × W words, are the packed row of 64 × k × W values: lane by lane, all rows of a lane
beside each other (`to_lanes`). So one comparison of values in that order gives a packed row for each row of values.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto.bit_loops import compiling_pays, transpose

Packed = NDArray[np.uint64]
Bits = NDArray[np.uint8]
"""Zeros and ones, a byte each."""
LANES = 64
ONES = np.uint64(2**64 - 1)
_SIZES = (8, 16, 32, 64)


def word_count(count: int) -> int:
    """The words of a packed row of `count` bits."""
    return -(-count // LANES)


def pack(bits: NDArray[Any]) -> Packed:
    """Pack n zeros and ones."""
    packed: Packed = pack_rows(bits.reshape(1, -1))[0]
    return packed


def unpack(packed: Packed, count: int) -> Bits:
    """Unpack the first `count` bits."""
    bits: Bits = unpack_rows(packed[None, :], count)[0]
    return bits


def first_lanes(count: int, size: int) -> Packed:
    """A packed row of `size` bits of which the first `count` are 1."""
    return pack(np.arange(size) < count)


def pack_rows(bits: NDArray[Any]) -> Packed:
    """Pack each row of zeros and ones by itself."""
    rows, count = bits.shape
    words = word_count(count)
    padded = np.zeros((rows, LANES * words), np.uint8)
    padded[:, :count] = bits
    lanes = padded.reshape(rows, 8, 8, words)
    octets = lanes[:, :, 0].copy()
    for bit in range(1, 8):
        octets |= lanes[:, :, bit] << np.uint8(bit)
    packed: Packed = np.ascontiguousarray(octets.transpose(0, 2, 1)).view("<u8")[:, :, 0].astype(np.uint64, copy=False)
    return packed


def unpack_rows(packed: Packed, count: int) -> Bits:
    """Unpack the first `count` bits of each row."""
    rows, words = packed.shape
    octets = np.ascontiguousarray(packed, "<u8").view(np.uint8).reshape(rows, words, 8).transpose(0, 2, 1)
    lanes = np.empty((rows, 8, 8, words), np.uint8)
    for bit in range(8):
        np.right_shift(octets, np.uint8(bit), out=lanes[:, :, bit])
    lanes &= np.uint8(1)
    return lanes.reshape(rows, -1)[:, :count]


def to_lanes(rows: NDArray[Any]) -> NDArray[Any]:
    """Order the values of k rows so that their packed bits are the k rows' packed bits: 64 × k × W, padded."""
    count, size = rows.shape
    words = word_count(size)
    if size == LANES * words:
        return np.ascontiguousarray(rows.reshape(count, LANES, words).swapaxes(0, 1))
    padded = np.zeros((count, LANES * words), rows.dtype)
    padded[:, :size] = rows
    return np.ascontiguousarray(padded.reshape(count, LANES, words).swapaxes(0, 1))


def from_lanes(values: NDArray[Any], rows: int, size: int) -> NDArray[Any]:
    """Undo `to_lanes`: `rows` rows of `size` values each."""
    return values.reshape(LANES, rows, -1).swapaxes(0, 1).reshape(rows, -1)[:, :size]


def to_planes(values: NDArray[Any], width: int) -> Packed:
    """The low `width` bits of each value as planes, width × W: a transposition of 64 × 64 bits by delta swaps."""
    size = next(each for each in _SIZES if each >= width)
    words = word_count(values.size)
    flat = values.reshape(-1)
    if flat.size != LANES * words:
        flat = np.concatenate([flat, np.zeros(LANES * words - flat.size, flat.dtype)])
    planes = _side_by_side(flat.reshape(LANES // size, size, words), size)
    if compiling_pays(size, words):
        transpose(planes)
        return planes[:width]
    moved = np.empty((size // 2, words), np.uint64)
    distance = size // 2
    while distance:
        low, high = planes.reshape(-1, 2, distance, words).swapaxes(0, 1)
        _swap(low, high, np.uint64(distance), moved.reshape(low.shape))
        distance //= 2
    return planes[:width]


def _side_by_side(parts: NDArray[Any], size: int) -> Packed:
    """Put the low `size` bits of 64 / size values into each word."""
    above = np.uint64(LANES - size)
    planes: Packed = parts[-1].astype(np.uint64) << above
    if len(parts) == 1:
        return planes
    shifted = np.empty_like(planes)
    for i, part in enumerate(parts[:-1]):
        np.left_shift(part, above, out=shifted, dtype=np.uint64)
        shifted >>= np.uint64(LANES - size - i * size)
        planes |= shifted
    return planes


def _swap(low: Packed, high: Packed, distance: np.uint64, moved: Packed) -> None:
    """Exchange the upper half of each 2·distance bits of `low` with the lower half in `high`."""
    np.right_shift(low, distance, out=moved)
    moved ^= high
    moved &= ONES // np.uint64(2 ** int(distance) + 1)
    high ^= moved
    moved <<= distance
    low ^= moved
