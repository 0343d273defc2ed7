"""`veilmeans set`: change fields of configuration files in place. Comments, order and all other lines stay as they are.

A change is FIELD=VALUE with the field's dotted name and the value in YAML: `kmeans.features.payco=4`. The value's text
is replaced where the parsed YAML says it stands. What then is read must be what was asked for, and a whole
configuration; else nothing is written.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

import yaml

from veilmeans.io.storage.atomic_files import write_text
from veilmeans.schemas.config import parse_config, read_config
from veilmeans.schemas.errors import ConfigError

Changes = Mapping[str, Any]
"""A field's dotted name -> its new value."""


def set_fields(changes: Mapping[Path, Changes], dry_run: bool = False) -> str:
    """Change the fields of all the files, or of none; the lines that change. `dry_run`: nothing is written."""
    before = {file: read_config(file) for file in changes}
    after = {file: changed_text(before[file], each, file) for file, each in changes.items()}
    if not dry_run:
        for file, text in after.items():
            write_text(file, text)
    return "\n".join(f"{file}:\n{_difference(before[file], after[file])}" for file in changes)


def _difference(before: str, after: str) -> str:
    lines = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    return "\n".join(f"  {line}" for line in lines if not line.startswith("@@")) or "  nothing changes"


def set_command(files: Sequence[Path], changes: Changes) -> str:
    """The command line that does it."""
    configs = [f"--config {shlex.quote(str(file))}" for file in files]
    fields = [shlex.quote(f"{field}={as_yaml(value)}") for field, value in changes.items()]
    return " ".join(["veilmeans set", *configs, *fields])


def parse_changes(arguments: Sequence[str]) -> dict[str, Any]:
    """FIELD=VALUE, as on the command line."""
    changes: dict[str, Any] = {}
    for argument in arguments:
        field, sign, value = argument.partition("=")
        if not sign or not all(field.split(".")):
            raise ConfigError(f"{argument!r} is no change: write FIELD=VALUE, such as kmeans.clusters=3")
        if field in changes:
            raise ConfigError(f"{field} is set twice: name it once")
        try:
            changes[field] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"the value of {field} is no YAML: {value!r}") from None
    return changes


def as_yaml(value: Any) -> str:
    """A value on one line."""
    plain = _dumped(value, allow_unicode=True)
    return plain if len(plain.splitlines()) == 1 else _dumped(value, default_style='"')


def _dumped(value: Any, **style: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False, **style)
    return text.removesuffix("\n").removesuffix("\n...")


def changed_text(text: str, changes: Changes, file: Path) -> str:
    """The text of a configuration with some fields changed; it is checked before and after."""
    parse_config(text, file)
    for field, value in changes.items():
        text = _replaced(file, text, field, value)
    parse_config(text, file)
    return text


def _replaced(file: Path, text: str, field: str, value: Any) -> str:
    """The text with one field changed, read back and compared with what was asked for."""
    wanted = _with(yaml.safe_load(text), field.split("."), value)
    result = replaced_value(text, field, value)
    try:
        if yaml.safe_load(result) == wanted:
            return result
    except yaml.YAMLError:
        pass
    raise ConfigError(f"{field} is written in {file} in a way that cannot be changed from here: use an editor")


def replaced_value(text: str, field: str, value: Any) -> str:
    """YAML with another value in the place of one; a field that is not there is put before the first of its part."""
    tree: Any = yaml.compose(text)
    start, end, new = _edit(tree, field.split("."), value)
    return text[:start] + new + text[end:]


def _with(tree: Any, names: Sequence[str], value: Any) -> Any:
    """The same tree with a value at its place."""
    if not names:
        return value
    return {**(tree if isinstance(tree, dict) else {}), names[0]: _with(_below(tree, names[0]), names[1:], value)}


def _below(tree: Any, name: str) -> Any:
    return tree.get(name) if isinstance(tree, dict) else None


def _edit(node: yaml.MappingNode, names: Sequence[str], value: Any) -> tuple[int, int, str]:
    """From where to where the text gives way, and to what."""
    for key, below in node.value:
        if key.value != names[0]:
            continue
        start = key.end_mark.index
        if names[1:] and isinstance(below, yaml.MappingNode) and below.value and below.start_mark.index > start:
            return _edit(below, names[1:], value)
        return start, max(start, _end(below)), f": {as_yaml(_with(None, names[1:], value))}"
    first = node.value[0][0].start_mark
    line = f"{names[0]}: {as_yaml(_with(None, names[1:], value))}"
    return first.index, first.index, f"{line}, " if node.flow_style else f"{line}\n{' ' * first.column}"


def _end(node: yaml.Node) -> int:
    """Where a value ends; the mark of a block is behind the comments that follow it."""
    *_, last = _leaves(node)
    end: int = last.end_mark.index
    return end


def _leaves(node: yaml.Node) -> Iterator[yaml.Node]:
    """Its parts that are written in one piece, in their order."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        yield node
        return
    for part in node.value:
        yield from _leaves(part[1] if isinstance(part, tuple) else part)
