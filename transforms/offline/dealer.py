"""The dealer's corrections: computed from the parties' seeds, sent shard by shard, written to the triple stores.

  dealer   makes a seed for each party and sends it; computes the corrections that the seeds determine
           (`crypto.correlations`) and sends each party its own
  party    receives its seed and its corrections, checks their shapes and types, and writes them to its triple store

The dealer needs shapes and seeds. It never sees data, nor any message between the parties.
"""

import os
import time
from collections.abc import Iterator, Sequence

import numpy as np

from veilmeans.crypto.correlations import CorrelationPart, compute_corrections
from veilmeans.crypto.prg import SEED_SIZE, derive
from veilmeans.io.exchange.connections import attach_shared, open_exchange
from veilmeans.io.exchange.exchange import Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.files.party_files import files_at
from veilmeans.io.files.secret_files import read_secret, write_secret
from veilmeans.io.storage.freed_memory import release_often
from veilmeans.io.storage.number_seeds import derive_number_seed
from veilmeans.io.storage.triple_store import Manifest, TripleStore, correction_name, stage_of, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, nbytes
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.traced_job import Needs, StoreJobs, StoreShard
from veilmeans.transforms.rounds.executor import CountStage
from veilmeans.transforms.rounds.protocol import Inbox
from veilmeans.transforms.rounds.stage_metrics import OFFLINE, StageMetrics, count_stage, shard_sent

SEEDS = "offline.seed"
_CORRECTIONS = "offline.corrections"
"""Stage in metrics for the time of dealing; bytes are counted under the stages that use the corrections."""
_RELEASE = 4 << 20
"""Bytes of corrections after which freed memory is returned: each row shard of a large store."""


# the dealer's side
def make_dealer_seed(config: JobConfig) -> None:
    """Make the store's secret, unless it exists: it is kept so that a rerun deals the same."""
    file = config.run_folder.dealer_seed
    if not files_at(file).exists(file):
        write_secret(file, os.urandom(SEED_SIZE))


def dealer_seeds(config: JobConfig) -> list[bytes]:
    """Derive a seed for each party from the store's secret; a worker that cannot see it must not make its own."""
    file = config.run_folder.dealer_seed
    if not files_at(file).exists(file):
        raise StorageError(f"the dealer's {file} is not there: workers must see the dealer's storage, or set shared")
    return [derive(read_secret(file), f"party {name}") for name in config.parties]


def delete_dealer_seeds(config: JobConfig) -> None:
    """Delete the store's secret: when every party has its store, the dealer need not know the masks any longer."""
    file = config.run_folder.dealer_seed
    files_at(file).delete(file)


def send_seeds(exchange: Exchange, config: JobConfig) -> None:
    """Send each party its seed."""
    make_dealer_seed(config)
    seeds = zip(config.parties, dealer_seeds(config), strict=True)
    deliver_now(
        exchange,
        [Outgoing.of(_seed_key(config, name), {"seed": np.frombuffer(seed, np.uint8)}) for name, seed in seeds],
    )


class DealShards:
    """Compute the corrections of one shard and send them to the parties."""

    def __init__(self, config: JobConfig, plan: StoreJobs, store: str) -> None:
        self.config, self.plan, self.store = config, plan, store

    def setup(self) -> None:
        attach_shared(self.config)
        self.exchange = open_exchange(self.config)
        self.seeds = dealer_seeds(self.config)

    def process(self, store_shard: StoreShard, count: CountStage = count_stage) -> Iterator[int]:
        number, iteration, shard = store_shard
        needs, start = self.plan.of(number).needs(shard, iteration), time.perf_counter()
        dealt = deal_corrections(self.seeds, self.store, number, Address("", iteration, "", shard), needs)
        metrics = StageMetrics(computed=time.perf_counter() - start)
        messages = [self._message(store_shard, party, dealt.pop(party), count) for party in list(dealt)]
        release_often(sum(message.payload.size for message in messages), _RELEASE)
        for message in messages:  # while one waits for the party, nothing but messages is in memory
            start = time.perf_counter()
            self.exchange.put_all([message])
            metrics.delivered += time.perf_counter() - start
            metrics.messages += 1
        count(_CORRECTIONS, metrics)
        shard_sent(iteration, OFFLINE, shard, 0)
        yield len(messages)

    def _message(self, store_shard: StoreShard, party: int, corrections: Arrays, count: CountStage) -> Outgoing:
        for name, array in corrections.items():
            count(stage_of(name), StageMetrics(bytes_sent=array.nbytes))
        return Outgoing.of(_corrections_key(self.config, store_shard, self.config.parties[party]), corrections)


