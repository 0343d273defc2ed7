"""Invite other companies to a run (`veilmeans invite`): keys, a configuration, and one file to send.

The configuration is complete but for the peers' certificates and addresses, so nothing can run until they have replied.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.connections import load_identity
from veilmeans.io.files.atomic_files import check_writable, write_text
from veilmeans.io.sources.source_files import find_files
from veilmeans.pipelines.configure.agreement.agreement_records import (
    Records,
    command,
    listed,
    outgoing_file,
    set_current_invitation,
)
from veilmeans.pipelines.configure.agreement.shared_terms import common_terms, own_number
from veilmeans.pipelines.configure.agreement.signed_file import (
    Invitation,
    Member,
    check_address,
    expiry,
    sign_file,
)
from veilmeans.pipelines.configure.config_advice import advise
from veilmeans.pipelines.configure.config_template import TemplateValues, config_text
from veilmeans.pipelines.configure.edit_config import changed_text
from veilmeans.pipelines.configure.fill_from_data import data_summary
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.schemas.address import checked_name
from veilmeans.schemas.config import JobConfig, load_config, parse_config, read_config
from veilmeans.schemas.errors import ConfigError, InputError

_KEY_DAYS = 365
_NOT_YET = "unknown.invalid:1"
"""The address of a peer that has not replied; the name is reserved for addresses that lead nowhere (RFC 2606)."""


@dataclass(frozen=True)
class OwnPart:
    """A member's statements about itself, when it invites or joins.

    address   host:port under which the others reach it
    listen    host:port on which its gateway listens; default: the port of the address, on all interfaces
    data      its data, relative to the configuration; default: data.csv
    rows, columns   of its data, if they are not there yet
    """

    file: Path
    address: str
    listen: str | None = None
    data: str | None = None
    rows: int | None = None
    columns: int | None = None

    def connection(self) -> dict[str, Any]:
        """The fields about where this member listens, and where its data are."""
        host, _, port = self.address.rpartition(":")
        local = host in ("localhost", "::1", "[::1]") or host.startswith("127.")
        return {"listen": self.listen or (self.address if local else f"0.0.0.0:{port}")} | (
            {} if self.data is None else {"kmeans.data": self.data}
        )


@dataclass(frozen=True)
class Wanted:
    """The run that a new configuration is for; None: as in the configuration that exists."""

    name: str | None = None
    others: tuple[str, ...] = ()
    dealer: str | None = None
    layout: Literal["vertical", "horizontal"] | None = None
    clusters: int | None = None
    run: str | None = None
    align: bool | None = None


def invite(own: OwnPart, wanted: Wanted, days: int, write: Path | None, dry_run: bool = False) -> str:
    """Write keys and configuration if absent, and the invitation; return what to do next."""
    text = _existing_text(own.file, wanted) if own.file.exists() else _new_text(own.file, wanted)
    text = changed_text(text, own.connection(), own.file)
    config = parse_config(text, own.file)
    check_member(config, own)
    if dry_run:
        shaped_text(text, own)
        check_writable(own.file.parent)
        return f"would write {own.file}, keys if there are none, and an invitation for {listed(_others(config))}"
    identity = make_own_keys(config)
    write_text(own.file, text)
    text, summary = shaped_text(text, own)
    write_text(own.file, text)
    return summary + _write_invitation(parse_config(text, own.file), own, identity, days, write)


def _write_invitation(config: JobConfig, own: OwnPart, identity: Identity, days: int, write: Path | None) -> str:
    body = Invitation(
        id=secrets.token_hex(16),
        sender=config.party,
        expires=expiry(days),
        member=Member(certificate=identity.certificate.decode(), address=own.address, number=own_number(config)),
        terms=common_terms(config),
    )
    file = sign_file(body, identity)
    target = write or outgoing_file(own.file, file)
    write_text(target, file.text())
    Records(own.file, body.id).write(file)
    set_current_invitation(own.file, body.id)
    return _next_steps(config, own.file, target, body)


def _next_steps(config: JobConfig, file: Path, target: Path, body: Invitation) -> str:
    others = _others(config)
    return "\n".join(
        [
            f"wrote {target}, valid until {body.expires:%Y-%m-%d}: send it to {listed(others)}; it holds no secret.",
            "They run, each in a folder of its own (HOST:PORT: where the others reach it):",
            *(f"  veilmeans join {target.name} --name {name} --address HOST:PORT" for name in others),
            f"You then run here, with the repl{'y' if len(others) == 1 else 'ies'} that they send back:",
            *(f"  {command('accept', file, f'{name}-reply.json')}" for name in others),
        ]
    )


def _new_text(file: Path, wanted: Wanted) -> str:
    """The text of a new configuration for the inviter."""
    for option, value in (("--name", wanted.name), ("--with", wanted.others), ("--clusters", wanted.clusters)):
        if not value:
            raise ConfigError(f"{option} is needed, because there is no {file} yet that says it")
    values = TemplateValues(
        (wanted.name or "", *wanted.others),
        wanted.dealer or None,
        layout=wanted.layout or "vertical",
        clusters=wanted.clusters or 0,
        run=wanted.run or "first",
    )
    text = draft_text(wanted.name or "", values, file)
    return changed_text(text, {"align": True, "kmeans.rows": None}, file) if wanted.align else text


def draft_text(name: str, values: TemplateValues, file: Path) -> str:
    """The text of a configuration in which the peers' addresses are not known yet."""
    for member in values.members:
        checked_name("a member's name", member)
    if len(set(values.members)) != len(values.members):
        raise ConfigError(f"{listed(values.members)}: a name is taken twice; every member needs a name of its own")
    text = config_text(name, replace(values, rows=max(values.rows, values.clusters)))
    unknown = {f"peers.{peer}.address": _NOT_YET for peer in values.members if peer != name}
    return changed_text(text, unknown, file)


