"""A party's context in a run: what an executor needs to run its rounds.

`PartyContext` is public and goes to the workers; `open` reads the secrets there, from the party's own files.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.he.scheme import Ciphertexts
from veilmeans.io.exchange.connections import attach_shared, open_exchange, run_seed, transcript_of
from veilmeans.io.exchange.exchange import Exchange, Outgoing, read_arrays
from veilmeans.io.exchange.worker_gateway import WorkerTranscript
from veilmeans.io.messages.transcript import TranscriptWriter
from veilmeans.io.storage.checkpoints import Checkpoints, encrypted
from veilmeans.io.storage.he_keyring import has_keys, load_keyring
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import StoreRun, TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import RunFolder, StoreFolder
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness
from veilmeans.transforms.rounds.forked_work import cores
from veilmeans.transforms.rounds.he_operations import HEContext, PowerTableCache
from veilmeans.transforms.rounds.protocol import Inbox, Sent, Stage
from veilmeans.transforms.rounds.stage_metrics import StageMetrics, shard_sent

_SMALL_EXPANSION, _MOST_EXPANSIONS = 1 << 18, 64  # bytes of a round's shares that are kept for its receive; how many


@dataclass(frozen=True)
class OpenPartyContext:
    """A context with its secrets and connections, in one process; never pickled.

    `folder` is where this party keeps what belongs to the run, `transcript` what records its messages.
    """

    party: Party
    run: str
    iteration: int
    exchange: Exchange
    seed: bytes = field(repr=False)
    triples: StoreRun | None
    scratch: Scratch
    timeout: float
    folder: RunFolder = RunFolder(Path())  # noqa: RUF009
    he_context: HEContext | None = None
    transcript: TranscriptWriter | WorkerTranscript | None = None
    expansions: dict[Address, dict[str, Array]] = field(default_factory=dict, repr=False, compare=False)

    def address(self, stage: Stage, shard: int) -> Address:
        """The address of one shard's work in one stage."""
        return Address(self.run, self.iteration, stage.name, shard)

    def randomness(self, stage: Stage, shard: int) -> AddressedRandomness:
        """The randomness for one call of a round."""
        address = self.address(stage, shard)
        expanded = self.expansions.pop(address, None) or {}
        return AddressedRandomness(
            self.party.index, self.seed, self.triples, address, he_context=self.he_context, _expanded=expanded
        )

    def keep_expansions(self, randomness: AddressedRandomness) -> None:
        """Keep small shares that a send has expanded: its receive need not expand them again."""
        if len(self.expansions) >= _MOST_EXPANSIONS:
            self.expansions.clear()
        self.expansions[randomness.address] = randomness.small_expansions(_SMALL_EXPANSION)

    def outgoing(self, stage: Stage, shard: int, sent: Sent) -> list[Outgoing]:
        """Make the messages of one shard's send."""
        address, names = self.address(stage, shard), self.party.names
        peers = stage.round.recipients(self.party)
        if stage.round.broadcast and sent.to is not None:
            raise ValueError(f"the round {stage.name} is a broadcast and has different messages for different peers")
        return [Outgoing.of(MessageKey(address, self.party.name, names[peer]), sent.for_peer(peer)) for peer in peers]

    def record_sent(self, stage: Stage, messages: Sequence[Outgoing]) -> None:
        """Record messages in the transcript, if there is one."""
        if self.transcript is not None and messages:
            self.transcript.record([(each.key, each.header) for each in messages], stage.round.broadcast)

    def await_durable(self) -> None:
        """Return when the peers have all that was sent, and the transcript of it is durable."""
        self.exchange.flush()
        if self.transcript is not None:
            self.transcript.sync(self.iteration)

    def inbox(self, stage: Stage, shard: int, metrics: StageMetrics) -> Inbox:
        """Wait for the messages of one shard's receive."""
        address, names = self.address(stage, shard), self.party.names
        messages = {}
        for peer in stage.round.senders(self.party):
            key = MessageKey(address, names[peer], self.party.name)
            payload = self.exchange.get(key, self.timeout)
            metrics.bytes_received += payload.size
            if self.transcript is not None:
                self.transcript.received(key, payload, stage.round.broadcast)
            messages[peer] = read_arrays(key, payload)
        return Inbox(self.party, messages)

    def __reduce__(self) -> str:
        raise TypeError("an OpenPartyContext holds secrets and connections: pickle its PartyContext")


