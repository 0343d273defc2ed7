"""A configuration whose rows are aligned: its data are then the aligned rows, and their number is known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilmeans.io.files.atomic_files import read_json
from veilmeans.io.sources.aligned_rows import source_state
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import InputError, StorageError


@dataclass(frozen=True)
class Alignment:
    """The result of an alignment at one party. `order`: a digest of the common ids in their order, equal at all.

    `ids`: how many distinct ids each party has; `source`: the state of this party's source when they were read.
    """

    rows: int
    order: str
    file: str
    ids: dict[str, int]
    source: list[list[object]]

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def load_alignment(config: JobConfig) -> Alignment | None:
    """The configured alignment, if it was made here; refuse one of rows that have changed since."""
    if config.align is None or config.kmeans is None or config.party not in config.parties:
        return None
    content = read_json(config.alignment_folder.manifest)
    if content is None:
        return None
    found = Alignment(**content)
    data, file = config.kmeans.data or "", config.alignment_folder.path / found.file
    if Path(data) != file and found.source != source_state(data):
        raise InputError(
            f"{data} has changed since its rows were aligned as {config.alignment!r}: choose a new align.name and a "
            "new run at all parties"
        )
    return found


def with_alignment(config: JobConfig) -> JobConfig:
    """The configuration with its aligned rows as data; as it is where it asks for none, or they are not aligned yet."""
    found = load_alignment(config)
    return config if found is None else use_alignment(config, found)


def use_alignment(config: JobConfig, found: Alignment) -> JobConfig:
    """The configuration with these rows as data."""
    if not found.rows:
        raise InputError(no_common_rows(found))
    file = config.alignment_folder.path / found.file
    if not file.exists():
        raise StorageError(f"{file} is missing: restore it from a backup, or choose a new align.name at all parties")
    return config.with_aligned_rows(file, found.rows)


def no_common_rows(found: Alignment) -> str:
    """The sentence that ends an alignment of which nothing is left."""
    sizes = ", ".join(f"{count:,} of {party}" for party, count in found.ids.items())
    return (
        f"no id is common to all parties ({sizes}): check that kmeans.id names the same kind of ids everywhere, and "
        "align.case; then choose a new align.name at all parties"
    )
