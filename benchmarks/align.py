"""Private alignment: 10^5 × 10^5, 10^6 × 10^6 and 10^4 × 10^6 ids of two parties, half of the fewer common; by
`veilmeans align` at both, from start to end, mutual TLS, on this machine.

Seconds are of the command at the slower party, from the start of Python to the written rows; bytes are the messages of
both parties. Ids are texts of some 16 characters, shuffled, in Parquet files with two more columns. Beside it
openmined.psi (Diffie–Hellman, C++), both sides in one process, at --openmined ids; for more, that is multiplied.
10^7 × 10^7 ids (--sizes) take many minutes and gigabytes of disk.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import PARTIES, Shape, Usages, changed_yaml, run_command, write_configurations
from benchmarks.peer_environment import peer_python
from veilmeans.io.storage.run_report import bytes_sent
from veilmeans.schemas.config import load_config

Sizes = tuple[int, int]
WARM_UP: Sizes = (1_000, 1_000)
SIZES: dict[str, Sizes] = {
    "10^5 × 10^5": (100_000, 100_000),
    "10^6 × 10^6": (1_000_000, 1_000_000),
    "10^4 × 10^6": (10_000, 1_000_000),
    "10^7 × 10^7": (10_000_000, 10_000_000),
}
TARGETS = {"10^6 × 10^6": {"s": 30.0, "MB": 60.0}}
_BATCH = 1 << 18
_OPENMINED = Path(__file__).parent / "openmined"


@dataclass(frozen=True)
class Measured:
    """One alignment: seconds by the clock, processor seconds and peak memory (GiB) of each party, megabytes of both."""

    seconds: float
    processor: dict[str, float]
    megabytes: float
    peak: float
    rows: int


def align(sizes: Sizes, within: Path | None = None) -> Measured:
    """Write tables of both parties, and align them."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-", dir=within) as name:
        folder = Path(name)
        write_configurations(folder, Shape(max(sizes), 4, 2, 1, provider="ot"))
        for index, (party, count) in enumerate(zip(PARTIES, sizes, strict=True)):
            with changed_yaml(folder / party / "config.yaml") as config:
                config["align"] = True
                config["kmeans"] |= {"id": "customer", "rows": None}
            first = 0 if index == 0 else min(sizes) // 2
            write_table(folder / party / "data.parquet", first, count, seed=index)
        seconds, usages = run_command(folder, "align", PARTIES)
        return _collect(folder, seconds, usages)


def _collect(folder: Path, seconds: float, usages: Usages) -> Measured:
    configs = [load_config(folder / party / "config.yaml") for party in PARTIES]
    reports = [json.loads(each.aligning().run_folder.report.read_text()) for each in configs]
    manifests = [json.loads(each.alignment_folder.manifest.read_text()) for each in configs]
    if manifests[0]["order"] != manifests[1]["order"]:
        raise RuntimeError("the parties have aligned different rows")
    return Measured(
        seconds,
        {party: usage.ru_utime + usage.ru_stime for party, usage in usages.items()},
        sum(bytes_sent(report["stages"]) for report in reports) / 1e6,
        max(usage.ru_maxrss for usage in usages.values()) / 2**20,
        manifests[0]["rows"],
    )


def write_table(file: Path, first: int, count: int, seed: int) -> None:
    """Write `count` shuffled ids from `first` on, and two columns of numbers."""
    rng = np.random.default_rng(seed)
    numbers, writer = rng.permutation(np.arange(first, first + count)), None
    for start in range(0, count, _BATCH):
        part = numbers[start : start + _BATCH]
        table = pa.table(
            {"customer": [f"customer-{each}" for each in part.tolist()], "x": part % 97, "y": rng.random(len(part))}
        )
        writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def our_figures(name: str, sizes: Sizes, measured: Measured) -> Iterator[Figure]:
    expected = min(sizes) - min(sizes) // 2
    if measured.rows != expected:
        raise RuntimeError(f"{measured.rows:,} common ids were found of {expected:,}")
    targets = TARGETS.get(name, {})
    for what, value, unit in (("time", measured.seconds, "s"), ("messages of both parties", measured.megabytes, "MB")):
        title = f"{name} ids: {what}"
        yield Figure.at_most(title, value, unit, targets[unit]) if unit in targets else Figure(title, value, unit)
    yield Figure(f"{name} ids: processor of both parties", sum(measured.processor.values()), "s")
    yield Figure(f"{name} ids: peak memory of a party", measured.peak, "GiB")


def openmined_figures(count: int) -> list[Figure]:
    """openmined.psi at `count` ids on each side, and multiplied for 10^6."""
    python = peer_python("openmined", _OPENMINED / "requirements.txt")
    line = [str(python), str(_OPENMINED / "psi_program.py"), str(count)]
    found: dict[str, Any] = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    times, figures = 10**6 / count, []
    for what, value, unit in (("time", found["seconds"], "s"), ("messages", found["megabytes"], "MB")):
        figures.append(Figure(f"openmined.psi, {count:,} × {count:,} ids: {what}", value, unit))
        figures.append(Figure(f"openmined.psi, 10^6 × 10^6 ids, {times:g} times that: {what}", value * times, unit))
    return [*figures, Figure(f"openmined.psi, {count:,} × {count:,} ids: peak memory", found["peak_gib"], "GiB")]


def arguments() -> argparse.Namespace:
    line = parser(__doc__)
    line.formatter_class = argparse.RawDescriptionHelpFormatter
    line.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES)[:3])
    line.add_argument("--openmined", type=int, default=100_000, help="ids of openmined.psi; 0: without it")
    line.add_argument("--within", type=Path, help="folder, on the disk to be used")
    return line.parse_args()


def main() -> None:
    options = arguments()
    align(WARM_UP, options.within)
    figures: list[Figure] = []
    for name in options.sizes:
        print(f"{name} ids", flush=True)
        figures += our_figures(name, SIZES[name], align(SIZES[name], options.within))
    if options.openmined:
        figures += openmined_figures(options.openmined)
    publish(figures, options.json)


if __name__ == "__main__":
    main()
