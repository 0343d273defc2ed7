"""Modules that a command must not import: each of them takes longer than a round of a small run, some seconds."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from support.parties import write_config
from support.worlds import BOTH, DEALER, blobs, make_world_without_stores

HEAVY = ("apache_beam", "numba", "scipy.sparse", "pandas", "torch", "IPython", "pymongo", "sklearn", "numpy.f2py")
JOBS = ("train", "offline", "predict", "reveal", "prepare", "gateway")
pytestmark = pytest.mark.processes
_SMALL = {"layout": "vertical", "clusters": 3, "max_iter": 2, "init": {"method": "random", "seed": 1}}


def loaded(names: set[str]) -> list[str]:
    """The heavy packages of which some module was loaded; a package that was sought and not found has none."""
    return [name for name in HEAVY if any(each.startswith(f"{name}.") for each in names)]


def test_jobs_are_imported_without_what_small_runs_do_not_use() -> None:
    imports = "".join(f"import veilmeans.pipelines.{job}\n" for job in ("cli.main", *JOBS))
    program = f"{imports}import sys; print(*sys.modules)"
    seen = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert loaded(set(seen.split())) == []


def test_packages_that_no_command_uses_seem_not_to_be_installed() -> None:
    program = (
        "from veilmeans.pipelines.local.unused_modules import skip_unused_modules; skip_unused_modules()\n"
        "import sys, pyarrow as pa, apache_beam; pa.array([1]).to_numpy(); print(*sys.modules)"
    )
    seen = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert loaded(set(seen.split())) == ["apache_beam"]


def test_a_small_run_from_offline_to_its_report_needs_none_of_them(tmp_path: Path) -> None:
    rows = blobs(6_000, 2)
    tables = [pa.table({f"c{i}": rows[:, i]}) for i in range(2)]
    world = make_world_without_stores(tmp_path, tables, _SMALL, dealer=DEALER)
    files = {name: write_config(config, tmp_path / f"{name}.yaml") for name, config in world.configs.items()}
    for command, names in (("offline", (*BOTH, DEALER)), ("train", BOTH)):
        line = [sys.executable, "-X", "importtime", "-m", "veilmeans", command, "--config"]
        logs = [tmp_path / f"{command}.{name}.log" for name in names]
        running = [
            subprocess.Popen([*line, str(files[name])], stdout=subprocess.DEVNULL, stderr=log.open("w"))
            for name, log in zip(names, logs, strict=True)
        ]
        for process, file in zip(running, logs, strict=True):
            process.wait(timeout=600)
            log = file.read_text()
            assert process.returncode == 0, log
            assert loaded(set(re.findall(r"\|\s*(\S+)$", log, re.M))) == []
