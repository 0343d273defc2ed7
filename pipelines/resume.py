"""Going on after a mishap: from this party's newest checkpoint, with the messages that have come since.

A message is durable with its recipient before the sender goes on, and is dropped only when every party has a later
checkpoint. So each party goes on from its own newest checkpoint, whatever the others do, and sends the same bytes
again.
"""

import logging
from dataclasses import replace
from pathlib import Path

from veilmeans.io.exchange import Exchange, get_arrays
from veilmeans.io.files import write_text
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.message import Key
from veilmeans.transforms.lloyd import CHECKPOINT, Job, kept
from veilmeans.transforms.seat import tell_all

log = logging.getLogger(__name__)


def newest_checkpoint(config: JobConfig, job: Job) -> int:
    """How many iterations are done (-1: none has begun), if the messages after them are still there."""
    newest = kept(job.seat.open()).newest()
    mark = _collected(config)
    needed = int(mark.read_text()) if mark.exists() else -1
    if newest < needed:
        raise StorageError(
            f"run {config.run!r} has been at iteration {needed}, and its newest checkpoint in {config.run_folder} is "
            f"{f'of iteration {newest}' if newest >= 0 else 'gone'}: restore it from a backup, or start a new run id"
        )
    if newest > 0:
        log.info("going on after iteration %d", newest)
        tell_all(replace(job.seat, iteration=newest - 1).open(), CHECKPOINT)
    return newest


def collect(exchange: Exchange, config: JobConfig, before: int) -> None:
    """Drop the messages of iterations whose checkpoints all parties have."""
    if before == 0:
        return
    where = Address(config.run, before - 1, CHECKPOINT, 0)
    for peer in config.peers:
        get_arrays(exchange, Key(where, peer, config.party), config.exchange.timeout_s)
    write_text(_collected(config), str(before))
    exchange.collect(config.run, before=before)


def _collected(config: JobConfig) -> Path:
    return config.run_folder / "collected"
