"""The configuration of a prediction, out of that of its model's training: only what differs is changed in the file."""

import os
from pathlib import Path
from typing import Any

from veilmeans.io.storage.atomic_files import write_text
from veilmeans.pipelines.configure.edit_config import changed_text
from veilmeans.schemas.config import JobConfig, load_config, read_config
from veilmeans.schemas.errors import ConfigError


def write_prediction(
    trained: Path, name: str, data: str | None, rows: str | None, file: Path | None, dry_run: bool = False
) -> str:
    """Write the file beside the trained one, so that paths in it stay right; what to do next."""
    config = load_config(trained)
    target = file or trained.with_name(f"{name}.yaml")
    if target.exists():
        raise ConfigError(f"{target} exists already: choose another --write, or remove it")
    if target.resolve().parent != trained.resolve().parent:
        raise ConfigError(f"--write: {target} must lie beside {trained}, because paths in it are relative")
    changes = _changes(config, name, _beside(trained, data), rows)
    text = changed_text(read_config(trained), changes, target)
    if dry_run:
        return f"would write {target}"
    write_text(target, text)
    return (
        f"wrote {target}\nnext, when every party and the dealer have theirs:\n"
        f"  1. veilmeans prepare --config {target}   reads and checks the new rows; nothing is sent\n"
        f"  2. veilmeans offline --config {target}   at everyone and the dealer, at the same time\n"
        f"  3. veilmeans predict --config {target}   at every party, at the same time (--dry-run: a plan)"
    )


def _changes(config: JobConfig, name: str, data: str | None, rows: str | None) -> dict[str, Any]:
    job = config.required_kmeans
    if job.predict is not None:
        raise ConfigError(f"run {config.run!r} is a prediction itself: --config must be that of a training")
    if rows is None:
        raise ConfigError("--rows: say how many new rows there are; horizontal: of each party, separated by commas")
    if data is None and config.party in config.parties:
        raise ConfigError("--data: say where our new rows are")
    opened = [what for what in ("centroids", "inertia") if getattr(job.reveal, what)]
    return {
        "run": name,
        "triples.store": name,
        "kmeans.rows": _rows(config, rows),
        "kmeans.predict": {"model": config.run},
        **{f"kmeans.reveal.{what}": [] for what in opened},
        **({} if data is None else {"kmeans.data": data}),
    }


def _rows(config: JobConfig, rows: str) -> int | dict[str, int]:
    """One number, or one for each party in their order."""
    counts = rows.split(",")
    wanted = 1 if config.required_kmeans.layout == "vertical" else len(config.parties)
    if len(counts) != wanted or not all(count.strip().isdecimal() for count in counts):
        what = "one number" if wanted == 1 else f"a number for each of {', '.join(config.parties)}, with commas"
        raise ConfigError(f"--rows: {rows!r} must be {what}")
    return int(counts[0]) if wanted == 1 else dict(zip(config.parties, map(int, counts), strict=True))


def _beside(trained: Path, data: str | None) -> str | None:
    """A path as it must stand in a file beside `trained`."""
    if data is None or "://" in data or Path(data).is_absolute():
        return data
    return os.path.relpath(Path(data).absolute(), trained.resolve().parent)
