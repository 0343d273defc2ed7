"""Whole K-means runs for benchmarks: two parties, and a dealer or none, as processes on this machine, with mutual TLS.

Measured per run: seconds of the online phase (from the handshake to the opened results, in the slowest party's report)
and of the offline phase (its command, start of Python and Beam included), bytes sent by all parties in each phase,
bytes of the triple stores, and the largest peak memory of a party's process. Through a proxy (`benchmarks.link_proxy`)
the bytes on the wire are counted, too: TLS and gRPC included.
"""

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import yaml
from scipy.sparse import csr_array, save_npz, vstack

from benchmarks.link_proxy import SlowLink
from veilmeans.io.storage.run_report import bytes_sent
from veilmeans.pipelines.configure.config_template import TemplateValues, write_trial
from veilmeans.pipelines.local.party_processes import free_ports
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.run_folder import RunFolder, StorageFolder

PARTIES = ("payco", "shop")
BATCH = 1 << 18
_CELLS = 1 << 24
"""Values of a matrix that are drawn at a time."""
Usages = dict[str, resource.struct_rusage]
"""What each process has used."""


@dataclass(frozen=True)
class Shape:
    """The size and the settings of one run."""

    rows: int
    features: int
    clusters: int
    iterations: int
    beam: dict[str, Any] = field(default_factory=dict)
    link: dict[str, Any] | None = None
    products: str | None = None
    zeros: float | None = None
    """Share of zeros; the inputs are sparse matrices then."""
    one_hot: int | None = None
    """How many ones a row has at each party; the inputs are sparse matrices then."""
    outliers: dict[str, Any] | None = None
    """How many outliers are found; both parties learn them."""
    slow_offline: bool = False
    """The link is slow while the triples are made, too."""
    starts: int = 1
    """Starts in the same rounds, the best of which is chosen."""
    final_assignment: bool = False
    """One more assignment after the last iteration; the paper and other systems count as many as iterations."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of all processes."""
    provider: str = "dealer"
    """Who makes the triples: a dealer, or the parties by ot or iknp."""

    @property
    def dealer(self) -> str | None:
        return "dealer" if self.provider == "dealer" else None

    @property
    def members(self) -> tuple[str, ...]:
        """The parties, and the dealer if there is one."""
        return (*PARTIES, self.dealer) if self.dealer else PARTIES

    @property
    def widths(self) -> dict[str, int]:
        """Each party's columns."""
        halves = np.array_split(np.arange(self.features), len(PARTIES))
        return {party: len(half) for party, half in zip(PARTIES, halves, strict=True)}

    @property
    def sparse(self) -> dict[str, Any]:
        """The public description of the parties' sparse matrices."""
        if self.one_hot is not None:
            return {party: {"nonzeros": self.one_hot, "integer_valued": True} for party in PARTIES}
        if self.zeros is not None:
            return {party: {"nonzeros": width * (1 - self.zeros)} for party, width in self.widths.items()}
        return {}


@dataclass(frozen=True)
class Measured:
    """Time, traffic and memory of a run; `reports`: `report.json` of each party."""

    online: float
    online_wall: float
    offline: float
    online_mb: float
    offline_mb: float
    peak_gib: float
    reports: dict[str, Any]
    peaks: dict[str, float]
    """GiB of each process of the offline phase and of the run; at least what the benchmark had when it started them."""
    processor: dict[str, float] = field(default_factory=dict)
    """Processor seconds of each process of the offline phase and of the run."""
    offline_sent_mb: float = 0.0
    """Messages of the parties to each other while they make the triples: none with a dealer."""
    written: dict[str, float] = field(default_factory=dict)
    """MB that each party's process of the run wrote to disk, by the kernel's count."""


def measure(shape: Shape, within: Path | None = None) -> Measured:
    """Run offline and train in a folder that is removed afterwards; `within`: the disk for it."""
    with finished_run(shape, within) as (_, measured):
        return measured


@contextmanager
def finished_run(
    shape: Shape, within: Path | None = None, rows: Real | None = None, proxy: SlowLink | None = None
) -> Iterator[tuple[Path, Measured]]:
    """Run offline and train; the folder with all parties' files is removed at the end of the context.

    `rows`: the data, of magnitude at most 1, used as they are; the run starts with the first k of them as centroids.
    `proxy`: the link between the parties while they train.
    """
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-", dir=within) as name:
        folder = Path(name)
        _in_child(write_inputs, folder, shape, rows)
        if shape.slow_offline:
            shape_links(folder, shape)
        offline, before = run_command(folder, "offline", shape.members, shape.environment)
        stores = sum(_size(StorageFolder(folder / party / "storage").stores) for party in PARTIES)
        shape_links(folder, shape)
        with nullcontext() if proxy is None else _through(proxy, folder):
            wall, during = run_command(folder, "train", PARTIES, shape.environment)
        yield folder, _collect(folder, offline, wall, before, during, stores)


