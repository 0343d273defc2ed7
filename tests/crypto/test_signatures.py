"""Signatures by the key of a certificate, and certificates that come inside files."""

import pytest
from cryptography import x509

from support.error_sentence import error_sentence
from support.unusual_certificates import unusual_identity
from veilmeans.crypto.certificates import certificate_digest, is_signed_by, make_identity, normal_certificate, sign
from veilmeans.schemas.errors import CertificateError

PAYCO, SHOP = make_identity("payco", 2), make_identity("shop", 2)


def test_only_the_owner_of_the_key_signs() -> None:
    signature = sign(PAYCO, b"terms")
    assert is_signed_by(PAYCO.certificate, b"terms", signature)
    assert not is_signed_by(SHOP.certificate, b"terms", signature)
    assert not is_signed_by(PAYCO.certificate, b"terms!", signature)


@pytest.mark.parametrize("signature", [b"", b"\0", bytes(72), b"0" * 5000])
def test_a_damaged_signature_is_none(signature: bytes) -> None:
    assert not is_signed_by(PAYCO.certificate, b"terms", signature)


def test_a_certificate_is_kept_without_the_text_around_it() -> None:
    noisy = b"../../etc\n" + PAYCO.certificate + SHOP.certificate
    assert normal_certificate(noisy, "payco") == PAYCO.certificate
    assert certificate_digest(noisy) == certificate_digest(PAYCO.certificate)


@pytest.mark.parametrize(
    ("pem", "why"),
    [
        (b"", "is not a certificate"),
        (SHOP.certificate, "'shop', not to 'payco'"),
        (unusual_identity(x509.DNSName("payco"), ca=True).certificate, "CA certificate"),
    ],
)
def test_a_certificate_of_another_is_refused(pem: bytes, why: str) -> None:
    assert why in error_sentence(lambda: normal_certificate(pem, "payco"), CertificateError)
