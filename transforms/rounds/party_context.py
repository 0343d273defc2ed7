"""A party's seat in a run: what an executor needs to play its rounds.

`PartyContext` is public and goes to the workers; `open` reads the secrets there, from the party's own files.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.he.scheme import Ciphers
from veilmeans.io.exchange.connections import open_exchange
from veilmeans.io.exchange.exchange import Exchange, Outgoing, read_arrays
from veilmeans.io.storage.checkpoints import Checkpoints, encrypted
from veilmeans.io.storage.he_keyring import has_keys, load_keyring
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.secret_files import read_secret
from veilmeans.io.storage.triple_store import StoreRun, TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness
from veilmeans.transforms.rounds.he_operations import HEContext, Tables
from veilmeans.transforms.rounds.protocol import Inbox, Sent, Stage
from veilmeans.transforms.rounds.stage_metrics import Tally, shard_sent


@dataclass(frozen=True)
class OpenPartyContext:
    """A seat with its secrets in hand. Lives in one process, is never pickled."""

    party: Party
    run: str
    iteration: int
    exchange: Exchange
    seed: bytes = field(repr=False)
    triples: StoreRun | None
    scratch: Scratch
    timeout: float
    folder: Path = Path()
    """Where this party keeps what belongs to the run."""
    ciphers: HEContext | None = None

    def address(self, stage: Stage, shard: int) -> Address:
        return Address(self.run, self.iteration, stage.name, shard)

    def randomness(self, stage: Stage, shard: int) -> AddressedRandomness:
        where = self.address(stage, shard)
        return AddressedRandomness(self.party.index, self.seed, self.triples, where, ciphers=self.ciphers)

    def outgoing(self, stage: Stage, shard: int, sent: Sent) -> list[Outgoing]:
        """The messages of one shard's send."""
        where, names = self.address(stage, shard), self.party.names
        peers = stage.round.recipients(self.party)
        return [Outgoing.of(MessageKey(where, self.party.name, names[peer]), sent.for_peer(peer)) for peer in peers]

    def inbox(self, stage: Stage, shard: int, tally: "Tally") -> Inbox:
        """Wait for the messages of one shard's receive."""
        where, names = self.address(stage, shard), self.party.names
        messages = {}
        for peer in stage.round.senders(self.party):
            key = MessageKey(where, names[peer], self.party.name)
            payload = self.exchange.get(key, self.timeout)
            tally.bytes_received += payload.size
            messages[peer] = read_arrays(key, payload)
        return Inbox(self.party, messages)

    def __reduce__(self) -> str:
        raise TypeError("an open seat holds secrets and connections: pickle its Seat")


@dataclass(frozen=True)
class PartyContext:
    """A party's place in one iteration of a run.

    `binding` is the keyed digest of data and job, `store_number` what the run has claimed of the triple store,
    `patience` for how many seconds a peer may be silent beyond what the configuration allows.
    """

    config: JobConfig
    binding: str
    iteration: int = 0
    store_number: int | None = None
    patience: float = 0.0

    def open(self) -> OpenPartyContext:
        """Read the secrets and connect; called where the rounds run."""
        config = self.config
        seed = run_seed(config, self.binding)
        return OpenPartyContext(
            party=config.me,
            run=config.run,
            iteration=self.iteration,
            exchange=open_exchange(config),
            seed=seed,
            triples=self._store_run(),
            scratch=Scratch(config.scratch_root),
            timeout=config.exchange.timeout_s + self.patience,
            folder=config.run_folder,
            ciphers=self._ciphers(seed),
        )

    def _ciphers(self, seed: bytes) -> HEContext | None:
        """Keys and tables, where the store has ciphertexts."""
        config = self.config
        if self.store_number is None or not has_keys(config.store_folder):
            return None
        return _he_context(config.store_folder, config.me, checkpoints(config.run_folder, seed))

    def _store_run(self) -> StoreRun | None:
        if self.store_number is None:
            return None
        return StoreRun(TripleStore.open(self.config.store_folder), self.store_number)


def run_seed(config: JobConfig, binding: str) -> bytes:
    """The secret of a run, from which its masks and the key of its files are derived."""
    return prg.derive(read_secret(config.seed), f"run {config.run} {binding}")


def checkpoints(folder: Path, seed: bytes) -> Checkpoints:
    """What a party keeps of a run, under a key of its seed there."""
    return Checkpoints(folder, prg.derive(seed, "checkpoints"))


@lru_cache(maxsize=4)
def _he_context(store: Path, party: Party, kept: Checkpoints) -> HEContext:
    """One in a process: tables are shared by all that is worked on there."""
    return HEContext(load_keyring(store, party), Tables(partial(_encrypted_centroids, kept)))


def _encrypted_centroids(kept: Checkpoints, iteration: int, peer: int) -> Ciphers:
    """Enc(μ) of a peer for all my columns, as column shards brought it."""
    kind = encrypted(iteration)
    parts = [kept.read_shard(kind, shard) for shard in kept.shards(kind)]
    return np.concatenate([part[f"y{peer}"] for part in parts if f"y{peer}" in part])


def send(
    context: OpenPartyContext, stage: Stage, shard: int, state: Arrays, tally: Tally
) -> tuple[Arrays, list[Outgoing]]:
    """The first half of a round, for one shard."""
    start = time.perf_counter()
    sent = stage.round.send(context.party, state, context.randomness(stage, shard))
    messages = context.outgoing(stage, shard, sent)
    tally.computed += time.perf_counter() - start
    size = sum(message.payload.size for message in messages)
    tally.messages += len(messages)
    tally.bytes_sent += size
    shard_sent(context.iteration, stage.name, shard, size)
    return sent.state, messages


def deliver(context: OpenPartyContext, messages: Sequence[Outgoing], tally: Tally) -> None:
    """Until the messages are durable with their recipients: a slow link is felt here."""
    start = time.perf_counter()
    context.exchange.put_all(messages)
    tally.handed_over += time.perf_counter() - start


def receive(context: OpenPartyContext, stage: Stage, shard: int, state: Arrays, tally: Tally) -> Arrays:
    """The second half, after the barrier."""
    start = time.perf_counter()
    inbox = context.inbox(stage, shard, tally)
    arrived = time.perf_counter()
    tally.waited += arrived - start
    after = stage.round.receive(context.party, state, inbox, context.randomness(stage, shard))
    tally.computed += time.perf_counter() - arrived
    return after
