"""Parts of experiments: each is measured once, and kept, so that a run that was interrupted resumes.

What was measured is a JSON file for each question: about the machine, and part -> settings, values, and when and by
which version of the code it was measured in how many seconds. A part whose settings have changed is measured again.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from veilmeans import __version__

Values = dict[str, Any]
ROOT = Path(__file__).parents[2]
SPU_REQUIREMENTS = ROOT / "benchmarks" / "spu" / "requirements.txt"
QUESTIONS = ("q1", "q2", "q3", "q4", "q5")


@dataclass(frozen=True)
class Part:
    """A part of a question: what is run, by which settings, and how."""

    question: str
    name: str
    settings: Mapping[str, Any]
    run: Callable[[], Values] = field(compare=False)


def result_file(folder: Path, question: str) -> Path:
    """The file with the results of a question."""
    return folder / f"{question}.json"


def load_results(folder: Path, question: str) -> Values:
    """Read what was measured of a question so far."""
    file = result_file(folder, question)
    return json.loads(file.read_text()) if file.exists() else {"about": {}, "parts": {}}


def run_parts(parts: Sequence[Part], folder: Path) -> None:
    """Measure the parts that are not in the folder yet, with a progress bar; each is written when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("the paper's experiments", total=len(parts))
        for part in parts:
            progress.update(task, description=f"{part.question} {part.name}")
            if not is_measured(part, folder):
                start = time.perf_counter()
                values = part.run()
                took = time.perf_counter() - start
                _keep(part, values, took, folder)
                progress.console.print(f"{part.question} {part.name}: {took:.0f} s", highlight=False)
            progress.advance(task)


def is_measured(part: Part, folder: Path) -> bool:
    """True if the folder has the part, measured by the same settings."""
    known = load_results(folder, part.question)["parts"].get(part.name)
    return known is not None and known["settings"] == json.loads(json.dumps(part.settings))


def _keep(part: Part, values: Values, took: float, folder: Path) -> None:
    content = load_results(folder, part.question)
    content["about"] = about()
    made = {"date": datetime.now(UTC).date().isoformat(), "veilmeans": _code_version(), "took_s": round(took, 1)}
    content["parts"][part.name] = {"settings": dict(part.settings), "values": values, "made": made}
    file = result_file(folder, part.question)
    written = file.with_suffix(".part")
    written.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    written.replace(file)


def about() -> Values:
    """The machine, and the versions of what was measured."""
    packages = "apache-beam", "numpy", "pyarrow", "gmpy2", "numba"
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.system(),
        "Python": platform.python_version(),
        **{name: version(name) for name in packages},
        "SPU": SPU_REQUIREMENTS.read_text().partition("spu==")[2].split()[0],
    }


def _code_version() -> str:
    """The version and the commit, and whether code was changed since."""
    commit = _git("rev-parse", "--short", "HEAD") or "no commit"
    changed = bool(_git("status", "--porcelain", "--", ".", ":!docs", ":!README.md"))
    return f"{__version__} ({commit}{', changed' * changed})"


def _git(*line: str) -> str:
    done = subprocess.run(["git", *line], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
