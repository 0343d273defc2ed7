"""`veilmeans offline`: make a store of correlated randomness, by a dealer that knows shapes and never sees data.

The dealer's side is a Beam pipeline over (run number, iteration, shard): it expands the parties' seeds, and sends each
party the corrections that the others' shares determine. A party's side takes them into its store, shard by shard.
Neither holds more than a shard at a time. What it cost is in the report of the store's own run folder; corrections are
counted under the stages that will use them (seeds and public keys, some hundred bytes, are not).
"""

import json
import time
from functools import partial

import apache_beam as beam
import numpy as np

from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.crypto.prg import SEED_SIZE
from veilmeans.io.exchange.connections import check_listen_address, load_identity, load_peer_certificates
from veilmeans.io.exchange.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.exchange.handshake import check_bindings, earlier_handshake, shake_hands
from veilmeans.io.exchange.link_shaping import LAN, WAN
from veilmeans.io.storage.atomic_files import check_writable
from veilmeans.io.storage.he_keyring import keep_peer, make_own
from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.pipelines.planning.engine_selection import (
    agree_on_engines,
    announced_costs,
    has_auto_engine,
    own_costs,
    select_all_engines,
)
from veilmeans.pipelines.planning.plan_schema import Offline
from veilmeans.pipelines.planning.planned_bytes import offline_of
from veilmeans.pipelines.planning.units import seconds, size
from veilmeans.pipelines.reporting.progress import counting_shards
from veilmeans.pipelines.session.agreed_terms import agreed_terms
from veilmeans.pipelines.session.beam_runner import counters, run_pipeline
from veilmeans.pipelines.session.kmeans_from_config import (
    job_digest,
    kmeans_steps,
    requested_engines,
    store_iterations,
    store_requirements,
    total_rows,
)
from veilmeans.pipelines.session.session import exchange_farewells, farewell_received, open_session
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.offline.ciphertexts import MakeCiphertexts
from veilmeans.transforms.offline.dealer import DealShards, Place, ReceiveShards, _dealt, _seed_file, _seeds
from veilmeans.transforms.offline.requirements import StoreRequirements
from veilmeans.transforms.products.engine_parameters import ChosenEngines

_STAGE = "offline.key"


def exchange_keys(exchange: Exchange, config: JobConfig, cipher: SchemeParameters) -> None:
    """Make this party's key pair, and get the others' public keys."""
    folder, where = config.store_folder, Address(config.run, 0, _STAGE, 0)
    mine = np.frombuffer(json.dumps(make_own(folder, cipher).to_json()).encode(), np.uint8)
    peers = [name for name in config.parties if name != config.party]
    exchange.put_all([Outgoing.of(MessageKey(where, config.party, peer), {"key": mine}) for peer in peers])
    for peer in peers:
        heard = get_arrays(exchange, MessageKey(where, peer, config.party), config.exchange.timeout_s).get("key")
        if heard is None or heard.dtype != np.uint8:
            raise RefusedError(f"{peer} sent no public key where one was due")
        keep_peer(folder, peer, heard.tobytes(), cipher)


def dry_offline(config: JobConfig) -> str:
    """For a party what it gets and makes, for the dealer what it sends."""
    check_offline(config, keep=False)
    settings = config.offline()
    if farewell_received(settings):
        return f"the store {config.required_triples.store!r} is made already: nothing would be done"
    check_writable(config.storage)
    load_identity(settings)
    load_peer_certificates(settings)
    check_listen_address(config)
    chosen = _engines(config)
    plan = store_requirements(config, chosen)
    lines = [f"store {config.required_triples.store!r}, made by {config.dealer} for {', '.join(config.parties)}"]
    if has_auto_engine(config):
        lines.append("engines are chosen when all parties have said what operations cost them; here, as we find them")
    if config.party == config.dealer:
        made = [offline_of(config, plan, index) for index in range(len(config.parties))]
        lines += [_line(f"would send {name}", each) for name, each in zip(config.parties, made, strict=True)]
        lines.append(f"would write a seed below {settings.run_folder}; data are never seen")
        return "\n".join(lines)
    mine = offline_of(config, plan, config.me.index)
    lines.append(_line(f"would get from {config.dealer}", mine))
    lines += [f"  {each.count:,} {each.unit} of {each.kind}" for each in mine.triples]
    if mine.ciphertexts:
        made_here = f"would make {mine.ciphertexts:,} ciphertexts, {size(mine.cipher_bytes)}, and a key pair"
        lines.append(f"{made_here}; public keys go to {', '.join(n for n in config.parties if n != config.party)}")
    lines.append(f"would write {size(mine.bytes_stored)} below {config.store_folder}, with a seed (mode 0600)")
    return "\n".join(lines)


def _engines(config: JobConfig) -> ChosenEngines:
    if not has_auto_engine(config):
        return requested_engines(config)
    found = select_all_engines(config, [own_costs(config, keep=False)])
    return tuple((each.distance, each.update) for each in found.values())


