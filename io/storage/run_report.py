"""The costs and the history of a run, `report.json`: seconds; messages, bytes and times of each stage.

Added to by every pipeline, so that a run that was rerun still reports all of it. Besides: when the run began and ended,
how often it was started, with which software, and by which policies results were opened.
"""

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from veilmeans import __version__
from veilmeans.io.files.atomic_files import parse_json, write_json
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.handshake_terms import PROTOCOL_VERSION
from veilmeans.schemas.run_folder import RunFolder

Stages = dict[str, dict[str, int]]  # stage -> name of a count -> count
_PACKAGES = ("apache-beam", "numpy", "pyarrow", "gmpy2", "cryptography")


class RunReport:
    """The report of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self._file = folder.report
        self._start: dict[str, Any] = {}
        self.content = self._read()

    def begin(self, config: JobConfig) -> None:
        """Record a start of the run. Written with the next addition, so that a refused start changes nothing."""
        self._start = {"began": _now(), "software": software(config)}

    def end(self) -> None:
        """Record the end of the run."""
        with self._update() as content:
            content["ended"] = _now()

    def repeat(self) -> None:
        """Count a retry of a pipeline that failed for a reason of its own."""
        with self._update() as content:
            content["repeats"] = content.get("repeats", 0) + 1

    def add(self, seconds: float, stages: Stages) -> None:
        """Add seconds and counts of stages."""
        with self._update() as content:
            content["seconds"] += seconds
            for stage, counts in stages.items():
                totals = content["stages"].setdefault(stage, {})
                for name, value in counts.items():
                    totals[name] = totals.get(name, 0) + value

    def add_iterations(self, done: int, seconds: float, stages: Stages) -> None:
        """Add a pipeline after which `done` iterations are complete."""
        with self._update() as content:
            content["iterations"].append({"done": done, "seconds": seconds, "bytes_sent": bytes_sent(stages)})
        self.add(seconds, stages)

    def add_opening(self, policy: Mapping[str, Any]) -> None:
        """Record that results were opened by a policy; the same one again opens nothing more."""
        with self._update() as content:
            openings = content.setdefault("openings", [])
            if policy not in [each["policy"] for each in openings]:
                openings.append({"when": _now(), "policy": dict(policy)})

    def add_shards(self, count: int) -> None:
        """Record how many shards a triple store has."""
        with self._update() as content:
            content["shards"] = count

    @contextmanager
    def _update(self) -> Iterator[dict[str, Any]]:
        """Read the report, which others in this process may have changed; write it when the context ends."""
        self.content = self._read()
        if self._start:
            starts = self.content.get("starts", 0) + 1
            self.content = {**self._start, **self.content, "starts": starts, "software": self._start["software"]}
            self._start = {}
        yield self.content
        write_json(self._file, self.content)

    def _read(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = parse_json(self._file.read_text())
        except (OSError, ValueError):
            content = {}
        return {"seconds": 0.0, "iterations": [], "stages": {}, **content}


def software(config: JobConfig) -> dict[str, str]:
    """Return the versions of this software and of the packages that it runs on."""
    return {
        "veilmeans": __version__,
        "protocol": str(PROTOCOL_VERSION),
        "Python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
        "runner": config.beam.runner,
    }


def bytes_sent(stages: Stages) -> int:
    """Sum up the bytes that this party sent."""
    return total_count(stages, "bytes_sent")


def total_count(stages: Stages, name: str) -> int:
    """Sum up one count over all stages."""
    return sum(counts.get(name, 0) for counts in stages.values())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
