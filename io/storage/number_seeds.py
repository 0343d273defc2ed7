"""The seeds of a triple store's numbers: one file for each, so that a used one can be deleted for itself.

While a store is made, one seed gives them all: number seed = HMAC(seed, number). With the store it is deleted, and what
was sent in an ended run can then not be unmasked with what is left on the disk. A file is the seed and its HMAC under
the key of the store's files; a damaged one is refused.
"""

import hmac
from functools import lru_cache
from pathlib import Path

from veilmeans.crypto import prg
from veilmeans.io.files.atomic_files import make_private_folder
from veilmeans.io.files.party_files import LOCAL, files_at
from veilmeans.io.files.secret_files import read_secret, write_secret
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.run_folder import StoreFolder


def derive_number_seed(seed: bytes, number: int) -> bytes:
    """Derive the seed of one number from that of a store."""
    return prg.derive(seed, f"number {number}")


def derive_file_key(seed: bytes) -> bytes:
    """Derive the key that authenticates a store's files from the seed of the store."""
    return prg.derive(seed, "files of a triple store")


def read_file_key(folder: StoreFolder) -> bytes:
    """Read the key that authenticates a store's files; of a store that is being made, derive it."""
    made = files_at(folder.path).exists(folder.file_key)
    return read_secret(folder.file_key) if made else derive_file_key(read_secret(folder.seed))


def write_number_seed(path: Path, key: bytes, seed: bytes) -> None:
    """Write the seed of a number with its tag."""
    if files_at(path) is LOCAL:
        make_private_folder(path.parent)
    write_secret(path, seed + _tag(path, key, seed))


@lru_cache(maxsize=64)
def read_number_seed(path: Path, key: bytes) -> bytes:
    """Read the seed of a number; refuse one that was deleted after its run, or is damaged."""
    if not files_at(path).exists(path):
        raise StorageError(f"{path} is gone: it is deleted when its run has ended; choose a new run id")
    content = read_secret(path)
    seed, tag = content[: prg.SEED_SIZE], content[prg.SEED_SIZE :]
    if not hmac.compare_digest(tag, _tag(path, key, seed)):
        raise StorageError(f"{path} is damaged: make a new triple store with `veilmeans offline`")
    return seed


def _tag(path: Path, key: bytes, seed: bytes) -> bytes:
    return hmac.digest(key, path.name.encode() + b" " + seed, "sha256")
