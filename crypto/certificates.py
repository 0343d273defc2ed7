"""A party's identity: an ECDSA P-256 key and a self-signed certificate made out to the party's name.

Peers pin the certificate itself, so there is no authority to trust. It is no CA certificate (and one that is, is
refused as a peer's), so nobody can sign a second certificate under a pinned one.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
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
    """A new key and its certificate, valid for `days` from `start` (now)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begins = start or datetime.now(UTC) - timedelta(minutes=5)
    usage = x509.KeyUsage(True, False, False, False, True, False, False, False, False)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(purposes, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(certificate.public_bytes(serialization.Encoding.PEM), private)


def fingerprint(pem: bytes) -> str:
    """The certificate's SHA-256, short enough to read out on the phone."""
    digest = x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
    return ":".join(digest[i : i + 4] for i in range(0, 32, 4))


def check_certificate(pem: bytes, owner: str, file: str, now: datetime | None = None) -> None:
    """Refuse a certificate that is not `owner`'s, not valid now, or able to sign others."""
    now = now or datetime.now(UTC)
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        made_out_to = [str(name.value) for name in names]
    except (ValueError, x509.ExtensionNotFound):
        raise CertificateError(f"{file} is no certificate that `veilmeans keys` made") from None
    if list(names) != [x509.DNSName(owner)]:  # exactly one name of one kind: gRPC takes the first of any kind
        raise CertificateError(f"{file} is made out to {', '.join(made_out_to)!r}, not to {owner!r}")
    if now > certificate.not_valid_after_utc:
        ended = certificate.not_valid_after_utc.date()
        raise CertificateError(
            f"the certificate of {owner} ({file}) expired on {ended}: {owner} must make a new one with "
            "`veilmeans keys` and send it to its peers"
        )
    if now < certificate.not_valid_before_utc:
        begins = certificate.not_valid_before_utc.date()
        raise CertificateError(f"the certificate of {owner} ({file}) is valid from {begins} on: check the clock")
    if _may_sign(certificate):
        raise CertificateError(f"{file} is a CA certificate: peers are pinned by a certificate that cannot sign others")


def check_pair(identity: Identity, file: str) -> None:
    """Refuse a key that is not the certificate's."""
    try:
        key = serialization.load_pem_private_key(identity.key, None)
    except (ValueError, TypeError):
        raise CertificateError(f"{file} is no private key that `veilmeans keys` made") from None
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"{file} is not the key of the certificate beside it")


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return True
