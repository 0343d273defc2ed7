"""Whole K-means runs for benchmarks: a dealer and two parties, separate processes on this machine, with mutual TLS.

Measured per run: seconds of the online phase (from the agreement to the opened results, as each party's report says;
the slowest party's), of the offline phase (its command, start of Python and Beam included), bytes sent by all parties,
bytes of the stores, and the largest peak memory of a party's process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import yaml

from veilmeans.pipelines.demo import free_ports
from veilmeans.pipelines.init import Example, write_trial

PARTIES = ("payco", "shop")
BLOCK = 1 << 18


@dataclass(frozen=True)
class Shape:
    """One row of a table."""

    rows: int
    features: int
    clusters: int
    iterations: int
    engine: dict[str, Any] = field(default_factory=dict)
    link: dict[str, Any] | None = None


@dataclass(frozen=True)
class Measured:
    """What a run took; `reports` are the parties' own."""

    online: float
    online_wall: float
    offline: float
    online_mb: float
    offline_mb: float
    peak_gib: float
    reports: dict[str, Any]


def measure(shape: Shape) -> Measured:
    """Set up, offline, train, in a folder that is removed."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as name:
        folder = Path(name)
        _write(folder, shape)
        offline, _ = _run(folder, "offline", (*PARTIES, "dealer"))
        wall, peak = _run(folder, "train", PARTIES)
        reports = {
            party: json.loads((folder / party / "storage" / "runs" / "first" / "report.json").read_text())
            for party in PARTIES
        }
        stores = sum(_size(folder / party / "storage" / "triples") for party in PARTIES)
    sent = sum(counts.get("bytes_sent", 0) for report in reports.values() for counts in report["stages"].values())
    online = max(report["seconds"] for report in reports.values())
    return Measured(online, wall, offline, sent / 1e6, stores / 1e6, peak, reports)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _write(folder: Path, shape: Shape) -> None:
    members = (*PARTIES, "dealer")
    halves = np.array_split(np.arange(shape.features), len(PARTIES))
    widths = {party: len(half) for party, half in zip(PARTIES, halves, strict=True)}
    ports = dict(zip(members, free_ports(len(members)), strict=True))
    example = Example(
        rows=shape.rows,
        features=widths,
        clusters=shape.clusters,
        max_iter=shape.iterations,
        tol=0.0,
        ports=ports,
        data="data.parquet",
    )
    write_trial(folder, example)
    for member in members:
        _adjust(folder / member / "config.yaml", shape)
    _write_data(folder, shape, widths)


def _adjust(file: Path, shape: Shape) -> None:
    config = yaml.safe_load(file.read_text())
    config["engine"] = shape.engine
    config["exchange"]["max_message_mb"] = 256
    if shape.link:
        config["exchange"]["shape"] = shape.link
    config["kmeans"].pop("id", None)
    file.write_text(yaml.safe_dump(config, sort_keys=False))


def _write_data(folder: Path, shape: Shape, widths: dict[str, int]) -> None:
    """Rows around k centres, block by block."""
    rng = np.random.default_rng(1)
    centres = rng.random((shape.clusters, shape.features)) * 10
    writers: dict[str, pyarrow.parquet.ParquetWriter] = {}
    for start in range(0, shape.rows, BLOCK):
        count = min(BLOCK, shape.rows - start)
        rows = centres[rng.integers(0, shape.clusters, count)] + rng.normal(0, 1, (count, shape.features))
        first = 0
        for party, width in widths.items():
            table = pa.table({f"c{i}": rows[:, first + i] for i in range(width)})
            if party not in writers:
                writers[party] = pyarrow.parquet.ParquetWriter(folder / party / "data.parquet", table.schema)
            writers[party].write_table(table)
            first += width
    for writer in writers.values():
        writer.close()


def _run(folder: Path, command: str, names: Sequence[str]) -> tuple[float, float]:
    """Seconds until all have ended, and the largest peak memory in GiB."""
    start, peak = time.perf_counter(), 0.0
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with _started(folder, command, names, environment) as processes:
        for process in processes:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError((folder / f"{command}.log").read_text()[-2000:])
            peak = max(peak, usage.ru_maxrss / 2**20)
    return time.perf_counter() - start, peak


@contextmanager
def _started(
    folder: Path, command: str, names: Sequence[str], environment: dict[str, str]
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    with (folder / f"{command}.log").open("w") as log:
        line = [sys.executable, "-m", "veilmeans.pipelines.cli", command, "--config"]
        processes = [
            subprocess.Popen([*line, str(folder / name / "config.yaml")], stdout=log, stderr=log, env=environment)
            for name in names
        ]
        try:
            yield processes
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
