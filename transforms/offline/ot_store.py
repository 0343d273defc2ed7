"""A triple store that the parties make themselves: a set-up, then a pass over all places for each round.

A place is what one shard of one iteration of one run number needs. Bits, words and truncations are made by oblivious
transfers (`ot_setup`, `ot_places`), matrix triples by lattices (`lattice_products`).

  pass 0    send the messages of OTs and, once for each shard, Enc(U)
  pass 1    receive those; send corrections of OTs and Enc(U·V + R)
  pass 2    receive those; write the place to the store. With more than two parties some corrections wait for others
            (`ot_places`), and there is a pass for each round of them before this one

A pass ends before the next one begins, and no message of a pass needs another of the same pass: in whatever order and
with however many workers the parties work, none waits for ever. Between passes a place's OTs are files beside the store
(`MakingFolder`), which go when the store is complete; so memory does not grow with the number of places.

All secrets are functions of a seed that is drawn for this store, the session's nonce and an address: a rerun sends the
same bytes. When a pass ends everything that it sent is acknowledged, and a mark says so: a rerun does not repeat it.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from veilmeans.crypto.lattice.lattice_seeds import session_seed
from veilmeans.crypto.ot.ot_session import NONCE_SIZE
from veilmeans.crypto.prg import SEED_SIZE
from veilmeans.io.exchange.connections import attach_shared, open_exchange
from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.files.atomic_files import make_private_folder
from veilmeans.io.files.party_files import files_at, read_file_arrays, write_file_arrays
from veilmeans.io.files.secret_files import read_secret, write_secret
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, payload_size
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.run_folder import MakingFolder
from veilmeans.transforms.offline.lattice_products import (
    PlacedTriple,
    answer_products,
    corrections,
    message_specs,
    placed_triples,
    send_operands,
)
from veilmeans.transforms.offline.ot_places import OtPlace, correction_rounds
from veilmeans.transforms.offline.ot_setup import OtSetup
from veilmeans.transforms.offline.traced_job import StoreJobs, StoreShard
from veilmeans.transforms.rounds.executor import CountStage, not_counted, run_rounds
from veilmeans.transforms.rounds.party_context import OpenPartyContext, deliver, receive, send
from veilmeans.transforms.rounds.protocol import Stage
from veilmeans.transforms.rounds.stage_metrics import OFFLINE, StageMetrics, count_stage, shard_sent

_COT_SECONDS = 2e-7  # a peer may take so long for each COT, while it is silent


@dataclass(frozen=True)
class StoreMaking:
    """The public parameters of a store that is made, and where this party keeps what belongs to its making."""

    config: JobConfig
    plan: StoreJobs
    manifest: Manifest

    @property
    def folder(self) -> MakingFolder:
        return self.config.store_folder.making

    @property
    def store_shards(self) -> list[StoreShard]:
        """All places, in the order of their base COTs."""
        return self.plan.places(self.manifest.runs, self.manifest.iterations)

    @cached_property
    def setup(self) -> OtSetup:
        provider = self.config.provider
        if provider == "dealer":
            raise ValueError("a dealer makes this store")
        return OtSetup(self.manifest.store, len(self.store_shards), provider)

    def place(self, store_shard: StoreShard) -> OtPlace:
        """The OTs of a place. All places have as many rounds as the one with the most."""
        number, iteration, shard = store_shard
        address = store_address(self.manifest.store, number, Address("", iteration, "", shard))
        return OtPlace(self.setup, address, self.plan.of(number).needs(shard, iteration), self.correction_rounds)

    @cached_property
    def correction_rounds(self) -> int:
        return correction_rounds(self.plan.of(n).needs(s, i) for n, i, s in self._kinds_of_places)

    def matrix_triples(self, number: int, shard: int, *iterations: int) -> tuple[PlacedTriple, ...]:
        """The matrix triples of a shard in some iterations of the run with this number."""
        job = self.plan.of(number)
        return placed_triples({iteration: job.needs(shard, iteration) for iteration in iterations})

    def operands(self, number: int, shard: int) -> tuple[PlacedTriple, ...]:
        """Matrix triples with all operands of a shard: iterations after the second need no others."""
        return self.matrix_triples(number, shard, *range(min(2, self.manifest.iterations)))

    @cached_property
    def timeout(self) -> float:
        """Seconds to wait for a message: the peer may have all other places before it."""
        parties = range(len(self.config.parties))
        counts = [sum(map(self.place(each).cots, parties)) for each in self._kinds_of_places]
        most = max(counts, default=0) * len(self.store_shards)
        return self.config.exchange.timeout_s + _COT_SECONDS * most

    @property
    def _kinds_of_places(self) -> list[StoreShard]:
        """A place of each kind, of each job: of k-means++, first iteration and others; first shard and others."""
        places = self.plan.places(1, min(2, self.manifest.iterations))
        return [(number, iteration, shard) for number, iteration, shard in places if iteration >= -1 and shard < 2]

    @property
    def passes(self) -> int:
        """One to send OTs, one for each round of corrections, and one to receive the last."""
        return 2 + self.correction_rounds

    # what is kept until the store is complete
    def secrets(self) -> dict[str, bytes]:
        """The seed of this party's secrets and its contribution to the nonce: drawn once for a store."""
        file = self.folder.secret
        if not files_at(file).exists(file):
            make_private_folder(self.folder.path)
            write_secret(file, os.urandom(SEED_SIZE + NONCE_SIZE))
        content = read_secret(file)
        return {"seed": content[:SEED_SIZE], "contribution": content[SEED_SIZE:]}

    def setup_state(self) -> dict[str, Array]:
        """This party's state after the set-up, with its seed."""
        seed = np.frombuffer(self.secrets()["seed"], np.uint8)
        return {"seed": seed, **read_file_arrays(self.folder.setup)}

    def base(self, store_shard: StoreShard, state: Arrays) -> Arrays:
        """The base COTs of a place, or the base OTs' keys."""
        if self.setup.provider == "iknp":
            return {name: state[name] for name in ("keys", "pairs")}
        return read_file_arrays(self.folder.base(*store_shard))

    def end(self, number: int) -> None:
        """Mark a pass as ended: the peer has its messages. After pass 1 base COTs are used up."""
        make_private_folder(self.folder.path)
        self.folder.ended(number).touch()
        if number == 1:
            files_at(self.folder.path).delete_folder(self.folder.all_base)

    def discard(self) -> None:
        """Delete everything that only the making needs: seed, base COTs, OTs."""
        files_at(self.folder.path).delete_folder(self.folder.path)
        shutil.rmtree(self.folder, ignore_errors=True)  # the marks


