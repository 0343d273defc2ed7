"""What a run has cost so far, in the run's folder: seconds, and messages, bytes and times of each stage.

Kept up from pipeline to pipeline, so that a run that was started again still tells all of it.
"""

import json
from pathlib import Path
from typing import Any

from veilmeans.io.files import write_json

Stages = dict[str, dict[str, int]]


class RunReport:
    """`report.json` of one run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "report.json"
        try:
            self.content: dict[str, Any] = json.loads(self._file.read_text())
        except (OSError, ValueError):
            self.content = {"seconds": 0.0, "iterations": [], "stages": {}}

    def add(self, seconds: float, stages: Stages) -> None:
        """One more piece of work."""
        self.content["seconds"] += seconds
        for stage, counts in stages.items():
            known = self.content["stages"].setdefault(stage, {})
            for name, value in counts.items():
                known[name] = known.get(name, 0) + value
        self.save()

    def add_iterations(self, done: int, seconds: float, stages: Stages) -> None:
        """A pipeline has ended after which `done` iterations are complete."""
        self.content["iterations"].append({"done": done, "seconds": seconds, "bytes_sent": sent(stages)})
        self.add(seconds, stages)

    def save(self) -> None:
        write_json(self._file, self.content)


def sent(stages: Stages) -> int:
    """Bytes that left this party."""
    return sum(counts.get("bytes_sent", 0) for counts in stages.values())
