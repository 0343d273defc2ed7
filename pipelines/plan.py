"""`--dry-run`: what a job would do, from this party's configuration and data alone. Nothing is sent or kept."""

import tempfile
from pathlib import Path

from rich.console import Group, RenderableType

from veilmeans.io.connect import check_door, load_identity, load_peer_certificates
from veilmeans.io.inputs import stage_columns
from veilmeans.pipelines.sums import check_rows, sums_job
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.sums import OPENING, product_protocol
from veilmeans.transforms.trace import table


def plan_sums(config: JobConfig) -> RenderableType:
    """Check configuration, certificates and data; the rounds, and what each of them sends.

    The peers' columns are not known before the handshake: they are taken to be as many as ours.
    """
    config = config.online()
    job = sums_job(config)
    load_identity(config)
    load_peer_certificates(config)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "columns.arrow"
        staged = stage_columns(job.data or Path(), job.columns, job.bound, config.engine.rows_per_shard, target)
    check_rows(config, job, staged.rows)
    check_door(config)
    columns, parties = len(job.columns), config.me.count
    sharded = {"x": ((staged.rows, columns), "uint64")}
    opened = {"x": ((columns * parties + 1,), "uint64")}
    heading = (
        f"{config.party} in run {config.run!r} with {', '.join(config.peers)}",
        f"{staged.rows:,} rows × {columns} columns",
        f"shards {staged.shards:,}, exchange by {config.exchange.kind}, on {config.engine.runner}",
    )
    return Group(
        *heading,
        table(product_protocol(0, 0), [sharded] * parties, config.me.index, staged.rows),
        table(OPENING, [opened] * parties, config.me.index, staged.rows),
    )
