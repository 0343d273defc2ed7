"""Freed memory, returned to the system now and then: malloc keeps holes between what is in use.

Work on a shard makes and frees arrays of many sizes, in several threads. What is in use does not grow with the number
of shards; the holes do, slowly, until malloc is asked to return them. That costs some milliseconds, and pages that are
touched anew: asked after so many bytes of arrays, it is some hundredths of the time, and nothing in a small job.
"""

import ctypes
import threading
from contextlib import suppress

WORKED = 128 << 20
"""Bytes of arrays that a process has worked on after which it returns what is free."""
_lock = threading.Lock()
_worked = 0


def release_often(worked: int, after: int | None = None) -> None:
    """Count bytes of arrays that this process has worked on; return freed memory to the system after so many.

    `after`: by default WORKED; fewer where their making takes much more memory than they have.
    """
    global _worked
    with _lock:
        _worked += worked
        if _worked < (WORKED if after is None else after):
            return
        _worked = 0
    release()


def release() -> None:
    """Return freed memory to the system; where malloc is not glibc's, do nothing."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
