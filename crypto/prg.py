"""Randomness by address: AES-256-CTR whose key is HMAC-SHA256(seed, address · label).

The same seed, address and label give the same bytes on every machine and in every retry; any other give unrelated
ones. So a bundle that Beam runs twice sends the same message twice, and a one-time mask never covers two values.
"""

import hmac
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from veilmeans.crypto.ring import DTYPE
from veilmeans.schemas.address import Address

SEED_SIZE = 32
_CHUNK = 1 << 18
_ZEROS = bytes(_CHUNK)
_FROM_ZERO = modes.CTR(bytes(16))


def derive(seed: bytes, purpose: str) -> bytes:
    """Derive an independent seed for one purpose (HMAC-SHA256 as a PRF)."""
    return hmac.digest(seed, b"veilmeans derive " + purpose.encode(), "sha256")


def uniform(
    seed: bytes, address: Address, label: str, shape: tuple[int, ...], dtype: type[np.unsignedinteger[Any]] = DTYPE
) -> NDArray[Any]:
    """Expand a uniform array of unsigned integers from this seed, address and label."""
    key = hmac.digest(seed, _prefix(address) + label.encode(), "sha256")
    result = np.empty(prod(shape), dtype)
    fill(key, result)
    return result.reshape(shape)


@lru_cache(maxsize=1024)
def _prefix(address: Address) -> bytes:
    """The part of the PRF's input that all labels of an address share."""
    return b"veilmeans uniform " + address.encode()


def fill(key: bytes, out: NDArray[Any]) -> None:
    """Fill `out` with the AES-CTR key stream, chunk by chunk from one buffer of zeros."""
    stream = Cipher(algorithms.AES(key), _FROM_ZERO).encryptor()
    target = out.reshape(-1).view(np.uint8)
    for start in range(0, len(target), _CHUNK):
        chunk = target[start : start + _CHUNK]
        stream.update_into(memoryview(_ZEROS)[: len(chunk)], chunk.data)
