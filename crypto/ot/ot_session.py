"""Secrets and public keys of one session of oblivious transfers, by address.

  secret  = HMAC(own seed, nonce · sender · receiver · address · label)      known to this party
  public  = HMAC(nonce, sender · receiver · address · label)                 known to both

What decides a receiver's choice bits leaves the sender out, so that a receiver has the same choice bits in its OTs with
every sender: a bit that it shares with several parties is one choice bit. No sender learns more, since each gets its
message under keys of its own.

The nonce is the hash of what all parties contributed. A retry has the same nonce, hence the same bytes. A peer that
starts afresh contributes anew: the nonce is another one, and so is every mask. Without it an old mask would cover a new
message (IKNP: u ⊕ u' = r ⊕ r').
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from veilmeans.crypto import prg
from veilmeans.schemas.address import Address

NONCE_SIZE = 32
KEY_SIZE = 16


def join_nonces(contributions: Sequence[bytes]) -> bytes:
    """Hash all parties' contributions, in the parties' order, into the session's nonce."""
    if any(len(each) != NONCE_SIZE for each in contributions):
        raise ValueError(f"a contribution to the nonce has {NONCE_SIZE} bytes")
    return hashlib.sha256(b"veilmeans session" + b"".join(contributions)).digest()


@dataclass(frozen=True)
class OtSession:
    """One direction of a session at one address: `sender` has Δ, `receiver` has choice bits."""

    seed: bytes = field(repr=False)
    nonce: bytes
    sender: int
    receiver: int
    address: Address

    def secret(self, label: str) -> bytes:
        """Derive a secret of this party."""
        return hmac.digest(self.seed, b"veilmeans ot secret " + self._context(label), "sha256")

    def public(self, label: str) -> bytes:
        """Derive a key that both parties know."""
        return hmac.digest(self.nonce, b"veilmeans ot public " + self._context(label), "sha256")

    def choices(self, label: str) -> bytes:
        """Derive the receiver's secret for choice bits, the same whoever the sender is."""
        return hmac.digest(self.seed, b"veilmeans ot choices " + self._receiver_context(label), "sha256")

    def receiver_public(self, label: str) -> bytes:
        """Derive a public key of the receiver, the same whoever the sender is."""
        return hmac.digest(self.nonce, b"veilmeans ot receiver " + self._receiver_context(label), "sha256")

    def public_keys(self, label: str, count: int) -> list[bytes]:
        """Derive `count` AES-128 keys that both parties know."""
        keys = np.empty(KEY_SIZE * count, np.uint8)
        prg.fill(self.public(label), keys)
        data = keys.tobytes()
        return [data[start : start + KEY_SIZE] for start in range(0, len(data), KEY_SIZE)]

    def at(self, address: Address) -> "OtSession":
        """The same direction at another address."""
        return replace(self, address=address)

    def _context(self, label: str) -> bytes:
        return b"%b%d>%d %b%b" % (self.nonce, self.sender, self.receiver, self.address.encode(), label.encode())

    def _receiver_context(self, label: str) -> bytes:
        return b"%b>%d %b%b" % (self.nonce, self.receiver, self.address.encode(), label.encode())
