"""Measure what is missing of the paper's experiments, draw the figures, and write the page.

Interrupt it at any time: what was measured is kept, and the next run continues. --tiny tries the tool on sizes that
mean nothing, in a folder of its own.
"""

import argparse
from pathlib import Path

from benchmarks.experiments.page import page
from benchmarks.experiments.parts import QUESTIONS, run_parts
from benchmarks.experiments.questions import PAPER, TINY, all_parts
from benchmarks.fraud import SHARED

DOCS = Path(__file__).parents[2] / "docs"


def main() -> None:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    line.add_argument("--tiny", action="store_true", help="tiny sizes, below .cache/")
    line.add_argument("--skip-spu", action="store_true", help="only our own runs")
    line.add_argument("--data", type=Path, default=SHARED, help="folder with the shared data sets")
    line.add_argument("--page-only", action="store_true", help="measure nothing; draw and write from what is there")
    options = line.parse_args()
    folder = DOCS.parent / ".cache" / "paper" if options.tiny else DOCS / "results"
    parts = all_parts(TINY if options.tiny else PAPER, options.data, not options.skip_spu)
    if not options.page_only:
        run_parts([part for part in parts if part.question in options.questions], folder)
    from benchmarks.experiments.figures_svg import draw_all  # imports matplotlib

    draw_all(folder)
    written = folder / "results.md" if options.tiny else DOCS / "results.md"
    written.write_text(page(folder, "." if options.tiny else "results"))
    print(f"wrote {written}")


if __name__ == "__main__":
    main()
