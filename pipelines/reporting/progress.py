"""Progress of a run: a bar on a terminal, log lines elsewhere. Counts only, never data."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from veilmeans.transforms.rounds.stage_metrics import OFFLINE, watch_stages

log = logging.getLogger(__name__)


@contextmanager
def counting_shards(what: str, total: int, console: Console | None = None) -> Iterator[None]:
    """Show how many of `total` shards are done: a bar on a terminal, a line at each quarter elsewhere."""
    console = console or Console(stderr=True)
    done, lock, quarter = 0, threading.Lock(), max(1, total // 4)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=total)

    def count_shard(_iteration: int, stage: str, *_details: int) -> None:
        nonlocal done
        if stage != OFFLINE:
            return  # a message of a shard that is not done
        with lock:
            done += 1
        bar.update(task, completed=done)
        if not console.is_terminal and done % quarter == 0:
            log.info("%s: %d of %d shards", what, done, total)

    with watch_stages(count_shard), bar if console.is_terminal else nullcontext():
        yield


class RunProgress:
    """Iteration, stage, shards, bytes and remaining time of one run. `what`: the work, if it is not iterations."""

    def __init__(
        self,
        iterations: int,
        shards: int,
        console: Console | None = None,
        what: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task_name, self._clock = what, clock
        self._console = console or Console(stderr=True)
        self._iterations, self._shards, self._lock = iterations, shards, threading.Lock()
        self._stage, self._stage_shards = "", set[int]()
        self._bytes = self._reported_bytes = 0
        self._began = self._last_time = self._clock()
        self._done = self._done_before = 0
        self._bar = Progress(
            TextColumn("[bold]{task.fields[what]}"),
            BarColumn(),
            TextColumn("{task.fields[stage]}"),
            TextColumn("{task.fields[traffic]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[time_left]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=iterations, what="beginning", stage="", traffic="", time_left="")

    @contextmanager
    def watching(self, done: int) -> Iterator[None]:
        """Watch the stages of this process; `done` iterations were complete before."""
        self._done = self._done_before = done
        self._began = self._last_time = self._clock()
        with watch_stages(self._count_shard), self._bar if self._console.is_terminal else nullcontext():
            yield

    def report_done(self, done: int, sent: int = 0) -> None:
        """Report that `done` iterations are complete; `sent`: bytes that workers in other processes have sent."""
        if done <= self._done:
            return
        now = self._clock()
        self._done, seconds, self._last_time = done, now - self._last_time, now
        sent, self._reported_bytes = (self._bytes - self._reported_bytes if self._bytes else sent), self._bytes
        if self._console.is_terminal:
            self._update_bar()
        else:
            left = f", {self.time_left()}" if self.time_left() else ""
            log.info("%s: %.2f s, %.2f MB sent%s", self._name(done), seconds, sent / 1e6, left)

    def time_left(self) -> str:
        """The time of the remaining iterations, if they take as long as those before."""
        passed, remaining = self._done - self._done_before, self._iterations - self._done
        if passed <= 0 or remaining <= 0:
            return ""
        seconds = (self._clock() - self._began) / passed * remaining
        return f"at most {seconds / 60:.1f} min left" if seconds >= 90 else f"at most {seconds:.0f} s left"

    def _name(self, number: int) -> str:
        return self._task_name or f"iteration {number} of at most {self._iterations}"

    def _count_shard(self, iteration: int, stage: str, shard: int, sent: int) -> None:
        with self._lock:
            self.report_done(iteration)
            if stage != self._stage:
                self._stage, self._stage_shards = stage, set()
            self._stage_shards.add(shard)
            self._bytes += sent
        if self._console.is_terminal:
            self._update_bar(iteration)

    def _update_bar(self, iteration: int | None = None) -> None:
        now = self._done if iteration is None else iteration
        shards = f" {len(self._stage_shards)}/{self._shards} shards" if self._shards > 1 else ""
        self._bar.update(
            self._task,
            completed=self._done,
            what=self._name(min(now + 1, self._iterations)),
            stage=f"{self._stage}{shards}",
            traffic=f"{self._bytes / 1e6:,.1f} MB sent",
            time_left=self.time_left(),
        )
