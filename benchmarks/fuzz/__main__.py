"""Fuzz what a party reads from others or from its disk: an error sentence or a refusal, and nothing else.

Each target has a process of its own for its part of the time. Findings are an exception that is no VeilmeansError, an
input that takes longer than `HANG` seconds, a process that dies or grows by more than `MOST_MEMORY`. Their inputs are
kept in `--keep`, with hypothesis's own database, from which the next run begins.

  FUZZ_SECONDS   seconds in all (an hour by default)
"""

import argparse
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from benchmarks.fuzz.mutations import mutated
from benchmarks.fuzz.targets import TARGETS, Target
from veilmeans.schemas.errors import VeilmeansError

HANG = 20
MOST_MEMORY = 256 << 20
_EXAMPLES = 400  # inputs between two looks at the clock
_PATIENCE = 120.0
_MOST_ALLOCATED = 4 << 30  # bytes beyond what a process has at its start: more fails at once


class HangError(BaseException):
    """An input takes too long."""


@dataclass
class Fuzzer:
    """One target's process."""

    target: Target
    keep: Path
    number: int
    tried: int = 0
    _last: bytes = b""

    def run(self, seconds: float) -> str | None:
        """Try changed inputs for so many seconds; return a finding, if there is one."""
        with tempfile.TemporaryDirectory(prefix="veilmeans-fuzz-") as place, ExitStack() as stack:
            right, read = self.target.make(Path(place), stack)
            for each in right:
                _right_input(read, each)
            before, end = _peak(), time.monotonic() + seconds
            while time.monotonic() < end:
                self.number += 1
                try:
                    self._round(right, read, end)
                except (Exception, HangError):
                    return self._finding(traceback.format_exc())
                if _peak() - before > MOST_MEMORY:
                    return self._finding(f"the process grew by {(_peak() - before) >> 20} MiB")
        return None

    def _round(self, right: Any, read: Any, end: float) -> None:
        @seed(self.number)
        @settings(
            max_examples=_EXAMPLES,
            deadline=None,
            database=DirectoryBasedExampleDatabase(self.keep / "examples"),
            suppress_health_check=list(HealthCheck),
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
            print_blob=False,
        )
        @given(mutated(right))
        def attempt(content: bytes) -> None:
            if time.monotonic() > end + _PATIENCE / 2:
                return
            self.tried += 1
            self._last = content
            signal.alarm(HANG)
            try:
                read(content)
            except VeilmeansError as error:
                if not error.sentence.isprintable():
                    raise AssertionError("the sentence has control characters") from None
            finally:
                signal.alarm(0)

        test: Any = attempt  # hypothesis adds to it
        test.hypothesis.inner_test.__qualname__ = self.target.name  # the key of its examples in the database
        attempt()

    def _finding(self, what: str) -> str:
        file = self.keep / f"{self.target.name}-{os.getpid()}.input"
        file.write_bytes(self._last)
        return f"{self.target.name}: {what}\nthe input is in {file}"


def _right_input(read: Any, content: bytes) -> None:
    """Read an input that is right, so that the limits are those of the first changed one."""
    try:
        read(content)
    except VeilmeansError:
        return


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + _MOST_ALLOCATED, resource.RLIM_INFINITY))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _hang(*_: object) -> None:
    raise HangError


def fuzz(target: Target, keep: Path, number: int, seconds: float, answer: Connection) -> None:
    """Be a target's process: send how many inputs were tried, and a finding or None."""
    signal.signal(signal.SIGALRM, _hang)
    logging.disable()  # refusals are logged
    _limit_memory()
    fuzzer = Fuzzer(target, keep, number)
    finding = fuzzer.run(seconds)
    answer.send((fuzzer.tried, finding))
    os._exit(0)


def run_target(target: Target, keep: Path, number: int, seconds: float) -> tuple[int, str | None]:
    """Fuzz one target in a process; return how many inputs were tried, and a finding."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=fuzz, args=(target, keep, number, seconds, theirs))
    process.start()
    theirs.close()
    answered = ours.poll(seconds + _PATIENCE)
    try:
        tried, finding = ours.recv() if answered else (0, f"{target.name}: hangs, and cannot be interrupted")
    except EOFError:
        process.join()
        tried, finding = 0, f"{target.name}: the process died with {process.exitcode}"
    process.kill()
    process.join()
    return tried, finding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "3600")))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--keep", type=Path, default=Path(".cache/fuzz"), help="folder for examples and findings")
    parser.add_argument("--only", default="", help="only targets whose name contains this")
    chosen = parser.parse_args()
    (chosen.keep / "examples").mkdir(parents=True, exist_ok=True)
    targets = [each for each in TARGETS if chosen.only in each.name]
    print(f"seed {chosen.seed}, {chosen.seconds:g} s for {len(targets)} targets", flush=True)
    total, findings = 0, []
    for target in targets:
        tried, finding = run_target(target, chosen.keep, chosen.seed, chosen.seconds / len(targets))
        total += tried
        print(f"{target.name}: {tried:,} inputs, {'FOUND' if finding else 'nothing found'}", flush=True)
        if finding:
            findings.append(finding)
            print(finding, flush=True)
    print(f"{total:,} inputs tried, {len(findings)} findings")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
