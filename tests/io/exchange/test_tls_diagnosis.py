"""TLS between gateway and client: only pinned certificates connect, and who connects learns the cause of a failure.

Gateway and exchange are made directly, without the checks of `connections`.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pyarrow.flight as flight
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from support.error_sentence import error_sentence
from support.fault_injection import PATIENCE, chain_message, stored_messages
from support.raw_messages import parts_of, send_raw
from support.unusual_certificates import FUTURE, PAST, unusual_identity
from veilmeans.crypto.certificates import Identity, fingerprint, make_identity
from veilmeans.io.exchange.flight_exchange import Endpoint, FlightExchange
from veilmeans.io.exchange.flight_gateway import Gateway
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.schemas.errors import CertificateError, PeerError

LIMIT = 1 << 20
PAYCO, SHOP = make_identity("payco", 2), make_identity("shop", 2)


@contextmanager
def gateway_of(identity: Identity, shop: bytes, folder: Path) -> Iterator[str]:
    """Open payco's gateway with shop's certificate pinned; its address."""
    with Gateway("payco", "127.0.0.1:0", identity, {"shop": shop}, MessageStore(folder), LIMIT) as gateway:
        yield f"127.0.0.1:{gateway.port}"


def put(
    identity: Identity,
    address: str,
    payco: bytes = PAYCO.certificate,
    timeout: float = PATIENCE,
    dealer: bool = False,
) -> None:
    """Send a message from shop to payco, whose certificate shop has pinned."""
    own, peer = Endpoint("shop", "", identity.certificate), Endpoint("payco", address, payco)
    exchange = FlightExchange(own, {"payco": peer}, identity, LIMIT, timeout, dealer=dealer)
    try:
        exchange.put_all([chain_message()])
    finally:
        exchange.close()


def test_pinned_certificates_connect(tmp_path: Path) -> None:
    with gateway_of(PAYCO, SHOP.certificate, tmp_path) as address:
        put(SHOP, address)
    assert len(stored_messages(tmp_path)) == 1


def test_a_client_without_a_certificate_is_refused(tmp_path: Path) -> None:
    with gateway_of(PAYCO, SHOP.certificate, tmp_path) as address:
        client = flight.FlightClient(
            f"grpc+tls://{address}", tls_root_certs=PAYCO.certificate, override_hostname="payco"
        )
        with pytest.raises(flight.FlightUnavailableError):
            send_raw(client, parts_of(chain_message()))
    assert not list(tmp_path.rglob("*.msg"))


def test_the_same_name_with_another_key_is_refused_and_nothing_else_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = make_identity("shop", 2)
    with gateway_of(PAYCO, SHOP.certificate, tmp_path) as address:
        sentence = error_sentence(lambda: put(other, address), CertificateError)
    assert f"payco at {address} refused our certificate" in sentence
    assert fingerprint(other.certificate) in sentence
    assert capfd.readouterr().err == ""


def test_a_party_that_does_not_admit_the_dealer_is_busy(tmp_path: Path) -> None:
    """A party in a run pins its peers only, so the dealer of its next store waits, then ends with code 5."""
    notary = make_identity("notary", 2)
    with gateway_of(PAYCO, SHOP.certificate, tmp_path) as address:
        sentence = error_sentence(lambda: put(notary, address, timeout=0.5, dealer=True), PeerError)
        error_sentence(lambda: put(notary, address), CertificateError)
    assert "payco is busy with another run" in sentence
    assert fingerprint(notary.certificate) in sentence


def test_a_dealer_s_certificate_that_has_expired_is_no_matter_of_a_busy_party(tmp_path: Path) -> None:
    notary = make_identity("notary", 2, PAST)
    with gateway_of(PAYCO, notary.certificate, tmp_path) as address:
        assert "expired on" in error_sentence(lambda: put(notary, address, dealer=True), CertificateError)


def test_no_copy_of_the_key_is_written_while_a_cause_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))  # to write a copy there would fail
    written: list[str] = []
    monkeypatch.setattr(Path, "write_bytes", lambda path, _: written.append(str(path)))
    with gateway_of(PAYCO, SHOP.certificate, tmp_path / "inbox") as address:
        sentence = error_sentence(lambda: put(make_identity("shop", 2), address), CertificateError)
    assert "refused our certificate" in sentence
    assert written == []


@pytest.mark.parametrize(("start", "because"), [(PAST, "expired on"), (FUTURE, "is valid from")])
def test_our_certificate_is_refused_when_it_is_not_valid_now(tmp_path: Path, start: datetime, because: str) -> None:
    shop = make_identity("shop", 2, start)
    with gateway_of(PAYCO, shop.certificate, tmp_path) as address:
        sentence = error_sentence(lambda: put(shop, address), CertificateError)
    assert f"payco at {address} refused our certificate, which {because}" in sentence


@pytest.mark.parametrize(("start", "because"), [(PAST, "expired on"), (FUTURE, "is valid from")])
def test_a_gateway_is_refused_when_its_certificate_is_not_valid_now(
    tmp_path: Path, start: datetime, because: str
) -> None:
    payco = make_identity("payco", 2, start)
    with gateway_of(payco, SHOP.certificate, tmp_path) as address:
        sentence = error_sentence(lambda: put(SHOP, address, payco.certificate), CertificateError)
    assert f"payco at {address} showed a certificate that {because}" in sentence


def test_a_gateway_with_another_key_is_refused(tmp_path: Path) -> None:
    impostor = make_identity("payco", 2)
    with gateway_of(impostor, SHOP.certificate, tmp_path) as address:
        sentence = error_sentence(lambda: put(SHOP, address), CertificateError)
    for part in (f"payco at {address}", fingerprint(impostor.certificate), fingerprint(PAYCO.certificate)):
        assert part in sentence
    assert not list(tmp_path.rglob("*.msg"))


def test_nobody_signs_a_second_certificate_under_a_pinned_one(tmp_path: Path) -> None:
    """Shop holds the key of its pinned certificate: neither that key nor one it signs may be called payco."""
    key = ec.generate_private_key(ec.SECP256R1())
    pinned = unusual_identity(x509.DNSName("shop"), key=key)
    same_key = unusual_identity(x509.DNSName("payco"), key=key)
    signed = unusual_identity(x509.DNSName("payco"), signer=key)
    chained = Identity(signed.certificate + pinned.certificate, signed.key)
    with gateway_of(PAYCO, pinned.certificate, tmp_path) as address:
        put(pinned, address)
        for forged in (same_key, signed, chained):
            error_sentence(lambda forged=forged: put(forged, address), CertificateError)


def test_a_port_where_nobody_listens_is_not_reported_as_a_matter_of_certificates() -> None:
    assert "payco at 127.0.0.1:1" in error_sentence(lambda: put(SHOP, "127.0.0.1:1", timeout=0.5), PeerError)
