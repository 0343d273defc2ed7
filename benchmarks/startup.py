"""Start-up of small jobs: n = 10^4, d = 2, k = 5, t = 10, all members at once on this machine.

`train`: CPU and wall seconds of each party from the start of Python to its first round: imports, scan, encoding,
handshake, claim. `offline`: wall seconds in all, of a dealer and two parties. The smallest of some repetitions counts:
other work on the machine only adds.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import PARTIES, Shape, write_inputs

SMALL = Shape(10_000, 2, 5, 10)


@dataclass(frozen=True)
class Started:
    """Measured of one command at all members: wall seconds in all; CPU seconds and first rounds by member."""

    wall: float
    cpu: dict[str, float]
    first: dict[str, dict[str, float]]


def run_all(folder: Path, command: str, names: tuple[str, ...]) -> Started:
    """Run a command at all members at once."""
    notes = {name: folder / f"{command}-{name}.json" for name in names}
    line, start = [sys.executable, "-m", "benchmarks.first_round"], time.perf_counter()
    with (folder / f"{command}.log").open("w") as log:
        processes = {
            name: subprocess.Popen([*line, note, command, "-c", folder / name / "config.yaml"], stdout=log, stderr=log)
            for name, note in notes.items()
        }
        cpu = {name: _cpu_seconds(process) for name, process in processes.items()}
    wall = time.perf_counter() - start
    if any(process.returncode for process in processes.values()):
        raise RuntimeError((folder / f"{command}.log").read_text()[-2000:])
    return Started(wall, cpu, {name: json.loads(note.read_text()) for name, note in notes.items()})


def _cpu_seconds(process: "subprocess.Popen[bytes]") -> float:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def measure_once() -> tuple[Started, Started]:
    """Run offline and train in a new folder."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as name:
        write_inputs(Path(name), SMALL)
        return run_all(Path(name), "offline", (*PARTIES, "dealer")), run_all(Path(name), "train", PARTIES)


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--repetitions", type=int, default=3)
    arguments = command.parse_args()
    measured = [measure_once() for _ in range(arguments.repetitions)]
    offline, train = [each[0] for each in measured], [each[1] for each in measured]

    def first(field: str) -> float:
        return min(max(each.first[party][field] for party in PARTIES) for each in train)

    figures = [
        Figure.at_most("train: wall seconds to the first round", first("wall"), "s", 2.5),
        Figure("train: CPU seconds to the first round, of a party", first("cpu"), "s"),
        Figure("train: modules at the first round", first("modules"), ""),
        Figure("train: wall seconds in all", min(each.wall for each in train), "s"),
        Figure("train: CPU seconds in all, of a party", min(max(each.cpu.values()) for each in train), "s"),
        Figure.at_most("offline: wall seconds in all", min(each.wall for each in offline), "s", 4.0),
        Figure("offline: CPU seconds of the dealer", min(each.cpu["dealer"] for each in offline), "s"),
        Figure("offline: CPU seconds of a party", min(each.cpu[PARTIES[0]] for each in offline), "s"),
        Figure("offline: modules at the dealer's first shard", offline[0].first["dealer"]["modules"], ""),
    ]
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
