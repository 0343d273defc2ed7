"""Contents of files that may be replaced while a job runs: certificates, keys."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

Content = TypeVar("Content")
_AGE = 1.0  # seconds after which a content is read again in any case: it may have expired


class FreshFiles(Generic[Content]):
    """The content of some files, read by `load` again when one of them has changed; cheap to ask for."""

    def __init__(self, files: Sequence[Path], load: Callable[[], Content]) -> None:
        self._files, self._load = tuple(files), load
        self._loaded: tuple[object, float, Content] | None = None  # the files' state, when they were read, the content

    def content(self) -> Content:
        """Return the present content; the error of `load` if there is none."""
        state, now = self.state(), time.monotonic()
        loaded = self._loaded
        if loaded is None or loaded[0] != state or now - loaded[1] > _AGE:
            loaded = self._loaded = state, now, self._load()
        return loaded[2]

    def state(self) -> object:
        """Return a value that is another one when a file was replaced, removed or written to."""
        return tuple(_state(file) for file in self._files)


def _state(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
