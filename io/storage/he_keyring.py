"""The keys of the homomorphic engine, in the folder of a store: made with it, used by its runs only.

cipher.key          this party's key pair (0600)
cipher.seed         the seed of its masks and of the randomness of its ciphertexts (0600)
cipher.<peer>.pub   a peer's public key, as it sent it when the store was made
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.crypto.he.scheme import PrivateKey, PublicKey
from veilmeans.crypto.prg import SEED_SIZE
from veilmeans.io.storage.atomic_files import write_json
from veilmeans.io.storage.secret_files import read_secret, write_secret
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.party import Party


@dataclass(frozen=True)
class Keyring:
    """A party's own key pair, the others' public keys, and the seed of its masks. Lives in one process."""

    own: PrivateKey = field(repr=False)
    others: Mapping[int, PublicKey]
    seed: bytes = field(repr=False)

    def public(self, party: int) -> PublicKey:
        return self.others.get(party, self.own.public)

    def __reduce__(self) -> str:
        raise TypeError("a keyring holds secrets: it is read where it is used")


def make_own(folder: Path, cipher: SchemeParameters) -> PublicKey:
    """This party's key pair and seed, unless they are there; its public key."""
    if not _own(folder).exists():
        write_secret(_own(folder), json.dumps(he.generate(cipher.scheme, cipher.bits).to_json()).encode())
    if not _seed(folder).exists():
        write_secret(_seed(folder), os.urandom(SEED_SIZE))
    return _read_own(folder).public


def keep_peer(folder: Path, peer: str, content: bytes, cipher: SchemeParameters) -> None:
    """A peer's public key, if it is one of the agreed kind."""
    try:
        key = he.public_from_json(json.loads(content))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RefusedError(f"{peer} sent no public key that could be used: does it run another veilmeans?") from None
    if (key.scheme, key.bits) != (cipher.scheme, cipher.bits):
        raise RefusedError(f"{peer} sent a key of {key.bits} bits for {key.scheme}: {cipher.bits} bits were agreed on")
    write_json(_peer(folder, peer), key.to_json())


def has_keys(folder: Path) -> bool:
    """Whether the store was made for a job with ciphertexts."""
    return _own(folder).exists()


@lru_cache(maxsize=8)
def load_keyring(folder: Path, party: Party) -> Keyring:
    """The keys of a store, read once in a process."""
    seed = _read_secret(_seed(folder))
    if len(seed) != SEED_SIZE:
        raise _damaged(_seed(folder))
    return Keyring(_read_own(folder), _others(folder, party), seed)


def moduli(folder: Path, party: Party) -> dict[int, int]:
    """The peers' moduli, which are public."""
    return {peer: int(key.modulus) for peer, key in _others(folder, party).items()}


def _others(folder: Path, party: Party) -> dict[int, PublicKey]:
    return {peer: _read_peer(folder, party.names[peer]) for peer in party.others}


def _read_own(folder: Path) -> PrivateKey:
    try:
        return he.private_from_json(json.loads(_read_secret(_own(folder))))
    except (ValueError, TypeError, KeyError):
        raise _damaged(_own(folder)) from None


def _read_secret(file: Path) -> bytes:
    if not file.exists():
        raise _damaged(file)
    return read_secret(file)


def _read_peer(folder: Path, peer: str) -> PublicKey:
    file = _peer(folder, peer)
    try:
        return he.public_from_json(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        raise _damaged(file) from None


def _damaged(file: Path) -> StorageError:
    return StorageError(f"the key {file} is missing or damaged: make the store again with `veilmeans offline`")


def _own(folder: Path) -> Path:
    return folder / "cipher.key"


def _seed(folder: Path) -> Path:
    return folder / "cipher.seed"


def _peer(folder: Path, peer: str) -> Path:
    return folder / f"cipher.{peer}.pub"
