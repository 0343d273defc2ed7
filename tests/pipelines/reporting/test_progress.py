"""Progress of a run: a bar on a terminal, log lines elsewhere, and only counts."""

import io
import logging

import pytest
from rich.console import Console

from veilmeans.pipelines.reporting.progress import RunProgress, counting_shards
from veilmeans.transforms.rounds.stage_metrics import shard_sent


def consoles(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=160), out


def test_a_terminal_shows_iteration_stage_shards_bytes_and_remaining_time() -> None:
    console, out = consoles(terminal=True)
    progress = RunProgress(10, shards=3, console=console, clock=lambda: 0.0)
    with progress.watching(done=2):
        shard_sent(2, "assign.03.prefix16", 0, 1_500_000)
        shard_sent(2, "assign.03.prefix16", 1, 1_000_000)
        progress.report_done(3)
        shard_sent(3, "distance.00.cross", 0, 0)
    text = out.getvalue()
    for part in ("iteration 4 of at most 10", "distance.00.cross 1/3 shards", "2.5 MB sent", "at most 0 s left"):
        assert part in text


def test_elsewhere_each_iteration_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    console, out = consoles(terminal=False)
    progress = RunProgress(3, shards=1, console=console, clock=lambda: 0.0)
    with caplog.at_level(logging.INFO), progress.watching(done=0):
        shard_sent(0, "assign.00.pair", 0, 1_000_000)
        shard_sent(1, "assign.00.pair", 0, 3_000_000)
        progress.report_done(1, 2_000_000)
        progress.report_done(3, 5_000_000)
    assert out.getvalue() == ""
    assert caplog.messages == [
        "iteration 1 of at most 3: 0.00 s, 1.00 MB sent, at most 0 s left",
        "iteration 3 of at most 3: 0.00 s, 3.00 MB sent",
    ]


def test_bytes_of_other_processes_are_logged_when_their_pipeline_ends(caplog: pytest.LogCaptureFixture) -> None:
    progress = RunProgress(3, shards=1, console=consoles(terminal=False)[0], clock=lambda: 0.0)
    with caplog.at_level(logging.INFO), progress.watching(done=0):
        progress.report_done(3, 5_000_000)
    assert caplog.messages == ["iteration 3 of at most 3: 0.00 s, 5.00 MB sent"]


def test_long_times_are_in_minutes() -> None:
    now = [0.0]
    progress = RunProgress(11, shards=1, console=consoles(terminal=False)[0], clock=lambda: now[0])
    with progress.watching(done=0):
        now[0] = 60.0
        progress.report_done(1)
        assert progress.time_left() == "at most 10.0 min left"


def test_nothing_is_shown_after_the_end() -> None:
    console, out = consoles(terminal=True)
    with RunProgress(3, shards=1, console=console).watching(done=0):
        pass
    before = out.getvalue()
    shard_sent(0, "assign.00.pair", 0, 10)
    assert out.getvalue() == before


@pytest.mark.parametrize("terminal", [True, False])
def test_a_store_s_shards_are_counted(terminal: bool, caplog: pytest.LogCaptureFixture) -> None:
    console, out = consoles(terminal)
    with caplog.at_level(logging.INFO), counting_shards("store 'first'", 8, console):
        for shard in range(8):
            shard_sent(0, "offline", shard, 0)
    if terminal:
        assert "8/8" in out.getvalue()
        assert not caplog.messages
    else:
        assert caplog.messages == [f"store 'first': {n} of 8 shards" for n in (2, 4, 6, 8)]
