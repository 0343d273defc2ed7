"""Oblivious key-value stores: a vector P with Decode(P, id) = value for chosen ids, uniform for whoever knows no value.

  Decode(P, id) = P[p_1] ⊕ P[p_2] ⊕ P[p_3] ⊕ (⊕ over the ones of d: dense entries)       all coefficients 0 or 1

p_i is a position in the i-th of three segments, d are 64 bits; both are words of the id's hash (as in Raghuraman,
Rindal 2022). Decode is linear over GF(2), so it works on entries of any width.

Encode solves a linear system. It peels: a position that only one row has decides that row last. With 1.27 positions for
each row hardly a row is left over; those are solved by elimination, together with the dense entries. All entries that
the rows do not determine are uniform.

Rows fail to be independent if some of them add up to 0 in the segments and in 64 random bits: 2^-64 times the expected
number of such sets of rows. In n rows and segments of m that number is Σ_k C(n, k)·p_k³, where p_k is the chance that k
rows fall into a segment with an even number at each position. Two rows with the same three positions are the likeliest,
about 7/n. A test bounds the sum: below 2^-66 for every size that it tries. So no seed is ever drawn again, which would
say something about the ids.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from veilmeans.crypto.lattice.kernel import kernel
from veilmeans.crypto.ot.blocks import Blocks
from veilmeans.crypto.ot.psi.id_hash import IdHashes
from veilmeans.schemas.arrays import Array

DENSE = 64
_SPARE = 32
"""Positions of each segment beyond the expansion, for stores of few rows."""


@dataclass(frozen=True)
class OkvsShape:
    """The public shape of a key-value store for at most `rows` ids."""

    rows: int

    @property
    def segment(self) -> int:
        """The positions of one of the three segments."""
        return -(-self.rows * 127 // 300) + _SPARE

    @property
    def size(self) -> int:
        """The entries of the vector: the segments, and 64 dense ones after them."""
        return 3 * self.segment + DENSE


def encode(shape: OkvsShape, hashes: IdHashes, values: Array, free: Array) -> Array:
    """Solve for P with Decode(P, id) = value. `free`: uniform words, as many as P has, for undetermined entries."""
    if len(hashes) > shape.rows or len(free) != shape.size:
        raise ValueError(f"{len(hashes):,} ids do not fit a key-value store of {shape.rows:,}")
    positions = _positions(hashes, shape.segment)
    rows, columns, core = _peel(positions, 3 * shape.segment)
    solution = free.copy()
    if len(core):
        _solve_core(positions[core], hashes[core, 2], values[core], solution)
    _substitute(positions, hashes, values, rows, columns, _dense_table(solution[:, None]), solution)
    return solution


def decode(shape: OkvsShape, store: Array, hashes: IdHashes) -> Array:
    """Decode(P, id) for words."""
    decoded: Array = decode_blocks(shape, store[:, None], hashes)[:, 0]
    return decoded


def decode_blocks(shape: OkvsShape, store: Blocks, hashes: IdHashes) -> Blocks:
    """Decode(P, id) for entries of several words."""
    out = np.empty((len(hashes), store.shape[1]), np.uint64)
    _decode(_positions(hashes, shape.segment), hashes, store, _dense_table(store), out)
    return out


def _positions(hashes: IdHashes, segment: int) -> Array:
    """Three positions of each id, n × 3: 32 bits each, scaled to a segment."""
    low = np.uint64(0xFFFFFFFF)
    parts = np.stack([hashes[:, 0] & low, hashes[:, 0] >> np.uint64(32), hashes[:, 1] & low], axis=1)
    scaled = (parts * np.uint64(segment)) >> np.uint64(32)
    return (scaled + np.arange(3, dtype=np.uint64) * np.uint64(segment)).astype(np.int64)


def _dense_table(store: Blocks) -> Array:
    """The sums of dense entries for each value of each byte of d: 8 × 256 × words."""
    dense = store[-DENSE:].reshape(8, 8, -1)
    table = np.zeros((8, 256, store.shape[1]), np.uint64)
    for bit in range(8):
        table[:, 1 << bit : 2 << bit] = table[:, : 1 << bit] ^ dense[:, bit : bit + 1]
    return table


@kernel
def _decode(positions: Any, hashes: Any, store: Any, table: Any, out: Any) -> None:
    for i in range(len(positions)):
        a, b, c = positions[i, 0], positions[i, 1], positions[i, 2]
        for word in range(store.shape[1]):
            total = store[a, word] ^ store[b, word] ^ store[c, word]
            dense = hashes[i, 2]
            for byte in range(8):
                total ^= table[byte, dense & np.uint64(255), word]
                dense >>= np.uint64(8)
            out[i, word] = total


def _peel(positions: Array, size: int) -> tuple[Array, Array, Array]:
    """The peeled rows in order, the position that each one decides, and the rows that are left over."""
    rows, columns = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
    left = np.ones(len(positions), np.bool_)
    count = _peel_loop(positions, np.zeros(size, np.int64), np.zeros(size, np.int64), rows, columns, left)
    return rows[:count], columns[:count], np.flatnonzero(left)


@kernel
def _peel_loop(positions: Any, degree: Any, sums: Any, rows: Any, columns: Any, left: Any) -> int:
    for i in range(len(positions)):
        for j in range(3):
            degree[positions[i, j]] += 1
            sums[positions[i, j]] ^= i
    stack, top = np.empty(len(degree) + 3 * len(positions), np.int64), 0
    for column in range(len(degree)):
        if degree[column] == 1:
            stack[top] = column
            top += 1
    count = 0
    while top:
        top -= 1
        column = stack[top]
        if degree[column] != 1:
            continue
        row = sums[column]
        rows[count], columns[count], left[row] = row, column, False
        count += 1
        for j in range(3):
            other = positions[row, j]
            degree[other] -= 1
            sums[other] ^= row
            if degree[other] == 1:
                stack[top] = other
                top += 1
    return count


@kernel
def _substitute(positions: Any, hashes: Any, values: Any, rows: Any, columns: Any, table: Any, solution: Any) -> None:
    for k in range(len(rows) - 1, -1, -1):
        row = rows[k]
        total, dense = values[row], hashes[row, 2]
        for byte in range(8):
            total ^= table[byte, dense & np.uint64(255), 0]
            dense >>= np.uint64(8)
        for j in range(3):
            if positions[row, j] != columns[k]:
                total ^= solution[positions[row, j]]
        solution[columns[k]] = total


def _solve_core(positions: Array, dense: Array, values: Array, solution: Array) -> None:
    """Solve the rows that peeling left over, by elimination over their positions and the dense entries."""
    used, places = np.unique(positions, return_inverse=True)
    unknown = np.concatenate([used, np.arange(len(solution) - DENSE, len(solution))])
    words = -(-len(used) // 64) + 1
    rows = np.zeros((len(positions), words), np.uint64)
    places = places.reshape(-1, 3)
    for j in range(3):
        each = np.arange(len(rows))
        np.bitwise_xor.at(rows, (each, places[:, j] // 64), np.uint64(1) << (places[:, j] % 64).astype(np.uint64))
    rows[:, -1] = dense
    numbers = np.concatenate([np.arange(len(used)), 64 * (words - 1) + np.arange(DENSE)])
    right, pivots = values.copy(), np.full(len(rows), -1, np.int64)
    if not _eliminate(rows, right, pivots):
        raise ValueError("the ids of a key-value store are not independent")
    found = dict(zip(numbers.tolist(), unknown.tolist(), strict=True))
    targets = np.array([found[pivot] for pivot in pivots.tolist()])
    filled = np.zeros(64 * words, np.uint64)
    filled[numbers] = solution[unknown]
    filled[pivots] = 0
    _free_parts(rows, filled, right)
    solution[targets] = right


@kernel
def _eliminate(rows: Any, right: Any, pivots: Any) -> bool:
    words = rows.shape[1]
    for i in range(len(rows)):
        pivot = -1
        for word in range(words):
            if rows[i, word]:
                bit = 0
                while not (rows[i, word] >> np.uint64(bit)) & np.uint64(1):
                    bit += 1
                pivot = 64 * word + bit
                break
        if pivot < 0:
            return False
        pivots[i] = pivot
        word, shift = pivot // 64, np.uint64(pivot % 64)
        for other in range(len(rows)):
            if other != i and (rows[other, word] >> shift) & np.uint64(1):
                for k in range(words):
                    rows[other, k] ^= rows[i, k]
                right[other] ^= right[i]
    return True


@kernel
def _free_parts(rows: Any, filled: Any, right: Any) -> None:
    for i in range(len(rows)):
        for word in range(rows.shape[1]):
            bits, number = rows[i, word], 64 * word
            while bits:
                if bits & np.uint64(1):
                    right[i] ^= filled[number]
                bits >>= np.uint64(1)
                number += 1
