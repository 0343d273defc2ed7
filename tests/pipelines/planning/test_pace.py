"""How fast this machine is: measured once, kept, and put together to seconds."""

import json
from pathlib import Path

import pytest

from support.fixed_values import PACE
from veilmeans.pipelines.planning import pace as pacing
from veilmeans.pipelines.planning.pace import GATEWAY, measure_pace
from veilmeans.transforms.primitives.multiply import MULTIPLY
from veilmeans.transforms.rounds.trace import trace


def test_the_pace_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure_pace(tmp_path)
    assert all(0 < value < 10 for value in (first.message, first.local, first.barrier, first.pipeline))
    monkeypatch.setattr(pacing, "_local", _never)
    assert measure_pace(tmp_path) == first


def _never() -> float:
    raise AssertionError("measured again")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"machine": {}, "seconds": {}}', "damaged"])
def test_a_file_of_something_else_is_measured_again(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "_message", lambda size: 1e-3 + 1e-9 * size)
    monkeypatch.setattr(pacing, "_local", lambda: 2e-8)
    monkeypatch.setattr(pacing, "_beam", lambda: (0.02, 0.1))
    (tmp_path / "pace.json").write_text(content)
    found = measure_pace(tmp_path, keep=False)
    assert (tmp_path / "pace.json").read_text() == content
    assert measure_pace(tmp_path) == found
    assert json.loads((tmp_path / "pace.json").read_text())["seconds"]["local"] == 2e-8


def test_seconds_grow_with_messages_bytes_words_and_stages() -> None:
    """One product of 100 words: both send two arrays of them; the first party expands a, b and c."""
    (stage,) = trace(MULTIPLY, [{"x": ((100,), "uint64"), "y": ((100,), "uint64")}] * 2)
    size = stage.messages[0].size
    moved = 2 * (PACE.message + GATEWAY) + 2 * size * PACE.byte + size * PACE.local
    assert PACE.computed([(1, stage)], 0, 1e-6, staged=False) == pytest.approx(moved + 1.5 * 300e-6)
    assert PACE.computed([(1, stage)], 1, 1e-6, staged=False) == pytest.approx(moved + 1.5 * 200e-6)
    assert PACE.computed([(4, stage)], 1, 0.0, staged=True) == pytest.approx(4 * moved + PACE.barrier)
