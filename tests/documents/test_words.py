"""Words that are retired, and docstrings that stand alone: see "Words" in CONTRIBUTING.md."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("schemas", "crypto", "transforms", "io", "pipelines", "src/veilmeans")
RETIRED = (
    *("seats?", "seated", "mishaps?", "settled?", "conjoin", "pace", "told", "tells?", "spool", "centres?", "doors?"),
    *("whole numbers?", "go on", "goes on", "going on", "start(ed)? (it )?again", "hand(ed|s)? (over|out)"),
    *("Told", "OpenSeat", "CipherSeat", "Seated", "OpenWhole", "FinishWhole", "run_bare", "cells_of"),
)
"""Metaphors and former names, each replaced by a word of the field."""
OBLIQUE = r"(Of|It|What|How|Whether|Where|When|In the|From|One of|All of it|So|Those|They|Which|Who)\b[ ,]"
"""Beginnings of a first line that leave out its subject."""


def files(*endings: str) -> list[Path]:
    """Files that git tracks or would track, but for this one and the changelog, which names what was."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(endings)]
    return [file for file in found if file.is_file() and file.name not in (Path(__file__).name, "CHANGELOG.md")]


@pytest.mark.processes
def test_no_retired_word_is_left() -> None:
    pattern = re.compile(rf"\b({'|'.join(RETIRED)})\b")
    hits = [
        f"{file.relative_to(ROOT)}:{number}: {match.group()}"
        for file in files(".py", ".md", ".j2", ".yaml")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert hits == []


def first_lines(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring.splitlines()[0]


@pytest.mark.parametrize("room", ROOMS)
def test_a_docstring_begins_with_an_imperative_or_a_noun_phrase(room: str) -> None:
    oblique = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in sorted((ROOT / room).rglob("*.py"))
        for line in first_lines(file)
        if re.match(OBLIQUE, line)
    ]
    assert oblique == []
