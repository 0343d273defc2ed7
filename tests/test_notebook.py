"""The notebook in examples/, run from its first cell to its last by a kernel of this Python."""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

import veilmeans
from veilmeans.crypto.lloyd import nearest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "veilkmeans.ipynb"
FACTS = """
import json
print(json.dumps({
    "inertia": [start.inertia_ for start in starts], "chosen": starts.index(model),
    "together": together, "alone": alone,
    "labels": labels.tolist(), "new": new_labels.tolist(), "told": list(result), "low": low.tolist(),
    "high": high.tolist(), "centres": model.cluster_centers_.tolist(),
    "known": np.hstack(list(known.values())).tolist(), "rows": np.hstack(list(new.values())).tolist(),
}))
"""


class OurKernel(AsyncKernelManager):
    """A kernel of the Python that runs the tests, whatever is installed elsewhere."""

    @property
    def kernel_spec(self) -> KernelSpec:
        line = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=line, display_name="tests", language="python")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(FACTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(veilmeans.__file__).parents[1]))
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            patch.setenv(name, str(folder / name))
        NotebookClient(
            notebook, timeout=250, kernel_manager_class=OurKernel, resources={"metadata": {"path": folder}}
        ).execute()
    found: dict[str, Any] = json.loads(notebook.cells[-1].outputs[0].text)
    return found


def test_the_notebook_keeps_the_start_of_the_lowest_inertia(facts: dict[str, Any]) -> None:
    assert facts["chosen"] == facts["inertia"].index(min(facts["inertia"]))


def test_together_they_find_what_neither_finds_alone(facts: dict[str, Any]) -> None:
    assert max(facts["alone"].values()) < 0.2
    assert facts["together"] > 0.5


def test_rows_old_and_new_are_in_the_nearest_cluster(facts: dict[str, Any]) -> None:
    low, width = np.array(facts["low"]), np.array(facts["high"]) - facts["low"]
    centres = (np.array(facts["centres"]) - low) / width
    old, new = (nearest((np.array(facts[name]) - low) / width, centres) for name in ("known", "rows"))
    np.testing.assert_array_equal(facts["new"], new)
    assert np.mean(facts["labels"] == old) > 0.99


def test_only_what_the_policy_names_was_opened(facts: dict[str, Any]) -> None:
    assert set(facts["told"]) == {"run", "iterations", "stopped", "assignments", "centroids", "inertia"}


def test_the_stored_notebook_shows_no_path_of_a_machine() -> None:
    text = NOTEBOOK.read_text()
    assert not any(part in text for part in ("/tmp", "/home", "/root", "/Users", "/work"))
