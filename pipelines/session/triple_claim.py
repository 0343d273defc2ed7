"""A run's part of its triple store: open the store or have it made, check it, agree with the peers on a part, claim it.

  1. each party says which number is free in its store, and up to which number each peer has confirmed its claims
  2. all claim the highest of the free numbers, in the store and in the ledger
  3. each confirms its claim, and notes the others' confirmations: a peer that later says that a number is free which it
     has confirmed has an old store, and is refused; from step 1 it hears so itself

Where the parties make their triples themselves, a run makes the store that is missing. All must decide alike: who has
the store says so when it begins a run, and one that has lost its own hears it when it begins to make it (`offline`).
"""

import numpy as np

from veilmeans.io.exchange.exchange import Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.exchange.handshake import completion_messages, stored_terms
from veilmeans.io.ledgers.claim_ledger import ClaimLedger
from veilmeans.io.storage.he_keyring import load_keyring
from veilmeans.io.storage.triple_store import Manifest, TripleStore, is_complete
from veilmeans.pipelines.session.kmeans_from_config import job_digest, requested_engines, store_jobs
from veilmeans.pipelines.session.session import farewells
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.offline.traced_job import StoreJobs
from veilmeans.transforms.products.engine_parameters import ChosenEngines

_STAGE = "triples"
_FREE, _CLAIMED = 0, 1  # the shard numbers under which the two messages of a claim are sent


def open_store(config: JobConfig, iterations: int = 1) -> TripleStore:
    """Open the store and check that it was made for this job and its shapes."""
    job_digest(config)  # fails on a mistake in the configuration before a missing store
    store = TripleStore.open(config.store_folder)
    _check_engines(config, store.manifest)
    jobs = store_jobs(config, store_engines(config, store))
    store.check_suffices(iterations=iterations, plan=jobs.digest())
    store.drop_first_seed()
    ledger_of(config, store).check()
    _check_secrets(config, store, jobs)
    return store


def _check_secrets(config: JobConfig, store: TripleStore, jobs: StoreJobs) -> None:
    """Fail on missing or damaged keys and seeds of numbers that no run has claimed, before anything is sent."""
    with_ciphers = any("he" in chosen for chosen in store.manifest.engines)
    keyring = load_keyring(config.store_folder, config.me) if with_ciphers else None
    each = len(jobs.numbers(1))
    for run_number in store.spare_numbers():
        for number in range(run_number * each, (run_number + 1) * each):
            store.seed_of(number)
            if keyring is not None:
                keyring.for_number(number)


def ledger_of(config: JobConfig, store: TripleStore) -> ClaimLedger:
    """The ledger of a store's claims, outside its folder."""
    return ClaimLedger.of(config.ledger_folder, store)


def is_missing(config: JobConfig) -> bool:
    """True if there is no complete triple store yet, and the parties make it themselves."""
    return config.provider != "dealer" and not is_complete(config.store_folder)


def is_made_first(config: JobConfig) -> bool:
    """True if a run has to make its triple store first; fails if it has begun with one that is gone."""
    if not is_missing(config):
        return False
    if has_begun(config) or config.offline().run_folder.farewell.exists():
        raise StorageError(
            f"the triple store that was made in {config.store_folder} is gone: choose a new triples.store"
            f"{' and a new run' if has_begun(config) else ''}, the same at all parties"
        )
    return True


def has_begun(config: JobConfig) -> bool:
    """True if a run's handshake has ended here."""
    return stored_terms(config.run_folder, config.party, config.peers) is not None


def announce_store(exchange: Exchange, config: JobConfig, store: TripleStore) -> None:
    """Say before a run's handshake that this party has the store that the parties made, and has ended making it.

    A peer that has lost its own, or that still waits for our farewell after a failure, begins or resumes to make it and
    would never hear from us: this party is past that.
    """
    if config.provider != "dealer" and not has_begun(config):
        made = config.offline()
        complete = completion_messages(made.run_folder, config.party, config.peers)
        exchange.put_all(complete and [*complete, *farewells(made, store.manifest.iterations)])


def end_making(exchange: Exchange, config: JobConfig) -> None:
    """Note after a run's handshake that all parties have the store that they made, and drop the messages of making it.

    `offline` does so, too, unless a failure came between the last party's store and the last farewell.
    """
    made = config.offline()
    if config.provider != "dealer" and made.run_folder.path.exists():
        made.run_folder.farewell.touch()
        exchange.drop_messages(made.run)