@dataclass(frozen=True)
class PartyContext:
    """A party's context in one iteration of a run, without secrets.

    `binding` is the keyed digest of data and job, `store_number` the number that the run has claimed of the triple
    store, `extra_timeout_s` the seconds for which a peer may be silent beyond what the configuration allows. `once`:
    this is done once in a run, and the store has it with the first iteration. `opening`: the name of a later opening,
    which has a transcript of its own.
    """

    config: JobConfig
    binding: str
    iteration: int = 0
    store_number: int | None = None
    extra_timeout_s: float = 0.0
    once: bool = False
    opening: str = ""

    def open(self, exchange: Exchange | None = None) -> OpenPartyContext:
        """Read the secrets and connect; called where the rounds run. `exchange`: one that is open already."""
        config, store, he_context = self.config, None, None
        attach_shared(config)
        seed, connected = run_seed(config, self.binding), exchange or open_exchange(config)
        if self.store_number is not None:
            store = StoreRun(TripleStore.open(config.store_folder), self.store_number, once=self.once)
            if has_keys(config.store_folder):
                checkpoints, processes = run_checkpoints(config.run_folder, seed), cipher_processes(config)
                he_context = _he_context(config.store_folder, config.me, checkpoints, processes)
        return OpenPartyContext(
            party=config.me,
            run=config.run,
            iteration=self.iteration,
            exchange=connected,
            seed=seed,
            triples=store,
            scratch=Scratch(config.scratch_root),
            timeout=config.exchange.timeout_s + self.extra_timeout_s,
            folder=config.run_folder,
            he_context=he_context,
            transcript=None if exchange else transcript_of(config, self.opening, connected),
        )


def cipher_processes(config: JobConfig) -> int:
    """The processes that a worker spreads work on ciphertexts over: its part of the cores; other runners have workers.

    With `beam.workers` on DirectRunner, the workers share the cores.
    """
    return max(1, cores() // config.beam.workers) if config.beam.runner == "DirectRunner" else 1


def run_checkpoints(folder: RunFolder, seed: bytes, await_durable: Callable[[], None] | None = None) -> Checkpoints:
    """Open a party's checkpoints of a run, under a key derived from the run's seed.

    `await_durable` is called before a checkpoint is written, from which a rerun would resume.
    """
    key = prg.derive(seed, "checkpoints")
    return Checkpoints(folder, key) if await_durable is None else Checkpoints(folder, key, await_durable)


@lru_cache(maxsize=4)
def _he_context(store: StoreFolder, party: Party, checkpoints: Checkpoints, processes: int) -> HEContext:
    """Make the one context of this process, whose tables all shards share."""
    tables = PowerTableCache(partial(_encrypted_centroids, checkpoints))
    return HEContext(load_keyring(store, party), tables, processes)


def _encrypted_centroids(checkpoints: Checkpoints, iteration: int, peer: int) -> Ciphertexts:
    """Read Enc(μ) of a peer for all columns of this party, from the column shards in which it was received."""
    kind = encrypted(iteration)
    shards = [checkpoints.read_shard(kind, shard) for shard in checkpoints.shards(kind)]
    return np.concatenate([shard[f"y{peer}"] for shard in shards if f"y{peer}" in shard])


def send(
    context: OpenPartyContext,
    stage: Stage,
    shard: int,
    state: Arrays,
    metrics: StageMetrics,
    *,
    receives_here: bool = False,
) -> tuple[Arrays, list[Outgoing]]:
    """Run the first half of a round for one shard; return the state and the messages to deliver.

    `receives_here`: the same context soon runs the second half. A stage of a pipeline has a context of its own, which
    does not, and what it kept would stay until the pipeline ends.
    """
    start = time.perf_counter()
    randomness = context.randomness(stage, shard)
    sent = stage.round.send(context.party, state, randomness)
    if receives_here:
        context.keep_expansions(randomness)
    messages = context.outgoing(stage, shard, sent)
    context.record_sent(stage, messages)
    metrics.computed += time.perf_counter() - start
    size = sum(message.payload.size for message in messages)
    metrics.messages += len(messages)
    metrics.bytes_sent += size
    shard_sent(context.iteration, stage.name, shard, size)
    return sent.state, messages


def deliver(context: OpenPartyContext, messages: Sequence[Outgoing], metrics: StageMetrics) -> None:
    """Hand messages to the exchange, which sends them. They are acknowledged later: before a checkpoint is written."""
    start = time.perf_counter()
    context.exchange.put_all(messages)
    metrics.delivered += time.perf_counter() - start


def receive(context: OpenPartyContext, stage: Stage, shard: int, state: Arrays, metrics: StageMetrics) -> Arrays:
    """Run the second half of a round for one shard, after the barrier."""
    start = time.perf_counter()
    inbox = context.inbox(stage, shard, metrics)
    received = time.perf_counter()
    metrics.waited += received - start
    state = stage.round.receive(context.party, state, inbox, context.randomness(stage, shard))
    metrics.computed += time.perf_counter() - received
    return state
