"""Retries of work that failed for a reason of its own."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_not_exception_type, stop_after_attempt

from veilmeans.io.storage.run_report import RunReport
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import VeilmeansError

log = logging.getLogger(__name__)
Result = TypeVar("Result")


def with_retries(config: JobConfig, work: Callable[[], Result]) -> Result:
    """Do work, again if it fails: its rounds send the same bytes, so no mask is used twice.

    A refused message, an absent peer or a user's mistake ends it at once.
    """
    retry = Retrying(
        stop=stop_after_attempt(config.beam.attempts),
        retry=retry_if_not_exception_type((VeilmeansError, KeyboardInterrupt)),
        before_sleep=partial(_note_retry, config),
        reraise=True,
    )
    return retry(work)


def _note_retry(config: JobConfig, state: RetryCallState) -> None:
    failure = state.outcome.exception() if state.outcome is not None else None
    left = config.beam.attempts - state.attempt_number
    log.warning("the pipeline failed (%s); retrying, %d attempts left", type(failure).__name__, left)
    RunReport(config.run_folder).repeat()
