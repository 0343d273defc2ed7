"""`docs/results.md`: question, the paper's numbers, ours, and how to repeat them; made from the JSON files alone."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.experiments.findings import FINDINGS
from benchmarks.experiments.paper_numbers import PAPER_Q5
from benchmarks.experiments.parts import QUESTIONS, Values, load_results
from benchmarks.experiments.tables import TABLES, TextTable

_INTRODUCTION = """
Made by `make paper`, which resumes where it stopped, from the JSON files beside the figures; nothing is typed by hand,
and a test compares this page with them. `make paper-again` measures everything once more below `.cache/`, and compares:
bytes and rounds must be equal, and times beside SPU's within 30 %.
"""
TITLES = {
    "q1": "Q1: time and traffic (the paper's Tables 1 and 2)",
    "q2": "Q2: online and offline by step",
    "q3": "Q3: vectorised, or one product for each value",
    "q4": "Q4: with and without the sparse engine",
    "q5": "Q5: fraud found by outliers",
}
_Q1 = """
Two parties, t = 10, on loopback. The paper's times are of its own machines and C++; ours and SPU's are of this one. The
row with d = 16 is not in the paper. Ours online is from the handshake to the opened results, with mutual TLS and a
dealer's triples: the fastest of three runs, which all send the same bytes in the same rounds. SPU's SEMI2K makes its
triples on the way, with a dealer that is not safe (the fastest of three runs for n = 10,000); CHEETAH goes without one.
Offline seconds are those of the whole command, start of Python included; offline MB with a dealer are the size of both
parties' stores, without one the messages between them. M-Kmeans and CHEETAH have no phases. Traffic is both ways: our
messages, SPU's TCP payload. *: not run, in proportion from fewer rows (CHEETAH takes many minutes); –: not run, or not
in the paper.
"""
_Q2 = """
n = 1,000, d = 2, k = 4, t = 20 over a WAN (20 Mbit/s, 40 ms; `exchange.shape`, in both phases). Online seconds of a
step are the slower party's computing, delivering and waiting; of steps beside each other both wait, so that they add up
to more than the whole. Offline, for each step a triple store is made that has nothing else, so that each has its own
set-up; the last line is the run's own store, of which seconds are those of the whole command, start of Python included,
and with a dealer MB are the stores' size. The paper has a figure without numbers.
"""
_Q3 = """
n = 1,000, k = 4, t = 20, the distance step over a WAN. By value: a Beaver triple for each of the n·d·k
products, all products of an iteration in one round (`benchmarks/experiments/unvectorised.py`). Vectorised: X is
masked once in a run, and a matrix triple serves an iteration. Offline: a store by `ot` that has nothing else, set-up
included. The paper has figures without numbers.
"""
_Q4 = """
k = 2, t = 10, the distance step over a WAN, both engines in the same pipeline. Numbers with a star are scaled, on the
line through runs of fewer rows; those without were run with so many rows. A run has one iteration, of which ten are
counted. †: computed; without its sparse engine the paper masks X anew in each iteration, ours sends it once in a run.
The dense engine's costs do not depend on zeros. The paper has figures without numbers, and does not say which d.
"""
_Q5 = f"""
The paper, on data that are not public: {PAPER_Q5["together on shares"]} together, {PAPER_Q5["M-Kmeans"]} by M-Kmeans,
{PAPER_Q5["alone"]} by the payment company alone. Here: K-means with k = 5 from random rows, as many outliers as there
are frauds; mean and deviation over all starts. The synthetic data have as many rows and columns as the paper's.
"""
TEXTS = {name: text.strip() for name, text in zip(TITLES, (_Q1, _Q2, _Q3, _Q4, _Q5), strict=True)}


def page(folder: Path, figures: str) -> str:
    """Make the page from a folder of results; `figures`: the path from the page to that folder."""
    return "\n".join(_lines(folder, figures)) + "\n"


def _lines(folder: Path, figures: str) -> Iterator[str]:
    found = {question: load_results(folder, question) for question in QUESTIONS}
    yield "# The paper's experiments"
    yield ""
    yield _INTRODUCTION.strip()
    yield from ("", *_markdown(_machine(found)))
    for question in QUESTIONS:
        results = found[question]
        yield from ("", f"## {TITLES[question]}", "", TEXTS[question])
        if not results["parts"]:
            yield from ("", "Not measured.")
            continue
        for table in TABLES[question](results):
            yield from ("", *_markdown(table))
        yield from ("", f"![{TITLES[question]}]({figures}/{question}.svg)")
        yield from ("", *map(str, FINDINGS[question](results)))
        yield from (
            "",
            f"Repeat it: `python -m benchmarks.experiments --questions {question} --again`. {_made(results)}",
        )


def _machine(found: dict[str, Values]) -> TextTable:
    """The machine and the versions; several, if questions were measured on several."""
    abouts = [results["about"] for results in found.values() if results["parts"]]
    names = list(dict.fromkeys(name for each in abouts for name in each))
    rows = [[name, ", ".join(dict.fromkeys(f"{each[name]}" for each in abouts if name in each))] for name in names]
    return TextTable("Machine and versions", ["", ""], rows)


def _made(results: Values) -> str:
    """When, by which code and in which time the runs of a question were made."""
    made = [part["made"] for part in results["parts"].values()]
    when, code = (", ".join(sorted({each[name] for each in made})) for name in ("date", "veilmeans"))
    minutes = sum(each["took_s"] for each in made) / 60
    return f"{len(made)} measurements in {minutes:.1f} minutes, {when}, veilmeans {code}."


def _markdown(table: TextTable) -> Iterator[str]:
    yield f"**{table.title}**"
    yield ""
    yield f"| {' | '.join(table.head)} |"
    yield f"|{'---|' * len(table.head)}"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"
