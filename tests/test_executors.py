"""The Beam executor against the bare one: several processes, both exchanges, other worker counts, other orders."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chain_party import chain, read_output, write_inputs
from parties import TRIPLES, deal_stores, joined, make_configs, run_parties, split, write_config
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig

HERE = Path(__file__).parent
ROUNDS, SHARDS = 12, 64


def make_shards(parties: int, shards: int, rows: int) -> tuple[list[dict[int, Arrays]], dict[int, ring.Ring]]:
    """Shares of random x and y for each party, and x·y^ROUNDS; the last shard has one row."""
    rng = np.random.default_rng(1)
    held: list[dict[int, Arrays]] = [{} for _ in range(parties)]
    expected = {}
    for shard in range(shards):
        size = (1 if shard == shards - 1 else rows, 2)
        x, y = (rng.integers(0, 2**64, size, np.uint64) for _ in "xy")
        for i, (xs, ys) in enumerate(zip(split(x, parties, shard), split(y, parties, shard + 1000), strict=True)):
            held[i][shard] = {"x": xs, "y": ys}
        for _ in range(ROUNDS):
            x = x * y
        expected[shard] = x
    return held, expected


def start(file: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(HERE / "chain_party.py"), str(file), "--rounds", str(ROUNDS), *flags]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finish(processes: "dict[str, subprocess.Popen[str]]") -> None:
    for name, process in processes.items():
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, f"{name}: {output[-3000:]}"


@pytest.mark.parametrize("kind", ["gateway", "files"])
def test_beam_equals_bare_bit_for_bit_with_unequal_workers_and_shuffled_shards(tmp_path: Path, kind: str) -> None:
    held, expected = make_shards(2, SHARDS, rows=50)
    outputs = {}
    for executor in ("bare", "beam"):
        configs = make_configs(tmp_path / executor, kind=kind, triples=TRIPLES)
        deal_stores([c.store_folder for c in configs.values()], chain(ROUNDS), held)
        copy_seeds(tmp_path, executor, configs)
        processes = {}
        for i, (name, config) in enumerate(configs.items()):
            write_inputs(config, held[i])
            flags = [f"--executor={executor}", f"--order={i}"]
            if executor == "beam":
                flags += [f"--direct_num_workers={i + 1}", "--direct_running_mode=multi_threading"]
            processes[name] = start(write_config(config, tmp_path / executor / f"{name}.yaml"), *flags)
        finish(processes)
        outputs[executor] = [read_output(config) for config in configs.values()]
    for shard, value in expected.items():
        np.testing.assert_array_equal(joined(outputs["beam"], shard), value)
    for bare, beam in zip(outputs["bare"], outputs["beam"], strict=True):
        for shard in expected:
            np.testing.assert_array_equal(bare[shard]["x"], beam[shard]["x"])


def copy_seeds(folder: Path, executor: str, configs: dict[str, JobConfig]) -> None:
    """Give both executors' parties the same seeds and triples, so that shares must be equal, not only values."""
    if executor != "bare":
        for name, config in configs.items():
            config.seed.write_bytes((folder / "bare" / name / f"{name}.seed").read_bytes())
            bare = folder / "bare" / name / "storage/triples/store"
            copied = [bare / "seed", *bare.rglob("*.arrow")]
            assert len(copied) == (1 + len(list(config.storage.glob("triples/store/corrections/0/0/*.arrow"))))
            for file in copied:
                (config.store_folder / file.relative_to(bare)).write_bytes(file.read_bytes())


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_the_bare_executor_multiplies(tmp_path: Path, parties: int) -> None:
    held, expected = make_shards(parties, shards=3, rows=20)
    states, _ = run_parties(chain(ROUNDS), held, tmp_path)
    for shard, value in expected.items():
        np.testing.assert_array_equal(joined(states, shard), value)
