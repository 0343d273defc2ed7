"""Collect the replies to an invitation, and complete all members' configurations (`veilmeans accept`)."""

from pathlib import Path

from veilmeans.io.exchange.connections import load_identity
from veilmeans.io.files.atomic_files import write_text
from veilmeans.pipelines.configure.agreement.agreement_records import (
    Records,
    command,
    current_invitation,
    listed,
    outgoing_file,
    run_commands,
)
from veilmeans.pipelines.configure.agreement.shared_terms import (
    agreed_words,
    common_terms,
    first_different,
    own_number,
    with_members,
)
from veilmeans.pipelines.configure.agreement.signed_file import (
    Agreement,
    Invitation,
    Member,
    Reply,
    SignedFile,
    check_not_expired,
    expiry,
    member_certificate,
    sign_file,
)
from veilmeans.schemas.config import JobConfig, load_config, parse_config, read_config
from veilmeans.schemas.errors import ConfigError, RefusedError

_DAYS = 14


def agreed_lines(config: JobConfig, file: Path, when: str = "now") -> list[str]:
    """The six words with what they are for, and the commands of the run."""
    others = [name for name in config.members if name != config.party]
    return [
        f"Compare these six words with {listed(others)} over the phone, {when}; if they differ, run nothing:",
        "",
        f"    {agreed_words(config)}",
        "",
        "If they are the same:",
        *run_commands(file, config),
    ]


def accept_reply(file: SignedFile, body: Reply, config_file: Path, dry_run: bool = False) -> str:
    """Pin the certificate of a member that has replied; after the last, write the file with all members."""
    config = load_config(config_file)
    records = Records(config_file, body.invitation)
    if body.invitation != current_invitation(config_file) or not records.has("invitation"):
        raise RefusedError(f"{file.name} is a reply to another invitation than the last one here: send the right reply")
    invitation, invited = records.read(Invitation)
    if body.sender not in config.peers:
        raise RefusedError(f"{file.name} is from {body.sender}, who is not invited: {listed(list(config.peers))} are")
    certificate = member_certificate(body.member, body.sender, file.name)
    file.check_signature(certificate)
    if body.digest != invitation.digest:
        raise RefusedError(f"{file.name} is a reply to an invitation that was altered: send {body.sender} yours again")
    check_not_expired(invited, f"the invitation to which {file.name} replies")
    records.refuse_second(file.name, "reply", body.sender)
    _check_unchanged(config, invited, config_file)
    _check_number(config, body.sender, body.member, file.name)
    if dry_run:
        return f"would pin the certificate of {body.sender} and set its address and size in {config_file}"
    text = with_members(read_config(config_file), {body.sender: body.member}, config_file)
    write_text(config.peers[body.sender].certificate, certificate.decode())
    write_text(config_file, text)
    config = parse_config(text, config_file)
    missing = [name for name in config.peers if name != body.sender and not records.has("reply", name)]
    if missing:
        records.write(file, body.sender)
        return f"{body.sender} has joined; the reply of {listed(missing)} is missing."
    lines = _complete(config, config_file, records, invitation, {body.sender: body.member})
    records.write(file, body.sender)
    return "\n".join([f"{body.sender} has joined; now all have.", *lines])


def _complete(
    config: JobConfig, config_file: Path, records: Records, invitation: SignedFile, last: dict[str, Member]
) -> list[str]:
    """Write the agreement for the others if there are several; return the six words and the next commands."""
    if len(config.peers) == 1:
        return agreed_lines(config, config_file)
    replies = {name: records.read(Reply, name)[1].member for name in config.peers if name not in last}
    identity = load_identity(config)
    _, invited = records.read(Invitation)
    body = Agreement(
        invitation=invited.id,
        digest=invitation.digest,
        sender=config.party,
        expires=expiry(_DAYS),
        members={config.party: invited.member, **replies, **last},
    )
    agreement = sign_file(body, identity)
    target = outgoing_file(config_file, agreement)
    write_text(target, agreement.text())
    return [
        f"wrote {target}: send it to {listed(list(config.peers))}, who each run, where they joined:",
        f"  veilmeans accept {target.name}",
        *agreed_lines(config, config_file, "when they have accepted it"),
    ]


def accept_agreement(file: SignedFile, body: Agreement, config_file: Path, dry_run: bool = False) -> str:
    """Pin the certificates of all members of a run that we have joined."""
    config = load_config(config_file)
    records = Records(config_file, body.invitation)
    if not records.has("reply"):
        raise RefusedError(f"{file.name} belongs to an invitation to which nobody replied here: use the right --config")
    invitation, invited = records.read(Invitation)
    _, reply = records.read(Reply)
    certificate = member_certificate(invited.member, invited.sender, file.name)
    if body.sender != invited.sender:
        raise RefusedError(f"{file.name} is from {body.sender}, and {invited.sender} has invited: ask {invited.sender}")
    file.check_signature(certificate)
    check_not_expired(body, file.name)
    records.refuse_second(file.name, "agreement")
    if set(body.members) != set(config.members) or body.digest != invitation.digest:
        raise RefusedError(f"{file.name} has other members or terms than the invitation: ask {body.sender} for another")
    if body.members[config.party] != reply.member or body.members[body.sender] != invited.member:
        raise RefusedError(f"{file.name} says other things of {config.party} than our reply: ask {body.sender} why")
    _check_unchanged(config, invited, config_file)
    for name, member in body.members.items():
        _check_number(config, name, member, file.name)
    pins = {name: member_certificate(body.members[name], name, file.name) for name in config.peers}
    if dry_run:
        return f"would pin the certificates of {listed(list(pins))} and complete {config_file}"
    text = with_members(read_config(config_file), body.members, config_file)
    for name, pem in pins.items():
        write_text(config.peers[name].certificate, pem.decode())
    write_text(config_file, text)
    records.write(file)
    return "\n".join(agreed_lines(parse_config(text, config_file), config_file))


def _check_unchanged(config: JobConfig, invited: Invitation, config_file: Path) -> None:
    """Refuse to complete a configuration whose terms were changed after the invitation."""
    field = first_different(common_terms(config), invited.terms)
    if field is None and invited.sender == config.party and own_number(config) != invited.member.number:
        field = "the size of our data"
    if field is not None:
        raise ConfigError(
            f"{field} in {config_file} differs from the invitation: set it back, or send a new one: "
            f"`{command('invite --address HOST:PORT', config_file)}`"
        )


def _check_number(config: JobConfig, name: str, member: Member, source: str) -> None:
    """Refuse a party without a size, and a dealer with one."""
    if (member.number is None) != (name not in config.parties):
        raise RefusedError(
            f"{source}: {name} must state its size if it is a party, and only then; ask it to join again"
        )
