"""Authenticated encryption between two parties, from the keys of their certificates.

  k = HKDF-SHA256(ECDH(own private key, the peer's public key))      the same at both ends, known to no one else
  nonce = HMAC-SHA256(k, context · SHA-256(plaintext)), 12 bytes     a retry encrypts to the same bytes
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


class DecryptionError(Exception):
    """The bytes are not what the peer encrypted for this context."""


class PairwiseCipher:
    """Encryption and keyed digests between this party and one peer."""

    def __init__(self, identity: Identity, peer_certificate: bytes) -> None:
        private = serialization.load_pem_private_key(identity.key, None)
        public = x509.load_pem_x509_certificate(peer_certificate).public_key()
        if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(public, ec.EllipticCurvePublicKey):
            raise CertificateError(
                "encryption between parties needs the elliptic-curve keys of `veilmeans config keys`"
            )
        shared = private.exchange(ec.ECDH(), public)
        self._key = HKDF(hashes.SHA256(), 32, salt=None, info=b"veilmeans seal").derive(shared)
        self._cipher = AESGCM(self._key)

    def digest(self, content: bytes) -> bytes:
        """HMAC-SHA256 of `content` under a key that only the two parties have."""
        return hmac.digest(self._key, b"veilmeans digest " + content, "sha256")

    def encrypt(self, plain: bytes, context: bytes) -> bytes:
        """Encrypt and authenticate `plain`; the same bytes for the same plaintext and context."""
        nonce_input = len(context).to_bytes(4, "big") + context + hashlib.sha256(plain).digest()
        nonce = hmac.digest(self._key, nonce_input, "sha256")[:_NONCE_SIZE]
        return nonce + self._cipher.encrypt(nonce, plain, context)

    def decrypt(self, encrypted: bytes, context: bytes) -> bytes:
        """Decrypt what the peer encrypted for this context."""
        try:
            return self._cipher.decrypt(encrypted[:_NONCE_SIZE], encrypted[_NONCE_SIZE:], context)
        except (InvalidTag, ValueError):
            raise DecryptionError from None
