"""Who wants to see a run's progress in this process: told of each shard's sends. Workers elsewhere tell nobody here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watcher = Callable[[int, str, int, int], None]
"""(iteration, stage, shard, bytes sent): counts, never data."""

_watchers: list[Watcher] = []


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` while this context is open."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def tell(iteration: int, stage: str, shard: int, sent: int) -> None:
    """A shard has sent its messages of a stage."""
    for watcher in _watchers:
        watcher(iteration, stage, shard, sent)
