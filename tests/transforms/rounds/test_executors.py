"""The Beam executor against the bare one: several processes, both exchanges, other worker counts, other orders."""

from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from support.chain_party import chain, read_output, write_inputs
from support.chain_rounds import ROUNDS, SHARDS, make_shards
from support.fault_injection import PATIENCE, exit_code, run_chain_party, start_process
from support.parties import (
    TRIPLES,
    InMemoryExchange,
    deal_stores,
    in_parallel,
    make_configs,
    reconstruct,
    run_parties,
    write_config,
)
from veilmeans.io.exchange.connections import close_exchange
from veilmeans.io.storage.triple_store import StoreRun
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.rounds.executor import run_rounds
from veilmeans.transforms.rounds.party_context import PartyContext


def finish(processes: Mapping[str, BaseProcess], folder: Path) -> None:
    for name, process in processes.items():
        assert exit_code(process, 4 * PATIENCE) == 0, f"{name}: {(folder / f'{name}.log').read_text()[-3000:]}"


@pytest.mark.parametrize("kind", ["gateway", "files"])
@pytest.mark.processes
def test_beam_equals_bare_bit_for_bit_with_unequal_workers_and_shuffled_shards(tmp_path: Path, kind: str) -> None:
    """The bare executor's parties have the same seeds and triples in this process: shares must be equal, not only
    values. (That it works in processes of its own, too, is shown where these are killed.)"""
    held, expected = make_shards(2, SHARDS, rows=50)
    configs = make_configs(tmp_path, kind=kind, triples=TRIPLES)
    stores = deal_stores([config.store_folder for config in configs.values()], chain(ROUNDS), held)
    processes = {}
    for i, (name, config) in enumerate(configs.items()):
        write_inputs(config, held[i])
        flags = [
            str(write_config(config, tmp_path / f"{name}.yaml")),
            f"--rounds={ROUNDS}",
            "--executor=beam",
            f"--order={i}",
            f"--direct_num_workers={i + 1}",
            "--direct_running_mode=multi_threading",
        ]
        processes[name] = start_process(run_chain_party, flags, tmp_path / f"{name}.log")
    bare = all_bare(configs, stores, held)
    finish(processes, tmp_path)
    beam = [read_output(config) for config in configs.values()]
    for shard, value in expected.items():
        np.testing.assert_array_equal(reconstruct(beam, shard), value)
        for one, other in zip(bare, beam, strict=True):
            np.testing.assert_array_equal(one[shard]["x"], other[shard]["x"])


def all_bare(
    configs: dict[str, JobConfig], stores: list[StoreRun], held: list[dict[int, Arrays]]
) -> list[dict[int, Arrays]]:
    """Everyone's shares at the end, by the bare executor over one board."""
    board = InMemoryExchange()
    contexts = [
        replace(PartyContext(config, "chain").open(), exchange=board, triples=store)
        for config, store in zip(configs.values(), stores, strict=True)
    ]
    states = in_parallel([lambda i=i: run_rounds(chain(ROUNDS), contexts[i], held[i]) for i in range(len(contexts))])
    for config in configs.values():
        close_exchange(config)
    return states


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_the_bare_executor_multiplies(tmp_path: Path, parties: int) -> None:
    held, expected = make_shards(parties, shards=3, rows=20)
    states, _ = run_parties(chain(ROUNDS), held, tmp_path)
    for shard, value in expected.items():
        np.testing.assert_array_equal(reconstruct(states, shard), value)