def _line(what: str, made: Offline) -> str:
    link = ", ".join(
        f"{name} {seconds(made.bytes_received * 8 / each.rate)} s" for name, each in (("LAN", LAN), ("WAN", WAN))
    )
    amount = f"{size(made.bytes_received)} in {made.messages:,} messages and a seed"
    return f"{what}: {amount} ({link}), for {made.runs:,} × {made.iterations:,} iterations"


SEEDS = "offline.seed"


def run_offline(config: JobConfig) -> Manifest:
    """Take part in making the store that the configuration describes. Start it again to go on after a mishap."""
    terms = check_offline(config)
    config = config.offline()
    heard = earlier_handshake(config.run_folder, config.party, terms)
    if heard is not None and farewell_received(config):
        _forget_seeds(config)
        chosen = agree_on_engines(config, terms, heard)
        return manifest_of(config, store_requirements(config, chosen), chosen)
    with open_session(config) as exchange:
        heard = shake_hands(exchange, config.party, config.run, terms, config.run_folder, config.exchange.timeout_s)
        chosen = agree_on_engines(config, terms, heard)
        plan = store_requirements(config, chosen)
        manifest = manifest_of(config, plan, chosen)
        part = _deal if config.party == config.dealer else _take_in
        costs = RunReport(config.run_folder)
        costs.begin(config)
        part(exchange, config, plan, manifest)
        if exchange_farewells(exchange, config, manifest.iterations, _patience(config, manifest)):
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
    kmeans = kmeans_steps(config, manifest.engines)
    return 2 * manifest.runs * manifest.iterations * kmeans.engines.patience(kmeans.layout)


def manifest_of(config: JobConfig, plan: StoreRequirements, chosen: ChosenEngines) -> Manifest:
    """What the configured store shall serve."""
    wanted = config.required_triples
    return Manifest(wanted.store, wanted.runs, store_iterations(config), plan.rows, plan.digest(), chosen)


def _terms(config: JobConfig, work: str, keep: bool = True) -> dict[str, Terms]:
    """What each member is told. Fields are compared in order of their names: the digest's sorts last."""
    agreed = {
        **agreed_terms(config),
        "triples.runs": config.required_triples.runs,
        "triples.iterations": store_iterations(config),
        "triples.rows": total_rows(config),
        "work of the job": work[:16],
    }
    announced = announced_costs(config, keep)
    return {peer: Terms(agreed, announced) for peer in config.peers}


def _places(plan: StoreRequirements, manifest: Manifest) -> list[Place]:
    return [
        (number, iteration, shard)
        for number in range(manifest.runs)
        for iteration in range(manifest.iterations)
        for shard in range(plan.shards)
    ]


def _deal(exchange: Exchange, config: JobConfig, plan: StoreRequirements, manifest: Manifest) -> None:
    where = Address(config.run, 0, SEEDS, 0)
    seeds = [(name, np.frombuffer(seed, np.uint8)) for name, seed in zip(config.parties, _seeds(config), strict=True)]
    exchange.put_all([Outgoing.of(MessageKey(where, config.party, name), {"seed": seed}) for name, seed in seeds])
    _over_shards(config, plan, manifest, DealShards(config, plan, manifest.store), f"store {manifest.store!r}")


def _take_in(exchange: Exchange, config: JobConfig, plan: StoreRequirements, manifest: Manifest) -> None:
    key = MessageKey(Address(config.run, 0, SEEDS, 0), config.dealer or "", config.party)
    expected = {"seed": np.zeros(SEED_SIZE, np.uint8)}
    seed = _dealt(exchange, key, expected, config.exchange.timeout_s)["seed"].tobytes()
    store = TripleStore.create(config.store_folder, manifest, seed)
    _over_shards(config, plan, manifest, ReceiveShards(config, plan, manifest), f"store {manifest.store!r}")
    if config.kmeans is not None and (cipher := kmeans_steps(config, manifest.engines).engines.cipher) is not None:
        exchange_keys(exchange, config, cipher)
        what = f"ciphertexts of store {manifest.store!r}"
        _over_shards(config, plan, manifest, MakeCiphertexts(config, plan, manifest), what)
    store.complete()


def _over_shards(config: JobConfig, plan: StoreRequirements, manifest: Manifest, work: beam.DoFn, what: str) -> None:
    """One pipeline over all shards of all iterations of all runs."""
    places, start = _places(plan, manifest), time.perf_counter()
    with counting_shards(what, len(places)):
        result = run_pipeline(config, partial(_build, places, work))
    costs = RunReport(config.run_folder)
    costs.add_shards(len(places))
    costs.add(time.perf_counter() - start, counters(result))


def _build(places: list[Place], work: beam.DoFn, pipeline: beam.Pipeline) -> None:
    _ = pipeline | "Places" >> beam.Create(places) | "Spread" >> beam.Reshuffle() | "Shards" >> beam.ParDo(work)


def _forget_seeds(config: JobConfig) -> None:
    """Every party has its store: the dealer need not know the masks any longer."""
    _seed_file(config).unlink(missing_ok=True)
