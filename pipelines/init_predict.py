"""The configuration of a prediction, out of that of its model's training: only what differs is changed in the file."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from veilmeans.io.files import write_text
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import ConfigError


def write_prediction(trained: Path, name: str, data: str | None, rows: str | None, file: Path | None) -> str:
    """Write the file beside the trained one, so that paths in it stay right; what to do next."""
    config = load_config(trained)
    target = file or trained.with_name(f"{name}.yaml")
    if target.exists():
        raise ConfigError(f"{target} exists already: choose another --write, or remove it")
    if target.resolve().parent != trained.resolve().parent:
        raise ConfigError(f"--write: {target} must lie beside {trained}, because paths in it are relative")
    changes = _changes(config, name, _beside(trained, data), rows)
    write_text(target, changed_text(trained.read_text(), changes))
    try:
        load_config(target)
    except ConfigError:
        target.unlink()
        raise
    return (
        f"wrote {target}\nnext, when every party and the dealer have theirs:\n"
        f"  1. veilmeans prepare --config {target}   reads and checks the new rows; nothing is sent\n"
        f"  2. veilmeans offline --config {target}   at everyone and the dealer, at the same time\n"
        f"  3. veilmeans predict --config {target}   at every party, at the same time (--dry-run: a plan)"
    )


@dataclass(frozen=True)
class Change:
    """A field below the file's mapping, and its new value as it stands in YAML."""

    place: tuple[str, ...]
    value: str


def _changes(config: JobConfig, name: str, data: str | None, rows: str | None) -> list[Change]:
    job = config.needed_kmeans
    if job.predict is not None:
        raise ConfigError(f"run {config.run!r} is a prediction itself: --config must be that of a training")
    if rows is None:
        raise ConfigError("--rows: say how many new rows there are; horizontal: of each party, separated by commas")
    if data is None and config.party in config.parties:
        raise ConfigError("--data: say where our new rows are")
    changes = [
        Change(("run",), _quoted(name)),
        Change(("triples", "store"), _quoted(name)),
        Change(("kmeans", "rows"), _rows(config, rows)),
        Change(("kmeans", "predict"), f"{{model: {_quoted(config.run)}}}"),
        *(Change(("kmeans", "reveal", what), "[]") for what in ("centroids", "inertia") if getattr(job.reveal, what)),
    ]
    return changes if data is None else [*changes, Change(("kmeans", "data"), _quoted(data))]


def _rows(config: JobConfig, rows: str) -> str:
    """One number, or one for each party in their order."""
    counts = rows.split(",")
    wanted = 1 if config.needed_kmeans.layout == "vertical" else len(config.parties)
    if len(counts) != wanted or not all(count.strip().isdecimal() for count in counts):
        what = "one number" if wanted == 1 else f"a number for each of {', '.join(config.parties)}, with commas"
        raise ConfigError(f"--rows: {rows!r} must be {what}")
    numbers = [str(int(count)) for count in counts]
    named = ", ".join(f"{party}: {number}" for party, number in zip(config.parties, numbers, strict=False))
    return numbers[0] if wanted == 1 else f"{{{named}}}"


def _beside(trained: Path, data: str | None) -> str | None:
    """A path as it must stand in a file beside `trained`."""
    if data is None or "://" in data or Path(data).is_absolute():
        return data
    return os.path.relpath(Path(data).absolute(), trained.resolve().parent)


def _quoted(text: str) -> str:
    return yaml.safe_dump(text, width=1 << 20).removesuffix("...\n").strip()


def changed_text(text: str, changes: Iterable[Change]) -> str:
    """The same YAML with other values; comments stay. A field that is not there is put before the first of its part."""
    root = yaml.compose(text, yaml.SafeLoader)
    edits = sorted((_edit(root, change) for change in changes), reverse=True)
    for start, end, new in edits:
        text = text[:start] + new + text[end:]
    return text


def _edit(node: yaml.Node | None, change: Change) -> tuple[int, int, str]:
    """From where to where the text is replaced, and by what."""
    name, *below = change.place
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{name}: must stand in a mapping of fields")
    found = [(key, value) for key, value in node.value if key.value == name]
    if not found:
        return _insertion(node, change.place, change.value)
    key, value = found[0]
    if below:
        return _edit(value, Change(tuple(below), change.value))
    start = key.end_mark.index
    if value.start_mark.index < start:
        raise ConfigError(f"{name}: write out what stands there instead of a reference (*) to it, then try again")
    return start, _end(value), f": {change.value}"


def _insertion(node: yaml.MappingNode, names: tuple[str, ...], value: str) -> tuple[int, int, str]:
    for name in reversed(names[1:]):
        value = f"{{{name}: {value}}}"
    line = f"{names[0]}: {value}"
    if node.flow_style:
        place = node.start_mark.index + 1
        return place, place, f"{line}, " if node.value else line
    first = node.value[0][0].start_mark
    return first.index, first.index, f"{line}\n{' ' * first.column}"


def _end(node: yaml.Node) -> int:
    """Where a value ends; the mark of a block is behind the comments that follow it."""
    *_, last = _leaves(node)
    return last.end_mark.index


def _leaves(node: yaml.Node) -> Iterator[yaml.Node]:
    """Its parts that are written in one piece, in their order."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        yield node
        return
    for part in node.value:
        yield from _leaves(part[1] if isinstance(part, tuple) else part)