def _existing_text(file: Path, wanted: Wanted) -> str:
    """The text of the configuration that exists, if it is what is wanted."""
    config = load_config(file)
    job = config.required_kmeans
    asked: Mapping[str, tuple[Any, Any]] = {
        "--name": (wanted.name, config.party),
        "--with": (set(wanted.others) or None, set(config.parties) - {config.party}),
        "--dealer": (wanted.dealer, config.dealer or ""),
        "--layout": (wanted.layout, job.layout),
        "--clusters": (wanted.clusters, job.clusters),
        "--run": (wanted.run, config.run),
        "--align": (wanted.align, config.align is not None),
    }
    for option, (value, present) in asked.items():
        if value is not None and value != present:
            raise ConfigError(f"{option} differs from {file}, which exists: leave it out, or remove the file first")
    return read_config(file)


def make_own_keys(config: JobConfig) -> Identity:
    """Make this party's key, certificate and seed where its configuration has them, if there are none."""
    folder = config.certificate.parent
    if not folder.exists():  # all three files or none
        part = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.part")
        make_keys(config.party, part, _KEY_DAYS)
        part.replace(folder)
    elif not config.certificate.exists() and not config.key.exists() and not config.seed.exists():
        make_keys(config.party, folder, _KEY_DAYS)
    return load_identity(config)


def check_member(config: JobConfig, own: OwnPart) -> None:
    """Refuse a configuration without gateways, and an address under which nobody can be reached."""
    if config.exchange.kind != "gateway":
        raise ConfigError(f"{own.file}: exchange.kind is {config.exchange.kind}, and invitations are for gateways only")
    check_address("--address", own.address)


def shaped_text(text: str, own: OwnPart, joins: bool = False) -> tuple[str, str]:
    """Return the text with this party's numbers of rows and columns, from its data if they are there; and a summary.

    One of the two is the same for all parties: rows in the vertical layout, columns in the horizontal. `joins`: it is
    in the configuration already, by the invitation, and our data must have it. Rows to be aligned have no number yet.
    """
    config = parse_config(text, own.file)
    if config.party not in config.parties:
        return text, ""
    vertical, party = config.required_kmeans.vertical, config.party
    rows, columns = f"kmeans.rows{'' if vertical else f'.{party}'}", f"kmeans.features{f'.{party}' if vertical else ''}"
    if config.unaligned and own.rows is not None:
        raise InputError("--rows is not needed: with align it is the number of rows that all parties have")
    given = {columns: own.columns} if config.unaligned else {rows: own.rows, columns: own.columns}
    common = rows if vertical else columns
    invited = None if config.unaligned else config.declared_shape[0 if vertical else 1]
    changes: dict[str, Any]
    summary = ""
    if _data_exist(config):
        advice = advise(config, own.file)
        changes, summary = advice.own_changes | advice.shared_changes, data_summary(advice) + "\n"
    else:
        if joins and invited is not None and given[common] is None:
            given[common] = invited
        changes = {field: number for field, number in given.items() if number is not None}
    options = {rows: "--rows", columns: "--columns"}
    needed = " and ".join(options[field] for field in given)
    for field, number in given.items():
        if field not in changes:
            raise InputError(
                f"{config.kmeans_with_data.data} is not there, and {options[field]} is not given: put your data there, "
                f"or give {needed} as the data will have them; then run this again"
            )
        if number not in (None, changes[field]):
            raise InputError(f"{options[field]} is {number:,}, and the data have {changes[field]:,}: leave it out")
    if joins and invited is not None and changes[common] != invited:
        other = " with --align, which finds the rows that all have" if vertical else ""
        raise InputError(
            f"{common} is {changes[common]:,} here and {invited:,} in the invitation: all parties must have the same; "
            f"correct the data, or ask for another invitation{other}"
        )
    return changed_text(text, changes, own.file), summary


def _data_exist(config: JobConfig) -> bool:
    try:
        return bool(find_files(config.kmeans_with_data.data or ""))
    except InputError:
        return False


def _others(config: JobConfig) -> Sequence[str]:
    return [name for name in config.members if name != config.party]
