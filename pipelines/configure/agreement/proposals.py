"""Change what was agreed, with everyone's consent (`veilmeans propose`, `accept`, `refuse`).

  1. the proposer writes a proposal: the changes, and the digest of what is agreed now
  2. each other member accepts or refuses it, and writes an answer
  3. when all have accepted, the proposer applies it; with more than two members, it sends a decision to the others

With two members the other applies a proposal when it accepts it, because nobody else can refuse. A proposal may also
bring the proposer's new certificate or address; it is signed with the key of the certificate that is pinned now.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from veilmeans.crypto.certificates import Identity, fingerprint
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates
from veilmeans.io.files.atomic_files import write_text
from veilmeans.pipelines.configure.agreement.agreement_records import Records, command, listed, outgoing_file
from veilmeans.pipelines.configure.agreement.join import Consent
from veilmeans.pipelines.configure.agreement.replies import agreed_lines
from veilmeans.pipelines.configure.agreement.shared_terms import (
    agreed_digest,
    changes_table,
    terms_of,
    with_terms,
)
from veilmeans.pipelines.configure.agreement.signed_file import (
    Answer,
    Decision,
    Proposal,
    SignedFile,
    check_address,
    check_not_expired,
    expiry,
    member_certificate,
    sign_file,
)
from veilmeans.pipelines.configure.edit_config import changed_text, parse_changes
from veilmeans.pipelines.configure.fill_from_data import has_begun
from veilmeans.schemas.config import JobConfig, load_config, parse_config, read_config
from veilmeans.schemas.config_fields import bound_fields
from veilmeans.schemas.errors import ConfigError, HandshakeError, RefusedError

_KEYS = "new-keys"
"""A record of the folder with this party's own new keys."""


def propose(
    config_file: Path,
    arguments: Sequence[str],
    keys: Path | None = None,
    address: str | None = None,
    days: int = 14,
    dry_run: bool = False,
) -> str:
    """Write a proposal with these changes (FIELD=VALUE); return what to do next.

    keys      a folder with this party's new certificate and key
    address   host:port under which the others reach this party from now on
    """
    config = load_config(config_file)
    changes = _changed_terms(config, config_file, arguments)
    renewed = None if keys is None else _new_identity(config, keys)
    if address is not None:
        check_address("--address", address)
    if not changes and renewed is None and address is None:
        raise ConfigError(f"nothing would change: {config_file} has these values already")
    body = Proposal(
        id=secrets.token_hex(16),
        sender=config.party,
        expires=expiry(days),
        before=agreed_digest(config),
        changes=changes,
        certificate=None if renewed is None else renewed.certificate.decode(),
        address=address,
    )
    file = sign_file(body, load_identity(config))
    target = outgoing_file(config_file, file)
    others = list(config.peers)
    if dry_run:
        return f"would write {target} with {listed(list(_shown_changes(config, body)[1]))}"
    write_text(target, file.text())
    records = Records(config_file, body.id)
    if keys is not None:
        write_text(records.folder / _KEYS, str(keys.resolve()))
    records.write(file)
    return "\n".join(
        [
            f"wrote {target}, valid until {body.expires:%Y-%m-%d}: send it to {listed(others)}, who each run",
            f"  veilmeans accept {target.name}",
            "(or refuse instead of accept). Nothing changes here before you run, with the answers that they send back:",
            *(f"  {command('accept', config_file, f'{name}-answer.json')}" for name in others),
        ]
    )


