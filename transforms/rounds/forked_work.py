"""Lists of residues computed over the cores: by this process and by forks of it, each a part.

Loops of gmpy2's `*` and `%` hold Python's lock, so threads would not help. A fork has all operands and tables already,
and no secret is written anywhere: what it computes comes back through a pipe, in order, so the list is that of one
process, bit for bit.

  1. the items are cut into parts of equal weight; a fork begins with each part but the first
  2. this process computes the first part, then reads what the forks have written
  3. what a fork did not complete, for whatever reason, is computed here; an error is raised by that. A fork may take
     ten times as long as the first part, and half a minute

A fork computes and writes to its pipe, nothing else: it uses no lock, connection or file of this process. It ends with
this process, however that ends.
"""

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

WORTH = 1 << 14
"""Multiplications from which a fork, some milliseconds, pays."""
_PATIENCE_S = 30.0
_COMPLETE = b"\x01"
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # found before any fork, which must wait for no lock
_CHUNK = 1 << 20

Part = Callable[[int, int], Sequence[mpz]]
"""(first item, last item + 1) -> their residues."""


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(part: Part, weights: NDArray[np.int64], size: int, processes: int) -> list[mpz]:
    """Compute part(0, n) over so many processes; `weights` has the multiplications of each of the n items.

    `size`: bytes of the largest residue.
    """
    bounds = list(pairwise(_cuts(weights, min(processes, int(weights.sum()) // WORTH))))
    forks = [_Fork(part, start, end, size) for start, end in bounds[1:]]
    try:
        begin = time.monotonic()
        residues = list(part(*bounds[0]))
        now = time.monotonic()
        for (start, end), fork in zip(bounds[1:], forks, strict=True):
            residues += fork.result(now + _PATIENCE_S + 10 * (now - begin)) or part(start, end)
    finally:
        for fork in forks:
            fork.end()
    return residues


def _cuts(weights: NDArray[np.int64], parts: int) -> list[int]:
    """Cut items into at most so many parts of about equal weight, none of them empty; at least one part."""
    before = np.cumsum(weights)
    inner = np.searchsorted(before, before[-1] * np.arange(1, parts) / parts) + 1 if parts > 1 else []
    return [0, *sorted({int(cut) for cut in inner} - {0, len(weights)}), len(weights)]


class _Fork:
    """A fork of this process that computes one part."""

    def __init__(self, part: Part, start: int, end: int, size: int) -> None:
        self._size, self._parent = size, os.getpid()
        self._pipe, writer = os.pipe()
        self._child = 0
        with suppress(OSError):  # no process or memory left: then this process computes the part
            self._child = os.fork()
            if self._child == 0:
                self._compute(part, start, end, writer)
        os.close(writer)

    def result(self, deadline: float) -> list[mpz]:
        """The residues of the part, all of them; or none, if the fork has not completed it by then."""
        data, poll = bytearray(), select.poll()
        poll.register(self._pipe, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            chunk = os.read(self._pipe, _CHUNK)
            data += chunk
            if not chunk:
                break
        if data[-1:] != _COMPLETE or (len(data) - 1) % self._size:
            return []
        residues = bytes(data)
        return [mpz.from_bytes(residues[at : at + self._size], "little") for at in range(0, len(data) - 1, self._size)]

    def end(self) -> None:
        """Collect the fork; it may still compute, if this process has failed."""
        os.close(self._pipe)
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._child, 0)

    def _compute(self, part: Part, start: int, end: int, writer: int) -> None:
        """Be the fork: never return."""
        try:
            _end_with(self._parent)
            residues = b"".join([value.to_bytes(self._size, "little") for value in part(start, end)])
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(residues + _COMPLETE)
        finally:
            os._exit(0)


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent ends; where that cannot be asked for, it ends after its part."""
    if _PRCTL is not None:
        _PRCTL(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
