"""IKNP extension: COTs from 127 base OTs, for parties that follow the protocol. κ = 128, the lowest bit of Δ is 1.

Base OTs the other way round: the COTs' receiver has keys k_i^0, k_i^1, the sender has k_i^{Δ_i}. For column i = 1 … 127
  receiver    t_i = G(k_i^0),  sends u_i = G(k_i^0) ⊕ G(k_i^1) ⊕ c
  sender      q_i = G(k_i^{Δ_i}) ⊕ Δ_i·u_i = t_i ⊕ Δ_i·c
and column 0 is c at the receiver and 0 at the sender. G depends on the session's nonce, the address and the batch: one
G for two choice vectors would show c ⊕ c'.
"""

import hmac
from collections.abc import Sequence

import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.ot.blocks import Bits, Blocks
from veilmeans.crypto.ot.ot_kernels import transpose_words
from veilmeans.crypto.ot.ot_session import OtSession
from veilmeans.schemas.arrays import Array

COLUMNS = 127
"""Base OTs, and bits of Δ that are secret."""


def delta_bits(delta: Blocks) -> Bits:
    """The choice bits of the base OTs: bits 1 … 127 of Δ."""
    return np.unpackbits(delta.view(np.uint8), bitorder="little")[1:]


def message_shape(count: int) -> tuple[int, int]:
    """The receiver's message for `count` COTs: 127 columns of bits."""
    return COLUMNS, _words(count)


def extend_receiver(
    session: OtSession, label: str, keys: Sequence[tuple[bytes, bytes]], count: int
) -> tuple[Blocks, Array]:
    """Compute the receiver's `count` COTs, with choice bits of its own, and its message."""
    columns = np.empty((COLUMNS + 1, _words(count)), np.uint64)
    prg.fill(session.choices(label), columns[0])
    message = np.empty(message_shape(count), np.uint64)
    for i, (zero, one) in enumerate(keys):
        _expand(session, label, zero, columns[i + 1])
        _expand(session, label, one, message[i])
        message[i] ^= columns[i + 1] ^ columns[0]
    return _rows(columns)[:count], message


def extend_sender(
    session: OtSession, label: str, keys: Sequence[bytes], delta: Blocks, message: Array, count: int
) -> Blocks:
    """Compute the sender's `count` COTs from the receiver's message."""
    columns = np.zeros((COLUMNS + 1, _words(count)), np.uint64)
    for i, (key, bit) in enumerate(zip(keys, delta_bits(delta), strict=True)):
        _expand(session, label, key, columns[i + 1])
        columns[i + 1] ^= message[i] * np.uint64(bit)
    return _rows(columns)[:count]


def _words(count: int) -> int:
    return -(-count // 64)


def _expand(session: OtSession, label: str, key: bytes, out: Array) -> None:
    """out = G(key)."""
    prg.fill(hmac.digest(key, session.public(f"{label} columns"), "sha256"), out)


def _rows(columns: Array) -> Blocks:
    """Transpose 128 columns of bits into blocks."""
    words = columns.shape[1]
    blocks = np.empty((words, 64, 2), np.uint64)
    half = np.empty((64, words), np.uint64)
    for side in range(2):
        transpose_words(np.ascontiguousarray(columns[64 * side : 64 * side + 64].T), half)
        blocks[:, :, side] = half.T
    return blocks.reshape(-1, 2)
