"""`veilmeans offline`: make a store of correlated randomness, by a dealer or by the parties themselves.

With a dealer, which knows shapes and never sees data: for each (run number, iteration, shard) it expands the parties'
seeds and sends each party the corrections that the others' shares determine. A party's side takes them into its store,
shard by shard.

Without one, the parties make everything between themselves, by oblivious transfer and lattices: a set-up, then a
pass over all shards for each round (`transforms.offline.ot_store`).

No member holds more than a shard at a time. What it cost is in the report of the store's own run folder; a dealer's
corrections are counted under the stages that will use them (seeds and public keys, some hundred bytes, are not).
"""

import json
import logging
import time
from collections.abc import Mapping
from functools import partial

import numpy as np

from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.io.exchange.connections import attach_shared, check_listen_address, load_identity, load_peer_certificates
from veilmeans.io.exchange.exchange import Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.exchange.handshake import (
    COMPLETE,
    check_bound_terms,
    exchange_terms,
    refusing_messages,
    stored_terms,
)
from veilmeans.io.exchange.link_shaping import LAN, WAN
from veilmeans.io.files.atomic_files import check_writable
from veilmeans.io.ledgers.claim_ledger import ClaimLedger
from veilmeans.io.storage.he_keyring import make_mask_seeds, make_own_keys, store_peer_key
from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.triple_store import Manifest, TripleStore, is_complete
from veilmeans.pipelines.planning import engine_selection
from veilmeans.pipelines.planning.engine_selection import agree_on_engines
from veilmeans.pipelines.planning.plan_schema import OfflinePlan
from veilmeans.pipelines.planning.planned_bytes import plan_offline
from veilmeans.pipelines.planning.units import format_seconds, format_size
from veilmeans.pipelines.reporting.progress import counting_shards
from veilmeans.pipelines.reveal import opening_run
from veilmeans.pipelines.session.agreed_terms import agreed_terms
from veilmeans.pipelines.session.execution import run_store_work
from veilmeans.pipelines.session.kmeans_from_config import job_digest, kmeans_steps, store_iterations, store_jobs
from veilmeans.pipelines.session.session import exchange_farewells, farewell_received, open_session
from veilmeans.pipelines.session.triple_claim import open_store, store_engines
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, HandshakeError, PeerError, RefusedError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.offline import dealer
from veilmeans.transforms.offline.ciphertexts import MakeCiphertexts
from veilmeans.transforms.offline.dealer import DealShards, ReceiveShards, delete_dealer_seeds
from veilmeans.transforms.offline.store_check import StoreCheck, free_numbers, require_spare
from veilmeans.transforms.offline.store_work import StoreWork
from veilmeans.transforms.offline.traced_job import StoreJobs
from veilmeans.transforms.products.engine_parameters import ChosenEngines
from veilmeans.transforms.rounds.executor import StageCosts

_STAGE = "offline.key"
log = logging.getLogger(__name__)


def exchange_keys(exchange: Exchange, config: JobConfig, cipher: SchemeParameters) -> None:
    """Make this party's key pair, and get the others' public keys."""
    folder, where = config.store_folder, Address(config.run, 0, _STAGE, 0)
    mine = np.frombuffer(json.dumps(make_own_keys(folder, cipher).to_json()).encode(), np.uint8)
    peers = [name for name in config.parties if name != config.party]
    deliver_now(exchange, [Outgoing.of(MessageKey(where, config.party, peer), {"key": mine}) for peer in peers])
    for peer in peers:
        heard = get_arrays(exchange, MessageKey(where, peer, config.party), config.exchange.timeout_s).get("key")
        if heard is None or heard.dtype != np.uint8:
            raise RefusedError(f"{peer} sent no public key where one was due")
        store_peer_key(folder, peer, heard.tobytes(), cipher)


