"""Join a run by an invitation (`veilmeans join`): keys, a configuration with the invited terms, and a reply to send."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from veilmeans.crypto.certificates import fingerprint
from veilmeans.io.files.atomic_files import check_writable, write_text
from veilmeans.pipelines.configure.agreement.agreement_records import (
    Records,
    command,
    listed,
    outgoing_file,
)
from veilmeans.pipelines.configure.agreement.invite import (
    OwnPart,
    check_member,
    draft_text,
    make_own_keys,
    shaped_text,
)
from veilmeans.pipelines.configure.agreement.replies import agreed_lines
from veilmeans.pipelines.configure.agreement.shared_terms import (
    common_terms,
    first_different,
    own_number,
    terms_table,
    with_members,
    with_terms,
)
from veilmeans.pipelines.configure.agreement.signed_file import (
    Invitation,
    Member,
    Reply,
    SignedFile,
    check_not_expired,
    member_certificate,
    sign_file,
)
from veilmeans.pipelines.configure.config_template import TemplateValues
from veilmeans.pipelines.configure.edit_config import changed_text
from veilmeans.schemas.address import NAME
from veilmeans.schemas.config import JobConfig, parse_config, read_config
from veilmeans.schemas.errors import ConfigError, RefusedError

MAX_MEMBERS = 32
Consent = Callable[[Table, str], None]
"""Show a table and ask; raises an error unless the user agrees."""


@dataclass(frozen=True)
class Invited:
    """An invitation that is genuine as far as a file can be, and who is invited by it."""

    file: SignedFile
    body: Invitation
    certificate: bytes
    parties: tuple[str, ...]
    dealer: str | None

    @property
    def others(self) -> list[str]:
        """All members but the inviter."""
        return [name for name in (*self.parties, self.dealer) if name and name != self.body.sender]


def check_invitation(file: SignedFile, body: Invitation) -> Invited:
    """Refuse an invitation that has expired, was altered, or whose members are not named as they must be."""
    certificate = member_certificate(body.member, body.sender, file.name)
    file.check_signature(certificate)
    check_not_expired(body, file.name)
    parties, dealer = body.terms.get("parties"), body.terms.get("dealer")
    members = [*parties, dealer] if isinstance(parties, list) and dealer else parties
    if not isinstance(members, list) or len(members) > MAX_MEMBERS or not all(_is_name(each) for each in members):
        raise RefusedError(f"{file.name}: parties and dealer must be names; ask {body.sender} for another invitation")
    if len(set(members)) != len(members) or body.sender not in members:
        raise RefusedError(
            f"{file.name}: a name is taken twice among {listed(members)}, or {body.sender} is not one of them; ask "
            f"{body.sender} for another invitation"
        )
    return Invited(file, body, certificate, tuple(parties or ()), dealer)


def join(
    file: SignedFile, body: Invitation, own: OwnPart, name: str | None, ask: Consent, dry_run: bool = False
) -> str:
    """Ask for consent, write keys, configuration and reply; return what to do next."""
    invited = check_invitation(file, body)
    party = _own_name(invited, name)
    records = Records(own.file, body.id)
    records.refuse_second(file.name, "reply")
    text = _joined_text(invited, party, own)
    ask(_invitation_table(invited, party), f"Join as {party} with these terms?")
    if dry_run:
        shaped_text(text, own, joins=True)
        check_writable(own.file.parent)
        return f"would write {own.file}, keys if there are none, and a reply to {body.sender}"
    identity = make_own_keys(parse_config(text, own.file))
    write_text(own.file, text)
    text, summary = shaped_text(text, own, joins=True)
    config = parse_config(text, own.file)
    member = Member(certificate=identity.certificate.decode(), address=own.address, number=own_number(config))
    reply = sign_file(Reply(invitation=body.id, digest=file.digest, sender=party, member=member), identity)
    write_text(config.peers[body.sender].certificate, invited.certificate.decode())
    write_text(own.file, text)
    target = outgoing_file(own.file, reply)
    write_text(target, reply.text())
    records.write(file)
    records.write(reply)
    return summary + _next_steps(config, own.file, target, body.sender)


def _joined_text(invited: Invited, party: str, own: OwnPart) -> str:
    """The text of our configuration with the invited terms: the one that exists, changed, or a new one."""
    body, file = invited.body, own.file
    if file.exists():
        text = read_config(file)
        present = parse_config(text, file)
        if present.party != party or set(present.members) != {*invited.others, body.sender}:
            raise ConfigError(
                f"{file} is the configuration of {present.party} with {listed(list(present.peers))}, not of {party} "
                "with these members: join in another folder, or with another --config"
            )
    else:
        layout = body.terms.get("kmeans.layout")
        values = TemplateValues(
            invited.parties, invited.dealer, layout="horizontal" if layout == "horizontal" else "vertical", clusters=1
        )
        text = draft_text(party, values, file)
    text = with_terms(text, body.terms, file, invited.file.name)
    text = changed_text(text, own.connection(), file)
    text = with_members(text, {body.sender: body.member}, file)
    config = parse_config(text, file)
    check_member(config, own)
    missing = first_different(common_terms(config), body.terms)
    if missing is not None:
        raise RefusedError(f"{invited.file.name} does not say {missing}: use the same version of veilmeans everywhere")
    if (body.member.number is None) != (body.sender not in invited.parties):
        raise RefusedError(f"{invited.file.name} does not fit: {body.sender} must state its size if it is a party")
    return text


def _own_name(invited: Invited, name: str | None) -> str:
    """The name under which we join."""
    if name is None and len(invited.others) == 1:
        return invited.others[0]
    if name is None:
        raise ConfigError(f"--name is needed, because {invited.file.name} invites {listed(invited.others)}")
    if name == invited.body.sender:
        raise ConfigError(f"--name: {name} is taken, by the inviter: {listed(invited.others)} may join")
    if name not in invited.others:
        raise ConfigError(f"--name: {name!r} is not invited; {listed(invited.others)} may join by {invited.file.name}")
    return name


def _invitation_table(invited: Invited, party: str) -> Table:
    body = invited.body
    counted = "rows" if body.terms.get("kmeans.layout") == "horizontal" else "columns"
    number = {} if body.member.number is None else {f"{counted} of {body.sender}": body.member.number}
    return terms_table(
        f"{body.sender} invites {listed(invited.others)}; you would join as {party}",
        {
            "expires": body.expires.isoformat(" ", "minutes"),
            f"address of {body.sender}": body.member.address,
            f"certificate of {body.sender}": fingerprint(invited.certificate),
            **number,
            **body.terms,
        },
    )


def _next_steps(config: JobConfig, file: Path, target: Path, sender: str) -> str:
    sent = [f"wrote {target}: send it to {sender}. Nothing in it is secret."]
    if len(config.members) == 2:
        return "\n".join([*sent, *agreed_lines(config, file, f"when {sender} has accepted it")])
    later = f"When all have replied, {sender} sends you a file with all members. Then run here:"
    return "\n".join([*sent, later, f"  {command('accept', file, f'{sender}-agreement.json')}"])


def _is_name(value: object) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None
