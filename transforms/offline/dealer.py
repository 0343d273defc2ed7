"""The dealer's work: the corrections that the parties' seeds determine, sent shard by shard and taken into stores.

It needs shapes and seeds. It never sees data, nor any message between the parties.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import apache_beam as beam
import numpy as np

from veilmeans.crypto.correlations import CorrelationPart, corrections
from veilmeans.crypto.prg import SEED_SIZE, derive
from veilmeans.io.exchange.connections import open_exchange
from veilmeans.io.exchange.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.storage.secret_files import read_secret, write_secret
from veilmeans.io.storage.triple_store import Manifest, TripleStore, correction_name, stage_of, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.requirements import Needs, StoreRequirements
from veilmeans.transforms.rounds.protocol import Inbox
from veilmeans.transforms.rounds.stage_metrics import Tally, count_stage, shard_sent

CORRECTIONS = "offline.corrections"
Place = tuple[int, int, int]
"""Run number, iteration, shard."""


class DealShards(beam.DoFn):
    """The dealer: corrections of one shard, on their way to the parties."""

    def __init__(self, config: JobConfig, plan: StoreRequirements, store: str) -> None:
        self.config, self.plan, self.store = config, plan, store

    def setup(self) -> None:
        self.exchange = open_exchange(self.config)
        self.seeds = _seeds(self.config)

    def process(self, place: Place) -> Iterator[int]:
        number, iteration, shard = place
        needs, start = self.plan.needs(shard, iteration), time.perf_counter()
        dealt = deal(self.seeds, self.store, number, Address("", iteration, "", shard), needs)
        tally = Tally(computed=time.perf_counter() - start)
        for party, arrays in dealt.items():
            key = MessageKey(_message_address(self.config, place), self.config.party, self.config.parties[party])
            message, start = Outgoing.of(key, arrays), time.perf_counter()
            self.exchange.put_all([message])
            tally.handed_over += time.perf_counter() - start
            tally.messages += 1
            _report_arrays(arrays, "bytes_sent")
        count_stage(CORRECTIONS, tally)
        shard_sent(iteration, "offline", shard, 0)
        yield len(dealt)


class ReceiveShards(beam.DoFn):
    """A party: corrections of one shard, into the store. The dealer waits for nobody, so waiting for it is safe."""

    def __init__(self, config: JobConfig, plan: StoreRequirements, manifest: Manifest) -> None:
        self.config, self.plan, self.manifest = config, plan, manifest

    def setup(self) -> None:
        self.exchange = open_exchange(self.config)
        self.store = TripleStore(self.config.store_folder, self.manifest, b"")

    def process(self, place: Place) -> Iterator[int]:
        number, iteration, shard = place
        shard_sent(iteration, "offline", shard, 0)
        expected = corrections_for(self.config.me.index, self.plan.needs(shard, iteration))
        if self.store.has_corrections(number, iteration, shard):
            return
        if not expected:  # an empty file says that nothing is missing
            self.store.write_corrections(number, iteration, shard, {})
            return
        key = MessageKey(_message_address(self.config, place), self.config.dealer or "", self.config.party)
        start = time.perf_counter()
        arrays = _dealt(self.exchange, key, expected, self.config.exchange.timeout_s)
        count_stage(CORRECTIONS, Tally(waited=time.perf_counter() - start))
        self.store.write_corrections(number, iteration, shard, arrays)
        _report_arrays(arrays, "bytes_received")
        yield len(arrays)


def _report_arrays(arrays: Arrays, counted: str) -> None:
    """Count the bytes of corrections under the stages that will use them."""
    for name, array in arrays.items():
        count_stage(stage_of(name), Tally(**{counted: array.nbytes}))


def _message_address(config: JobConfig, place: Place) -> Address:
    number, iteration, shard = place
    return Address(config.run, iteration, f"offline.{number}", shard)


def _dealt(exchange: Exchange, key: MessageKey, expected: Arrays, timeout: float) -> dict[str, Array]:
    """A message of the dealer's, whose arrays must have the shapes and types expected."""
    inbox = Inbox(Party(1, (key.sender, key.recipient)), {0: get_arrays(exchange, key, timeout)})
    return {name: inbox.from_peer(0, name, like) for name, like in expected.items()}


def _seeds(config: JobConfig) -> list[bytes]:
    """One seed for each party from a fresh secret of the store, kept so that a dealer started again deals the same."""
    file = _seed_file(config)
    if not file.exists():
        write_secret(file, os.urandom(SEED_SIZE))
    return [derive(read_secret(file), f"party {name}") for name in config.parties]


def _seed_file(config: JobConfig) -> Path:
    return config.run_folder / "dealer.seed"


def deal(seeds: Sequence[bytes], store: str, number: int, where: Address, needs: Needs) -> dict[int, dict[str, Array]]:
    """Party -> name -> correction, for all stages of the shard and iteration of `where`."""
    dealt: dict[int, dict[str, Array]] = {}
    for stage, asked in needs.items():
        address = store_address(store, number, Address(where.run, where.iteration, stage, where.shard))
        for need in asked:
            for part, array in corrections(seeds, address, need.scope, need.kind).items():
                name = correction_name(stage, need.label(part.name))
                dealt.setdefault(part.holders[-1], {})[name] = array
    return dealt


def corrected_parts(party: int, needs: Needs) -> dict[str, CorrelationPart]:
    """The names under which `party` gets corrections, each with the part that it corrects."""
    return {
        correction_name(stage, need.label(part.name)): part
        for stage, asked in needs.items()
        for need in asked
        for part in need.kind.determined_parts()
        if part.holders[-1] == party
    }


def corrections_for(party: int, needs: Needs) -> dict[str, Array]:
    """The same names, each with an array of zeros in its shape and type."""
    return {name: np.zeros(part.shape, part.dtype) for name, part in corrected_parts(party, needs).items()}
