"""A run's part of its triple store: open the store or have it made, check it, agree with the peers on a part, claim it.

Where the parties make their triples themselves, a run makes the store that is missing. All must decide alike: who has
the store says so when it begins a run, and one that has lost its own hears it when it begins to make it (`offline`).
"""

import numpy as np

from veilmeans.io.exchange.exchange import Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.exchange.handshake import completion_messages, stored_terms
from veilmeans.io.storage.he_keyring import load_keyring
from veilmeans.io.storage.triple_store import Manifest, TripleStore, is_complete
from veilmeans.pipelines.session.kmeans_from_config import job_digest, requested_engines, store_jobs
from veilmeans.pipelines.session.session import farewells
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.products.engine_parameters import ChosenEngines

_STAGE = "triples"


def open_store(config: JobConfig, iterations: int = 1) -> TripleStore:
    """Open the store and check that it was made for this job and its shapes."""
    job_digest(config)  # fails on a mistake in the configuration before a missing store
    store = TripleStore.open(config.store_folder)
    _check_engines(config, store.manifest)
    store.check_suffices(iterations=iterations, plan=store_jobs(config, store_engines(config, store)).digest())
    if any("he" in chosen for chosen in store.manifest.engines):
        load_keyring(config.store_folder, config.me)  # fails on missing keys before anything is sent
    return store


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
    known = store.find_claim(config.run, binding)
    if known is not None:
        return known.number
    store.check_suffices(runs=1)
    where = Address(config.run, 0, _STAGE, 0)
    mine = {"next": np.array([store.next_number()], np.uint64)}
    deliver_now(exchange, [Outgoing.of(MessageKey(where, config.party, peer), mine) for peer in config.peers])
    numbers = [store.next_number()]
    for peer in config.peers:
        heard = get_arrays(exchange, MessageKey(where, peer, config.party), config.exchange.timeout_s).get("next")
        if heard is None or heard.shape != (1,) or heard.dtype != np.uint64:
            raise RefusedError(f"{peer} did not say which part of the store is free")
        numbers.append(int(heard[0]))
    return store.claim(max(numbers), config.run, binding).number
