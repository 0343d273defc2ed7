"""`veilmeans keys`: a party's identity and seed as files."""

import os
from pathlib import Path

from veilmeans.crypto.certificates import check_certificate, fingerprint, make_identity
from veilmeans.crypto.prg import SEED_SIZE
from veilmeans.io.keys import write_secret
from veilmeans.schemas.address import checked_name
from veilmeans.schemas.errors import CertificateError, StorageError


def make_keys(name: str, folder: Path, days: int) -> str:
    """Write NAME.key, NAME.seed (0600) and NAME.crt; what to tell the user."""
    checked_name("the party's name", name)
    identity = make_identity(name, days)
    certificate = folder / f"{name}.crt"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"the folder {folder} cannot be made: {error.strerror}") from None
    for file in (folder / f"{name}.key", folder / f"{name}.seed", certificate):
        if file.exists():
            raise StorageError(f"{file} exists and is not overwritten: choose another folder or remove it")
    write_secret(folder / f"{name}.key", identity.key)
    write_secret(folder / f"{name}.seed", os.urandom(SEED_SIZE))
    certificate.write_bytes(identity.certificate)
    return f"send {certificate} to your peers; its fingerprint is {fingerprint(identity.certificate)}"


def show_fingerprint(file: Path) -> str:
    """Whose certificate a file holds, and its fingerprint."""
    try:
        pem = file.read_bytes()
    except OSError as error:
        raise CertificateError(f"the certificate {file} cannot be read: {error.strerror}") from None
    check_certificate(pem, file.stem, str(file))
    return f"{file} is made out to {file.stem}; its fingerprint is {fingerprint(pem)}"