def store_engines(config: JobConfig, store: TripleStore) -> ChosenEngines:
    """The engines that a store was made for."""
    return store.manifest.engines or requested_engines(config)


def _check_engines(config: JobConfig, manifest: Manifest) -> None:
    """Refuse a store for other engines than the job asks for."""
    for party, chosen in zip(config.parties, manifest.engines, strict=False):
        asked = config.required_kmeans.engines_of(party)
        for product, engine in zip(("distance", "update"), chosen, strict=True):
            if getattr(asked, product) not in ("auto", engine):
                raise StorageError(
                    f"the store {manifest.store!r} was made for the engine {engine} where kmeans.products asks for "
                    f"{getattr(asked, product)} ({party}, {product}): make one for this job with `veilmeans offline`"
                )


def check_claim(config: JobConfig, store: TripleStore, binding: str) -> None:
    """Refuse, before anything is sent, a run that has no part of the store and can get none."""
    if store.find_claim(config.run, binding) is None:
        store.check_suffices(runs=1)


def claim_triples(exchange: Exchange, config: JobConfig, store: TripleStore, binding: str) -> int:
    """Claim the lowest run number that is free at every party, before it is used."""
    known, ledger = store.find_claim(config.run, binding), ledger_of(config, store)
    number = _agree_on_number(exchange, config, store, ledger) if known is None else known.number
    store.claim(number, config.run, binding)
    ledger.check()
    _confirm(exchange, config, ledger, number)
    return number


def _agree_on_number(exchange: Exchange, config: JobConfig, store: TripleStore, ledger: ClaimLedger) -> int:
    """Find the lowest number that is free at every party; refuse a store that is older than its peers remember."""
    store.check_suffices(runs=1)
    where, mine = Address(config.run, 0, _STAGE, _FREE), store.next_number()
    remembered = [ledger.next_of(party) for party in config.parties]
    sent = {"next": np.array([mine], np.uint64), "remembered": np.array(remembered, np.uint64)}
    deliver_now(exchange, [Outgoing.of(MessageKey(where, config.party, peer), sent) for peer in config.peers])
    numbers = [mine]
    for peer in config.peers:
        heard = get_arrays(exchange, MessageKey(where, peer, config.party), config.exchange.timeout_s)
        number = int(_numbers(peer, heard, "next", 1)[0])
        claimed_here = int(_numbers(peer, heard, "remembered", len(config.parties))[config.me.index])
        _refuse_old(store.manifest.store, config.party, mine, peer, claimed_here)
        _refuse_old(store.manifest.store, peer, number, config.party, ledger.next_of(peer))
        numbers.append(number)
    return max(numbers)


def _numbers(peer: str, heard: Arrays, name: str, length: int) -> Array:
    found = heard.get(name)
    if found is None or found.shape != (length,) or found.dtype != np.uint64:
        raise RefusedError(f"{peer} did not say which part of the store is free")
    return found


def _refuse_old(store: str, party: str, free: int, witness: str, remembered: int) -> None:
    """Refuse a party whose store lacks claims that it has confirmed to another."""
    if free < remembered:
        raise RefusedError(
            f"the triple store {store!r} of {party} comes from a backup: to it number {free} is free, and {witness} "
            f"remembers that {party} has used number {remembered - 1}; masks would be used twice: make a new triple "
            "store, under a new triples.store, at all parties"
        )


def _confirm(exchange: Exchange, config: JobConfig, ledger: ClaimLedger, number: int) -> None:
    """Confirm to the peers that this party has claimed its number, and note their confirmations."""
    where = Address(config.run, 0, _STAGE, _CLAIMED)
    missing = [peer for peer in config.peers if not ledger.confirmed(peer, number)]
    if not missing:
        return
    claimed = {"claimed": np.array([number], np.uint64)}
    deliver_now(exchange, [Outgoing.of(MessageKey(where, config.party, peer), claimed) for peer in config.peers])
    for peer in missing:
        heard = get_arrays(exchange, MessageKey(where, peer, config.party), config.exchange.timeout_s)
        if int(_numbers(peer, heard, "claimed", 1)[0]) != number:
            raise RefusedError(f"{peer} has claimed another number of the store than {number}: use a new run id")
        ledger.confirm(peer, number)
