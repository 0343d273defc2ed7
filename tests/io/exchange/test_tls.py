"""Certificates and keys that are not right: refused with one sentence, and both sides say why."""

import base64
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pyarrow.flight as flight
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from support.fault_injection import PATIENCE, Party, make_scene, message, parts_of, send_raw
from support.parties import make_configs, mode_of, write_config
from veilmeans.crypto.certificates import Identity, check_certificate, fingerprint, make_identity
from veilmeans.crypto.pairwise_encryption import Seal
from veilmeans.io.exchange.connections import (
    close_exchange,
    load_identity,
    load_peer_certificates,
    open_exchange,
    open_gateway,
)
from veilmeans.io.exchange.flight_exchange import Endpoint, FlightExchange
from veilmeans.io.exchange.flight_gateway import Gateway
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.exchange.tls_diagnosis import explained, explained_handshakes
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import CertificateError, ConfigError, PeerError, StorageError, VeilmeansError

NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(days=30), NOW + timedelta(days=30)


def unusual(
    *names: x509.GeneralName,
    key: ec.EllipticCurvePrivateKey | None = None,
    signer: ec.EllipticCurvePrivateKey | None = None,
    ca: bool = False,
) -> Identity:
    """A certificate that `veilmeans keys` would not make. Subject and issuer are shop, whoever signs it."""
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


def sentence(call: Callable[[], object], kind: type[VeilmeansError]) -> str:
    """The one sentence with which a call is refused."""
    with pytest.raises(kind) as error:
        call()
    assert "\n" not in error.value.sentence
    return error.value.sentence


# What is caught before anything is sent.
@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    """Payco's configuration; shop is its peer."""
    return make_configs(tmp_path)["payco"]


BAD: dict[str, tuple[Callable[[str], bytes], str]] = {
    "expired": (lambda name: make_identity(name, 2, PAST).certificate, "expired on"),
    "not yet valid": (lambda name: make_identity(name, 2, FUTURE).certificate, "is valid from"),
    "made out to another": (lambda name: make_identity("bank", 2).certificate, "is made out to 'bank', not to"),  # noqa: ARG005
    "of a CA": (lambda name: unusual(x509.DNSName(name), ca=True).certificate, "is a CA certificate"),
    "no certificate": (lambda name: name.encode(), "is no certificate that `veilmeans keys` made"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_certificate_is_refused_up_front_be_it_ours_or_a_peers(config: JobConfig, what: str) -> None:
    make, because = BAD[what]
    for file, name, load in (
        (config.peers["shop"].certificate, "shop", load_peer_certificates),
        (config.certificate, "payco", load_identity),
    ):
        file.write_bytes(make(name))
        said = sentence(lambda load=load: load(config), CertificateError)
        assert because in said
        assert name in said
        assert str(file) in said
        assert sentence(lambda: open_gateway(config), CertificateError)
        assert sentence(lambda: open_exchange(config), CertificateError)


def test_a_missing_certificate_is_refused(config: JobConfig) -> None:
    config.peers["shop"].certificate.unlink()
    said = sentence(lambda: load_peer_certificates(config), CertificateError)
    assert said.startswith("the certificate of shop (")
    assert said.endswith("cannot be read: No such file or directory")


@pytest.mark.parametrize(
    "other",
    [
        x509.DNSName("payco"),
        x509.RFC822Name("payco"),
        x509.UniformResourceIdentifier("payco"),
        x509.IPAddress(ip_address("127.0.0.1")),
    ],
)
def test_a_certificate_with_a_second_name_of_any_kind_is_refused(other: x509.GeneralName) -> None:
    """gRPC tells the gateway the first of all names: shop could pass for payco, and read."""
    for names in ([other, x509.DNSName("shop")], [x509.DNSName("shop"), other]):
        pem = unusual(*names).certificate
        said = sentence(lambda pem=pem: check_certificate(pem, "shop", "shop.crt"), CertificateError)
        assert "not to 'shop'" in said


def test_a_key_of_another_certificate_is_refused(config: JobConfig) -> None:
    config.key.write_bytes(make_identity("payco", 2).key)
    assert sentence(lambda: load_identity(config), CertificateError) == (
        f"{config.key} is not the key of the certificate beside it"
    )
    config.key.write_bytes(b"no key at all")
    assert "is no private key" in sentence(lambda: load_identity(config), CertificateError)


def test_a_key_that_others_may_read_is_refused(config: JobConfig) -> None:
    config.key.chmod(0o644)
    said = sentence(lambda: load_identity(config), ConfigError)
    assert said == f"the secret file {config.key} has mode 0644: run chmod 600 {config.key}"
    config.key.unlink()
    assert "cannot be read: No such file" in sentence(lambda: load_identity(config), ConfigError)


def test_a_command_ends_with_one_line_and_code_7(config: JobConfig, tmp_path: Path) -> None:
    config.certificate.write_bytes(make_identity("payco", 2, PAST).certificate)
    file = write_config(config, tmp_path / "payco.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "veilmeans", "gateway", "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == CertificateError.code
    assert [line.split(" (")[0] for line in done.stderr.splitlines()] == ["error: the certificate of payco"]


# What is seen on the wire: gateway and exchange are made directly, without the checks above.
LIMIT = 1 << 20
PAYCO, SHOP = make_identity("payco", 2), make_identity("shop", 2)


@contextmanager
def gateway_of(identity: Identity, shop: bytes, folder: Path) -> Iterator[str]:
    """Payco's gateway with shop's certificate pinned; its address."""
    with (
        explained_handshakes(),
        Gateway("payco", "127.0.0.1:0", identity, {"shop": shop}, MessageStore(folder), LIMIT) as door,
    ):
        yield f"127.0.0.1:{door.port}"


def put(identity: Identity, address: str, payco: bytes = PAYCO.certificate, timeout: float = 3.0) -> None:
    """Shop sends a message to payco, whose certificate it has pinned."""
    exchange = FlightExchange(
        Endpoint("shop", "", identity.certificate),
        {"payco": Endpoint("payco", address, payco)},
        identity,
        LIMIT,
        timeout,
    )
    try:
        exchange.put_all([message()])
    finally:
        exchange.close()


def test_the_right_certificates_are_let_in(tmp_path: Path) -> None:
    with gateway_of(PAYCO, SHOP.certificate, tmp_path) as address:
        put(SHOP, address)


def test_no_certificate_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with gateway_of(PAYCO, SHOP.certificate, tmp_path) as address:
        nobody = flight.FlightClient(
            f"grpc+tls://{address}", tls_root_certs=PAYCO.certificate, override_hostname="payco"
        )
        with pytest.raises(flight.FlightUnavailableError):
            send_raw(nobody, parts_of(message()))
    assert "refused a connection: it showed no certificate\n" in capfd.readouterr().err


def test_the_same_name_with_another_key_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = make_identity("shop", 2)
    with gateway_of(PAYCO, SHOP.certificate, tmp_path) as address:
        said = sentence(lambda: put(other, address), CertificateError)
    assert said == (
        f"the gateway of payco at {address} refused our certificate (it has pinned another certificate for us): "
        f"send payco ours, fingerprint {fingerprint(other.certificate)}"
    )
    assert "refused a connection: its certificate is none of the pinned ones" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("start", "client", "gateway"),
    [
        (PAST, "expired on", "its certificate has expired"),
        (FUTURE, "is valid from", "its certificate is not valid yet"),
    ],
)
def test_a_pinned_certificate_out_of_its_time_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], start: datetime, client: str, gateway: str
) -> None:
    shop = make_identity("shop", 2, start)
    with gateway_of(PAYCO, shop.certificate, tmp_path) as address:
        said = sentence(lambda: put(shop, address), CertificateError)
    assert f"the gateway of payco at {address} refused our certificate, which {client}" in said
    assert f"refused a connection: {gateway}\n" in capfd.readouterr().err


