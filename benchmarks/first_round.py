"""Run a command of `veilmeans` as its console script does, and note when its first round sends.

    python -m benchmarks.first_round NOTE COMMAND --config FILE

NOTE gets {"cpu": seconds of this process, "wall": seconds since it was started, "modules": number of modules}.
"""

import json
import os
import sys
import time
from pathlib import Path

from veilmeans.pipelines.cli.main import run
from veilmeans.transforms.rounds.stage_metrics import watch_stages


def seconds_since_start() -> float:
    """Wall seconds since this process was started, from the kernel's clock."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    note, *sys.argv[1:] = sys.argv[1:]

    def write_first(*_details: object) -> None:
        if not Path(note).exists():
            seen = {"cpu": time.process_time(), "wall": seconds_since_start(), "modules": len(sys.modules)}
            Path(note).write_text(json.dumps(seen))

    with watch_stages(write_first):
        run()


if __name__ == "__main__":
    main()
