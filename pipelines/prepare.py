"""The job `veilmeans prepare`: read this party's data, check them, write them as encoded shards. Nothing is sent."""

import tempfile
from pathlib import Path

from veilmeans.io.storage.atomic_files import check_writable
from veilmeans.pipelines.planning.units import size
from veilmeans.pipelines.session.own_data import encode_data, local_scaling, scan_data
from veilmeans.schemas.column_names import brief
from veilmeans.schemas.config import JobConfig


def dry_prepare(config: JobConfig) -> str:
    """Both passes over the data, into a folder that is removed."""
    with tempfile.TemporaryDirectory() as aside:
        found = prepare_data(config, Path(aside))
        files = [file for file in Path(aside).rglob("*") if file.is_file()]
        written = sum(file.stat().st_size for file in files)
    check_writable(config.storage)
    return f"{found}\nwould write {size(written)} in {len(files):,} files below {config.storage / 'prepared'}"


def prepare_data(config: JobConfig, storage: Path | None = None) -> str:
    """Both passes, as far as they go without the others; what was found, in a sentence."""
    scan = scan_data(config, storage)
    scaling = local_scaling(config, scan)
    found = f"{scan.rows:,} rows, {len(scan.columns):,} columns: {brief(scan.columns)}"
    if scaling is None:
        return f"{found}; they are encoded when all parties' statistics are known"
    prepared = encode_data(config, scan, scaling, storage)
    cells = prepared.rows * len(prepared.columns)
    return f"{found}; {prepared.shards:,} shards, {1 - sum(prepared.nonzeros) / cells:.1%} zeros"
