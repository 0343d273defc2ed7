"""Set rows, columns and categories in all parties' configurations from their data (`veilmeans config fill`).

Only for a trial on one machine: real parties do not see each other's data. Each of them runs `veilmeans inspect`, sends
its numbers of rows and columns to the others, and all run `veilmeans config set`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from veilmeans.io.sources.scan import Scan
from veilmeans.pipelines.configure.config_advice import Advice, advise
from veilmeans.pipelines.configure.edit_config import set_command, set_fields
from veilmeans.schemas.column_names import list_briefly
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import ConfigError, InputError
from veilmeans.schemas.kmeans_config import KMeansConfig


def fill_configs(files: Sequence[Path], dry_run: bool = False) -> str:
    """Scan each party's data and set the fields that follow in all the files; return a summary in sentences."""
    configs = {file: load_config(file) for file in files}
    advice = [advise(configs[file], file) for file in _files_of_parties(configs)]
    job = next(iter(configs.values())).required_kmeans
    for one, other in pairwise(each.scan for each in advice):
        (_check_same_columns if job.layout == "horizontal" else _check_both_ids)(one, other)
    aligns = job.vertical and len({(each.scan.ids, each.scan.rows) for each in advice}) > 1
    _check_clusters(files, job, advice)
    if not all(each.fits for each in advice):
        _check_new_run(configs)
    shared: dict[str, Any] = {field: value for each in advice for field, value in each.shared_changes.items()}
    if aligns:
        shared |= {"align": True, "kmeans.rows": None}
        advice = [each.with_declared_categories() for each in advice]
    changes = {file: dict(shared) for file in files}
    for each in advice:
        changes[each.file] |= each.own_changes
    changed = f"would change:\n{set_fields(changes, dry_run)}"
    everywhere = f"set everywhere: {' '.join(f'{field}={value}' for field, value in shared.items())}"
    note = ["rows or their order differ: `align` and `train` find those that all have, by their ids"] if aligns else []
    return "\n".join([*map(data_summary, advice), *note, changed if dry_run else everywhere])


def data_summary(advice: Advice) -> str:
    """One party's data in a line, and a note about a column that looks like a label."""
    scan, text = advice.scan, advice.config.required_kmeans.one_hot if advice.own_changes else ()
    categories = f" (text as categories: {list_briefly(text)})" if text else ""
    size = f"{advice.config.party}: {scan.rows:,} rows, {len(scan.columns):,} columns"
    return "\n".join(filter(None, [f"{size}{categories}: {list_briefly(scan.columns)}", advice.label_note()]))


def _files_of_parties(configs: dict[Path, JobConfig]) -> list[Path]:
    """The parties' files in the agreed order, without the dealer's, which has no data."""
    by_name = {config.party: file for file, config in configs.items()}
    first = next(iter(configs.values()))
    if set(by_name) != set(first.members) or len(configs) != len(first.members):
        raise ConfigError(f"--config: give the configurations of {', '.join(first.members)}, each once")
    return [by_name[name] for name in first.parties]


def _check_same_columns(first: Scan, second: Scan) -> None:
    if list(first.columns) != list(second.columns):
        raise InputError(
            f"{first.source} has the columns {list_briefly(first.columns)} and {second.source} has "
            f"{list_briefly(second.columns)}: with the horizontal layout both need the same, in the same order"
        )


def _check_both_ids(first: Scan, second: Scan) -> None:
    """Refuse rows that can neither be taken in their order nor be aligned by ids."""
    if first.rows != second.rows and not first.ids and not second.ids:
        raise InputError(
            f"{first.source} has {first.rows:,} rows and {second.source} has {second.rows:,}: both must have the same "
            "rows in the same order, or a column of ids (kmeans.id) by which they can be aligned"
        )
    if bool(first.ids) != bool(second.ids):
        without, other = (second, first) if first.ids else (first, second)
        raise InputError(f"{without.source} has no id (kmeans.id), {other.source} has one: set both or neither")


def _check_clusters(files: Sequence[Path], job: KMeansConfig, advice: Sequence[Advice]) -> None:
    rows = sum(each.scan.rows for each in advice) if job.layout == "horizontal" else advice[0].scan.rows
    if job.clusters > rows:
        fewer = set_command(files, {"kmeans.clusters": min(2, rows)})
        raise InputError(f"{rows:,} rows are too few for {job.clusters:,} clusters; for fewer clusters: `{fewer}`")


def _check_new_run(configs: Mapping[Path, JobConfig]) -> None:
    """Refuse to change the shapes of a run that has begun: other data need a run and a triple store of other names."""
    for config in configs.values():
        if has_begun(config):
            new = f"{config.run}-2"
            rename = set_command(list(configs), {"run": new, "triples.store": new})
            raise ConfigError(f"run {config.run!r} has begun with other data; rename it, then fill again: `{rename}`")


def has_begun(config: JobConfig) -> bool:
    """True if the run of this configuration, or its triple store, has been begun here."""
    return config.run_folder.path.exists() or config.offline().run_folder.path.exists()
