"""Work over forks: the list of one process, bit for bit, whatever becomes of the forks; and none is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from veilmeans.transforms.rounds import forked_work
from veilmeans.transforms.rounds.forked_work import spread

HEAVY = forked_work.WORTH
SIZE = 32


def power(start: int, end: int) -> list[mpz]:
    return [mpz(3) ** (i % 160) for i in range(start, end)]


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def no_fork_is_left() -> Iterator[None]:
    """Other tests' servers of processes are children of this one, too."""
    before = children()
    yield
    assert children() <= before


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([0, 1, HEAVY, 5 * HEAVY]), max_size=12), st.integers(1, 6))
def test_any_number_of_processes_and_any_weights_give_the_same_list(weights: list[int], processes: int) -> None:
    assert spread(power, np.array(weights, np.int64), SIZE, processes) == power(0, len(weights))


def test_parts_of_residues_larger_than_a_pipe_come_back_whole() -> None:
    assert spread(power, np.full(20_000, HEAVY), SIZE, 3) == power(0, 20_000)


def test_little_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", None)
    assert spread(power, np.ones(100, np.int64), SIZE, 8) == power(0, 100)


def test_work_is_done_here_where_there_can_be_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("no process left")

    monkeypatch.setattr(os, "fork", refuse)
    assert spread(power, np.full(10, HEAVY), SIZE, 4) == power(0, 10)


@pytest.mark.parametrize("end", ["killed", "failed", "stuck"])
def test_a_part_whose_fork_did_not_complete_it_is_computed_here(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()
    monkeypatch.setattr(forked_work, "_PATIENCE_S", 0.3)

    def part(first: int, last: int) -> list[mpz]:
        if os.getpid() != here:
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if end == "failed":
                raise MemoryError
            time.sleep(600)
        return power(first, last)

    assert spread(part, np.full(10, HEAVY), SIZE, 2) == power(0, 10)


def test_an_error_is_raised_here_and_ends_all_forks() -> None:
    here = os.getpid()

    def part(first: int, last: int) -> list[mpz]:
        if os.getpid() == here:
            raise ValueError("an exponent has more than 3 bits")
        time.sleep(600)
        return power(first, last)

    with pytest.raises(ValueError, match="3 bits"):
        spread(part, np.full(10, HEAVY), SIZE, 4)


def test_threads_may_spread_at_the_same_time() -> None:
    results: dict[int, list[mpz]] = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: spread(power, np.full(500 + n, HEAVY), SIZE, 3)}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {n: power(0, 500 + n) for n in range(4)}


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a fork ends when it has computed its part")
def test_no_fork_outlives_a_killed_process() -> None:
    program = (
        "import os, time, numpy as np\n"
        "from veilmeans.transforms.rounds.forked_work import spread\n"
        "here = os.getpid()\n"
        "def part(a, b):\n"
        "    if os.getpid() != here: os.write(1, b'%d\\n' % os.getpid())\n"
        "    time.sleep(600)\n"
        "spread(part, np.full(9, 1 << 20), 32, 3)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert len({process.stdout.readline() for _ in range(2)}) == 2
        finally:
            process.kill()
        assert process.stdout.read() == ""  # the pipe closes when all that hold it have ended
