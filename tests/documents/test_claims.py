"""Each claim of docs/security.md has tests, and each fault of `make mutants` can be planted and has tests."""

import re
from pathlib import Path

import pytest
from benchmarks.mutants import FAULTS, ROOT, Fault

TABLE = (ROOT / "docs" / "security.md").read_text().split("| claim | test |\n|---|---|\n")[1].split("\n\n")[0]
CLAIMS = [line.strip("|").rsplit(" | ", 1) for line in TABLE.splitlines()]


def has_tests(file: str) -> bool:
    path = Path(ROOT, file)
    return path.is_file() and re.search(r"^def test_", path.read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize(("claim", "tests"), CLAIMS, ids=[claim.strip()[:50] for claim, _ in CLAIMS])
def test_a_claim_names_tests_that_exist(claim: str, tests: str) -> None:
    named = re.findall(r"`([^`]+)`", tests)
    assert named, claim
    assert [file for file in named if not has_tests(file)] == []


def test_there_are_twenty_faults() -> None:
    assert len({(fault.file, fault.text) for fault in FAULTS}) == 20


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_can_be_planted_and_has_tests(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text().count(fault.text) == 1
    assert [file for file in fault.tests if not has_tests(file)] == []
