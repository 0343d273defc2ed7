"""Make a party's key, certificate and seed (`veilmeans config keys`), and show fingerprints of certificates."""

import os
from pathlib import Path

from veilmeans.crypto.certificates import check_certificate, fingerprint, make_identity
from veilmeans.crypto.prg import SEED_SIZE
from veilmeans.io.exchange.connections import load_identity
from veilmeans.io.files.atomic_files import check_writable
from veilmeans.io.files.secret_files import read_secret, write_secret
from veilmeans.io.storage.run_token import MOUNTED, TOKEN, TOKEN_FILE, make_token, revoke_tokens
from veilmeans.schemas.address import checked_name
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import CertificateError, ConfigError, StorageError


def dry_keys(name: str, folder: Path, days: int) -> str:
    """Check that the files can be written, and return what would be done."""
    check_keys(name, folder)
    check_writable(folder)
    key, seed, certificate = key_files(name, folder)
    return (
        f"would write {key} and {seed}, secrets (mode 0600) that stay here\n"
        f"would write {certificate}, valid for {days:,} days, to be sent to every peer"
    )


def key_files(name: str, folder: Path) -> tuple[Path, Path, Path]:
    """Return the paths of key, seed and certificate."""
    return folder / f"{name}.key", folder / f"{name}.seed", folder / f"{name}.crt"


def check_keys(name: str, folder: Path) -> None:
    """Refuse an invalid name, and files that exist already."""
    checked_name("the party's name", name)
    for file in key_files(name, folder):
        if file.exists():
            raise StorageError(f"{file} exists and is not overwritten: choose another folder or remove it")


def make_keys(name: str, folder: Path, days: int) -> str:
    """Write NAME.key, NAME.seed (0600) and NAME.crt; return the next step."""
    checked_name("the party's name", name)
    key, seed, certificate = key_files(name, folder)
    identity = make_identity(name, days)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"the folder {folder} cannot be made: {error.strerror}") from None
    check_keys(name, folder)
    write_secret(key, identity.key)
    write_secret(seed, os.urandom(SEED_SIZE))
    certificate.write_bytes(identity.certificate)
    return f"send {certificate} to your peers; its fingerprint is {fingerprint(identity.certificate)}"


def revoke_run_tokens(config: JobConfig) -> str:
    """Let our gateway refuse the tokens of a run that were made so far; return what follows."""
    revoke_tokens(config.run_folder)
    return (
        f"the gateway of {config.party} refuses all tokens of run {config.run!r} that were made so far; "
        "`veilmeans config token` makes a new one, under another --write"
    )


def write_token(config: JobConfig, file: Path) -> str:
    """Write the token of a run's workers (0600); return how they get it."""
    if config.workers is None:
        raise ConfigError(f"the configuration of {config.party} has no `workers`: set workers.listen, and shared")
    token = make_token(read_secret(config.seed), config, load_identity(config).certificate)
    write_secret(file, f"{token.encode()}\n".encode())
    return (
        f"{file} is a secret (mode 0600): give it to the workers of run {config.run!r} as a file that {TOKEN_FILE} "
        f"names, in {TOKEN}, or mounted as {MOUNTED}"
    )


def show_fingerprint(file: Path) -> str:
    """Return the owner and the fingerprint of a certificate file."""
    try:
        pem = file.read_bytes()
    except OSError as error:
        raise CertificateError(f"the certificate {file} cannot be read: {error.strerror}") from None
    check_certificate(pem, file.stem, str(file))
    return f"{file} is the certificate of {file.stem}; its fingerprint is {fingerprint(pem)}"
