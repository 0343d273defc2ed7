"""Compare two runs of the experiments: `python -m benchmarks.experiments.compare FOLDER FOLDER`.

Our bytes and rounds must be equal, to the byte. Of SPU, whose bytes on the wire vary with the timing of its
connections, bytes must agree within 2 %. Ratios of SPU's time to ours must agree within 30 %. Other times are of the
machine, and not compared. It exits with 1 if something differs.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.parts import QUESTIONS, Values, load_results
from benchmarks.experiments.tables import Q1, ratio

EXACT = ("_mb", "rounds")
SPU_SYSTEMS = ("SEMI2K", "CHEETAH")
SPU_BYTES_WITHIN = 0.02
RATIOS_WITHIN = 0.3


def differences(first: Path, second: Path, questions: Sequence[str] = QUESTIONS) -> Iterator[str]:
    """Compare two folders of results, and say what differs."""
    for question in questions:
        one, other = (load_results(folder, question)["parts"] for folder in (first, second))
        if set(one) != set(other):
            yield f"{question}: only one of both has {', '.join(sorted(set(one) ^ set(other)))}"
        for name in sorted(set(one) & set(other)):
            for difference in _part_differences(one[name], other[name]):
                yield f"{question}, {name}: {difference}"
    if "q1" in questions:
        yield from _ratio_differences(*(load_results(folder, "q1") for folder in (first, second)))


def _part_differences(one: Values, other: Values) -> Iterator[str]:
    if one["settings"] != other["settings"]:
        yield f"settings differ: {one['settings']} and {other['settings']}"
        return
    within = SPU_BYTES_WITHIN if one["settings"].get("system") in SPU_SYSTEMS else 0.0
    counts, others = (dict(_counts(each["values"])) for each in (one, other))
    for name in sorted(set(counts) | set(others)):
        a, b = counts.get(name), others.get(name)
        if a is None or b is None or abs(a - b) > within * max(a, b):
            yield f"{name} is {a} and {b}"


def _counts(values: Values, before: str = "") -> Iterator[tuple[str, Any]]:
    """The bytes and rounds of a part, and of its steps."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _counts(value, f"{before}{name} ")
        elif name.endswith(EXACT):
            yield f"{before}{name}", value


def _ratio_differences(first: Values, second: Values) -> Iterator[str]:
    runs = Q1.of(first), Q1.of(second)
    for job in runs[0].jobs:
        for system in SPU_SYSTEMS:
            both = [ratio(each.value(job, system, "online_s"), each.value(job, "dealer", "online_s")) for each in runs]
            if None in both:
                continue
            low, high = sorted(each for each in both if each is not None)
            if high > (1 + RATIOS_WITHIN) * low:
                n, d, k = job
                yield f"q1, n={n:,} d={d} k={k}: {system} ÷ ours is {both[0]:.2f} and {both[1]:.2f}"


def compare(first: Path, second: Path, questions: Sequence[str] = QUESTIONS) -> int:
    """Print what differs; return the exit code."""
    found = list(differences(first, second, questions))
    parts = sum(len(load_results(first, question)["parts"]) for question in questions)
    for line in found or [
        f"{parts} measurements: bytes and rounds are equal, ratios to SPU within {RATIOS_WITHIN:.0%}"
    ]:
        print(line)
    return 1 if found else 0


def main() -> None:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("folders", nargs=2, type=Path)
    sys.exit(compare(*line.parse_args().folders))


if __name__ == "__main__":
    main()
