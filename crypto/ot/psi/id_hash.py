"""Hashes of ids: BLAKE2b (RFC 7693) with 32 bytes of output, over many short inputs at once.

  id → h = BLAKE2b(id) → BLAKE2b under the job's key (h)          four words w_0 … w_3 each

The first hash is made when the ids are read, and no file holds more than that. The second is keyed by what all parties
contributed, so that the same id looks different in every job, and ids cannot be chosen to collide. Its words decide

  w_0, w_1    where the id stands in the agreed order, and its positions in a key-value store
  w_1         its shard (upper half)
  w_2         its dense coefficients
  w_3         the value that the leader's key-value store has for it
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto.lattice.kernel import kernel
from veilmeans.schemas.arrays import Array

WORDS = 4
IdHashes = NDArray[np.uint64]
"""n × 4 words."""
_BLOCK = 128
_MOST_KEY_BYTES = 64
_IV = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    np.uint64,
)  # fmt: skip
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    ],
    np.int64,
)  # fmt: skip


def hash_texts(text: Array, ends: Array) -> IdHashes:
    """Hash texts that lie one after the other: text i is the bytes from ends[i] to ends[i + 1]."""
    out = np.empty((len(ends) - 1, WORDS), np.uint64)
    _hash_all(text, ends, _start(0), 0, _SIGMA, _IV, out)
    return out


def hash_under_key(key: bytes, hashes: IdHashes) -> IdHashes:
    """Hash four words each under the job's key."""
    if not 0 < len(key) <= _MOST_KEY_BYTES:
        raise ValueError(f"a key has 1 to {_MOST_KEY_BYTES} bytes")
    start = _start(len(key))
    _compress_key(np.frombuffer(key.ljust(_BLOCK, b"\0"), np.uint64), start, _SIGMA, _IV)
    out = np.empty((len(hashes), WORDS), np.uint64)
    octets = np.ascontiguousarray(hashes).view(np.uint8).reshape(-1)
    _hash_all(octets, np.arange(0, octets.size + 1, 8 * WORDS), start, _BLOCK, _SIGMA, _IV, out)
    return out


def _start(key_bytes: int) -> Array:
    """The state before the first block: the parameters are the lengths of output and key."""
    state = _IV.copy()
    state[0] ^= np.uint64(0x01010000 ^ (key_bytes << 8) ^ (8 * WORDS))
    return state


@kernel
def _mix(v: Any, a: int, b: int, c: int, d: int, x: Any, y: Any) -> None:
    v[a] = v[a] + v[b] + x
    turned = v[d] ^ v[a]
    v[d] = (turned >> np.uint64(32)) | (turned << np.uint64(32))
    v[c] = v[c] + v[d]
    turned = v[b] ^ v[c]
    v[b] = (turned >> np.uint64(24)) | (turned << np.uint64(40))
    v[a] = v[a] + v[b] + y
    turned = v[d] ^ v[a]
    v[d] = (turned >> np.uint64(16)) | (turned << np.uint64(48))
    v[c] = v[c] + v[d]
    turned = v[b] ^ v[c]
    v[b] = (turned >> np.uint64(63)) | (turned << np.uint64(1))


@kernel
def _compress(h: Any, m: Any, v: Any, count: int, last: bool, sigma: Any, iv: Any) -> None:
    for i in range(8):
        v[i] = h[i]
        v[i + 8] = iv[i]
    v[12] ^= np.uint64(count)
    if last:
        v[14] = ~v[14]
    for r in range(12):
        s = sigma[r]
        _mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]])
        _mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]])
        _mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]])
        _mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]])
        _mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]])
        _mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]])
        _mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]])
        _mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]])
    for i in range(8):
        h[i] ^= v[i] ^ v[i + 8]


@kernel
def _compress_key(block: Any, h: Any, sigma: Any, iv: Any) -> None:
    _compress(h, block, np.empty(16, np.uint64), 128, False, sigma, iv)


@kernel
def _hash_all(text: Any, ends: Any, start: Any, before: int, sigma: Any, iv: Any, out: Any) -> None:
    h, m, v = np.empty(8, np.uint64), np.empty(16, np.uint64), np.empty(16, np.uint64)
    for i in range(len(ends) - 1):
        h[:] = start
        at, count, last = ends[i], before, False
        while not last:
            size = min(128, ends[i + 1] - at)
            last = ends[i + 1] - at <= 128
            m[:] = np.uint64(0)
            for j in range(size):
                m[j // 8] |= np.uint64(text[at + j]) << np.uint64(8 * (j % 8))
            at += size
            count += size
            _compress(h, m, v, count, last, sigma, iv)
        for j in range(4):
            out[i, j] = h[j]
