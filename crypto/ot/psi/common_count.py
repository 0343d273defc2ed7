"""The number of common ids of two parties, and nothing else: Diffie–Hellman on ed25519 (after Meadows 1986).

With secret scalars a and b, and H(id) a point that the id's hash determines:

  leader    sends { a·H(x) } of its ids, sorted                                    →
  member    sends { b·a·H(x) }, sorted, and { b·H(y) } of its own ids, sorted      ←
  leader    counts the points { a·b·H(y) } that are among { b·a·H(x) }; sends the number

Sorted by their encoding, points have lost the order of the ids: the leader learns how many of its ids come back, and
not which. Without a and b a point is as good as random (decisional Diffie–Hellman). Each point costs a multiplication
in Python's process: for a number that one wants before anything else is opened, not for millions of ids.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from nacl import bindings
from numpy.typing import NDArray

from veilmeans.crypto.ot.psi.id_hash import IdHashes
from veilmeans.schemas.errors import RefusedError

POINT_SIZE = 32
Points = NDArray[np.uint8]
"""n × 32 bytes, sorted."""


def secret_scalar(secret: bytes) -> bytes:
    """A scalar from a secret of this party."""
    return bindings.crypto_core_ed25519_scalar_reduce(hashlib.sha512(b"veilmeans count " + secret).digest())


def mask_ids(scalar: bytes, hashes: IdHashes) -> Points:
    """The points of ids, times this party's scalar."""
    data = np.ascontiguousarray(hashes).tobytes()
    points = (bindings.crypto_core_ed25519_from_uniform(data[i : i + 32]) for i in range(0, len(data), 32))
    return _sorted(bindings.crypto_scalarmult_ed25519_noclamp(scalar, point) for point in points)


def mask_points(peer: str, scalar: bytes, points: Points) -> Points:
    """A peer's points, times this party's scalar; refuse what is no point of the prime-order group."""
    data = points.tobytes()
    each = [data[i : i + POINT_SIZE] for i in range(0, len(data), POINT_SIZE)]
    if not all(map(bindings.crypto_core_ed25519_is_valid_point, each)):
        raise RefusedError(f"{peer} sent what is not a point of the prime-order group of ed25519 for an id")
    return _sorted(bindings.crypto_scalarmult_ed25519_noclamp(scalar, point) for point in each)


def count_common(one: Points, other: Points) -> int:
    """The number of points that are in both."""
    views = [np.ascontiguousarray(points).view(f"V{POINT_SIZE}").reshape(-1) for points in (one, other)]
    return len(set(views[0].tolist()) & set(views[1].tolist()))


def _sorted(points: Iterable[bytes]) -> Points:
    joined = b"".join(sorted(points))
    return np.frombuffer(joined, np.uint8).reshape(-1, POINT_SIZE)