def _changed_terms(config: JobConfig, config_file: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The terms that differ after the changes; refuse fields that are no terms, and changes of a run that has begun."""
    wanted, before = parse_changes(arguments), terms_of(config)
    changed = parse_config(changed_text(read_config(config_file), wanted, config_file), config_file)
    after = terms_of(changed)
    for field in wanted:
        if not any(f"{field}.".startswith(f"{term}.") for term in (*before, *after)):
            raise ConfigError(
                f"{field} is not agreed with others: change it here alone, `veilmeans config set --config "
                f"{config_file} {field}=…`"
            )
    changes = {field: value for field, value in after.items() if before.get(field, ...) != value}
    bound = bound_fields(config, config.required_kmeans.command)
    if changed.run == config.run and has_begun(config) and any(field in bound for field in changes):
        new = f"{config.run}-2"
        raise ConfigError(f"run {config.run!r} has begun: propose also a new name, run={new} triples.store={new}")
    return changes


def _new_identity(config: JobConfig, keys: Path) -> Identity:
    """Load this party's new certificate and key from a folder that `veilmeans config keys` made."""
    certificate, key = _key_paths(config, keys)
    renewed = config.model_copy(update={"certificate": certificate, "key": key})
    return load_identity(renewed)


def _key_paths(config: JobConfig, keys: Path) -> tuple[Path, Path]:
    return keys.absolute() / f"{config.party}.crt", keys.absolute() / f"{config.party}.key"


def answer(file: SignedFile, body: Proposal, config_file: Path, ask: Consent | None, dry_run: bool = False) -> str:
    """Accept a proposal, if the user consents, or refuse it (`ask` is None); write the answer."""
    config = load_config(config_file)
    records = Records(config_file, body.id)
    _check_sender(file, config, records)
    check_not_expired(body, file.name)
    records.refuse_second(file.name, "answer")
    if ask is None and records.begun(file):
        raise RefusedError(
            f"{file.name} was accepted here, and the command interrupted: accept it again to complete it"
        )
    if ask is not None:
        _check_before(file, body, config, records.begun(file))
        text, pins = _applied(config_file, config, file, body)
        before, after = _shown_changes(config, body)
        ask(changes_table(f"{body.sender} proposes", before, after), "Accept this proposal?")
    reply = sign_file(
        Answer(proposal=body.id, digest=file.digest, sender=config.party, accepted=ask is not None),
        load_identity(config),
    )
    target = outgoing_file(config_file, reply)
    if dry_run:
        return f"would write {target}"
    lines = [f"wrote {target}: send it to {body.sender}."]
    if ask is not None and len(config.members) == 2:
        records.begin(file)
        _write(config_file, config, text, pins)
        lines += ["The change is made here.", *agreed_lines(load_config(config_file), config_file)]
    elif ask is not None:
        lines += [
            f"Nothing is changed yet. If all accept, {body.sender} sends you its decision. Then run here:",
            f"  {command('accept', config_file, f'{body.sender}-decision.json')}",
        ]
    write_text(target, reply.text())
    records.write(file)
    records.write(reply)
    return "\n".join(lines)


def accept_answer(file: SignedFile, body: Answer, config_file: Path, dry_run: bool = False) -> str:
    """Count an answer to our proposal; after the last, apply the proposal."""
    config = load_config(config_file)
    records = Records(config_file, body.proposal)
    _check_sender(file, config, records)
    if not records.has("proposal"):
        raise RefusedError(f"{file.name} answers a proposal that was not made here: use the right --config")
    proposal_file, proposal = records.read(Proposal)
    if proposal.sender != config.party or body.digest != proposal_file.digest:
        raise RefusedError(f"{file.name} answers another proposal than ours, or one that was altered on the way")
    records.refuse_second(file.name, "answer", body.sender)
    refused = [
        name for name in config.peers if records.has("answer", name) and not records.read(Answer, name)[1].accepted
    ]
    if refused:
        raise RefusedError(f"{file.name}: {refused[0]} has refused this proposal already; make another one")
    check_not_expired(proposal, f"the proposal to which {file.name} answers")
    if not body.accepted:
        if not dry_run:
            records.write(file, body.sender)
        raise HandshakeError(f"{body.sender} refuses the proposal: nothing is changed; make another one, or none")
    _check_before(proposal_file, proposal, config, records.begun(file))
    missing = [name for name in config.peers if name != body.sender and not records.has("answer", name)]
    if dry_run:
        return f"would count the consent of {body.sender}" + ("" if missing else f", and change {config_file}")
    lines = [f"{body.sender} accepts."]
    if missing:
        lines.append(f"The answer of {listed(missing)} is missing.")
    else:
        records.begin(file)
        lines += _decide(config, config_file, records)
    records.write(file, body.sender)
    return "\n".join(lines)


def _decide(config: JobConfig, config_file: Path, records: Records) -> list[str]:
    """Apply our own proposal, which all have accepted; write the decision if there are several others."""
    file, proposal = records.read(Proposal)
    lines = ["All have accepted; the change is made here."]
    if len(config.peers) > 1:
        if not records.has("decision"):  # signed with the old key: the others pin its certificate until they apply it
            decided = Decision(proposal=proposal.id, digest=file.digest, sender=config.party)
            records.write(sign_file(decided, load_identity(config)))
        decision, _ = records.read(Decision)
        target = outgoing_file(config_file, decision)
        write_text(target, decision.text())
        lines += [
            f"wrote {target}: send it to {listed(list(config.peers))}, who each run",
            f"  veilmeans accept {target.name}",
        ]
    text, _ = _applied(config_file, config, file, proposal)
    if proposal.certificate is not None:
        paths = _key_paths(config, Path((records.folder / _KEYS).read_text()))
        certificate, key = (os.path.relpath(path, config_file.resolve().parent) for path in paths)
        text = changed_text(text, {"certificate": certificate, "key": key}, config_file)
    write_text(config_file, text)
    return [*lines, *agreed_lines(load_config(config_file), config_file)]


def accept_decision(file: SignedFile, body: Decision, config_file: Path, dry_run: bool = False) -> str:
    """Apply a proposal that all have accepted."""
    config = load_config(config_file)
    records = Records(config_file, body.proposal)
    _check_sender(file, config, records)
    if not records.has("answer") or not records.read(Answer)[1].accepted:
        raise RefusedError(f"{file.name} is about a proposal that was not accepted here: accept it first, or ask why")
    proposal_file, proposal = records.read(Proposal)
    if body.sender != proposal.sender or body.digest != proposal_file.digest:
        raise RefusedError(
            f"{file.name} is about another proposal than the one that was accepted here: ask for another"
        )
    records.refuse_second(file.name, "decision")
    _check_before(proposal_file, proposal, config, records.begun(file))
    text, pins = _applied(config_file, config, proposal_file, proposal)
    if dry_run:
        return f"would change {config_file}"
    records.begin(file)
    _write(config_file, config, text, pins)
    records.write(file)
    return "\n".join(["The change is made here.", *agreed_lines(load_config(config_file), config_file)])


def _check_sender(file: SignedFile, config: JobConfig, records: Records) -> None:
    """Refuse a file that is not signed by the pinned certificate of a peer; one that was begun had been checked."""
    sender = file.body.sender
    if sender not in config.peers:
        raise RefusedError(f"{file.name} is from {sender}, who is not a member here: {listed(list(config.peers))} are")
    if not records.begun(file):
        file.check_signature(load_peer_certificates(config)[sender])


def _check_before(file: SignedFile, proposal: Proposal, config: JobConfig, begun: bool) -> None:
    """Refuse a proposal for other terms or certificates than are agreed here, unless its change has begun."""
    if not begun and proposal.before != agreed_digest(config):
        raise RefusedError(
            f"{file.name} changes other terms than those here: an earlier change is missing on one side; compare "
            f"`veilmeans config words` with {proposal.sender if proposal.sender != config.party else 'the others'}"
        )


def _applied(
    config_file: Path, config: JobConfig, file: SignedFile, proposal: Proposal
) -> tuple[str, Mapping[str, bytes]]:
    """The text of our configuration after a proposal, and the certificates to be pinned."""
    text = with_terms(read_config(config_file), proposal.changes, config_file, file.name)
    pins: dict[str, bytes] = {}
    if proposal.certificate is not None:
        pins[proposal.sender] = member_certificate(proposal, proposal.sender, file.name)
    if proposal.address is not None and proposal.sender != config.party:
        text = changed_text(text, {f"peers.{proposal.sender}.address": proposal.address}, config_file)
    members = parse_config(text, config_file).members
    if set(members) != set(config.members):
        raise RefusedError(f"{file.name} changes who takes part: that needs a new invitation")
    return text, pins


def _write(config_file: Path, config: JobConfig, text: str, pins: Mapping[str, bytes]) -> None:
    """Pin certificates and write the configuration."""
    for name, pem in pins.items():
        write_text(config.peers[name].certificate, pem.decode())
    write_text(config_file, text)


def _shown_changes(config: JobConfig, proposal: Proposal) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that a proposal changes: before and after."""
    before, after = dict(terms_of(config)), dict(proposal.changes)
    if proposal.certificate is not None:
        field = f"certificate of {proposal.sender}"
        present = load_peer_certificates(config).get(proposal.sender) or load_identity(config).certificate
        before[field] = fingerprint(present)
        after[field] = fingerprint(member_certificate(proposal, proposal.sender, "the proposal"))
    if proposal.address is not None:
        field = f"address of {proposal.sender}"
        after[field] = proposal.address
        peer = config.peers.get(proposal.sender)
        before[field] = None if peer is None else peer.address
    return before, after
