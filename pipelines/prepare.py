"""The job `veilmeans prepare`: read this party's data, check them, write them as encoded shards. Nothing is sent."""

import tempfile
from pathlib import Path

from veilmeans.io.exchange.connections import attach_shared
from veilmeans.io.files.atomic_files import check_writable
from veilmeans.pipelines.planning.units import format_size
from veilmeans.pipelines.session.own_data import encode_data, local_scaling, scan_data
from veilmeans.pipelines.session.trained_model import load_model
from veilmeans.schemas.column_names import list_briefly
from veilmeans.schemas.config import JobConfig


def dry_prepare(config: JobConfig) -> str:
    """Scan and encode the data in a temporary folder, and return what would be written."""
    with tempfile.TemporaryDirectory() as temporary:
        summary = prepare_data(config, Path(temporary))
        files = [file for file in Path(temporary).rglob("*") if file.is_file()]
        written = sum(file.stat().st_size for file in files)
    check_writable(config.storage)
    size = f"{format_size(written)} in {len(files):,} files"
    return f"{summary}\nwould write {size} below {config.storage_folder.prepared}"


def prepare_data(config: JobConfig, storage: Path | None = None) -> str:
    """Scan the data, encode them if their scale does not depend on the other parties, and return a summary."""
    attach_shared(config)
    model = load_model(config)
    scan = scan_data(config, model)
    scaling = local_scaling(config, scan, model)
    size = f"{scan.rows:,} rows, {len(scan.columns):,} columns: {list_briefly(scan.columns)}"
    if scaling is None:
        return f"{size}; they are encoded when all parties' statistics are known"
    prepared = encode_data(config, scan, scaling, storage)
    cells = prepared.rows * len(prepared.columns)
    return f"{size}; {prepared.shards:,} shards, {1 - sum(prepared.nonzeros) / cells:.1%} zeros"