@pytest.mark.parametrize(("start", "because"), [(PAST, "expired on"), (FUTURE, "is valid from")])
def test_a_gateway_whose_certificate_is_out_of_its_time_is_refused(
    tmp_path: Path, start: datetime, because: str
) -> None:
    payco = make_identity("payco", 2, start)
    with gateway_of(payco, SHOP.certificate, tmp_path) as address:
        said = sentence(lambda: put(SHOP, address, payco.certificate), CertificateError)
    assert f"the gateway of payco at {address} showed a certificate that {because}" in said


def test_a_gateway_with_another_key_is_refused(tmp_path: Path) -> None:
    impostor = make_identity("payco", 2)
    with gateway_of(impostor, SHOP.certificate, tmp_path) as address:
        said = sentence(lambda: put(SHOP, address), CertificateError)
    assert said == (
        f"the gateway of payco at {address} showed a certificate with fingerprint {fingerprint(impostor.certificate)}, "
        f"but the one pinned here has {fingerprint(PAYCO.certificate)}: ask payco for its certificate"
    )
    assert not list(tmp_path.rglob("*.msg"))


def test_nobody_signs_a_second_certificate_under_a_pinned_one(tmp_path: Path) -> None:
    """Shop holds the key of its pinned certificate: neither that key nor one it signs may be called payco."""
    key = ec.generate_private_key(ec.SECP256R1())
    pinned = unusual(x509.DNSName("shop"), key=key)
    again, signed = unusual(x509.DNSName("payco"), key=key), unusual(x509.DNSName("payco"), signer=key)
    chained = Identity(signed.certificate + pinned.certificate, signed.key)
    with gateway_of(PAYCO, pinned.certificate, tmp_path) as address:
        put(pinned, address)
        for forged in (again, signed, chained):
            sentence(lambda forged=forged: put(forged, address), CertificateError)


