"""The terms of a run that its members agree on: taken from a configuration, put into one, shown, and as six words.

Terms are all fields with the mark Agreed (`schemas.config_fields`), private ones never. One of them holds a number for
each party, which only that party knows: of its columns (vertical) or of its rows (horizontal). `align` is a term with
the values true and false; if it is true, the fields of its section are terms, too.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from veilmeans.crypto.certificates import certificate_digest
from veilmeans.crypto.spoken_words import spoken_words
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates
from veilmeans.pipelines.configure.agreement.signed_file import Member
from veilmeans.pipelines.configure.edit_config import as_yaml, changed_text
from veilmeans.schemas.config import JobConfig, parse_config
from veilmeans.schemas.config_fields import terms_fields
from veilmeans.schemas.errors import ConfigError, RefusedError, printable
from veilmeans.schemas.kmeans_config import AlignConfig

Terms = dict[str, Any]
"""A field's dotted name -> its value as JSON."""
ALIGN = "align"
_ALIGN_FIELDS = {f"{ALIGN}.{field}" for field in terms_fields(AlignConfig(), vertical=True)}


def terms_of(config: JobConfig) -> Terms:
    """All terms of a configuration."""
    fields: Terms = json.loads(json.dumps(terms_fields(config, config.required_kmeans.vertical)))
    return {ALIGN: config.align is not None, **fields}


def numbers_field(config: JobConfig) -> str:
    """The field that has a number for each party."""
    return "kmeans.features" if config.required_kmeans.vertical else "kmeans.rows"


def common_terms(config: JobConfig) -> Terms:
    """The terms without the numbers that each party has of its own."""
    return {field: value for field, value in terms_of(config).items() if field != numbers_field(config)}


def own_number(config: JobConfig) -> int | None:
    """This party's own number of columns (vertical) or rows (horizontal); None at the dealer."""
    if config.party not in config.parties:
        return None
    return config.declared_features if config.required_kmeans.vertical else config.declared_shape[0]


def first_different(one: Terms, other: Terms) -> str | None:
    """The first field that differs; None if none does."""
    return next((field for field in sorted({*one, *other}) if one.get(field, ...) != other.get(field, ...)), None)


def with_terms(text: str, terms: Mapping[str, Any], file: Path, source: str) -> str:
    """Return the text of a configuration with the terms in the file `source`, which may be hostile.

    Only fields that are terms are changed. The schema checks the values, and the result must have exactly these terms:
    a value that the schema would convert is refused.
    """
    before = terms_of(parse_config(text, file))
    unknown = sorted(set(terms) - set(before) - (_ALIGN_FIELDS if terms.get(ALIGN) is True else set()))
    if unknown:
        raise RefusedError(f"{source} has {printable(unknown[0])[:80]!r}, which is no field that members agree on")
    changes = {field: value for field, value in sorted(terms.items()) if before.get(field, ...) != value}
    try:
        changed = changed_text(text, changes, file)
    except ConfigError as error:
        what = error.sentence.removeprefix(f"{file}: ")
        raise RefusedError(f"{source} has terms that are not valid here: {printable(what)[:300]}") from None
    after = terms_of(parse_config(changed, file))
    wrong = next((field for field in terms if after.get(field, ...) != terms[field]), None)
    if wrong is not None:
        raise RefusedError(f"{source}: {wrong} is not valid: {_shown(terms[wrong])[:80]}")
    return changed


def with_members(text: str, members: Mapping[str, Member], file: Path) -> str:
    """Return the text of a configuration with the peers' addresses and all these members' numbers."""
    config = parse_config(text, file)
    field = numbers_field(config)
    changes: Terms = {}
    for name, member in members.items():
        if name != config.party:
            changes[f"peers.{name}.address"] = member.address
        if name in config.parties:
            changes[f"{field}.{name}"] = member.number
    return changed_text(text, changes, file)


def agreed_digest(config: JobConfig) -> str:
    """SHA-256 of what this party has agreed to: all members' certificates, as they are pinned here, and all terms."""
    pinned = {config.party: load_identity(config).certificate, **load_peer_certificates(config)}
    content = {
        "certificates": {name: certificate_digest(pem) for name, pem in pinned.items()},
        "terms": terms_of(config),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def agreed_words(config: JobConfig) -> str:
    """The six words of what this party has agreed to."""
    return " ".join(spoken_words(bytes.fromhex(agreed_digest(config))))


def terms_table(title: str, terms: Mapping[str, Any]) -> Table:
    """A table of terms for consent; what comes from a file is shown as it is, without markup and control characters."""
    table = Table("field", "value", title=Text(printable(title)), title_justify="left")
    for field, value in terms.items():
        table.add_row(Text(printable(field)), Text(_shown(value)))
    return table


def changes_table(title: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """A table of fields, with what they are now and what they would be."""
    table = Table("field", "now", "proposed", title=Text(printable(title)), title_justify="left")
    for field, value in after.items():
        table.add_row(Text(printable(field)), Text(_shown(before.get(field))), Text(_shown(value)))
    return table


def _shown(value: Any) -> str:
    return "not set" if value is None else printable(as_yaml(value))