def dry_offline(config: JobConfig) -> str:
    """Describe what `veilmeans offline` would send, receive and write at this member; nothing is sent."""
    check_offline(config, keep=False)
    config = config.at_capacity()
    settings = config.offline()
    if farewell_received(settings):
        return f"the store {config.required_triples.store!r} is made already: nothing would be done"
    check_writable(config.storage)
    load_identity(settings)
    load_peer_certificates(settings)
    check_listen_address(config)
    chosen, _ = engine_selection.engines_by_own_costs(config, keep=False)
    plan = store_jobs(config, chosen)
    maker = config.dealer or f"themselves ({config.provider})"
    lines = [f"store {config.required_triples.store!r}, made by {maker} for {', '.join(config.parties)}"]
    if engine_selection.has_auto_engine(config):
        lines.append("engines are chosen when all parties have said what operations cost them; here, as we find them")
    if config.party == config.dealer:
        made = [plan_offline(config, plan, index) for index in range(len(config.parties))]
        lines += [_amount(f"would send {name}", each) for name, each in zip(config.parties, made, strict=True)]
        lines.append(f"would write a seed below {settings.run_folder}; data are never seen")
        return "\n".join(lines)
    mine = plan_offline(config, plan, config.me.index)
    if config.dealer:
        lines.append(_amount(f"would get from {config.dealer}", mine))
    else:
        from veilmeans.transforms.offline import ot_store  # imports numba: a dealer's store goes without

        ot_store.check_operands(ot_store.StoreMaking(settings, plan, manifest_of(settings, plan, chosen)))
        lines += _exchanged(mine)
    lines += [f"  {each.count:,} {each.unit} of {each.kind}" for each in mine.triples]
    if mine.ciphertexts:
        made_here = f"would make {mine.ciphertexts:,} ciphertexts, {format_size(mine.cipher_bytes)}, and a key pair"
        lines.append(f"{made_here}; public keys go to {', '.join(n for n in config.parties if n != config.party)}")
    lines.append(f"would write {format_size(mine.bytes_stored)} below {config.store_folder}, with a seed (mode 0600)")
    return "\n".join(lines)


def _amount(what: str, made: OfflinePlan) -> str:
    lan, wan = (format_seconds(made.bytes_received / each.rate) for each in (LAN, WAN))
    amount = f"{format_size(made.bytes_received)} in {made.messages:,} messages and a seed"
    return f"{what}: {amount} (LAN {lan} s, WAN {wan} s), for {made.runs:,} × {made.iterations:,} iterations"


def _exchanged(made: OfflinePlan) -> list[str]:
    """Describe what parties would send each other, round by round."""
    lan, wan = (format_seconds(made.seconds_on(each)) for each in (LAN, WAN))
    amount = f"{format_size(made.bytes_sent)} and get {format_size(made.bytes_received)}"
    times = f"{made.rounds:,} rounds (LAN {lan} s, WAN {wan} s)"
    rounds = [f"  {each.name}: {format_size(each.bytes_sent)} in {each.messages:,} messages" for each in made.made]
    return [f"would send {amount} in {times}, for {made.runs:,} × {made.iterations:,} iterations", *rounds]


def run_offline(config: JobConfig) -> Manifest:
    """Take part in making the configured triple store. Safe to rerun: it resumes where it stopped."""
    terms, run = check_offline(config), config
    config = config.offline()
    heard = stored_terms(config.run_folder, config.party, terms)
    if heard is not None and farewell_received(config):
        delete_dealer_seeds(config)
        chosen = agree_on_engines(config, terms, heard)
        return manifest_of(config, store_jobs(config, chosen), chosen)
    with open_session(config) as exchange:
        check, timeout = partial(_refuse_lost_store, exchange, run), config.exchange.timeout_s
        heard = exchange_terms(exchange, config.party, config.run, terms, config.run_folder, timeout, check)
        chosen = agree_on_engines(config, terms, heard)
        plan = store_jobs(config, chosen)
        manifest = manifest_of(config, plan, chosen)
        part = _make if config.provider != "dealer" else _deal if config.party == config.dealer else _receive
        costs = RunReport(config.run_folder)
        costs.begin(config)
        part(exchange, config, plan, manifest)
        if exchange_farewells(exchange, config, manifest.iterations, _extra_timeout_s(config, plan, manifest)):
            delete_dealer_seeds(config)
        costs.end()
    return manifest


