"""The dealer: seconds and bytes per million comparisons, and its memory as rows grow tenfold.

Each size is a process of its own that runs the dealer's pipeline on DirectRunner for one 64-bit comparison a row, from
shapes alone; what it would send is counted and dropped.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import apache_beam as beam

from benchmarks.report import Figure, parser, publish
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.pipelines.session.beam_runner import CachedOptions
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.offline.dealer import DealShards, Place
from veilmeans.transforms.offline.requirements import StepShapes, StoreRequirements
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.rounds.trace import Shapes

ROWS_PER_SHARD = 16_384
SIZES = (100_000, 1_000_000)


@dataclass
class Counter:
    """An exchange to nowhere."""

    sent: int = 0

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        self.sent += sum(message.payload.size for message in messages)


COUNTER = Counter()


class DealToNobody(DealShards):
    """The dealer's own work, its messages counted."""

    def setup(self) -> None:
        self.exchange = COUNTER  # type: ignore[assignment]
        self.seeds = [bytes([i]) * 32 for i in range(2)]


def shapes(block: ShardShape) -> list[Shapes]:
    return [{"x": ((block.rows,), "uint64")}] * 2


def deal(rows: int) -> dict[str, float]:
    """Deal for `rows` comparisons in this process."""
    plan = StoreRequirements.of_rows((StepShapes(sign(Comparison("x", "b"), 2), shapes),), rows, ROWS_PER_SHARD)
    places: list[Place] = [(0, 0, shard) for shard in range(plan.shards)]
    config = JobConfig.model_construct(party="dealer", parties=("payco", "shop"), run="bench")  # type: ignore[call-arg]
    start = time.perf_counter()
    with beam.Pipeline("FnApiRunner", options=CachedOptions([])) as pipeline:
        _ = pipeline | beam.Create(places) | beam.Reshuffle() | beam.ParDo(DealToNobody(config, plan, "bench"))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "bytes": COUNTER.sent, "peak": peak}


def in_a_process(rows: int) -> dict[str, float]:
    program = f"import json; from benchmarks.dealer import deal; print(json.dumps(deal({rows})))"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    arguments = parser(__doc__).parse_args()
    small, large = (in_a_process(rows) for rows in SIZES)
    figures = [
        Figure("dealer: seconds per million comparisons", large["seconds"], "s"),
        Figure("dealer: store per million comparisons", large["bytes"] / 1e6, "MB"),
        *(
            Figure(f"dealer: peak memory, {n:,} rows", m["peak"] / 1e6, "MB")
            for n, m in zip(SIZES, (small, large), strict=True)
        ),
        Figure.at_most("dealer: memory at ten times the rows", large["peak"] / small["peak"], "×", 1.1),
    ]
    publish(figures, arguments.json)


if __name__ == "__main__":
    from benchmarks import dealer

    dealer.main()