def _in_child(work: Callable[..., None], *arguments: Any) -> None:
    """Do work in a process of its own: what it needs would count as the peak of every process that is started later."""
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"{work.__name__} ended with code {child.exitcode}")


def _collect(folder: Path, offline: float, wall: float, before: Usages, during: Usages, stores: int) -> Measured:
    """Read the reports and results of a finished run. `stores`: the bytes of the triple stores before it."""
    reports, making = _reports(folder, "first"), _reports(folder, "store-first")
    sent, sent_offline = (sum(bytes_sent(each["stages"]) for each in by.values()) for by in (reports, making))
    online = max(report["seconds"] for report in reports.values())
    named = {
        f"{phase}, {name}": usage
        for phase, usages in (("offline", before), ("train", during))
        for name, usage in usages.items()
    }
    peaks = {name: usage.ru_maxrss / 2**20 for name, usage in named.items()}
    processor = {name: usage.ru_utime + usage.ru_stime for name, usage in named.items()}
    peak = max(peaks[f"train, {party}"] for party in during)
    sizes = sent / 1e6, stores / 1e6
    written = {party: usage.ru_oublock * 512 / 1e6 for party, usage in during.items()}
    return Measured(online, wall, offline, *sizes, peak, reports, peaks, processor, sent_offline / 1e6, written)


def _reports(folder: Path, run: str) -> dict[str, Any]:
    return {party: json.loads(_run_folder(folder, party, run).report.read_text()) for party in PARTIES}


def _run_folder(folder: Path, party: str, run: str = "first") -> RunFolder:
    return StorageFolder(folder / party / "storage").run(run)


def opened_centroids(folder: Path) -> Real:
    """The centroids of a finished run, k × d, in original units: each party has those of its own columns."""
    tables = [pyarrow.parquet.read_table(_run_folder(folder, party).centroids) for party in PARTIES]
    columns = [table[name].to_numpy() for table in tables for name in table.column_names if name != "cluster"]
    return np.stack(columns, axis=1).astype(np.float64)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def write_inputs(folder: Path, shape: Shape, rows: Real | None = None) -> None:
    """Write keys, configurations and data of all members."""
    write_configurations(folder, shape)
    if rows is not None:
        _write_rows(folder, shape, rows)
    elif shape.sparse:
        _write_sparse(folder, shape)
    else:
        _write_data(folder, shape)


def _write_rows(folder: Path, shape: Shape, rows: Real) -> None:
    """Write each party its columns of `rows`, and configure that they are used as they are."""
    first = 0
    for party, width in shape.widths.items():
        table = pa.table({f"c{i}": rows[:, first + i] for i in range(width)})
        pyarrow.parquet.write_table(table, folder / party / "data.parquet")
        first += width
    for member in shape.members:
        with changed_yaml(folder / member / "config.yaml") as config:
            config["kmeans"]["normalise"] = {"method": "none", "bound": 1}
            config["kmeans"]["init"] = {"method": "indices", "indices": list(range(shape.clusters))}


