"""Calls of Beam's filesystems without the retries that Beam makes by itself, where the caller repeats them.

Beam repeats what reads S3 for eight minutes and more, whatever time the caller has: only after that it would hear that
the place is away. Apart from such calls Beam's retries stay as they are. Checked with Beam 2.77.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from apache_beam.utils import retry

_without: ContextVar[bool] = ContextVar("without", default=False)


@contextmanager
def without_beam_retries() -> Iterator[None]:
    """Let Beam raise the first error of its filesystems' calls in this thread."""
    _install()
    before = _without.set(True)
    try:
        yield
    finally:
        _without.reset(before)


@cache
def _install() -> None:
    """Replace the pauses between Beam's retries, once in a process."""

    class Pauses(retry.FuzzedExponentialIntervals):
        """No pause, and so no retry, in calls without retries."""

        def __iter__(self) -> Iterator[float]:
            return iter(()) if _without.get() else super().__iter__()

    retry.FuzzedExponentialIntervals = Pauses
