"""Loops over planes of bits, compiled by numba where there are many words: each word is read once, tile by tile.

numpy needs a pass over memory for each operation; these loops keep a tile of all planes in the first cache. They gain
too little for the memory of numba: a process uses them if it has imported numba for something else
(`crypto.ring_matmul`, lattices, oblivious transfer), and has done enough with numpy to pay for the compilation.
"""

from typing import Any

import numpy as np

from veilmeans.crypto.ring_matmul import compile_loop, has_compiler, may_compile

COMPILED_FROM = 32
"""Words of a plane from which the compiled loops are faster."""
COMPILED_AFTER = 1 << 25
"""Words in such planes after which a process compiles the loops: about 70 million comparisons of 32 bits."""
_worked = 0
_TILE = 128
_ALL = np.uint64(2**64 - 1)


def compiling_pays(planes: int, words: int) -> bool:
    """Return whether a loop over planes of so many words should be compiled, given all before it in this process."""
    global _worked
    if words < COMPILED_FROM:
        return False
    _worked += planes * words
    return _worked > COMPILED_AFTER and has_compiler() and may_compile()


def transpose(planes: Any) -> None:
    """Transpose the bits of each square of `len(planes)` words, in place: bit j of plane i ↔ bit i of plane j."""
    compile_loop(_transpose, (("uint64", 2, False),))(planes)


def combine_groups(*arguments: Any) -> None:
    """Fold the tables of all carry groups (`transforms.primitives.carry_groups`); see `_combine_groups`."""
    arrays = ("uint64", 3, True)
    kinds = (arrays, arrays, "int64", arrays, "int64", ("uint64", 2, True), arrays, "uint64", "boolean", "boolean")
    compile_loop(_combine_groups, (*kinds, ("uint64", 2, False)))(*arguments)


def _transpose(planes: Any) -> None:
    size, words = planes.shape
    for start in range(0, words, _TILE):
        stop = min(start + _TILE, words)
        distance = size // 2
        while distance:
            low_bits = _ALL // np.uint64(2**distance + 1)
            shift = np.uint64(distance)
            for i in range(size):
                if not i & distance:
                    for w in range(start, stop):
                        moved = ((planes[i, w] >> shift) ^ planes[i + distance, w]) & low_bits
                        planes[i + distance, w] ^= moved
                        planes[i, w] ^= moved << shift
            distance //= 2


def _combine_groups(
    left: Any,
    right: Any,
    right_from: int,
    single: Any,
    single_from: int,
    last: Any,
    sums: Any,
    one: Any,
    inputs: bool,
    lowest: bool,
    out: Any,
) -> None:
    """Write G of each group to `out`, then P unless they are the lowest.

    `left` has the rows α_i or g_i of each group; `right` β_i or p_i, from row `right_from` on; `single` the shares of
    w_i or q_i, from row `single_from` on; `last` those of t_0 or h_0; `sums` what is dealt.
    """
    count, words = last.shape
    skip = 0 if inputs or lowest else 1
    members = right.shape[1] - right_from - skip
    subsets = 1 << members
    table = np.empty(((2 + skip) * subsets, _TILE), np.uint64)
    carry = np.empty(_TILE, np.uint64)
    x = np.empty(_TILE, np.uint64)
    for group in range(count):
        for start in range(0, words, _TILE):
            tile = min(_TILE, words - start)
            # arrange W_J, V at J, and W_{J∪{0}}
            row = 0
            for i in range(tile):
                carry[i] = 0
                table[0, i] = one
                table[subsets, i] = last[group, start + i]
            for number in range(1, subsets):
                for i in range(tile):
                    table[subsets + number, i] = sums[group, row, start + i]
                row += 1
            for number in range(1, subsets):
                if number & (number - 1):
                    for i in range(tile):
                        table[number, i] = sums[group, row, start + i]
                    row += 1
            for member in range(members):
                for i in range(tile):
                    table[1 << member, i] = single[group, single_from + skip + member, start + i]
            if skip:
                for i in range(tile):
                    table[2 * subsets, i] = single[group, single_from, start + i]
                for number in range(1, subsets):
                    for i in range(tile):
                        table[2 * subsets + number, i] = sums[group, row, start + i]
                    row += 1
            # fold from the top
            half = subsets
            for member in range(members - 1, -1, -1):
                half //= 2
                if inputs:
                    for i in range(tile):
                        a, b = left[group, member, start + i], right[group, right_from + member, start + i]
                        carry[i] ^= (a & b & table[0, i]) ^ (b & table[half, i])
                        x[i] = a ^ b
                else:
                    if member < members - 1:
                        for i in range(tile):
                            carry[i] ^= left[group, member + 1, start + i] & table[0, i]
                    for i in range(tile):
                        x[i] = right[group, right_from + skip + member, start + i]
                for column in range(0, (2 + skip) * subsets, subsets):
                    for number in range(column, column + half):
                        for i in range(tile):
                            table[number, i] = table[number + half, i] ^ (x[i] & table[number, i])
            for i in range(tile):
                value = carry[i] ^ table[subsets, i]
                if not inputs:
                    value ^= left[group, 0, start + i] & table[0, i]
                out[group, start + i] = value
            if skip:
                for i in range(tile):
                    p = right[group, right_from, start + i] & table[0, i]
                    out[count + group, start + i] = table[2 * subsets, i] ^ p
            elif not lowest:
                for i in range(tile):
                    out[count + group, start + i] = table[0, i]
