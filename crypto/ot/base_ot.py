"""Base OTs on ed25519: the simplest OT (Chou, Orlandi 2015), for parties that follow the protocol.

  sender      A = a·G                                                        →
  receiver    B_i = b_i·G + c_i·A                                            ←
  sender      k_i^0 = H(i, A, B_i, a·B_i)     k_i^1 = H(i, A, B_i, a·(B_i − A))
  receiver    k_i^{c_i} = H(i, A, B_i, b_i·A)

B_i is uniform whatever c_i is, and the other key needs the Diffie–Hellman value of A and B_i − (1 − c_i)·A. Points are
checked: of the prime-order subgroup, and not its neutral element. The scalars are secrets of the session, and the hash
contains its public key, so no key is used in two sessions.
"""

import hashlib
from collections.abc import Sequence

from nacl import bindings
from nacl.exceptions import CryptoError

from veilmeans.crypto.ot.blocks import Bits
from veilmeans.crypto.ot.ot_session import OtSession
from veilmeans.schemas.errors import RefusedError

POINT_SIZE = bindings.crypto_core_ed25519_BYTES


def sender_point(session: OtSession) -> bytes:
    """The sender's first message: A."""
    return _times_base(_scalar(session, "base sender"))


def receiver_points(session: OtSession, choices: Bits, a_point: bytes) -> list[bytes]:
    """The receiver's message: B_i for each choice bit."""
    _check(a_point)
    points = [_times_base(_scalar(session, f"base receiver {i}")) for i in range(len(choices))]
    shifted = [bindings.crypto_core_ed25519_add(point, a_point) for point in points]
    return [(point, other)[int(c)] for point, other, c in zip(points, shifted, choices, strict=True)]


def sender_keys(session: OtSession, b_points: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """The sender's two keys for each of the receiver's points."""
    a, a_point = _scalar(session, "base sender"), sender_point(session)
    keys = []
    for i, point in enumerate(b_points):
        _check(point)
        zero = _times(a, point)
        one = _times(a, bindings.crypto_core_ed25519_sub(point, a_point))
        keys.append((_hash(session, i, a_point, point, zero), _hash(session, i, a_point, point, one)))
    return keys


def receiver_keys(session: OtSession, choices: Bits, a_point: bytes) -> list[bytes]:
    """The receiver's key for each choice bit."""
    points = receiver_points(session, choices, a_point)
    shared = (_times(_scalar(session, f"base receiver {i}"), a_point) for i in range(len(choices)))
    return [_hash(session, i, a_point, b, s) for i, (b, s) in enumerate(zip(points, shared, strict=True))]


def _scalar(session: OtSession, label: str) -> bytes:
    wide = hashlib.sha512(session.secret(label)).digest()
    return bindings.crypto_core_ed25519_scalar_reduce(wide)


def _times_base(scalar: bytes) -> bytes:
    return bindings.crypto_scalarmult_ed25519_base_noclamp(scalar)


def _times(scalar: bytes, point: bytes) -> bytes:
    try:
        return bindings.crypto_scalarmult_ed25519_noclamp(scalar, point)
    except CryptoError:
        raise RefusedError("a peer sent a point of small order for a base OT") from None


def _check(point: bytes) -> None:
    if len(point) != POINT_SIZE or not bindings.crypto_core_ed25519_is_valid_point(point):
        raise RefusedError("a peer sent what is not a point of the prime-order group of ed25519 for a base OT")


def _hash(session: OtSession, index: int, a_point: bytes, b_point: bytes, shared: bytes) -> bytes:
    content = session.public("base") + index.to_bytes(4, "big") + a_point + b_point + shared
    return hashlib.sha256(b"veilmeans base ot" + content).digest()
