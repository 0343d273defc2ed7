"""Certificates, keys and addresses that are checked before anything is sent; secrets that are never printed."""

import base64
import logging
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from support.error_sentence import error_sentence
from support.fault_injection import PATIENCE, PartyProcess, chain_message, make_chain_world
from support.parties import file_mode, make_configs, write_config
from support.unusual_certificates import FUTURE, PAST, unusual_identity
from veilmeans.crypto.certificates import Identity, check_certificate, fingerprint, make_identity
from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.io.exchange import connections
from veilmeans.io.exchange.connections import (
    check_listen_address,
    close_exchange,
    load_identity,
    load_peer_certificates,
    open_exchange,
    open_gateway,
    running_job,
)
from veilmeans.io.exchange.flight_gateway import Gateway
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import CertificateError, ConfigError, PeerError, RefusedError, StorageError
from veilmeans.schemas.run_folder import StoreFolder


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    """Payco's configuration; shop is its peer."""
    return make_configs(tmp_path)["payco"]


# Certificates and keys.
BAD: dict[str, tuple[Callable[[str], bytes], str]] = {
    "expired": (lambda name: make_identity(name, 2, PAST).certificate, "expired on"),
    "not yet valid": (lambda name: make_identity(name, 2, FUTURE).certificate, "is valid from"),
    "of another party": (lambda name: make_identity("bank", 2).certificate, "'bank'"),  # noqa: ARG005
    "of a CA": (lambda name: unusual_identity(x509.DNSName(name), ca=True).certificate, "CA"),
    "no certificate": (lambda name: name.encode(), ".crt"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_certificate_of_ours_or_of_a_peer_is_refused(config: JobConfig, what: str) -> None:
    make, because = BAD[what]
    for file, name, load in (
        (config.peers["shop"].certificate, "shop", load_peer_certificates),
        (config.certificate, "payco", load_identity),
    ):
        file.write_bytes(make(name))
        sentence = error_sentence(lambda load=load: load(config), CertificateError)
        for part in (because, name, str(file)):
            assert part in sentence
        assert error_sentence(lambda: open_gateway(config), CertificateError)
        assert error_sentence(lambda: open_exchange(config), CertificateError)


def test_a_missing_certificate_is_named(config: JobConfig) -> None:
    file = config.peers["shop"].certificate
    file.unlink()
    sentence = error_sentence(lambda: load_peer_certificates(config), CertificateError)
    assert f"shop ({file})" in sentence


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
    """gRPC gives the gateway the first of all names: shop could pass for payco, and read."""
    for names in ([other, x509.DNSName("shop")], [x509.DNSName("shop"), other]):
        pem = unusual_identity(*names).certificate
        sentence = error_sentence(lambda pem=pem: check_certificate(pem, "shop", "shop.crt"), CertificateError)
        assert "'shop'" in sentence


def test_a_key_of_another_certificate_is_refused(config: JobConfig) -> None:
    for content in (make_identity("payco", 2).key, b"no key at all"):
        config.key.write_bytes(content)
        assert str(config.key) in error_sentence(lambda: load_identity(config), CertificateError)


def test_a_key_that_others_may_read_is_refused(config: JobConfig) -> None:
    config.key.chmod(0o644)
    assert f"{config.key} has mode 0644" in error_sentence(lambda: load_identity(config), ConfigError)
    config.key.unlink()
    assert str(config.key) in error_sentence(lambda: load_identity(config), ConfigError)


@pytest.mark.processes
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


# Addresses.
def test_an_address_on_which_another_program_listens_is_refused(config: JobConfig) -> None:
    check_listen_address(config)
    host, _, port = (config.listen or "").rpartition(":")
    with socket.create_server((host, int(port))):
        assert config.listen in error_sentence(lambda: check_listen_address(config), StorageError)
        assert config.listen in error_sentence(lambda: open_gateway(config), StorageError)
        check_listen_address(config.model_copy(update={"gateway": "separate"}))


# Secrets.
def test_strangers_without_a_certificate_do_not_use_up_the_descriptors(config: JobConfig) -> None:
    """Idle connections beyond the soft limit that the process began with: it still opens files and connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").glob("*"))) or 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        with open_gateway(config) as gateway, ExitStack() as strangers:
            for _ in range(50):
                strangers.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE))
            assert load_identity(config).certificate
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_keys_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    make_keys("shop", tmp_path / "keys", 2)
    assert fingerprint((tmp_path / "keys/shop.crt").read_bytes())
    secrets = [tmp_path / "keys" / f"shop.{kind}" for kind in ("key", "seed")]
    assert [file_mode(file) for file in secrets] == [0o600, 0o600]
    before = {file: file.read_bytes() for file in (tmp_path / "keys").iterdir()}
    assert str(secrets[0]) in error_sentence(lambda: make_keys("shop", tmp_path / "keys", 2), StorageError)
    assert {file: file.read_bytes() for file in (tmp_path / "keys").iterdir()} == before


def secrets_of(config: JobConfig) -> list[str]:
    """A party's secrets in any form in which they might be printed."""
    seed, pem = config.seed.read_bytes(), config.key.read_text()
    lines = [line for line in pem.splitlines() if not line.startswith("-")]
    return ["PRIVATE KEY", *lines, seed.hex(), base64.b64encode(seed).decode(), repr(seed)[2:-1], str(list(seed))[1:-1]]


def test_no_object_that_holds_a_secret_prints_it(config: JobConfig, tmp_path: Path) -> None:
    identity, seed = load_identity(config), config.seed.read_bytes()
    store = TripleStore.create(StoreFolder(tmp_path / "triples"), Manifest("store", 1, 1, 1, ""), seed)
    exchange = open_exchange(config)
    cipher = PairwiseCipher(identity, config.peers["shop"].certificate.read_bytes())
    for holder in (identity, store, StoreRun(store, 0), exchange, cipher, config):
        for text in (repr(holder), str(holder), f"{holder}"):
            assert not any(secret in text for secret in secrets_of(config)), type(holder)
    close_exchange(config)


@pytest.mark.processes
def test_logs_and_errors_hold_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = make_chain_world(tmp_path, "gateway")
    parties = [PartyProcess(world, name).start() for name in world.configs]
    assert [party.wait() for party in parties] == [0, 0]
    config = world.configs["payco"]
    alone = config.model_copy(update={"exchange": config.exchange.model_copy(update={"timeout_s": 0.5})})
    write_config(alone, world.file("payco"))
    assert parties[0].start().wait() == PeerError.code
    printed = [party.output() for party in parties]
    secrets = secrets_of(config)
    config.key.chmod(0o640)
    printed.append(error_sentence(lambda: load_identity(config), ConfigError))
    config.key.chmod(0o600)
    config.key.write_bytes(config.key.read_bytes()[:150])
    printed.append(error_sentence(lambda: load_identity(config), CertificateError))
    assert "error: " in printed[0]
    assert not any(secret in text for secret in secrets for text in (*printed, caplog.text))


def test_earlier_refusals_are_forgotten_before_the_gateway_serves(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused as soon as the gateway serves must end the run, and not be forgotten with the old ones."""
    MessageStore(config.storage_folder.inbox).refuse("test", RefusedError("an earlier attempt"))
    found = []

    class Watched(Gateway):
        def __init__(
            self, party: str, listen: str, identity: Identity, peers: Any, inbox: MessageStore, *rest: Any
        ) -> None:
            found.append(inbox.find(chain_message().key))
            super().__init__(party, listen, identity, peers, inbox, *rest)

    monkeypatch.setattr(connections, "Gateway", Watched)
    with running_job(config, ["test"]):
        assert found == [None]
