"""The planner against the clock: on five shapes, both engines are run, and `auto` should have chosen the faster.

The choice is the one that `veilmeans plan` shows at one of the parties; times are of the whole online phase, two
parties as processes with mutual TLS.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.kmeans_runs import PARTIES, Shape, measure, slow_down, write_configurations
from benchmarks.report import Figure, parser, publish
from veilmeans.pipelines.planning.engine_selection import ENGINES, EngineSelection, own_costs, select_all_engines
from veilmeans.schemas.config import load_config

_WAN = {"rate_mbps": 20, "round_trip_ms": 40}
_LEASED = {"rate_mbps": 100, "round_trip_ms": 10}
_SHORT = {"rows_per_shard": 2_000}
SHAPES = {
    "dense": Shape(20_000, 16, 4, 2),
    "dense, WAN": Shape(20_000, 16, 4, 2, link=_WAN),
    "99 % zeros": Shape(8_000, 2_000, 4, 2, zeros=0.99),
    "99 % zeros, WAN": Shape(8_000, 2_000, 4, 2, zeros=0.99, link=_WAN),
    "one-hot, leased line": Shape(4_000, 20_000, 4, 2, one_hot=10, link=_LEASED, engine=_SHORT),
}
WANTED = 4
"""Of the five."""


def main() -> None:
    arguments = parser(__doc__).parse_args()
    table = Table("shape", "estimated, s: beaver, he", "chosen", "measured, s: beaver, he", "right")
    figures, right = [], 0
    for name, shape in SHAPES.items():
        choice = choice_for(shape)
        measured = {engine: measure(replace(shape, products=engine)).online for engine in ENGINES}
        hit = choice.distance == choice.update == min(measured, key=lambda engine: measured[engine])
        right += hit
        row = (name, _listed(estimated(choice, shape)), f"{choice.distance}, {choice.update}", _listed(measured))
        table.add_row(*row, "yes" if hit else "no")
        figures += [Figure(f"{name}: online time, {engine}", value, "s") for engine, value in measured.items()]
    Console(width=140).print(table)
    figures.append(Figure.at_least("shapes on which the faster engine is chosen", right, "of 5", WANTED))
    publish(figures, arguments.json)


def choice_for(shape: Shape) -> EngineSelection:
    """What the planner chooses for a party's matrix; both parties' are alike here."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as name:
        folder = Path(name)
        write_configurations(folder, shape)
        slow_down(folder, shape)
        config = load_config(folder / PARTIES[0] / "config.yaml")
        return select_all_engines(config, [own_costs(config)])[PARTIES[0]]


def estimated(choice: EngineSelection, shape: Shape) -> dict[str, float]:
    """Seconds of both parties' products in all iterations, with one engine for all."""
    pairs = {engine: replace(choice, distance=engine, update=engine) for engine in ENGINES}
    return {engine: len(PARTIES) * shape.iterations * pair.seconds for engine, pair in pairs.items()}


def _listed(seconds: dict[str, float]) -> str:
    return ", ".join(f"{seconds[engine]:,.1f}" for engine in ENGINES)


if __name__ == "__main__":
    main()
