"""`veilmeans offline`: make a store of correlated randomness, by a dealer that knows shapes and never sees data.

The dealer's side is a Beam pipeline over (run number, iteration, shard): it expands the parties' seeds, and sends each
party the corrections that the others' shares determine. A party's side takes them into its store, shard by shard.
Neither holds more than a shard at a time. What it cost is in the report of the store's own run folder; corrections are
counted under the stages that will use them (seeds and public keys, some hundred bytes, are not).
"""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apache_beam as beam
import numpy as np

from veilmeans.crypto.prg import SEED_SIZE, derive
from veilmeans.io.connect import open_exchange
from veilmeans.io.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.handshake import check_bindings, heard_before, shake_hands
from veilmeans.io.keys import read_secret, write_secret
from veilmeans.io.triples import Manifest, TripleStore, stage_of
from veilmeans.pipelines.ciphers import MakeCiphers, exchange_keys
from veilmeans.pipelines.jobs import job_digest, job_plan, kmeans_of, rows_of, store_iterations
from veilmeans.pipelines.party import agreed_terms, counters, finished, run_pipeline, say_farewell, seated
from veilmeans.pipelines.progress import counting_shards
from veilmeans.pipelines.report import RunReport
from veilmeans.pipelines.settle import announced_costs, settle_engines
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.message import Key
from veilmeans.schemas.party import Party
from veilmeans.schemas.terms import Terms
from veilmeans.transforms.beam_rounds import report
from veilmeans.transforms.deal import corrections_for, deal
from veilmeans.transforms.engines import Chosen
from veilmeans.transforms.plan import Plan
from veilmeans.transforms.rounds import Inbox
from veilmeans.transforms.seat import Tally
from veilmeans.transforms.watch import tell

SEEDS = "offline.seed"
CORRECTIONS = "offline.corrections"
Place = tuple[int, int, int]
"""Run number, iteration, shard."""


def run_offline(config: JobConfig) -> Manifest:
    """Take part in making the store that the configuration describes. Start it again to go on after a mishap."""
    terms = check_offline(config)
    config = config.offline()
    heard = heard_before(config.run_folder, config.party, terms)
    if heard is not None and finished(config):
        _forget_seeds(config)
        chosen = settle_engines(config, terms, heard)
        return manifest_of(config, job_plan(config, chosen), chosen)
    with seated(config) as exchange:
        heard = shake_hands(exchange, config.party, config.run, terms, config.run_folder, config.exchange.timeout_s)
        chosen = settle_engines(config, terms, heard)
        plan = job_plan(config, chosen)
        manifest = manifest_of(config, plan, chosen)
        part = _deal if config.party == config.dealer else _take_in
        costs = RunReport(config.run_folder)
        costs.begin(config)
        part(exchange, config, plan, manifest)
        if say_farewell(exchange, config, manifest.iterations, _patience(config, manifest)):
            _forget_seeds(config)
        costs.end()
    return manifest


def check_offline(config: JobConfig, keep: bool = True) -> dict[str, Terms]:
    """What each member will be told, if all that can be checked alone is right. `keep`: measured costs are kept."""
    if config.dealer is None:
        raise ConfigError(f"the configuration of {config.party} names no dealer to make the store of triples")
    work = job_digest(config)
    config = config.offline()
    terms = _terms(config, work, keep)
    check_bindings(config.run_folder, config.party, terms)
    return terms


def _patience(config: JobConfig, manifest: Manifest) -> float:
    """How long a peer may take to make its ciphertexts."""
    if config.kmeans is None:
        return 0.0
    kmeans = kmeans_of(config, manifest.engines)
    return 2 * manifest.runs * manifest.iterations * kmeans.engines.patience(kmeans.layout)


def manifest_of(config: JobConfig, plan: Plan, chosen: Chosen) -> Manifest:
    """What the configured store shall serve."""
    wanted = config.needed_triples
    return Manifest(wanted.store, wanted.runs, store_iterations(config), plan.rows, plan.digest(), chosen)


def _terms(config: JobConfig, work: str, keep: bool = True) -> dict[str, Terms]:
    """What each member is told. Fields are compared in order of their names: the digest's sorts last."""
    agreed = {
        **agreed_terms(config),
        "triples.runs": config.needed_triples.runs,
        "triples.iterations": store_iterations(config),
        "triples.rows": rows_of(config),
        "work of the job": work[:16],
    }
    announced = announced_costs(config, keep)
    return {peer: Terms(agreed, announced) for peer in config.peers}


def _places(plan: Plan, manifest: Manifest) -> list[Place]:
    return [
        (number, iteration, shard)
        for number in range(manifest.runs)
        for iteration in range(manifest.iterations)
        for shard in range(plan.shards)
    ]


def _deal(exchange: Exchange, config: JobConfig, plan: Plan, manifest: Manifest) -> None:
    where = Address(config.run, 0, SEEDS, 0)
    seeds = [(name, np.frombuffer(seed, np.uint8)) for name, seed in zip(config.parties, _seeds(config), strict=True)]
    exchange.put_all([Outgoing.of(Key(where, config.party, name), {"seed": seed}) for name, seed in seeds])
    _over_shards(config, plan, manifest, DealShards(config, plan, manifest.store), f"store {manifest.store!r}")


