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

from benchmarks.figures import Figure, parser, publish
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.pipelines.session.beam_runner import OnStoreShard
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import ShardShape, shard_lengths
from veilmeans.transforms.offline.dealer import DealShards
from veilmeans.transforms.offline.traced_job import JobStep, StoreShard, TracedJob
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.rounds.beam_patches import CachedOptions
from veilmeans.transforms.rounds.executor import Over
from veilmeans.transforms.rounds.interfaces import Shapes
from veilmeans.transforms.rounds.trace import trace

ROWS_PER_SHARD = 16_384
SIZES = (100_000, 1_000_000)


@dataclass
class CountingExchange:
    """An exchange that counts and drops its messages."""

    sent: int = 0

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        self.sent += sum(message.payload.size for message in messages)


COUNTER = CountingExchange()


class CountDealtShards(DealShards):
    """The dealer's work, with its messages counted and dropped."""

    def setup(self) -> None:
        self.exchange = COUNTER  # type: ignore[assignment]
        self.seeds = [bytes([i]) * 32 for i in range(2)]


def shapes(shard: ShardShape) -> list[Shapes]:
    return [{"x": ((shard.rows,), "uint64")}] * 2


def deal(rows: int) -> dict[str, float]:
    """Deal for `rows` comparisons in this process."""
    shards = tuple(map(ShardShape, shard_lengths(rows, ROWS_PER_SHARD)))
    stages = {shape: tuple(trace(sign(Comparison("x", "b"), 2), shapes(shape))) for shape in set(shards)}
    plan = TracedJob(shards, (), (JobStep("compare", "", "", Over.ROWS, "iteration", (), stages),))
    store_shards: list[StoreShard] = [(0, 0, shard) for shard in range(plan.store_shards)]
    config = JobConfig.model_construct(party="dealer", parties=("payco", "shop"), run="bench")  # type: ignore[call-arg]
    start = time.perf_counter()
    with beam.Pipeline("FnApiRunner", options=CachedOptions([])) as pipeline:
        _ = (
            pipeline
            | beam.Create(store_shards)
            | beam.Reshuffle()
            | beam.ParDo(OnStoreShard(CountDealtShards(config, plan, "bench")))
        )
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "bytes": COUNTER.sent, "peak": peak}


def deal_in_process(rows: int) -> dict[str, float]:
    program = f"import json; from benchmarks.dealer import deal; print(json.dumps(deal({rows})))"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    arguments = parser(__doc__).parse_args()
    small, large = (deal_in_process(rows) for rows in SIZES)
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
