"""`veilmeans fill`: for a trial on one machine, set rows, columns and categories in everyone's configuration at once.

Real parties do not see each other's data: each runs `veilmeans inspect`, tells the others its numbers, and all run
`veilmeans set`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path

import pyarrow as pa

from veilmeans.io.names import brief
from veilmeans.io.values import table_blocks
from veilmeans.pipelines.advise import Advice, advise
from veilmeans.pipelines.prepare import kmeans_job
from veilmeans.pipelines.set_fields import set_command, set_fields
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import ConfigError, InputError


def fill_in(files: Sequence[Path]) -> str:
    """Look at all parties' data and set what follows from them in all the files; what was done, in sentences."""
    configs = {file: load_config(file) for file in files}
    found = [advise(configs[file], file) for file in _parties(configs)]
    common = {field: value for each in found for field, value in each.common.items()}
    _check_alike(found)
    _check_clusters(files, found)
    changes = {file: dict(common) for file in files}
    for each in found:
        changes[each.file] |= each.own
    if any(not each.fits for each in found):
        _check_unused(configs)
    set_fields(changes)
    said = [_sentence(each) for each in found]
    return "\n".join([*said, f"set everywhere: {' '.join(f'{field}={value}' for field, value in common.items())}"])


def _parties(configs: dict[Path, JobConfig]) -> list[Path]:
    """The parties' files in the agreed order; the dealer has no data."""
    by_name = {config.party: file for file, config in configs.items()}
    first = next(iter(configs.values()))
    wanted = (*first.parties, *([first.dealer] if first.dealer else []))
    missing = [name for name in wanted if name not in by_name]
    if missing or len(by_name) != len(wanted) or len(configs) != len(wanted):
        raise ConfigError(f"give the configurations of {', '.join(wanted)}, each once: they are filled in together")
    return [by_name[name] for name in first.parties]


def _check_alike(found: Sequence[Advice]) -> None:
    horizontal = kmeans_job(found[0].config).layout == "horizontal"
    for one, other in pairwise(found):
        if horizontal and list(one.scan.columns) != list(other.scan.columns):
            raise InputError(
                f"{one.scan.source} has the columns {brief(one.scan.columns)} and {other.scan.source} has "
                f"{brief(other.scan.columns)}: with the horizontal layout both need the same, in the same order"
            )
        if not horizontal:
            _check_rows(one.scan.source, other.scan.source, one.scan.rows, other.scan.rows)
            _check_ids(one, other)


def _check_rows(one: str, other: str, rows: int, others: int) -> None:
    if rows != others:
        raise InputError(
            f"{one} has {rows:,} rows and {other} has {others:,}: both must be about the same rows in the same order; "
            "keep those that both know"
        )


def _check_ids(one: Advice, other: Advice) -> None:
    if one.scan.ids == other.scan.ids:
        return
    if not (one.scan.id and other.scan.id):
        missing, has = (one, other) if one.scan.id is None else (other, one)
        raise InputError(
            f"{missing.scan.source} has no id (kmeans.id) and {has.scan.source} has one: set it at both or at neither"
        )
    pairs = enumerate(zip_longest(_ids(one), _ids(other)), start=1)
    row = next(number for number, (mine, theirs) in pairs if mine != theirs)
    raise InputError(
        f"{one.scan.source} and {other.scan.source} have different ids, first in row {row:,}: keep the rows that both "
        "know, and sort both files by the id"
    )


def _ids(advice: Advice) -> Iterator[str]:
    scan = advice.scan
    for block in table_blocks(scan.files, (), scan.id):
        yield from block.rows.column(scan.id).cast(pa.large_string()).to_pylist()


def _check_clusters(files: Sequence[Path], found: Sequence[Advice]) -> None:
    job = kmeans_job(found[0].config)
    rows = sum(each.scan.rows for each in found) if job.layout == "horizontal" else found[0].scan.rows
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


def _sentence(each: Advice) -> str:
    scan, text = each.scan, each.own.get("kmeans.one_hot", [])
    categories = f" (text as categories: {brief(text)})" if text else ""
    found = f"{each.config.party}: {scan.rows:,} rows, {len(scan.columns):,} columns{categories}"
    return "\n".join(filter(None, [f"{found}: {brief(scan.columns)}", each.label_note()]))
