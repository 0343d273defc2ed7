"""Signed statements: what a party says that it has sent and received in a run, for its peers and for an audit.

A statement has, for each peer, the links of the chain of all messages between the two (`io.messages.transcript`), which
begin with the terms of their handshake, and so with the digests to which each has bound its data and its seed. It is
signed with the key of the party's certificate, sent with the farewell, and kept by all.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veilmeans.crypto.certificates import is_signed_by, sign
from veilmeans.io.exchange.connections import load_identity
from veilmeans.io.files.atomic_files import read_json, write_json
from veilmeans.io.messages.transcript import Link, Transcript, first_different_link, terms_digest
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError, StorageError

_LABEL = b"veilmeans transcript\n"
"""The beginning of all that is signed here: nothing else that is signed with the key begins with it."""
_CONTENT, _SIGNATURE = "statement", "signature"


@dataclass(frozen=True)
class SignedStatement:
    """A statement as it was signed."""

    content: bytes
    signature: bytes

    def arrays(self) -> dict[str, Array]:
        """The statement as arrays of a message."""
        return {
            _CONTENT: np.frombuffer(self.content, np.uint8),
            _SIGNATURE: np.frombuffer(self.signature, np.uint8),
        }

    @classmethod
    def of_message(cls, peer: str, arrays: Arrays) -> "SignedStatement":
        if any(name not in arrays or arrays[name].dtype != np.uint8 for name in (_CONTENT, _SIGNATURE)):
            raise RefusedError(f"the farewell of {peer} has no transcript: does it run another veilmeans?")
        content = arrays[_CONTENT].tobytes()
        if not content.isascii():  # JSON as `own_statement` writes it, which `write` keeps as text
            raise RefusedError(f"the transcript of {peer} cannot be read: does it run another veilmeans?")
        return cls(content, arrays[_SIGNATURE].tobytes())

    def write(self, file: Path) -> None:
        write_json(file, {_CONTENT: self.content.decode(), _SIGNATURE: self.signature.hex()})

    @classmethod
    def read(cls, file: Path) -> "SignedStatement | None":
        """Read a statement; None if there is none."""
        try:
            stored = read_json(file)
            return None if stored is None else cls(stored[_CONTENT].encode(), bytes.fromhex(stored[_SIGNATURE]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise StorageError(f"{file} cannot be read: restore it from a backup") from None

    def links(self, party: str, run: str, transcript: str, peer: str, certificate: bytes) -> list[Link]:
        """The links of the chain with `peer`, if `party` signed them for this run; else a RefusedError."""
        if not is_signed_by(certificate, _LABEL + self.content, self.signature):
            raise RefusedError(f"the transcript of {party} is not signed with the key of its certificate")
        try:
            stated = json.loads(self.content)
            if (stated["party"], stated["run"]) != (party, run):
                raise ValueError("of another run")
            return [(int(i), str(link)) for i, link in stated["transcripts"][transcript][peer]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RefusedError(f"the signed transcript of {party} is not of run {run!r}, or cannot be read") from None


def statement_file(config: JobConfig, party: str) -> Path:
    """The file of a party's statement on the run."""
    return config.run_folder.transcripts / f"signed.{party}.json"


def own_statement(config: JobConfig, transcripts: Sequence[Transcript]) -> SignedStatement:
    """This party's statement, signed once: a second signature would differ from what the peers have."""
    file = statement_file(config, config.party)
    known = SignedStatement.read(file)
    if known is not None:
        return known
    stated: dict[str, Any] = {
        each.run: {peer: own_links(config, each, peer) for peer in config.peers} for each in transcripts
    }
    content = {"party": config.party, "run": config.run, "transcripts": stated}
    encoded = json.dumps(content, sort_keys=True).encode()
    statement = SignedStatement(encoded, sign(load_identity(config), _LABEL + encoded))
    statement.write(file)
    return statement


def own_links(config: JobConfig, transcript: Transcript, peer: str) -> list[Link]:
    """The chain of messages with a peer, as this party's transcript has them."""
    pairs = sorted([(config.party, peer), (peer, config.party)])
    files = [config.run_folder.terms(*pair) for pair in pairs]
    terms = [terms_digest(read_json(file) or {}) for file in files]
    return transcript.links(config.party, peer, json.dumps([config.run, transcript.run, *terms]).encode())


def compare_statement(
    config: JobConfig, transcripts: Iterable[Transcript], peer: str, statement: SignedStatement, certificate: bytes
) -> None:
    """Refuse a peer's statement on our messages that is not ours; keep it in any case."""
    statement.write(statement_file(config, peer))
    for each in transcripts:
        theirs = statement.links(peer, config.run, each.run, config.party, certificate)
        different = first_different_link(own_links(config, each, peer), theirs)
        if different is not None:
            raise RefusedError(
                f"{config.party} and {peer} have different transcripts of run {each.run!r}, from iteration {different} "
                "on: do not rely on its results; `veilmeans audit` at each party shows whose messages are not right"
            )
