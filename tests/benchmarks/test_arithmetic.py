"""The benchmark of comparisons runs on today's product: its store in memory has all that a triple store has."""

import pytest

from benchmarks import arithmetic


def test_comparisons_and_assignments_are_right_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "COUNT", 256)
    monkeypatch.setattr(arithmetic, "REPEATS", 1)
    figures = {figure.name: figure for figure in arithmetic.comparisons(32, None, None, 8)}
    assert figures["CMP, 32 bits, 2 parties: rounds"].value == 3
    assert figures["CMP, 32 bits, 2 parties: sent by a party"].met
    assert {figure.unit for figure in arithmetic.assignment("pairs")} >= {"bytes per row"}
