"""`veilmeans fill`: for a trial on one machine, set rows, columns and categories in everyone's configuration at once.

Real parties do not see each other's data: each runs `veilmeans inspect`, tells the others its numbers, and all run
`veilmeans set`.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from veilmeans.pipelines.configure.config_advice import advise
from veilmeans.pipelines.configure.edit_config import set_command, set_fields
from veilmeans.schemas.column_names import brief
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import ConfigError, InputError
from veilmeans.schemas.kmeans_config import KMeansConfig


@dataclass(frozen=True)
class PartySummary:
    """What a party's configuration needs, and what it would tell the others of its data: numbers, names, a digest."""

    file: Path
    party: str
    source: str
    own: dict[str, Any]
    common: dict[str, int]
    rows: int
    columns: Sequence[str]
    ids: str
    fits: bool
    sentence: str


def fill_in(files: Sequence[Path], dry_run: bool = False) -> str:
    """Look at each party's data, one by one, and set what follows in all the files; what was done, in sentences."""
    configs = {file: load_config(file) for file in files}
    with tempfile.TemporaryDirectory() as aside:
        told = [summarise(configs[file], file, Path(aside) if dry_run else None) for file in _parties(configs)]
    common = {field: value for each in told for field, value in each.common.items()}
    job = next(iter(configs.values())).required_kmeans
    _check_alike(told, job.layout)
    _check_clusters(files, job, told)
    changes = {file: dict(common) for file in files}
    for each in told:
        changes[each.file] |= each.own
    if not all(each.fits for each in told):
        _check_unused(configs)
    changed = set_fields(changes, dry_run)
    said = [each.sentence for each in told]
    if dry_run:
        return "\n".join([*said, "would change:", changed])
    return "\n".join([*said, f"set everywhere: {' '.join(f'{field}={value}' for field, value in common.items())}"])


def summarise(config: JobConfig, file: Path, storage: Path | None = None) -> PartySummary:
    """One party looks at its own data; what it saw is kept in its storage, or elsewhere."""
    found = advise(config, file, storage)
    scan, text = found.scan, found.own.get("kmeans.one_hot", [])
    categories = f" (text as categories: {brief(text)})" if text else ""
    seen = f"{config.party}: {scan.rows:,} rows, {len(scan.columns):,} columns{categories}: {brief(scan.columns)}"
    sentence = "\n".join(filter(None, [seen, found.label_note()]))
    shape = (scan.rows, scan.columns, scan.ids)
    return PartySummary(file, config.party, scan.source, found.own, found.common, *shape, found.fits, sentence)


def _parties(configs: dict[Path, JobConfig]) -> list[Path]:
    """The parties' files in the agreed order; the dealer has no data."""
    by_name = {config.party: file for file, config in configs.items()}
    first = next(iter(configs.values()))
    wanted = (*first.parties, *([first.dealer] if first.dealer else []))
    missing = [name for name in wanted if name not in by_name]
    if missing or len(by_name) != len(wanted) or len(configs) != len(wanted):
        raise ConfigError(f"give the configurations of {', '.join(wanted)}, each once: they are filled in together")
    return [by_name[name] for name in first.parties]


def _check_alike(told: Sequence[PartySummary], layout: str) -> None:
    for one, other in pairwise(told):
        if layout == "horizontal":
            _check_columns(one, other)
        else:
            _check_rows(one, other)


def _check_columns(one: PartySummary, other: PartySummary) -> None:
    if list(one.columns) != list(other.columns):
        raise InputError(
            f"{one.source} has the columns {brief(one.columns)} and {other.source} has {brief(other.columns)}: with "
            "the horizontal layout both need the same, in the same order"
        )


def _check_rows(one: PartySummary, other: PartySummary) -> None:
    if one.rows != other.rows:
        raise InputError(
            f"{one.source} has {one.rows:,} rows and {other.source} has {other.rows:,}: both must be about the same "
            "rows in the same order; keep those that both know"
        )
    if one.ids == other.ids:
        return
    if not (one.ids and other.ids):
        missing, has = (one, other) if not one.ids else (other, one)
        raise InputError(
            f"{missing.source} has no id (kmeans.id) and {has.source} has one: set it at both or at neither"
        )
    raise InputError(
        f"{one.source} and {other.source} have different ids, or the same in another order: keep the rows that both "
        "know, and sort both files by the id"
    )


def _check_clusters(files: Sequence[Path], job: KMeansConfig, told: Sequence[PartySummary]) -> None:
    rows = sum(each.rows for each in told) if job.layout == "horizontal" else told[0].rows
    if job.clusters > rows:
        fewer = set_command(files, {"kmeans.clusters": min(2, rows)})
        raise InputError(f"{rows:,} rows are too few for {job.clusters:,} clusters; for fewer clusters: `{fewer}`")


def _check_unused(configs: dict[Path, JobConfig]) -> None:
    """A store is made for one shape, and a run has one set of data: others need names of their own."""
    for config in configs.values():
        if config.run_folder.exists() or config.offline().run_folder.exists():
            new = f"{config.run}-2"
            again = set_command(list(configs), {"run": new, "triples.store": new})
            raise ConfigError(
                f"run {config.run!r} was begun with other data; give the new one a name of its own, then fill it in: "
                f"`{again}`"
            )
