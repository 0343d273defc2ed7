"""The homomorphic engine: its operations, the paper's Q4 (distance step by zeros and by columns), and a wide table.

Without --wide: the operations on one core, then two parties as processes with mutual TLS. --quick takes small sizes,
only to try that everything works.
"""

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks import sparse_runs
from benchmarks.chart import write_svg
from benchmarks.cipher_operations import operations
from benchmarks.figures import Figure, parser, publish
from benchmarks.wide import Wide, wide_figures

ZEROS, SWEEP_ZEROS = (0, 0.5, 0.9, 0.99), (0.2, 0.99)
WIDTHS = (16, 64, 256, 1024)
MILLION = 1_000_000


def main() -> None:
    arguments = _arguments()
    console = Console(width=180)
    if arguments.wide:
        wide = Wide(arguments.wide_rows, arguments.wide_columns, arguments.folder)
        publish(wide_figures(wide, console), arguments.json)
        return
    figures = [] if arguments.skip_operations else operations(250 if arguments.quick else 4_000)
    if not arguments.skip_runs:
        figures += _runs(arguments, console)
    publish(figures, arguments.json)


def _runs(arguments: argparse.Namespace, console: Console) -> list[Figure]:
    runs = sparse_runs.Runs(console)
    sizes = [*arguments.rows, MILLION] if arguments.full else arguments.rows
    zeros = sparse_runs.by_zeros(runs, arguments.zeros, sizes)
    columns = sparse_runs.by_columns(runs, arguments.sweep_zeros, arguments.columns, arguments.sweep_rows)
    console.print(sparse_runs.zeros_table(zeros), sparse_runs.columns_table(columns))
    if arguments.plot:
        write_svg(arguments.plot, sparse_runs.panels(zeros, columns))
    return [*sparse_runs.zeros_figures(zeros), *sparse_runs.columns_figures(columns)]


def _arguments() -> argparse.Namespace:
    result = parser(__doc__)
    result.add_argument("--quick", action="store_true", help="small sizes: the figures mean nothing")
    result.add_argument("--plot", type=_svg, help="draw the runs' costs to this .svg file")
    result.add_argument("--rows", type=int, nargs="+", help="two sizes or more for the runs by zeros")
    result.add_argument("--zeros", type=float, nargs="+", help="shares of zeros of the runs by zeros")
    result.add_argument("--full", action="store_true", help="run 1,000,000 rows, too, instead of scaling to them")
    result.add_argument("--sweep-rows", type=int, help="rows of the runs by columns")
    result.add_argument("--sweep-zeros", type=float, nargs="+", help="shares of zeros of the runs by columns")
    result.add_argument("--columns", type=int, nargs="+", help="columns of each party in the runs by columns")
    result.add_argument("--skip-operations", action="store_true", help="only the runs")
    result.add_argument("--skip-runs", action="store_true", help="only the operations")
    result.add_argument("--wide", action="store_true", help="only the wide one-hot table")
    result.add_argument("--wide-rows", type=int, default=MILLION)
    result.add_argument("--wide-columns", type=int, default=100_000, help="of both parties together")
    result.add_argument("--folder", type=Path, help="wide: where there is room for data and stores (removed after)")
    arguments = result.parse_args()
    arguments.rows = arguments.rows or ([512, 1_024] if arguments.quick else [32_768, 65_536])
    arguments.zeros = arguments.zeros or ([0.5, 0.99] if arguments.quick else list(ZEROS))
    arguments.sweep_zeros = arguments.sweep_zeros or ([0.99] if arguments.quick else list(SWEEP_ZEROS))
    arguments.sweep_rows = arguments.sweep_rows or (256 if arguments.quick else 8_192)
    arguments.columns = arguments.columns or ([8, 16] if arguments.quick else list(WIDTHS))
    if len(set(arguments.rows)) < 2:
        result.error("--rows: two different sizes or more are needed to fit a line")
    return arguments


def _svg(name: str) -> Path:
    if not name.endswith(".svg"):
        raise argparse.ArgumentTypeError("the name must end with .svg")
    return Path(name)


if __name__ == "__main__":
    main()
