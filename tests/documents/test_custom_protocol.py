"""examples/custom_protocol: one's own protocol runs on both executors, and uses only the public API."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_protocol"
COLUMNS = ([12050, 999, 240000, 6000, -1800], [0, 1, 0, 2, 0], [3, 1, 40, 2, 4], [3, 1, 1, 2, 2])
"""payco's and shop's columns."""


@pytest.mark.processes
def test_the_sums_of_two_parties_on_two_executors_equal_plain_arithmetic(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    product = sum(x * y for x, y in zip(COLUMNS[0], COLUMNS[-1], strict=True))
    opened = [json.loads((tmp_path / name / "sums.json").read_text()) for name in ("payco", "shop")]
    assert opened == [[*map(sum, COLUMNS), product]] * 2


@pytest.mark.parametrize("file", sorted(EXAMPLE.glob("*.py")), ids=lambda file: file.name)
def test_the_example_imports_no_internal_module(file: Path) -> None:
    imported = [node.module for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    assert {name for name in imported if name and name.startswith("veilmeans")} <= {"veilmeans", "veilmeans.protocols"}
