"""Engine selection against the clock: five runs with both engines, of which `auto` should select the faster.

The selection is the one that `veilmeans plan` shows at one of the parties; times are of the complete online phase, two
parties as processes with mutual TLS.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import PARTIES, Shape, measure, write_configurations
from veilmeans.pipelines.planning.engine_selection import ENGINES, EngineSelection, own_costs, select_all_engines
from veilmeans.schemas.config import LinkConfig, load_config

_WAN = {"rate_mbps": 20, "round_trip_ms": 40}
_LEASED_LINE = {"rate_mbps": 100, "round_trip_ms": 10}
_SHORT = {"rows_per_shard": 2_000}
SHAPES = {
    "dense": Shape(20_000, 16, 4, 2),
    "dense, WAN": Shape(20_000, 16, 4, 2, link=_WAN),
    "99 % zeros": Shape(8_000, 2_000, 4, 2, zeros=0.99),
    "99 % zeros, WAN": Shape(8_000, 2_000, 4, 2, zeros=0.99, link=_WAN),
    "one-hot, leased line": Shape(4_000, 20_000, 4, 2, one_hot=10, link=_LEASED_LINE, beam=_SHORT),
}
TARGET = 4


def main() -> None:
    arguments = parser(__doc__).parse_args()
    table = Table("shape", "estimated, s: beaver, he", "selected", "measured, s: beaver, he", "right")
    figures, right = [], 0
    for name, shape in SHAPES.items():
        selection = selection_for(shape)
        measured = {engine: measure(replace(shape, products=engine)).online for engine in ENGINES}
        right_engine = selection.distance == selection.update == min(measured, key=lambda engine: measured[engine])
        right += right_engine
        row = (
            name,
            _listed(estimated(selection, shape)),
            f"{selection.distance}, {selection.update}",
            _listed(measured),
        )
        table.add_row(*row, "yes" if right_engine else "no")
        figures += [Figure(f"{name}: online time, {engine}", value, "s") for engine, value in measured.items()]
    Console(width=140).print(table)
    figures.append(Figure.at_least("runs for which the faster engine is selected", right, "of 5", TARGET))
    publish(figures, arguments.json)


def selection_for(shape: Shape) -> EngineSelection:
    """The engines of one party's matrix; both parties' matrices have the same shape."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as name:
        folder = Path(name)
        write_configurations(folder, shape)
        config = load_config(folder / PARTIES[0] / "config.yaml")
        if shape.link:
            config = config.model_copy(update={"link": LinkConfig(**shape.link)})
        return select_all_engines(config, [own_costs(config)])[PARTIES[0]]


def estimated(selection: EngineSelection, shape: Shape) -> dict[str, float]:
    """Seconds of both parties' products in all iterations, with one engine for all."""
    pairs = {engine: replace(selection, distance=engine, update=engine) for engine in ENGINES}
    return {engine: len(PARTIES) * shape.iterations * pair.seconds for engine, pair in pairs.items()}


def _listed(seconds: dict[str, float]) -> str:
    return ", ".join(f"{seconds[engine]:,.1f}" for engine in ENGINES)


if __name__ == "__main__":
    main()
