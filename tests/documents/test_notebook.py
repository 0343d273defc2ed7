"""The notebook in examples/: its code runs from the first cell to the last, in a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilmeans
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "veilkmeans.ipynb"
pytestmark = [pytest.mark.processes, pytest.mark.long]
FACTS = """
import json
print(json.dumps({
    "inertia": [start.inertia_ for start in starts], "chosen": starts.index(model),
    "joint": joint, "alone": alone,
    "labels": labels.tolist(), "new": new_labels.tolist(), "opened": list(result), "low": low.tolist(),
    "high": high.tolist(), "centroids": model.cluster_centers_.tolist(),
    "known": np.hstack(list(known.values())).tolist(), "rows": np.hstack(list(new.values())).tolist(),
}))
"""


def code_of(notebook: Path) -> list[str]:
    """The source of all code cells."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "cells.py").write_text("\n\n".join([*code_of(NOTEBOOK), FACTS]))
    environment = {**os.environ, "PYTHONPATH": str(Path(veilmeans.__file__).parents[1])}
    line = [sys.executable, "cells.py"]
    ran = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_the_notebook_keeps_the_start_of_the_lowest_inertia(facts: dict[str, Any]) -> None:
    assert facts["chosen"] == facts["inertia"].index(min(facts["inertia"]))


def test_joint_clusters_find_the_fraud_that_neither_finds_alone(facts: dict[str, Any]) -> None:
    assert max(facts["alone"].values()) < 0.2
    assert facts["joint"] > 0.5


def test_rows_old_and_new_are_in_the_nearest_cluster(facts: dict[str, Any]) -> None:
    low, width = np.array(facts["low"]), np.array(facts["high"]) - facts["low"]
    centroids = (np.array(facts["centroids"]) - low) / width
    old, new = (nearest((np.array(facts[name]) - low) / width, centroids) for name in ("known", "rows"))
    np.testing.assert_array_equal(facts["new"], new)
    assert np.mean(facts["labels"] == old) > 0.99


def test_only_the_results_of_the_policy_were_opened(facts: dict[str, Any]) -> None:
    assert set(facts["opened"]) == {"run", "iterations", "stopped", "assignments", "centroids", "inertia"}


def test_the_stored_notebook_shows_no_path_of_a_machine() -> None:
    text = NOTEBOOK.read_text()
    assert not any(part in text for part in ("/tmp", "/home", "/root", "/Users", "/work"))
