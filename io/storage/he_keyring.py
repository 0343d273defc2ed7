"""The keys of the homomorphic engine, in the folder of a triple store: made with it, used by its runs only.

cipher.key          this party's key pair (0600)
cipher.<peer>.pub   a peer's public key, as it sent it when the store was made
seeds/<n>.ciphers   the seed of its masks and of the randomness of its ciphertexts in the run with number n (0600)
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.crypto.he.scheme import PrivateKey, PublicKey
from veilmeans.crypto.prg import SEED_SIZE
from veilmeans.io.files.atomic_files import parse_json
from veilmeans.io.files.party_files import files_at, read_file_text, write_file_json
from veilmeans.io.files.secret_files import read_secret, write_secret
from veilmeans.io.storage.number_seeds import read_file_key, read_number_seed, write_number_seed
from veilmeans.schemas.errors import ConfigError, RefusedError, StorageError
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import StoreFolder


@dataclass(frozen=True)
class Keyring:
    """A party's own key pair, the peers' public keys, and the seed of its masks. Never pickled.

    `store`: the folder with the seeds of its numbers (`for_number`); None: `seed` is for all.
    """

    own: PrivateKey = field(repr=False)
    others: Mapping[int, PublicKey]
    seed: bytes = field(repr=False)
    store: StoreFolder | None = None

    def for_number(self, number: int) -> "Keyring":
        """The keys with the seed of one number of the store."""
        if self.store is None:
            return self
        return replace(self, seed=read_number_seed(self.store.mask_seed(number), read_file_key(self.store)))

    def public(self, party: int) -> PublicKey:
        """Return the public key of a party."""
        return self.others.get(party, self.own.public)

    def __reduce__(self) -> str:
        raise TypeError("a keyring holds secrets: it is read where it is used")


def check_scheme_installed(scheme: str) -> None:
    """Raise ConfigError if the scheme needs a package that is not installed."""
    try:
        he.check_installed(scheme)
    except ImportError:
        raise ConfigError(
            f"kmeans.cipher.scheme is {scheme}, which needs the package phe: "
            "run `pip install veilmeans[paillier]`, or set okamoto-uchiyama"
        ) from None


def make_own_keys(folder: StoreFolder, cipher: SchemeParameters) -> PublicKey:
    """Make this party's key pair, unless it exists; return its public key."""
    check_scheme_installed(cipher.scheme)
    files = files_at(folder.path)
    if not files.exists(folder.he_key):
        write_secret(folder.he_key, json.dumps(he.generate_key(cipher.scheme, cipher.bits).to_json()).encode())
    return _read_own(folder).public


def make_mask_seeds(folder: StoreFolder, numbers: Iterable[int]) -> None:
    """Draw this party's seeds of masks and randomness for the numbers of a store, unless they exist."""
    for number in numbers:
        if not files_at(folder.path).exists(folder.mask_seed(number)):
            write_number_seed(folder.mask_seed(number), read_file_key(folder), os.urandom(SEED_SIZE))


def store_peer_key(folder: StoreFolder, peer: str, content: bytes, cipher: SchemeParameters) -> None:
    """Store a peer's public key, if it is of the agreed scheme and size."""
    try:
        key = he.public_key_from_json(parse_json(content))
    except (ValueError, TypeError, KeyError):
        raise RefusedError(f"{peer} sent an unusable public key: does it run another veilmeans?") from None
    if (key.scheme, key.bits) != (cipher.scheme, cipher.bits):
        raise RefusedError(f"{peer} sent a key of {key.bits} bits for {key.scheme}: {cipher.bits} bits were agreed on")
    write_file_json(folder.peer_key(peer), key.to_json())


def has_keys(folder: StoreFolder) -> bool:
    """Return whether the triple store was made for a job with ciphertexts."""
    return files_at(folder.path).exists(folder.he_key)


@lru_cache(maxsize=8)
def load_keyring(folder: StoreFolder, party: Party) -> Keyring:
    """Load the keys of a triple store; a process reads them once."""
    own = _read_own(folder)
    check_scheme_installed(own.public.scheme)
    return Keyring(own, _others(folder, party), b"", folder)


def peer_moduli(folder: StoreFolder, party: Party) -> dict[int, int]:
    """Load the peers' moduli, which are public."""
    return {peer: int(key.modulus) for peer, key in _others(folder, party).items()}


def _others(folder: StoreFolder, party: Party) -> dict[int, PublicKey]:
    return {peer: _read_peer(folder.peer_key(party.names[peer])) for peer in party.others}


def _read_own(folder: StoreFolder) -> PrivateKey:
    try:
        return he.private_key_from_json(parse_json(_read_secret(folder.he_key)))
    except (ValueError, TypeError, KeyError):
        raise _damaged(folder.he_key) from None


def _read_secret(file: Path) -> bytes:
    if not files_at(file).exists(file):
        raise _damaged(file)
    return read_secret(file)


def _read_peer(file: Path) -> PublicKey:
    try:
        return he.public_key_from_json(parse_json(read_file_text(file)))
    except (OSError, ValueError, TypeError, KeyError):
        raise _damaged(file) from None


def _damaged(file: Path) -> StorageError:
    return StorageError(f"the key {file} is missing or damaged: make the store again with `veilmeans offline`")
