"""Write the configuration of a prediction from that of its model's training (`veilmeans config predict`)."""

import os
from pathlib import Path
from typing import Any

from veilmeans.io.files.atomic_files import write_text
from veilmeans.pipelines.configure.edit_config import changed_text
from veilmeans.schemas.config import JobConfig, parse_config, read_config
from veilmeans.schemas.errors import ConfigError


def write_predict_config(
    trained: Path,
    name: str,
    data: str | None,
    rows: str | None,
    file: Path | None,
    dry_run: bool = False,
    trained_text: str | None = None,
) -> str:
    """Write the file beside the trained one, so that relative paths stay valid; return the next commands.

    Only the fields that differ are changed; comments and all other fields stay. `trained_text`: the configuration of
    the training, if it was not that of the file alone (`--run`, `--set`).
    """
    text_before = read_config(trained) if trained_text is None else trained_text
    config = parse_config(text_before, trained)
    target = file or trained.with_name(f"{name}.yaml")
    if target.exists():
        raise ConfigError(f"--write: {target} exists already: choose another name, or remove it")
    if target.resolve().parent != trained.resolve().parent:
        raise ConfigError(f"--write: {target} must be in the folder of {trained}, because paths in it are relative")
    changes = _changes(config, name, relative_to_config(trained, data), rows)
    text = changed_text(text_before, changes, target)
    if dry_run:
        return f"would write {target}"
    write_text(target, text)
    everyone, offline = "all parties", ""
    if config.provider == "dealer":
        everyone = "every party and the dealer"
        offline = f"  veilmeans offline --config {target}   {everyone}, at the same time\n"
    first = f"  veilmeans prepare --config {target}   reads and checks the new rows; nothing is sent\n"
    if config.align:
        first = f"  veilmeans align --config {target}   all parties, at the same time; `predict` does it, too\n"
    return (
        f"wrote {target}\nnext, when {everyone} have theirs:\n{first}"
        f"{offline}  veilmeans predict --config {target}   every party, at the same time (--dry-run: a plan)"
    )


def _changes(config: JobConfig, name: str, data: str | None, rows: str | None) -> dict[str, Any]:
    job = config.required_kmeans
    if job.predict is not None:
        raise ConfigError(f"run {config.run!r} is a prediction itself: --config must be that of a training")
    if data is None and config.party in config.parties:
        raise ConfigError("--data is needed: the file with this party's new rows")
    opened = [result for result in ("centroids", "inertia", "profiles") if getattr(job.reveal, result)]
    return {
        "run": name,
        "triples.store": name,
        "kmeans.rows": None if config.align else _rows(config, rows),
        **({"align.name": None} if config.align and config.align.name else {}),
        "kmeans.predict": {"model": config.run},
        **{f"kmeans.reveal.{result}": [] for result in opened},
        **({} if data is None else {"kmeans.data": data}),
    }


def _rows(config: JobConfig, rows: str | None) -> int | dict[str, int]:
    """Parse one number, or one for each party in their order."""
    if rows is None:
        raise ConfigError("--rows is needed: the number of new rows")
    counts = rows.split(",")
    wanted = 1 if config.required_kmeans.layout == "vertical" else len(config.parties)
    if len(counts) != wanted or not all(count.strip().isdecimal() for count in counts):
        form = "one number" if wanted == 1 else f"a number for each of {', '.join(config.parties)}, with commas"
        raise ConfigError(f"--rows is {rows!r}: it must be {form}")
    return int(counts[0]) if wanted == 1 else dict(zip(config.parties, map(int, counts), strict=True))


def relative_to_config(trained: Path, data: str | None) -> str | None:
    """Return a path relative to the folder of `trained`, as a configuration there must have it."""
    if data is None or "://" in data or Path(data).is_absolute():
        return data
    return os.path.relpath(Path(data).absolute(), trained.resolve().parent)
