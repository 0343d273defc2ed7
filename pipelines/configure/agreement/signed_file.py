"""Signed files that parties send each other to agree on a run: invitations, replies, agreements, proposals, answers.

A file is JSON: {"veilmeans": kind, "version": 1, "body": {…}, "signature": …}. The signature (ECDSA P-256, by the key
of the sender's certificate) covers kind, version and body in one canonical form. Nothing in a file is secret.

A file comes from outside, so it is limited in size and depth, its fields are those of the classes below and no others,
no text in it is used as a path, and whatever is shown of it is shown with control characters escaped.
"""

import base64
import binascii
import hashlib
import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, StringConstraints, ValidationError

from veilmeans.crypto.certificates import Identity, is_signed_by, normal_certificate, sign
from veilmeans.schemas.config import HostAndPort, first_mistake
from veilmeans.schemas.config_fields import ConfigSection, Name
from veilmeans.schemas.errors import CertificateError, ConfigError, RefusedError, printable

VERSION = 1
MAX_SIZE = 256_000
"""Bytes of the largest file that is read."""
_MAX_DEPTH = 10
_LABEL = b"veilmeans signed file\n"
"""The beginning of all that is signed here: no message of TLS, which uses the same key, begins with it."""

Id = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Certificate = Annotated[str, StringConstraints(max_length=8192)]
_ADDRESS = r"^[A-Za-z0-9._:\[\]-]{1,253}:[0-9]{1,5}$"
Address = Annotated[HostAndPort, StringConstraints(pattern=_ADDRESS)]
Number = Annotated[int, Field(ge=1, lt=1 << 63, strict=True)]


class Member(ConfigSection):
    """A member as the others must know it; `number`: of a party's columns (vertical) or rows (horizontal)."""

    certificate: Certificate
    address: Address
    number: Number | None = None


class Invitation(ConfigSection):
    """The terms of a run, and who invites."""

    id: Id
    sender: Name
    expires: AwareDatetime
    member: Member
    terms: dict[str, Any]


class Reply(ConfigSection):
    """The consent to an invitation, and who gives it. `digest`: of the invitation."""

    invitation: Id
    digest: Digest
    sender: Name
    member: Member


class Agreement(ConfigSection):
    """All members, after all have replied to an invitation."""

    invitation: Id
    digest: Digest
    sender: Name
    expires: AwareDatetime
    members: dict[Name, Member]


class Proposal(ConfigSection):
    """A change of agreed terms, or of the sender's certificate or address. `before`: digest of what is agreed now."""

    id: Id
    sender: Name
    expires: AwareDatetime
    before: Digest
    changes: dict[str, Any] = Field({})
    certificate: Certificate | None = None
    address: Address | None = None


class Answer(ConfigSection):
    """A member's answer to a proposal. `digest`: of the proposal."""

    proposal: Id
    digest: Digest
    sender: Name
    accepted: Annotated[bool, Field(strict=True)]


class Decision(ConfigSection):
    """The proposer's statement that all have accepted its proposal: now it applies."""

    proposal: Id
    digest: Digest
    sender: Name


Body = Invitation | Reply | Agreement | Proposal | Answer | Decision
_KINDS: dict[str, type[Body]] = {
    kind.__name__.lower(): kind for kind in (Invitation, Reply, Agreement, Proposal, Answer, Decision)
}


@dataclass(frozen=True)
class SignedFile:
    """A file that was read, or that is to be written. `name`: for error messages."""

    name: str
    body: Body
    raw: dict[str, Any]
    """The body as JSON, exactly as it was signed."""
    signature: bytes

    @property
    def kind(self) -> str:
        """Invitation, reply, agreement, proposal, answer or decision."""
        return type(self.body).__name__.lower()

    @property
    def digest(self) -> str:
        """SHA-256 of all but the signature, in hexadecimal."""
        return hashlib.sha256(_signed_content(self.kind, self.raw)).hexdigest()

    def text(self) -> str:
        """The content of the file."""
        content = {"veilmeans": self.kind, "version": VERSION, "body": self.raw}
        content["signature"] = base64.b64encode(self.signature).decode()
        return json.dumps(content, indent=2) + "\n"

    def check_signature(self, certificate: bytes) -> None:
        """Refuse a file that the owner of a certificate has not signed."""
        if not is_signed_by(certificate, _signed_content(self.kind, self.raw), self.signature):
            raise RefusedError(
                f"{self.name} is not signed by the certificate of {self.body.sender}, or was altered on the way: ask "
                f"{self.body.sender} to send it again"
            )


