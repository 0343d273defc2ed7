"""Authenticated encryption between two parties, from the keys of their certificates.

  k = HKDF-SHA256(ECDH(my private key, the peer's public key))      the same at both ends, known to no one else
  nonce = HMAC-SHA256(k, context · SHA-256(plaintext)), 12 bytes     a retry seals to the same bytes
  AES-256-GCM with the context (the message's key) as associated data

Used where a message lies on storage that neither party owns alone; through a gateway, TLS does the same work.
"""

import hashlib
import hmac

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from veilmeans.crypto.certificates import Identity
from veilmeans.schemas.errors import CertificateError

_NONCE_SIZE = 12


class SealError(Exception):
    """The sealed bytes are not what the peer made for this context."""


class Seal:
    """Seals messages between this party and one peer."""

    def __init__(self, identity: Identity, peer_certificate: bytes) -> None:
        private = serialization.load_pem_private_key(identity.key, None)
        public = x509.load_pem_x509_certificate(peer_certificate).public_key()
        if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(public, ec.EllipticCurvePublicKey):
            raise CertificateError("sealing needs the elliptic-curve keys that `veilmeans keys` makes")
        shared = private.exchange(ec.ECDH(), public)
        self._key = HKDF(hashes.SHA256(), 32, salt=None, info=b"veilmeans seal").derive(shared)
        self._cipher = AESGCM(self._key)

    def digest(self, content: bytes) -> bytes:
        """A digest that only the two of us can compute."""
        return hmac.digest(self._key, b"veilmeans digest " + content, "sha256")

    def seal(self, plain: bytes, context: bytes) -> bytes:
        tied = len(context).to_bytes(4, "big") + context + hashlib.sha256(plain).digest()
        nonce = hmac.digest(self._key, tied, "sha256")[:_NONCE_SIZE]
        return nonce + self._cipher.encrypt(nonce, plain, context)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:_NONCE_SIZE], sealed[_NONCE_SIZE:], context)
        except (InvalidTag, ValueError):
            raise SealError from None
