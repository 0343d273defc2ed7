"""The figures of a benchmark: {name, value, unit, target, met}, printed as a table and written as JSON."""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """A measured value; `met` is None where there is no target."""

    name: str
    value: float
    unit: str
    target: float | None = None
    met: bool | None = None

    @classmethod
    def at_most(cls, name: str, value: float, unit: str, target: float) -> "Figure":
        return cls(name, value, unit, target, value <= target)

    @classmethod
    def at_least(cls, name: str, value: float, unit: str, target: float) -> "Figure":
        return cls(name, value, unit, target, value >= target)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Make a command line with --json."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--json", type=Path, help="write the figures to this file")
    return result


def publish(figures: list[Figure], file: Path | None) -> None:
    """Print the figures, and write them to a file if one is given."""
    table = Table("figure", "measured", "target", "met")
    for figure in figures:
        target = "" if figure.target is None else f"{figure.target:,.1f}"
        met = {None: "", True: "yes", False: "NO"}[figure.met]
        table.add_row(figure.name, f"{figure.value:,.2f} {figure.unit}", target, met)
    Console(width=140).print(table)
    if file is not None:
        file.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