def _take_in(exchange: Exchange, config: JobConfig, plan: Plan, manifest: Manifest) -> None:
    key = Key(Address(config.run, 0, SEEDS, 0), config.dealer or "", config.party)
    expected = {"seed": np.zeros(SEED_SIZE, np.uint8)}
    seed = _dealt(exchange, key, expected, config.exchange.timeout_s)["seed"].tobytes()
    store = TripleStore.create(config.store_folder, manifest, seed)
    _over_shards(config, plan, manifest, TakeShards(config, plan, manifest), f"store {manifest.store!r}")
    if config.kmeans is not None and (cipher := kmeans_of(config, manifest.engines).engines.cipher) is not None:
        exchange_keys(exchange, config, cipher)
        what = f"ciphertexts of store {manifest.store!r}"
        _over_shards(config, plan, manifest, MakeCiphers(config, plan, manifest), what)
    store.complete()


def _over_shards(config: JobConfig, plan: Plan, manifest: Manifest, work: beam.DoFn, what: str) -> None:
    """One pipeline over all shards of all iterations of all runs."""
    places, start = _places(plan, manifest), time.perf_counter()
    with counting_shards(what, len(places)):
        result = run_pipeline(config, partial(_build, places, work))
    costs = RunReport(config.run_folder)
    costs.add_shards(len(places))
    costs.add(time.perf_counter() - start, counters(result))


def _build(places: list[Place], work: beam.DoFn, pipeline: beam.Pipeline) -> None:
    _ = pipeline | "Places" >> beam.Create(places) | "Spread" >> beam.Reshuffle() | "Shards" >> beam.ParDo(work)


class DealShards(beam.DoFn):
    """The dealer: corrections of one shard, on their way to the parties."""

    def __init__(self, config: JobConfig, plan: Plan, store: str) -> None:
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
            key = Key(_message_address(self.config, place), self.config.party, self.config.parties[party])
            message, start = Outgoing.of(key, arrays), time.perf_counter()
            self.exchange.put_all([message])
            tally.handed_over += time.perf_counter() - start
            tally.messages += 1
            _report_arrays(arrays, "bytes_sent")
        report(CORRECTIONS, tally)
        tell(iteration, "offline", shard, 0)
        yield len(dealt)


class TakeShards(beam.DoFn):
    """A party: corrections of one shard, into the store. The dealer waits for nobody, so waiting for it is safe."""

    def __init__(self, config: JobConfig, plan: Plan, manifest: Manifest) -> None:
        self.config, self.plan, self.manifest = config, plan, manifest

    def setup(self) -> None:
        self.exchange = open_exchange(self.config)
        self.store = TripleStore(self.config.store_folder, self.manifest, b"")

    def process(self, place: Place) -> Iterator[int]:
        number, iteration, shard = place
        tell(iteration, "offline", shard, 0)
        expected = corrections_for(self.config.me.index, self.plan.needs(shard, iteration))
        if self.store.has_corrections(number, iteration, shard):
            return
        if not expected:  # an empty file says that nothing is missing
            self.store.write_corrections(number, iteration, shard, {})
            return
        key = Key(_message_address(self.config, place), self.config.dealer or "", self.config.party)
        start = time.perf_counter()
        arrays = _dealt(self.exchange, key, expected, self.config.exchange.timeout_s)
        report(CORRECTIONS, Tally(waited=time.perf_counter() - start))
        self.store.write_corrections(number, iteration, shard, arrays)
        _report_arrays(arrays, "bytes_received")
        yield len(arrays)


def _report_arrays(arrays: Arrays, counted: str) -> None:
    """Count the bytes of corrections under the stages that will use them."""
    for name, array in arrays.items():
        report(stage_of(name), Tally(**{counted: array.nbytes}))


def _message_address(config: JobConfig, place: Place) -> Address:
    number, iteration, shard = place
    return Address(config.run, iteration, f"offline.{number}", shard)


def _dealt(exchange: Exchange, key: Key, expected: Arrays, timeout: float) -> dict[str, Array]:
    """A message of the dealer's, whose arrays must have the shapes and types expected."""
    inbox = Inbox(Party(1, (key.sender, key.recipient)), {0: get_arrays(exchange, key, timeout)})
    return {name: inbox.from_peer(0, name, like) for name, like in expected.items()}


def _seeds(config: JobConfig) -> list[bytes]:
    """One seed for each party from a fresh secret of the store, kept so that a dealer started again deals the same."""
    file = _seed_file(config)
    if not file.exists():
        write_secret(file, os.urandom(SEED_SIZE))
    return [derive(read_secret(file), f"party {name}") for name in config.parties]


def _forget_seeds(config: JobConfig) -> None:
    """Every party has its store: the dealer need not know the masks any longer."""
    _seed_file(config).unlink(missing_ok=True)


def _seed_file(config: JobConfig) -> Path:
    return config.run_folder / "dealer.seed"
