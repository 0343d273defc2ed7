"""What a run has cost so far, in the run's folder: seconds, and messages, bytes and times of each stage.

Kept up from pipeline to pipeline, so that a run that was started again still tells all of it. Beside it: when the run
began and ended, how often it was started, with which software, and by which policies results were opened.
"""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from veilmeans import __version__
from veilmeans.io.storage.atomic_files import write_json
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.handshake_terms import PROTOCOL_VERSION

Stages = dict[str, dict[str, int]]
_PACKAGES = ("apache-beam", "numpy", "pyarrow", "gmpy2", "cryptography")


class RunReport:
    """`report.json` of one run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "report.json"
        self._begun: dict[str, Any] = {}
        self.content = self._read()

    def begin(self, config: JobConfig) -> None:
        """The party has begun, or goes on after a mishap. Kept with what is added next: a start that is refused leaves
        everything as it was."""
        self._begun = {"began": _now(), "software": software(config)}

    def end(self) -> None:
        """Everyone has what it needs."""
        with self._changing() as content:
            content["ended"] = _now()

    def repeat(self) -> None:
        """A pipeline has failed for a reason of its own and is run again."""
        with self._changing() as content:
            content["repeats"] = content.get("repeats", 0) + 1

    def add(self, seconds: float, stages: Stages) -> None:
        """One more piece of work."""
        with self._changing() as content:
            content["seconds"] += seconds
            for stage, counts in stages.items():
                known = content["stages"].setdefault(stage, {})
                for name, value in counts.items():
                    known[name] = known.get(name, 0) + value

    def add_iterations(self, done: int, seconds: float, stages: Stages) -> None:
        """A pipeline has ended after which `done` iterations are complete."""
        with self._changing() as content:
            content["iterations"].append({"done": done, "seconds": seconds, "bytes_sent": bytes_sent(stages)})
        self.add(seconds, stages)

    def add_opening(self, policy: Mapping[str, Any]) -> None:
        """Results were opened by a policy; the same one again opens nothing more."""
        with self._changing() as content:
            known = content.setdefault("openings", [])
            if policy not in [each["policy"] for each in known]:
                known.append({"when": _now(), "policy": dict(policy)})

    def add_shards(self, count: int) -> None:
        """How many shards a store has."""
        with self._changing() as content:
            content["shards"] = count

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """What is on disk, to be changed: others in this process may have added to it."""
        self.content = self._read()
        if self._begun:
            starts = self.content.get("starts", 0) + 1
            self.content = {**self._begun, **self.content, "starts": starts, "software": self._begun["software"]}
            self._begun = {}
        yield self.content
        write_json(self._file, self.content)

    def _read(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self._file.read_text())
        except (OSError, ValueError):
            content = {}
        return {"seconds": 0.0, "iterations": [], "stages": {}, **content}


def software(config: JobConfig) -> dict[str, str]:
    """What runs here, by name and version."""
    return {
        "veilmeans": __version__,
        "protocol": str(PROTOCOL_VERSION),
        "Python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
        "runner": config.engine.runner,
    }


def bytes_sent(stages: Stages) -> int:
    """Bytes that left this party."""
    return total_count(stages, "bytes_sent")


def total_count(stages: Stages, name: str) -> int:
    """One count of all stages."""
    return sum(counts.get(name, 0) for counts in stages.values())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
