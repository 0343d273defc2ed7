"""Marked blocks of README.md and docs/benchmarks.md that are made from the experiments' JSON files.

A block is between the lines `<!-- made by make paper: NAME -->` and `<!-- end of NAME -->`.
"""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from benchmarks.experiments.parts import Values, load_results
from benchmarks.experiments.tables import Q1, Cell, Job, number, of_paper, parts_by

TARGETS: dict[Job, str] = {
    (10_000, 2, 2): "0.75 s, 5 MB",
    (10_000, 2, 5): "1.8 s, 16 MB",
    (10_000, 16, 4): "1.6 s, 14 MB",
    (100_000, 2, 2): "2 s, 40 MB",
    (100_000, 2, 5): "3.8 s, 210 MB, 0.5 GiB",
}
"""What we set out to reach, online with a dealer."""
WAN_TARGET = "0.55 s"
_LINE = 130


def comparison_line(folder: Path) -> str:
    """README's list item: our times and traffic beside SPU's."""
    results = load_results(folder, "q1")
    q1, about = Q1.of(results), results["about"]
    large, small, middle = (100_000, 2, 5), (10_000, 2, 2), (10_000, 2, 5)
    wan = parts_by(load_results(folder, "q2"), "provider")["dealer",]
    cheetah = _costs(q1.value(middle, "CHEETAH", "online_s"), q1.value(middle, "CHEETAH", "online_mb"))
    both = _costs(q1.both_phases(middle, "ot", "s"), q1.both_phases(middle, "ot", "mb"))
    text = (
        f"- **Measured**, two parties and SPU {about['SPU']} (SEMI2K, with its own dealer) in one run on a machine "
        f"with {about['cores']} cores, 10 iterations, with a dealer, without our offline phase (`make paper`; [the "
        "paper's experiments](docs/results.md), [what is timed](docs/benchmarks.md)). "
        f"10^5 rows × 2 columns, 5 clusters: {_beside_spu(q1, large)}. "
        f"10^4 rows × 2 columns, 2 clusters: {_beside_spu(q1, small)}. "
        "Over a WAN (20 Mbit/s, 40 ms), 1,000 rows × 2 columns, 4 clusters: "
        f"{number(wan['iteration_s'])} s an iteration. Without a dealer, offline and online together, 10^4 rows × 2 "
        f"columns, 5 clusters: {both}, SPU's CHEETAH {cheetah}."
    )
    lines = textwrap.wrap(text, _LINE, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def comparison_table(folder: Path) -> str:
    """The page of benchmarks' table: the paper, SPU, ours, and what we set out to reach."""
    q1 = Q1.of(load_results(folder, "q1"))
    head = (
        "what",
        "paper, online",
        "SPU SEMI2K",
        "SPU CHEETAH",
        "ours, online",
        "ours, both phases, `ot`",
        "target, online",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for job in q1.jobs:
        n, d, k = job
        cheetah = [q1.cheetah(job, name) for name in ("online_s", "online_mb")]
        cells = [
            f"n = {n:,}, d = {d}, k = {k}",
            _costs(of_paper(job, "online_s"), of_paper(job, "online_mb")),
            _with_memory(q1, job, "SEMI2K"),
            "–" if cheetah[0].value is None else f"{cheetah[0]} s, {cheetah[1]} MB",
            _with_memory(q1, job, "dealer"),
            _costs(q1.both_phases(job, "ot", "s"), q1.both_phases(job, "ot", "mb")),
            TARGETS.get(job, "–"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rows, clusters, wan = _wan(load_results(folder, "q2"))
    what = f"WAN (20 Mbit/s, 40 ms), n = {rows:,}, d = 2, k = {clusters}, an iteration"
    lines.append(f"| {what} | – | – | – | {number(wan['iteration_s'])} s | – | {WAN_TARGET} |")
    return "\n".join([*lines, "", "More, and figures: [the paper's experiments](results.md)."])


BLOCKS: dict[str, dict[str, Callable[[Path], str]]] = {
    "README.md": {"comparison": comparison_line},
    "docs/benchmarks.md": {"table": comparison_table},
}


def with_blocks(text: str, blocks: dict[str, Callable[[Path], str]], folder: Path) -> str:
    """A page with its blocks made anew."""
    for name, make in blocks.items():
        first, last = f"<!-- made by make paper: {name} -->\n", f"\n<!-- end of {name} -->"
        pattern = re.compile(re.escape(first) + ".*?" + re.escape(last), re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"the page needs one block {name!r}")
        made = f"{first}{make(folder)}{last}"
        text = pattern.sub(lambda _, made=made: made, text)  # type: ignore[misc]
    return text


def rewrite_blocks(root: Path, folder: Path) -> list[Path]:
    """Make the blocks of all pages anew."""
    pages = [root / page for page in BLOCKS]
    for page, blocks in zip(pages, BLOCKS.values(), strict=True):
        page.write_text(with_blocks(page.read_text(), blocks, folder))
    return pages


def _wan(results: Values) -> tuple[int, int, Values]:
    found = parts_by(results, "rows", "clusters", "provider")
    return next((rows, clusters, values) for (rows, clusters, maker), values in found.items() if maker == "dealer")


def _costs(seconds: float | None, megabytes: float | None) -> str:
    return "–" if seconds is None else f"{Cell(seconds)} s and {Cell(megabytes)} MB"


def _with_memory(q1: Q1, job: Job, system: str) -> str:
    cells = [Cell(q1.value(job, system, name)) for name in ("online_s", "online_mb", "peak_gib")]
    return "–" if cells[0].value is None else f"{cells[0]} s, {cells[1]} MB, {cells[2]} GiB"


def _beside_spu(q1: Q1, job: Job) -> str:
    ours, spu = (
        _costs(q1.value(job, system, "online_s"), q1.value(job, system, "online_mb")) for system in ("dealer", "SEMI2K")
    )
    return f"{ours}, SPU {spu}"
