"""The tests' own layout: folders as the code has, short files, and no test module that imports another."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
SHARED = {"support", "support/cluster"}
OF_THEIR_OWN = {"runs", "documents", *SHARED}
"""Folders for whole runs, for what tests share (also for clusters), and for tests of pages and of the layout."""
MOST_LINES = 450


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_no_module_imports_a_test_module() -> None:
    assert [
        (file.name, name)
        for file in FILES
        for name in imported_modules(file)
        if name.rpartition(".")[2].startswith("test_")
    ] == []


def test_no_file_is_too_long() -> None:
    lengths = {str(file.relative_to(TESTS)): len(file.read_text().splitlines()) for file in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_folders_are_those_of_the_code_and_a_few_more() -> None:
    folders = {file.parent.relative_to(TESTS) for file in FILES if file.parent != TESTS}
    others = {folder for folder in folders if str(folder) not in OF_THEIR_OWN}
    assert [str(folder) for folder in others if not (ROOT / folder / "__init__.py").exists()] == []


def test_test_modules_stand_in_folders_and_shared_ones_in_support() -> None:
    for file in FILES:
        folder = str(file.relative_to(TESTS).parent)
        assert file.name.startswith("test_") == (folder not in {".", *SHARED}), file
