"""Resume a run after a failure: from this party's newest checkpoint, with the messages that have come since.

A message is durable with its recipient before the sender continues, and is dropped only when every party has a later
checkpoint. So each party resumes from its own newest checkpoint, whatever the others do, and sends the same bytes
again.
"""

import logging

from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.files.atomic_files import write_text
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError
from veilmeans.transforms.kmeans.party_state import PartyJob, checkpoints_of

log = logging.getLogger(__name__)


def newest_checkpoint(config: JobConfig, job: PartyJob) -> int:
    """The number of iterations done (-1: none has begun), if the messages after them are still there."""
    newest = checkpoints_of(job.context.open()).newest()
    mark = config.run_folder.dropped
    try:
        needed = int(mark.read_text()) if mark.exists() else -1
    except (OSError, ValueError):
        raise StorageError(f"{mark} cannot be read: restore it from a backup, or use a new run id") from None
    if newest < needed:
        raise StorageError(
            f"run {config.run!r} has been at iteration {needed}, and its newest checkpoint in {config.run_folder} is "
            f"{f'of iteration {newest}' if newest >= 0 else 'gone'}: restore it from a backup, or use a new run id"
        )
    if newest > 0:
        log.info("resuming after iteration %d", newest)
    return newest


def drop_messages(exchange: Exchange, config: JobConfig, before: int) -> None:
    """Drop the messages of iterations from which nobody resumes.

    Who has sent us something in an iteration has its checkpoint, so nobody needs messages of those before; the ones of
    one more iteration stay, so that a damaged newest checkpoint may be removed.
    """
    if before < 1:
        return
    exchange.flush()
    write_text(config.run_folder.dropped, str(before))
    exchange.drop_messages(config.run, before=before)
