"""Change fields of configuration files in place (`veilmeans config set`); comments and order stay.

A change is FIELD=VALUE: the field's dotted name, and its value in YAML (`kmeans.features.payco=4`). A configuration is
checked before and after the change, and nothing is written if it would be wrong.
"""

import shlex
from collections.abc import Mapping, MutableMapping, Sequence
from difflib import unified_diff
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from veilmeans.io.files.atomic_files import write_text
from veilmeans.schemas.config import parse_config, read_config
from veilmeans.schemas.errors import ConfigError

Changes = Mapping[str, Any]
"""A field's dotted name -> its new value."""


def set_fields(changes: Mapping[Path, Changes], dry_run: bool = False) -> str:
    """Change fields of all the files or of none, and return the lines that differ. `dry_run`: write nothing."""
    before = {file: read_config(file) for file in changes}
    after = {file: changed_text(before[file], each, file) for file, each in changes.items()}
    if not dry_run:
        for file, text in after.items():
            write_text(file, text)
    return "\n".join(f"{file}:\n{_difference(before[file], after[file])}" for file in changes)


def copy_config(source: Path, target: Path, changes: Changes) -> None:
    """Write a configuration with some fields changed to another file of the same folder."""
    write_text(target, changed_text(read_config(source), changes, target))


def changed_text(text: str, changes: Changes, file: Path) -> str:
    """Return the text of a configuration with some fields changed. `file`: where it stands, for error messages."""
    parse_config(text, file)
    wanted = _without_aliases(yaml.safe_load(text))
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 1 << 20
    try:
        tree = editor.load(text)
        for field, value in changes.items():
            _set(tree, field, editor.load(as_yaml(value)))
            _set(wanted, field, value)
        editor.dump(tree, written := StringIO())
    except YAMLError:
        raise ConfigError(f"{file} cannot be changed by a command (is a field written twice?): use an editor") from None
    result = written.getvalue()
    parse_config(result, file)
    if yaml.safe_load(result) != wanted:
        raise ConfigError(f"{file} cannot be changed by a command (YAML anchors?): use an editor")
    return result


def set_command(files: Sequence[Path], changes: Changes, words: str = "config set") -> str:
    """Return the command line that changes these fields."""
    configs = [f"--config {shlex.quote(str(file))}" for file in files]
    fields = [shlex.quote(f"{field}={as_yaml(value)}") for field, value in changes.items()]
    return " ".join([f"veilmeans {words}", *configs, *fields])


def parse_changes(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse FIELD=VALUE arguments of a command line."""
    changes: dict[str, Any] = {}
    for argument in arguments:
        field, sign, value = argument.partition("=")
        if not sign or not all(field.split(".")):
            raise ConfigError(f"{argument!r} is not a change: write FIELD=VALUE, such as kmeans.clusters=3")
        if field in changes:
            raise ConfigError(f"{field} is set twice: name it once")
        try:
            changes[field] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"the value of {field} is not YAML: {value!r}") from None
    return changes


def as_yaml(value: Any) -> str:
    """Return a value as one line of YAML."""
    plain = _one_line(value, allow_unicode=True)
    return plain if len(plain.splitlines()) == 1 else _one_line(value, default_style='"')


def _one_line(value: Any, **style: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False, **style)
    return text.removesuffix("\n").removesuffix("\n...")


def _difference(before: str, after: str) -> str:
    lines = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    return "\n".join(f"  {line}" for line in lines if not line.startswith("@@")) or "  no change"


def _set(tree: MutableMapping[str, Any], field: str, value: Any) -> None:
    """Set the field with this dotted name, and add the sections that are missing."""
    name, below = _first_name(tree, field)
    section = tree.get(name)
    if below and isinstance(section, MutableMapping) and section:
        _set(section, below, value)
        return
    for missing in reversed(below.split(".") if below else []):
        value = {missing: value}
    if isinstance(tree, CommentedMap):
        _put(tree, name, value)
    else:
        tree[name] = value


def _first_name(tree: Mapping[str, Any], field: str) -> tuple[str, str]:
    """Split a dotted name after its first part. A name that stands in the file may have dots itself."""
    known = [name for name in tree if f"{field}.".startswith(f"{name}.")]
    name = max(known, key=len, default=field.partition(".")[0])
    return name, field[len(name) + 1 :]


def _put(section: CommentedMap, name: str, value: Any) -> None:
    """Replace a value, or put a new one before the others of its section."""
    if name not in section:
        section.insert(0, name, value)
        return
    comment = _last_comment(section[name])
    section[name] = value
    if comment is not None:
        section.ca.items[name] = [None, None, comment, None]


def _last_comment(value: Any) -> Any:
    """The comment behind the last line of a list or section: it belongs to what follows."""
    if not isinstance(value, CommentedMap | CommentedSeq) or not value:
        return None
    last, place = (next(reversed(value)), 2) if isinstance(value, CommentedMap) else (len(value) - 1, 0)
    return _last_comment(value[last]) or value.ca.items.get(last, [None] * 4)[place]


def _without_aliases(tree: Any) -> Any:
    """A copy in which every value that YAML anchors share is a value of its own."""
    if isinstance(tree, dict):
        return {name: _without_aliases(value) for name, value in tree.items()}
    return [_without_aliases(value) for value in tree] if isinstance(tree, list) else tree