def check_operands(making: StoreMaking) -> None:
    """Refuse row shards whose Enc(U) is larger than a message may be."""
    config = making.config
    for number, shard in sorted({(number, shard) for number, _, shard in making.plan.places(1, 1)}):
        for (_, sender, _), spec in message_specs(making.operands(number, shard)).items():
            if payload_size(spec) > config.max_message_bytes:
                raise ConfigError(
                    f"encrypted masks for a row shard of {config.parties[sender]} have {payload_size(spec):,} bytes, "
                    f"and exchange.max_message_mb is {config.exchange.max_message_mb}: lower beam.rows_per_shard, or "
                    "set kmeans.products to he"
                )


def run_setup(making: StoreMaking, exchange: Exchange, count: CountStage) -> None:
    """Run the set-up with the peer, and write what the places need of it."""
    config, setup, folder = making.config, making.setup, making.folder
    if files_at(folder.setup).exists(folder.setup):
        return
    drawn = {name: np.frombuffer(secret, np.uint8) for name, secret in making.secrets().items()}
    context = _context(making, exchange, b"", 0, 0)

    def count_round(stage: str, costs: StageMetrics) -> None:
        count(f"offline.{stage.rpartition('.')[2]}", costs)

    state = run_rounds(setup.protocol(), context, {0: drawn}, count_round)[0]
    if setup.provider == "ot":
        for store_shard, (base_q, base_t) in zip(making.store_shards, setup.base_cots(config.me, state), strict=True):
            write_file_arrays(folder.base(*store_shard), {"base_q": base_q, "base_t": base_t})
    exchange.flush()
    kept = ("nonce",) if setup.provider == "ot" else ("nonce", "keys", "pairs")
    write_file_arrays(folder.setup, {name: state[name] for name in kept})


def open_made_store(making: StoreMaking) -> TripleStore:
    """Create the store, whose seed is the session's."""
    state = making.setup_state()
    seed = session_seed(state["seed"].tobytes(), state["nonce"].tobytes())
    return TripleStore.create(making.config.store_folder, making.manifest, seed)


