"""Measure what is missing of the paper's experiments, draw the figures, and write the page.

It writes docs/results/ (JSON and SVG), docs/results.md, and the marked blocks of README.md and docs/benchmarks.md.
Interrupt it at any time: what was measured is kept, and the next run continues.

--again measures everything once more, below .cache/paper/again/, and compares it with docs/results/; remove the folder
to begin anew. --tiny tries the tool on sizes that mean nothing, below .cache/paper/tiny/. Neither changes docs/.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.experiments.blocks import rewrite_blocks
from benchmarks.experiments.compare import compare
from benchmarks.experiments.page import page
from benchmarks.experiments.parts import QUESTIONS, ROOT, run_parts
from benchmarks.experiments.questions import PAPER, TINY, all_parts
from benchmarks.fraud import SHARED

DOCS = ROOT / "docs"
ELSEWHERE = ROOT / ".cache" / "paper"


def arguments() -> argparse.Namespace:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    where = line.add_mutually_exclusive_group()
    where.add_argument("--tiny", action="store_true", help="tiny sizes, below .cache/")
    where.add_argument("--again", action="store_true", help="measure once more, below .cache/, and compare")
    line.add_argument("--skip-spu", action="store_true", help="only our own runs")
    line.add_argument("--data", type=Path, default=SHARED, help="folder with the shared data sets")
    line.add_argument("--page-only", action="store_true", help="measure nothing; draw and write from what is there")
    return line.parse_args()


def main() -> None:
    options = arguments()
    elsewhere = ELSEWHERE / "tiny" if options.tiny else ELSEWHERE / "again" if options.again else None
    folder = elsewhere or DOCS / "results"
    parts = all_parts(TINY if options.tiny else PAPER, options.data, not options.skip_spu)
    if not options.page_only:
        run_parts([part for part in parts if part.question in options.questions], folder)
    from benchmarks.experiments.figures_svg import draw_all  # imports matplotlib

    draw_all(folder)
    written = [folder / "results.md" if elsewhere else DOCS / "results.md"]
    written[0].write_text(page(folder, "." if elsewhere else "results"))
    if not elsewhere:
        written += rewrite_blocks(ROOT, folder)
    print(f"wrote {', '.join(str(file.relative_to(ROOT)) for file in written)}")
    if options.again:
        sys.exit(compare(DOCS / "results", folder, options.questions))


if __name__ == "__main__":
    main()