def write_configurations(folder: Path, shape: Shape) -> None:
    """Write keys and a configuration for each member."""
    members = shape.members
    ports = dict(zip(members, free_ports(len(members)), strict=True))
    example = TemplateValues(
        dealer=shape.dealer,
        rows=shape.rows,
        features=shape.widths,
        clusters=shape.clusters,
        max_iter=shape.iterations,
        tol=0.0,
        timeout=max(600, shape.rows // 200),
        ports=ports,
        data="data.npz" if shape.sparse else "data.parquet",
    )
    write_trial(folder, example)
    for member in members:
        _adjust(folder / member / "config.yaml", shape)


def _adjust(file: Path, shape: Shape) -> None:
    with changed_yaml(file) as config:
        config["beam"] = shape.beam
        config["exchange"]["max_message_mb"] = 256
        config["kmeans"].pop("id", None)
        if shape.products:
            config["kmeans"]["products"] = shape.products
        config["kmeans"]["sparse"] = shape.sparse
        config["kmeans"]["final_assignment"] = shape.final_assignment
        config["kmeans"]["starts"] = shape.starts
        if shape.outliers:
            config["kmeans"]["outliers"] = shape.outliers
            config["kmeans"]["reveal"]["outliers"] = list(PARTIES)
        config["triples"]["provider"] = shape.provider


@contextmanager
def changed_yaml(file: Path) -> Iterator[dict[str, Any]]:
    """Load a configuration, and write it as the caller leaves it."""
    config = yaml.safe_load(file.read_text())
    yield config
    file.write_text(yaml.safe_dump(config, sort_keys=False))


def shape_links(folder: Path, shape: Shape) -> None:
    """Slow the run's link down as `shape` says."""
    for party in PARTIES if shape.link else ():
        with changed_yaml(folder / party / "config.yaml") as config:
            config["exchange"]["shape"] = shape.link


@contextmanager
def _through(proxy: SlowLink, folder: Path) -> Iterator[None]:
    """Let each party reach the other by way of the proxy."""
    first, second = PARTIES
    ports = [_listen_port(folder / party / "config.yaml") for party in PARTIES]
    with proxy.between(*ports) as dialled:
        for party, peer, port in zip(PARTIES, (second, first), dialled, strict=True):
            with changed_yaml(folder / party / "config.yaml") as config:
                config["peers"][peer]["address"] = f"127.0.0.1:{port}"
        yield


def _listen_port(file: Path) -> int:
    """The port on which a party's gateway listens."""
    return int(yaml.safe_load(file.read_text())["listen"].rpartition(":")[2])


def _write_sparse(folder: Path, shape: Shape) -> None:
    """Write each party's matrix, batch by batch."""
    rng = np.random.default_rng(1)
    for party, width in shape.widths.items():
        step = max(1, min(BATCH, _CELLS // width)) if shape.one_hot is None else BATCH
        counts = [min(step, shape.rows - start) for start in range(0, shape.rows, step)]
        parts = [_sparse_rows(rng, shape, count, width) for count in counts]
        save_npz(folder / party / "data.npz", vstack(parts, format="csr"), compressed=False)


def _sparse_rows(rng: np.random.Generator, shape: Shape, rows: int, width: int) -> csr_array:
    """Draw uniform values with some zeros; or a one in each of as many ranges of columns as a row has ones."""
    if shape.one_hot is None:
        cells = rng.random((rows, width))
        cells[rng.random((rows, width)) < (shape.zeros or 0)] = 0
        return csr_array(cells)
    ones, each = shape.one_hot, width // shape.one_hot
    indices = (np.arange(ones) * each + rng.integers(0, each, (rows, ones))).reshape(-1)
    return csr_array((np.ones(rows * ones), indices, np.arange(0, rows * ones + 1, ones)), shape=(rows, width))


def _write_data(folder: Path, shape: Shape) -> None:
    """Write rows around k centroids, batch by batch."""
    widths, rng = shape.widths, np.random.default_rng(1)
    centroids = rng.random((shape.clusters, shape.features)) * 10
    writers: dict[str, pyarrow.parquet.ParquetWriter] = {}
    for start in range(0, shape.rows, BATCH):
        count = min(BATCH, shape.rows - start)
        rows = centroids[rng.integers(0, shape.clusters, count)] + rng.normal(0, 1, (count, shape.features))
        first = 0
        for party, width in widths.items():
            table = pa.table({f"c{i}": rows[:, first + i] for i in range(width)})
            if party not in writers:
                writers[party] = pyarrow.parquet.ParquetWriter(folder / party / "data.parquet", table.schema)
            writers[party].write_table(table)
            first += width
    for writer in writers.values():
        writer.close()


def run_command(
    folder: Path, command: str, names: Sequence[str], variables: Mapping[str, str] | None = None
) -> tuple[float, Usages]:
    """Seconds until all have ended, and what each has used. `variables`: more variables of their environment."""
    start = time.perf_counter()
    usages: Usages = {}
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(variables or {})}
    with _started(folder, command, names, environment) as processes:
        for name, process in zip(names, processes, strict=True):
            _, status, usages[name] = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError((folder / f"{command}.log").read_text()[-2000:])
    return time.perf_counter() - start, usages


@contextmanager
def _started(
    folder: Path, command: str, names: Sequence[str], environment: dict[str, str]
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    with (folder / f"{command}.log").open("w") as log:
        line = [sys.executable, "-m", "veilmeans", command, "--config"]
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
