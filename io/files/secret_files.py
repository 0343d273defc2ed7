"""A party's secrets as files: mode 0600, made once, never overwritten. Those below a shared `storage` are sealed."""

import os
from pathlib import Path

from veilmeans.io.files.party_files import LOCAL, files_at
from veilmeans.schemas.errors import ConfigError, StorageError


def write_secret(path: Path, secret: bytes) -> None:
    """Write a file that only its owner may read; refuse to replace it by another secret."""
    files = files_at(path)
    if files.exists(path) and files.read(path).to_pybytes() == secret:
        return
    if files is not LOCAL:
        if files.exists(path):
            raise _exists(path)
        files.write(path, [secret])
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secret)
        os.link(part, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def _exists(path: Path) -> StorageError:
    return StorageError(f"{path} exists and is not overwritten: choose another folder or remove it")


def read_secret(path: Path) -> bytes:
    """Read a secret file; refuse one that others may read."""
    files = files_at(path)
    try:
        if files is not LOCAL:
            return bytes(files.read(path))
        mode = path.stat().st_mode & 0o777
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the secret file {path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"the secret file {path} has mode {mode:04o}: run chmod 600 {path}")
    return secret