class MakePlaces:
    """One pass over places: receive the round before, send the next one; the last pass writes them to the store."""

    def __init__(self, making: StoreMaking, number: int) -> None:
        self.making, self.number = making, number

    def setup(self) -> None:
        making = self.making
        attach_shared(making.config)
        self.exchange, self.state = open_exchange(making.config), making.setup_state()
        self.nonce = self.state["nonce"].tobytes()
        seed = session_seed(self.state["seed"].tobytes(), self.nonce)
        self.store = TripleStore(making.config.store_folder, making.manifest, seed)

    def process(self, store_shard: StoreShard, count: CountStage = count_stage) -> Iterator[int]:
        number, iteration, shard = store_shard
        if not self.store.has_corrections(number, iteration, shard):
            made = {**self._ots(store_shard, count), **self._matrices(store_shard, count)}
            if self.number == self.making.passes - 1:
                self.store.write_corrections(number, iteration, shard, made)
                made_here = self.making.folder.ots(*store_shard)
                files_at(made_here).delete(made_here)
        shard_sent(iteration, OFFLINE, shard, 0)
        yield shard

    def _ots(self, store_shard: StoreShard, count: CountStage) -> Arrays:
        """Continue with the OTs of a place; return its parts after their last round."""
        making, stages = self.making, self._ot_stages(store_shard)
        if not stages:
            return {}
        context, shard = self._context(store_shard), store_shard[2]
        state: Arrays = {**self.state, **(making.base(store_shard, self.state) if self.number < 2 else {})}
        if self.number:
            state = {**state, **read_file_arrays(making.folder.ots(*store_shard), fresh=True)}
            state = receive_round(context, stages[self.number - 1], shard, state, count)
        if self.number == len(stages):
            return state
        state = send_round(context, stages[self.number], shard, state, count)
        made = {name: array for name, array in state.items() if name.startswith("ot")}
        write_file_arrays(making.folder.ots(*store_shard), made)
        return {}

    def _ot_stages(self, store_shard: StoreShard) -> tuple[Stage, ...]:
        place = self.making.place(store_shard)
        return tuple(place.protocol().named(f"offline.{store_shard[0]}.ot").stages()) if place.requests else ()

    def _matrices(self, store_shard: StoreShard, count: CountStage) -> Arrays:
        """Continue with the matrix triples of a place; return the owner's shares in the last pass.

        Enc(U) of a shard is a message of its first iteration, which answers in all iterations read.
        """
        number, iteration, shard = store_shard
        triples, all_triples = self.making.matrix_triples(number, shard, iteration), self.making.operands(number, shard)
        operands = next(send_operands(self.nonce, all_triples).named(f"offline.{number}.matrix").stages())
        responses = next(answer_products(self.nonce, triples).named(f"offline.{number}.matrix").stages())
        context, first = self._context(store_shard), self._context((number, 0, shard))
        if self.number == 0 and iteration == 0 and all_triples:
            send_round(first, operands, shard, {}, count)
        if self.number == 1 and triples:
            state = receive_round(first, operands, shard, {}, not_counted if iteration else count)
            send_round(context, responses, shard, state, count)
        if self.number == self.making.passes - 1 and triples:
            return corrections(receive_round(context, responses, shard, {}, count), iteration)
        return {}

    def _context(self, store_shard: StoreShard) -> OpenPartyContext:
        number, iteration, _ = store_shard
        return _context(self.making, self.exchange, self.store.seed, number, iteration)


def send_round(context: OpenPartyContext, stage: Stage, shard: int, state: Arrays, count: CountStage) -> Arrays:
    """Send one shard's messages of a round."""
    metrics = StageMetrics()
    state, messages = send(context, stage, shard, state, metrics)
    deliver(context, messages, metrics)
    count(f"offline.{stage.round.name}", metrics)
    return state


def receive_round(context: OpenPartyContext, stage: Stage, shard: int, state: Arrays, count: CountStage) -> Arrays:
    """Receive one shard's messages of a round."""
    metrics = StageMetrics()
    state = receive(context, stage, shard, state, metrics)
    count(f"offline.{stage.round.name}", metrics)
    return state


def _context(making: StoreMaking, exchange: Exchange, seed: bytes, number: int, iteration: int) -> OpenPartyContext:
    """A context whose messages belong to the store's own run, and whose randomness is the store's."""
    config = making.config
    run = StoreRun(TripleStore(config.store_folder, making.manifest, seed), number)
    return OpenPartyContext(config.me, config.run, iteration, exchange, b"", run, Scratch("value"), making.timeout)
