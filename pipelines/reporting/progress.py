"""A run's progress for people: a bar on a terminal, plain lines elsewhere. Counts only, never data."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from veilmeans.transforms.rounds.stage_metrics import watch_stages

log = logging.getLogger(__name__)


@contextmanager
def counting_shards(what: str, total: int, console: Console | None = None) -> Iterator[None]:
    """Watch `total` shards pass: a bar on a terminal, a line at each quarter elsewhere."""
    console = console or Console(stderr=True)
    passed, lock, quarter = 0, threading.Lock(), max(1, total // 4)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=total)

    def saw(iteration: int, stage: str, shard: int, sent: int) -> None:
        nonlocal passed
        del iteration, stage, shard, sent
        with lock:
            passed += 1
        bar.update(task, completed=passed)
        if not console.is_terminal and passed % quarter == 0:
            log.info("%s: %d of %d shards", what, passed, total)

    with watch_stages(saw):
        if not console.is_terminal:
            yield
            return
        with bar:
            yield


class TrainProgress:
    """Iteration, stage, shards, bytes and time left of one run. `what`: what is done, if it is no iteration."""

    def __init__(self, iterations: int, shards: int, console: Console | None = None, what: str | None = None) -> None:
        self._what = what
        self._console = console or Console(stderr=True)
        self._iterations, self._shards = iterations, shards
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._stage = ""
        self._bytes = self._told = 0
        self._began = self._last = time.monotonic()
        self._done = self._first = 0
        self._bar = Progress(
            TextColumn("[bold]{task.fields[what]}"),
            BarColumn(),
            TextColumn("{task.fields[stage]}"),
            TextColumn("{task.fields[traffic]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=iterations, what="beginning", stage="", traffic="", left="")

    @contextmanager
    def showing(self, done: int) -> Iterator[None]:
        """Watch the stages of this process; `done` iterations were complete before."""
        self._done = self._first = done
        self._began = self._last = time.monotonic()
        with watch_stages(self._saw):
            if not self._console.is_terminal:
                yield
                return
            with self._bar:
                yield

    def passed(self, done: int, sent: int = 0) -> None:
        """`done` iterations are complete; `sent` bytes, where workers elsewhere have sent them."""
        if done <= self._done:
            return
        now = time.monotonic()
        self._done, seconds, self._last = done, now - self._last, now
        sent, self._told = (self._bytes - self._told if self._bytes else sent), self._bytes
        if self._console.is_terminal:
            self._show()
        else:
            left = f", {self.left()}" if self.left() else ""
            log.info("%s: %.2f s, %.2f MB sent%s", self._name(done), seconds, sent / 1e6, left)

    def left(self) -> str:
        """The time that the rest would take if it went on like this."""
        passed, rest = self._done - self._first, self._iterations - self._done
        if passed <= 0 or rest <= 0:
            return ""
        seconds = (time.monotonic() - self._began) / passed * rest
        return f"at most {seconds / 60:.1f} min left" if seconds >= 90 else f"at most {seconds:.0f} s left"

    def _name(self, number: int) -> str:
        return self._what or f"iteration {number} of at most {self._iterations}"

    def _saw(self, iteration: int, stage: str, shard: int, sent: int) -> None:
        with self._lock:
            self.passed(iteration)
            if stage != self._stage:
                self._stage, self._seen = stage, set()
            self._seen.add(shard)
            self._bytes += sent
        if self._console.is_terminal:
            self._show(iteration)

    def _show(self, iteration: int | None = None) -> None:
        now = self._done if iteration is None else iteration
        shards = f" {len(self._seen)}/{self._shards} shards" if self._shards > 1 else ""
        self._bar.update(
            self._task,
            completed=self._done,
            what=self._name(min(now + 1, self._iterations)),
            stage=f"{self._stage}{shards}",
            traffic=f"{self._bytes / 1e6:,.1f} MB sent",
            left=self.left(),
        )