def make_missing_store(config: JobConfig) -> None:
    """Make the triple store of a run that is about to begin, with the other parties, who do the same."""
    store, peers = config.required_triples.store, ", ".join(config.peers)
    log.info("there is no triple store %r yet: making it with %s (as `veilmeans offline` does)", store, peers)
    run_offline(config)


def _refuse_lost_store(exchange: Exchange, config: JobConfig, heard: Mapping[str, Terms]) -> None:
    """Refuse to begin a store that a peer has made with us already: what we have lost cannot be made again.

    The peer has begun the run and waits for our terms: it gets some that say the same.
    """
    complete = [peer for peer, terms in heard.items() if terms.announced.get(COMPLETE)]
    if complete:
        store = config.required_triples.store
        lost = {**agreed_terms(config, config.required_kmeans.command), "triples.store": f"{store} (lost)"}
        exchange.drop_messages(config.offline().run)
        deliver_now(exchange, refusing_messages(config.run, config.party, complete, lost))
        raise HandshakeError(
            f"the triple store {store!r} is complete at {', '.join(complete)} and missing here: choose a new "
            "triples.store at all parties, then start all again"
        )


def check_offline(config: JobConfig, keep: bool = True) -> dict[str, Terms]:
    """Check all that can be checked alone; return the terms for each member. `keep`: store measured costs."""
    attach_shared(config)
    work = job_digest(config)
    config = config.offline()
    terms = _terms(config, work, keep)
    check_bound_terms(config.run_folder, config.party, terms)
    return terms


def _extra_timeout_s(config: JobConfig, plan: StoreJobs, manifest: Manifest) -> float:
    """Extra seconds that a peer may take to make its ciphertexts and, without a dealer, the last of its places."""
    steps = kmeans_steps(config, manifest.engines)
    extra = 2 * manifest.runs * manifest.iterations * steps.engines.extra_timeout_s(steps.layout)
    if config.dealer:
        return extra
    from veilmeans.transforms.offline import ot_store  # imports numba: a dealer's store goes without

    return extra + ot_store.StoreMaking(config, plan, manifest).timeout - config.exchange.timeout_s


def manifest_of(config: JobConfig, plan: StoreJobs, chosen: ChosenEngines) -> Manifest:
    """The manifest of the configured store."""
    wanted = config.required_triples
    return Manifest(
        wanted.store, wanted.runs, store_iterations(config), plan.rows, plan.digest(), chosen, config.provider
    )


def _terms(config: JobConfig, work: str, keep: bool = True) -> dict[str, Terms]:
    """The terms for each member. Fields are compared in order of their names: the digest's sorts last."""
    iterations, rows = store_iterations(config), kmeans_steps(config).layout.total_rows
    shape = {"triples.iterations": iterations, "kmeans.rows": rows, "work of the job": work[:16]}
    agreed = {**agreed_terms(config, "offline"), **shape}
    return dict.fromkeys(config.peers, Terms(agreed, engine_selection.announced_costs(config, keep)))


def _deal(exchange: Exchange, config: JobConfig, plan: StoreJobs, manifest: Manifest) -> None:
    dealer.send_seeds(exchange, config)
    _over_shards(config, plan, manifest, DealShards(config, plan, manifest.store), f"store {manifest.store!r}")


def _receive(exchange: Exchange, config: JobConfig, plan: StoreJobs, manifest: Manifest) -> None:
    if is_complete(config.store_folder):
        return
    store = TripleStore.create(config.store_folder, manifest, dealer.receive_seed(exchange, config))
    _over_shards(config, plan, manifest, ReceiveShards(config, plan, manifest), f"store {manifest.store!r}")
    _make_ciphertexts(exchange, config, plan, manifest)
    _complete(config, plan, store)