def test_a_gateway_that_is_no_gateway_is_not_taken_for_a_matter_of_certificates() -> None:
    assert "did not answer within 0.5 s" in sentence(lambda: put(SHOP, "127.0.0.1:1", timeout=0.5), PeerError)


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("certificate verify failed: self-signed certificate", "refused a connection: its certificate is none of the"),
        ("tlsv1 alert unknown ca", "the other side refused our certificate"),
        ("wrong version number", "it does not speak TLS as we do"),
    ],
)
def test_a_line_of_grpcs_log_is_told_in_words(why: str, words: str) -> None:
    line = f"ssl_transport_security.cc:1884] Handshake failed with error SSL_ERROR_SSL: error:0A:SSL routines::{why}"
    assert words in explained(line)
    assert explained("any other line") == "any other line"


def test_explaining_handshakes_leaves_no_descriptors_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with explained_handshakes():
            pass
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# Between two parties.
def test_a_keyed_digest_is_the_same_at_both_ends_and_nowhere_else() -> None:
    """Who guesses the content cannot check the guess: that takes the key of one of the two."""
    stranger, again = make_identity("payco", 2), make_identity("shop", 2)
    digest = Seal(PAYCO, SHOP.certificate).digest(b"row ids")
    assert digest == Seal(SHOP, PAYCO.certificate).digest(b"row ids")
    assert len(digest) == 32
    others = [
        Seal(PAYCO, SHOP.certificate).digest(b"row ids "),
        Seal(stranger, SHOP.certificate).digest(b"row ids"),
        Seal(PAYCO, again.certificate).digest(b"row ids"),
        hashlib.sha256(b"row ids").digest(),
    ]
    assert len({digest, *others}) == 5


def test_a_keyed_digest_is_no_nonce_of_a_sealed_message() -> None:
    """A content that looks like what a nonce is made of does not give the nonce, nor does any sealed message."""
    seal, context, plain = Seal(PAYCO, SHOP.certificate), b"context", b"plain"
    tied = len(context).to_bytes(4, "big") + context + hashlib.sha256(plain).digest()
    assert seal.digest(tied)[:12] != seal.seal(plain, context)[:12]


# Secrets.
def test_keys_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    assert fingerprint((make_keys("shop", tmp_path / "keys", 2), tmp_path / "keys/shop.crt")[1].read_bytes())
    secrets = [tmp_path / "keys" / f"shop.{kind}" for kind in ("key", "seed")]
    assert [mode_of(file) for file in secrets] == [0o600, 0o600]
    before = {file: file.read_bytes() for file in (tmp_path / "keys").iterdir()}
    said = sentence(lambda: make_keys("shop", tmp_path / "keys", 2), StorageError)
    assert said == f"{secrets[0]} exists and is not overwritten: choose another folder or remove it"
    assert {file: file.read_bytes() for file in (tmp_path / "keys").iterdir()} == before


def secrets_of(config: JobConfig) -> list[str]:
    """A party's secrets in any form in which they might be printed."""
    seed, pem = config.seed.read_bytes(), config.key.read_text()
    lines = [line for line in pem.splitlines() if not line.startswith("-")]
    return ["PRIVATE KEY", *lines, seed.hex(), base64.b64encode(seed).decode(), repr(seed)[2:-1], str(list(seed))[1:-1]]


def test_nothing_that_holds_a_secret_prints_it(config: JobConfig, tmp_path: Path) -> None:
    identity, seed = load_identity(config), config.seed.read_bytes()
    store = TripleStore.create(tmp_path / "triples", Manifest("store", 1, 1, 1, ""), seed)
    exchange = open_exchange(config)
    seal = Seal(identity, config.peers["shop"].certificate.read_bytes())
    for holder in (identity, store, StoreRun(store, 0), exchange, seal, config):
        for text in (repr(holder), str(holder), f"{holder}"):
            assert not any(secret in text for secret in secrets_of(config)), type(holder)
    close_exchange(config)


def test_logs_and_errors_hold_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    scene = make_scene(tmp_path, "gateway", timeout=3.0)
    parties = [Party(scene, name).start() for name in scene.configs]
    assert [party.wait() for party in parties] == [0, 0]
    assert parties[0].start().wait() == PeerError.code
    said = [party.said() for party in parties]
    config = scene.configs["payco"]
    secrets = secrets_of(config)
    config.key.chmod(0o640)
    said.append(sentence(lambda: load_identity(config), ConfigError))
    config.key.chmod(0o600)
    config.key.write_bytes(config.key.read_bytes()[:150])
    said.append(sentence(lambda: load_identity(config), CertificateError))
    assert "error: " in said[0]
    assert not any(secret in text for secret in secrets for text in (*said, caplog.text))
