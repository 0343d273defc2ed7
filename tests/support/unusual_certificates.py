"""Certificates that `veilmeans` itself would not make."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from veilmeans.crypto.certificates import Identity

NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(days=30), NOW + timedelta(days=30)


def unusual_identity(
    *names: x509.GeneralName,
    key: ec.EllipticCurvePrivateKey | None = None,
    signer: ec.EllipticCurvePrivateKey | None = None,
    ca: bool = False,
) -> Identity:
    """Make a certificate with any names and any signer. Subject and issuer are shop, whoever signs it."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    shop = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(shop)
        .issuer_name(shop)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(signer or key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Identity(certificate.public_bytes(Encoding.PEM), private)