def deal_corrections(
    seeds: Sequence[bytes], store: str, number: int, where: Address, needs: Needs
) -> dict[int, dict[str, Array]]:
    """Compute party -> name -> correction, for all stages of the shard and iteration of `where`."""
    dealt: dict[int, dict[str, Array]] = {}
    seeds = [derive_number_seed(seed, number) for seed in seeds]
    for stage, stage_needs in needs.items():
        address = store_address(store, number, Address(where.run, where.iteration, stage, where.shard))
        for need in stage_needs:
            for part, array in compute_corrections(seeds, address, need.scope, need.kind).items():
                name = correction_name(stage, need.label(part.name))
                dealt.setdefault(part.holders[-1], {})[name] = array
    return dealt


# a party's side
def receive_seed(exchange: Exchange, config: JobConfig) -> bytes:
    """Wait for this party's seed."""
    expected = {"seed": np.zeros(SEED_SIZE, np.uint8)}
    return _receive(exchange, _seed_key(config, config.party), expected, config)["seed"].tobytes()


class ReceiveShards:
    """Write the corrections of one shard to the triple store. Waiting for the dealer is safe: it waits for nobody."""

    def __init__(self, config: JobConfig, plan: StoreJobs, manifest: Manifest) -> None:
        self.config, self.plan, self.manifest = config, plan, manifest

    def setup(self) -> None:
        attach_shared(self.config)
        self.exchange = open_exchange(self.config)
        self.store = TripleStore(self.config.store_folder, self.manifest, b"")

    def process(self, store_shard: StoreShard, count: CountStage = count_stage) -> Iterator[int]:
        number, iteration, shard = store_shard
        shard_sent(iteration, OFFLINE, shard, 0)
        if self.store.has_corrections(number, iteration, shard):
            return
        expected = expected_corrections(self.config.me.index, self.plan.of(number).needs(shard, iteration))
        if not expected:  # an empty file says that nothing is missing
            self.store.write_corrections(number, iteration, shard, {})
            return
        start = time.perf_counter()
        key = _corrections_key(self.config, store_shard, self.config.party)
        corrections = _receive(self.exchange, key, expected, self.config)
        count(_CORRECTIONS, StageMetrics(waited=time.perf_counter() - start))
        self.store.write_corrections(number, iteration, shard, corrections)
        release_often(nbytes(corrections), _RELEASE)
        for name, array in corrections.items():
            count(stage_of(name), StageMetrics(bytes_received=array.nbytes))
        yield len(corrections)


def expected_corrections(party: int, needs: Needs) -> dict[str, Array]:
    """Zeros in the shapes and types of the corrections that `party` gets, by name."""
    return {name: np.zeros(part.shape, part.dtype) for name, part in corrected_parts(party, needs).items()}


def corrected_parts(party: int, needs: Needs) -> dict[str, CorrelationPart]:
    """List the parts of correlations that `party` gets corrections for, by the correction's name."""
    return {
        correction_name(stage, need.label(part.name)): part
        for stage, stage_needs in needs.items()
        for need in stage_needs
        for part in need.kind.determined_parts()
        if part.holders[-1] == party
    }


def _receive(exchange: Exchange, key: MessageKey, expected: Arrays, config: JobConfig) -> dict[str, Array]:
    """Wait for a message of the dealer's; refuse it if its arrays lack the expected shapes and types."""
    arrays = get_arrays(exchange, key, config.exchange.timeout_s)
    inbox = Inbox(Party(1, (key.sender, key.recipient)), {0: arrays})
    return {name: inbox.from_peer(0, name, like) for name, like in expected.items()}


# message keys of both sides
def _seed_key(config: JobConfig, recipient: str) -> MessageKey:
    return MessageKey(Address(config.run, 0, SEEDS, 0), config.dealer or "", recipient)


def _corrections_key(config: JobConfig, store_shard: StoreShard, recipient: str) -> MessageKey:
    number, iteration, shard = store_shard
    return MessageKey(Address(config.run, iteration, f"offline.{number}", shard), config.dealer or "", recipient)
