"""`docs/results.md`: question, the paper's numbers, ours, and how to repeat them; made from the JSON files alone."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.experiments.parts import QUESTIONS, load_results
from benchmarks.experiments.tables import TABLES, TextTable
from benchmarks.experiments.texts import TEXTS, TITLES


def page(folder: Path, figures: str) -> str:
    """Make the page from a folder of results; `figures`: the path from the page to that folder."""
    return "\n".join(_lines(folder, figures)) + "\n"


def _lines(folder: Path, figures: str) -> Iterator[str]:
    yield "# The paper's experiments"
    yield ""
    yield "Made by `make paper` (about an hour on two cores; it resumes where it stopped), from the JSON files in"
    yield f"[{figures}/]({figures}/); nothing is typed by hand. A test compares this page with them."
    for question in QUESTIONS:
        results = load_results(folder, question)
        yield from ("", f"## {TITLES[question]}", "", TEXTS[question])
        if not results["parts"]:
            yield from ("", "Not measured.")
            continue
        for table in TABLES[question](results):
            yield from ("", *_markdown(table))
        if (folder / f"{question}.svg").exists():
            yield from ("", f"![{TITLES[question]}]({figures}/{question}.svg)")
        about = ", ".join(f"{name} {value}" for name, value in results["about"].items())
        yield from ("", f"{len(results['parts']):,} runs; {about}.")


def _markdown(table: TextTable) -> Iterator[str]:
    yield f"**{table.title}**"
    yield ""
    yield f"| {' | '.join(table.head)} |"
    yield f"|{'---|' * len(table.head)}"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"
