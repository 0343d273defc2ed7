"""Whole K-means runs under SPU for benchmarks: two processes on this machine, directly or through a proxy."""

import json
import os
import subprocess
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.link_proxy import SlowLink
from benchmarks.spu.spu_environment import PROGRAM, spu_python
from veilmeans.pipelines.local.party_processes import free_ports
from veilmeans.schemas.arrays import Real

SEMI2K, CHEETAH = "SEMI2K", "CHEETAH"


@dataclass(frozen=True)
class SpuMeasured:
    """Time, traffic and memory of a run under SPU; `spu_program.py` says of what."""

    compile_s: float
    share_s: float
    link_s: float
    run_s: float
    traffic_mb: float
    peak_gib: float
    command_s: float
    """The complete command: Python, compilation, sharing, the processes, and the run."""
    centroids: Real


def measure_spu(
    protocol: str, rows: Real, clusters: int, iterations: int, proxy: SlowLink | None = None
) -> SpuMeasured:
    """Run K-means from the first k rows on; `proxy`: the link between the processes."""
    python, ports = spu_python(), tuple(free_ports(2))
    link = nullcontext(ports[::-1]) if proxy is None else proxy.between(*ports)
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as name, link as dialled:
        folder = Path(name)
        files = {"rows": "rows.npy", "start": "start.npy", "centroids": "centroids.npy", "measured": "measured.json"}
        job = {key: str(folder / file) for key, file in files.items()}
        np.save(job["rows"], rows)
        np.save(job["start"], rows[:clusters])
        settings = {"protocol": protocol, "iterations": iterations, "listen": ports, "dial": tuple(dialled)}
        (folder / "job.json").write_text(json.dumps({**job, **settings}))
        start = time.perf_counter()
        _run([str(python), str(PROGRAM), str(folder / "job.json")], folder / "spu.log")
        command = time.perf_counter() - start
        measured = json.loads(Path(job["measured"]).read_text())
        return SpuMeasured(**measured, command_s=command, centroids=np.load(job["centroids"]))


def _run(line: list[str], log: Path) -> None:
    """Run a command with its output in a file, of which an error shows the end."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("w") as output:
        done = subprocess.run(line, stdout=output, stderr=output, env=environment, cwd=log.parent, check=False)
    if done.returncode:
        raise RuntimeError(log.read_text()[-2000:])
