"""One party of a multiplication chain, as a process of its own: x ← x·y, `rounds` times over all shards.

    python -m support.chain_party CONFIG [--rounds 12] [--executor bare] [--order 7] [--disorder 7] [--fault 3:send:die]

Input and output are Arrow files in the party's storage: `input-<shard>.arrow` and `output.arrow`.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa

from veilmeans.pipelines.session.beam_runner import run_pipeline
from veilmeans.pipelines.session.session import exchange_farewells, open_session
from veilmeans.schemas.arrays import Arrays, from_stream, to_batch, write_stream
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import recover_error
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.primitives.multiply import MULTIPLY
from veilmeans.transforms.rounds.beam_rounds import RunProtocol
from veilmeans.transforms.rounds.executor import run_rounds
from veilmeans.transforms.rounds.party_context import PartyContext
from veilmeans.transforms.rounds.protocol import Protocol


def chain(rounds: int) -> Protocol:
    return (MULTIPLY * rounds).named("chain")


def write_arrays(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file:
        write_stream(to_batch(arrays), file)


def read_arrays(path: Path) -> Arrays:
    with pa.memory_map(str(path)) as source:
        return from_stream(source)


def write_inputs(config: JobConfig, shards: dict[int, Arrays]) -> None:
    for shard, arrays in shards.items():
        write_arrays(config.storage / f"input-{shard}.arrow", arrays)


def read_output(config: JobConfig) -> dict[int, Arrays]:
    return {int(name): {"x": array} for name, array in read_arrays(config.storage / "output.arrow").items()}


def _load(shard: int, folder: Path) -> tuple[int, Shard]:
    return shard, Shard(arrays=dict(read_arrays(folder / f"input-{shard}.arrow")))


class Save(beam.DoFn):
    """Write one shard's result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        shard, state = element
        write_arrays(self.folder / f"output-{shard}.arrow", {"x": state.arrays["x"]})
        yield shard


def run_chain(config: JobConfig, rounds: int, executor: str, order: int) -> None:
    """Run this party's side of the chain."""
    shards = sorted(int(p.stem.split("-")[1]) for p in config.storage.glob("input-*.arrow"))
    shuffled = [int(i) for i in np.random.default_rng(order).permutation(shards)]
    context = PartyContext(config, binding="chain", store_number=0)
    with open_session(config) as exchange:
        if executor == "bare":
            inputs = {shard: _load(shard, config.storage)[1].arrays for shard in shuffled}
            for shard, state in run_rounds(chain(rounds), context.open(), inputs).items():
                write_arrays(config.storage / f"output-{shard}.arrow", {"x": state["x"]})
        else:
            run_pipeline(config, lambda pipeline: _build(pipeline, config, context, rounds, shuffled))
        exchange_farewells(exchange, config, iteration=1)
    outputs = {str(s): read_arrays(config.storage / f"output-{s}.arrow")["x"] for s in shards}
    write_arrays(config.storage / "output.arrow", outputs)


def _build(pipeline: beam.Pipeline, config: JobConfig, context: PartyContext, rounds: int, shards: list[int]) -> None:
    _ = (
        pipeline
        | beam.Create(shards)
        | beam.Reshuffle()
        | beam.Map(_load, config.storage).with_output_types(tuple[int, Shard])
        | RunProtocol(chain(rounds), context)
        | beam.ParDo(Save(config.storage))
    )


def main() -> None:
    from support.fault_injection import add_flags, apply_faults

    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--executor", choices=["bare", "beam"], default="beam")
    parser.add_argument("--order", type=int, default=0)
    add_flags(parser)
    arguments, flags = parser.parse_known_args()
    config = load_config(arguments.config).with_flags(flags)
    apply_faults(arguments, marks=config.storage)
    try:
        run_chain(config, arguments.rounds, arguments.executor, arguments.order)
    except Exception as error:
        known = recover_error(error)
        if known is None:
            raise
        print(f"error: {known.sentence}", file=sys.stderr)
        sys.exit(known.code)


if __name__ == "__main__":
    main()
