"""A party's identity: an ECDSA P-256 key and a self-signed certificate made out to the party's name.

Peers pin the certificate itself, so there is no authority to trust. It is not a CA certificate, and a CA certificate is
refused as a peer's: nobody can sign a second certificate under a pinned one.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from veilmeans.schemas.errors import CertificateError


@dataclass(frozen=True)
class Identity:
    """Certificate and private key, PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Identity(…)"


def make_identity(name: str, days: int, start: datetime | None = None) -> Identity:
    """Make a new key and its certificate, valid for `days` from `start` (now)."""
    key = ec.generate_private_key(ec.SECP256R1())
    start = start or datetime.now(UTC) - timedelta(minutes=5)
    certificate = _self_signed(key, name, start, start + timedelta(days=days))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(certificate.public_bytes(serialization.Encoding.PEM), private)


def _self_signed(key: ec.EllipticCurvePrivateKey, name: str, start: datetime, end: datetime) -> x509.Certificate:
    """Sign a certificate for TLS on both sides, which cannot sign others."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(True, False, False, False, True, False, False, False, False)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(purposes, critical=False)
        .sign(key, hashes.SHA256())
    )


_MALFORMED = (
    *(ValueError, x509.ExtensionNotFound, x509.InvalidVersion, x509.DuplicateExtension),
    *(x509.UnsupportedGeneralNameType, x509.AttributeNotFound),
)
"""Errors of `cryptography` for a file that is no certificate, or an unusual one."""


def fingerprint(pem: bytes) -> str:
    """The first 128 bits of the certificate's SHA-256, short enough to compare by telephone."""
    digest = certificate_digest(pem)
    return ":".join(digest[i : i + 4] for i in range(0, 32, 4))


def check_certificate(pem: bytes, owner: str, file: str, now: datetime | None = None) -> None:
    """Refuse a certificate that is not `owner`'s, is not valid now, or can sign others."""
    now = now or datetime.now(UTC)
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        holders = [str(name.value) for name in names]
    except _MALFORMED:
        raise CertificateError(f"{file} is not a certificate made by `veilmeans config keys`") from None
    if list(names) != [x509.DNSName(owner)]:  # exactly one name of one kind: gRPC takes the first of any kind
        raise CertificateError(f"{file} is made out to {', '.join(holders)!r}, not to {owner!r}")
    _check_validity(certificate, owner, file, now)
    if _can_sign(certificate):
        raise CertificateError(f"{file} is a CA certificate: peers are pinned by a certificate that cannot sign others")


def _check_validity(certificate: x509.Certificate, owner: str, file: str, now: datetime) -> None:
    if now > certificate.not_valid_after_utc:
        end = certificate.not_valid_after_utc.date()
        raise CertificateError(
            f"the certificate of {owner} ({file}) expired on {end}: {owner} must make a new one with "
            "`veilmeans config keys` and send it to its peers"
        )
    if now < certificate.not_valid_before_utc:
        start = certificate.not_valid_before_utc.date()
        raise CertificateError(f"the certificate of {owner} ({file}) is valid from {start} on: check the clock")


def check_pair(identity: Identity, file: str) -> None:
    """Refuse a private key that does not belong to the certificate."""
    try:
        key = serialization.load_pem_private_key(identity.key, None)
    except (ValueError, TypeError):
        raise CertificateError(f"{file} is not a private key made by `veilmeans config keys`") from None
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"{file} is not the key of the certificate beside it")


def sign(identity: Identity, content: bytes) -> bytes:
    """Sign content with the key of an identity (ECDSA P-256, SHA-256, always alike); TLS signs nothing like it."""
    key = serialization.load_pem_private_key(identity.key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("a signature needs the elliptic-curve key of `veilmeans config keys`")
    return key.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))


def is_signed_by(certificate: bytes, content: bytes, signature: bytes) -> bool:
    """True if the owner of a certificate signed this content."""
    key = x509.load_pem_x509_certificate(certificate).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def normal_certificate(pem: bytes, owner: str) -> bytes:
    """Return the one certificate in `pem`, without text around it; refuse one that is not `owner`'s or not valid."""
    what = f"the certificate of {owner}"
    check_certificate(pem, owner, what)
    certificate = x509.load_pem_x509_certificate(pem)
    if not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
        raise CertificateError(f"{what} is not a certificate made by `veilmeans config keys`")
    return certificate.public_bytes(serialization.Encoding.PEM)


def certificate_digest(pem: bytes) -> str:
    """SHA-256 of a certificate's DER encoding, in hexadecimal."""
    return x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()


def _can_sign(certificate: x509.Certificate) -> bool:
    """Return whether the certificate could sign others; one that does not say counts as one that can."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return True
