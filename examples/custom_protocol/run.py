"""Run column_sums.py with two companies: `python run.py FOLDER`. payco uses the bare executor, shop uses Beam.

Each company is a process with its own keys, configuration and triple store; messages are sealed files in outboxes. The
dealer's part is `deal`: it sees shapes, never data. (`veilmeans offline` does the same for K-means, over the network.)
"""

import json
import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import apache_beam as beam
import numpy as np
from column_sums import ColumnSums, describe

from veilmeans import JobConfig, load_config
from veilmeans.protocols import (
    Address,
    BareExecutor,
    Manifest,
    Over,
    PartyContext,
    RunDescription,
    ShardShape,
    TraceExecutor,
    TripleStore,
    deal_corrections,
    not_counted,
)

DATA = {
    "payco": np.array([[12050, 0], [999, 1], [240000, 0], [6000, 2], [-1800, 0]]),  # cents paid, chargebacks
    "shop": np.array([[3, 3], [1, 1], [40, 1], [2, 2], [4, 2]]),  # visits, items
}
SHARDS = ([0, 1, 2], [3, 4])


def set_up(folder: Path) -> dict[str, JobConfig]:
    """Make keys and configurations as `veilmeans init` does; messages are files in outboxes."""
    files = [folder / name / "config.yaml" for name in DATA]
    configs = [part for file in files for part in ("--config", str(file))]
    for command in (["init", "--out", str(folder)], ["config", "set", *configs, "exchange.kind=files"]):
        line = [sys.executable, "-m", "veilmeans", *command]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return {name: load_config(folder / name / "config.yaml").online() for name in DATA}


def deal(configs: dict[str, JobConfig]) -> None:
    """Make every party's triple store, from the shapes of a trace."""
    widths = [data.shape[1] for data in DATA.values()]
    shapes = {Over.ROWS: [ShardShape(len(rows)) for rows in SHARDS], Over.ONE: [ShardShape(5)]}
    trace = TraceExecutor(widths, len(DATA), shapes)
    describe(trace)
    manifest, seeds = Manifest("first", runs=1, iterations=1, rows=5, plan=""), [os.urandom(32) for _ in configs]
    stores = [
        TripleStore.create(config.store_folder, manifest, seed)
        for config, seed in zip(configs.values(), seeds, strict=True)
    ]
    for shard in range(len(SHARDS)):
        stages = [stage for step in trace.steps for stages in step.shards[shard : shard + 1] for stage in stages]
        needs = {stage.name: stage.needs for stage in stages if stage.needs}
        corrections = deal_corrections(seeds, manifest.store, 0, Address("", 0, "", shard), needs)
        for party, store in enumerate(stores):
            store.write_corrections(0, 0, shard, corrections.get(party, {}))
    for store in stores:
        store.complete()


def take_part(config: JobConfig, result: Path) -> None:
    """Be one party: read its own data, run the protocol, write the opened sums."""
    context = PartyContext(config, binding="", store_number=0)
    job = ColumnSums(context, tuple(DATA[config.party][rows] for rows in SHARDS), result)
    if config.party == "payco":
        describe(BareExecutor(job, context.open(), not_counted))
    else:
        with beam.Pipeline() as pipeline:
            _ = pipeline | beam.Create([0]) | RunDescription(job, describe, one_call=False)


def main(folder: Path) -> None:
    """Set up, deal, run both companies at the same time, and print what each has learned."""
    configs = set_up(folder)
    deal(configs)
    processes = {
        name: get_context("spawn").Process(target=take_part, args=(config, folder / name / "sums.json"))
        for name, config in configs.items()
    }
    for process in processes.values():
        process.start()
    for name, process in processes.items():
        process.join()
        if process.exitcode:
            sys.exit(f"{name} has failed")
        print(name, json.loads((folder / name / "sums.json").read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