def sign_file(body: Body, identity: Identity) -> SignedFile:
    """Sign a body with a party's key."""
    kind, raw = type(body).__name__.lower(), body.model_dump(mode="json")
    return SignedFile(kind, body, raw, sign(identity, _signed_content(kind, raw)))


def read_signed(file: Path) -> SignedFile:
    """Read a file that a peer sent; whose signature it has is not checked here."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    if len(content) > MAX_SIZE:
        raise RefusedError(f"{file} is larger than {MAX_SIZE:,} bytes: it is no file that `veilmeans invite` wrote")
    return _parse(content, str(file))


def _parse(content: bytes, name: str) -> SignedFile:
    outer = _json(content, name)
    kind = outer.get("veilmeans") if isinstance(outer, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS or set(outer) != {"veilmeans", "version", "body", "signature"}:
        raise _no_file(name)
    if outer["version"] != VERSION:
        raise RefusedError(f"{name} was written by another version of veilmeans: use the same version everywhere")
    try:
        signature = base64.b64decode(outer["signature"], validate=True)
        body = _KINDS[kind].model_validate(outer["body"])
    except (binascii.Error, TypeError, ValueError) as error:
        why = first_mistake(error) if isinstance(error, ValidationError) else "signature: is not base64"
        raise RefusedError(f"{name} is a damaged {kind}: {printable(why)[:200]}; ask for it again") from None
    return SignedFile(name, body, outer["body"], signature)


def _json(content: bytes, name: str) -> Any:
    """Parse JSON with limits: no deep nesting, no field twice, no number that is not finite or has over 64 bits."""
    try:
        parsed = json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
        _check_values(parsed, 0)
    except (ValueError, RecursionError):
        raise _no_file(name) from None
    return parsed


def _no_file(name: str) -> RefusedError:
    return RefusedError(
        f"{name} is no file of `veilmeans invite`, `join` or `propose`, or was damaged on the way: ask for it again"
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a field occurs twice")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _check_values(value: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not finite")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("too large")
    if isinstance(value, str):
        value.encode()  # a lone surrogate is no text
    below = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for each in below:
        _check_values(each, depth + 1)


def _signed_content(kind: str, raw: dict[str, Any]) -> bytes:
    """The canonical form of kind, version and body."""
    content = {"veilmeans": kind, "version": VERSION, "body": raw}
    return _LABEL + json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def member_certificate(member: Member | Proposal, owner: str, name: str) -> bytes:
    """The certificate in a file as PEM; refuse one that is not its owner's, is not valid now, or can sign others."""
    try:
        return normal_certificate((member.certificate or "").encode(), owner)
    except CertificateError as error:
        raise RefusedError(f"{name}: {printable(error.sentence)[:200]}; ask {owner} for another file") from None


def check_not_expired(body: Invitation | Agreement | Proposal, name: str) -> None:
    """Refuse a file whose date has passed."""
    if datetime.now(UTC) > body.expires:
        raise RefusedError(
            f"{name} expired on {body.expires.isoformat(' ', 'minutes')}: ask {body.sender} for a new one"
        )


def expiry(days: int) -> datetime:
    """The moment some days from now, to the second."""
    return (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0)


def check_address(what: str, address: str) -> None:
    """Refuse an address that is not host:port."""
    if not re.fullmatch(_ADDRESS, address) or not 0 < int(address.rpartition(":")[2]) < 65536:
        raise ConfigError(f"{what} is {address!r}: it must be host:port, as the others reach it")