def _make(exchange: Exchange, config: JobConfig, plan: StoreJobs, manifest: Manifest) -> None:
    """Make the store with the other parties, who do the same."""
    from veilmeans.transforms.offline import ot_store  # imports numba: a dealer's store goes without

    making, costs = ot_store.StoreMaking(config, plan, manifest), StageCosts()
    if is_complete(config.store_folder):
        making.discard()
        return
    ot_store.check_operands(making)
    start = time.perf_counter()
    ot_store.run_setup(making, exchange, costs)
    RunReport(config.run_folder).add(time.perf_counter() - start, costs.counts())
    store = ot_store.open_made_store(making)
    for number in range(making.passes):
        if not making.folder.ended(number).exists():
            what = f"store {manifest.store!r}, pass {number + 1} of {making.passes}"
            _over_shards(config, plan, manifest, ot_store.MakePlaces(making, number), what)
            exchange.flush()
            making.end(number)
    _make_ciphertexts(exchange, config, plan, manifest)
    _complete(config, plan, store)
    making.discard()


def _complete(config: JobConfig, plan: StoreJobs, store: TripleStore) -> None:
    """Begin the store's ledger, then make the store usable."""
    ClaimLedger.of(config.ledger_folder, store).begin()
    store.complete(plan.numbers(store.manifest.runs))


def _make_ciphertexts(exchange: Exchange, config: JobConfig, plan: StoreJobs, manifest: Manifest) -> None:
    """Make this party's ciphertexts, where an engine needs some."""
    cipher = kmeans_steps(config, manifest.engines).engines.cipher
    if cipher is not None:
        exchange_keys(exchange, config, cipher)
        make_mask_seeds(config.store_folder, plan.numbers(manifest.runs))
        what = f"ciphertexts of store {manifest.store!r}"
        _over_shards(config, plan, manifest, MakeCiphertexts(config, plan, manifest), what)


def _over_shards(config: JobConfig, plan: StoreJobs, manifest: Manifest, work: StoreWork, what: str) -> None:
    """Work on the shards of all iterations of all runs of the store."""
    shards = plan.places(manifest.runs, manifest.iterations)
    start = time.perf_counter()
    with counting_shards(what, len(shards)):
        stages = run_store_work(config, kmeans_steps(config, manifest.engines), work, shards)
    costs = RunReport(config.run_folder)
    costs.add_shards(len(shards))
    costs.add(time.perf_counter() - start, stages)


# the check of a store
def run_check(config: JobConfig, count: int) -> list[int]:
    """Open `count` spare numbers of the triple store and verify them; return the numbers. Safe to rerun.

    A store with a wrong correlation is never used again.
    """
    attach_shared(config)
    config = config.online()
    if config.party not in config.parties:
        raise ConfigError(f"{config.party} is the dealer, and takes no part in a check: run it at the parties")
    store = open_store(config)
    jobs, number = store_jobs(config, store_engines(config, store)), 0
    while (checking := _check_config(config, number)).run_folder.farewell.exists():
        number += 1
    require_spare(store, len(free_numbers(checking, store)), count)
    with open_session(checking) as exchange:
        check = StoreCheck(exchange, checking, store, jobs)
        agreed = {**agreed_terms(checking, "offline"), "triples.store": store.manifest.store, "numbers to check": count}
        terms = dict.fromkeys(checking.peers, Terms({**agreed, "work of the job": jobs.digest()[:16]}))
        exchange_terms(exchange, checking.party, checking.run, terms, checking.run_folder, checking.exchange.timeout_s)
        numbers = check.choose(count)
        wrong = check.find_wrong(numbers)
        exchange.flush()
        if wrong is not None:
            ClaimLedger.of(config.ledger_folder, store).condemn(wrong)
            raise RefusedError(f"the triple store {store.manifest.store!r} must not be used, because {wrong}")
        if not exchange_farewells(exchange, checking, store.manifest.iterations):
            raise PeerError("a peer has not said that the numbers are right: run the command again at all parties")
    for each in numbers:
        for part in jobs.numbers(each + 1)[len(jobs.numbers(each)) :]:
            store.forget(part)
    return numbers


def _check_config(config: JobConfig, number: int) -> JobConfig:
    """The configuration of the store's check with this number, under a run name of its own."""
    return config.model_copy(update={"run": opening_run(config.required_triples.store, f"check-{number}")})
