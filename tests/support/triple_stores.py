"""Triple stores without corrections, for tests of claims; and the steps of a store's largest run."""

from dataclasses import replace

from veilmeans.io.ledgers.claim_ledger import ClaimLedger
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.kmeans.steps import KMeansSteps

MANIFEST = Manifest("october", runs=3, iterations=2, rows=5, plan="digest")
SEED = bytes(range(32))


def make_store(folder: StoreFolder, manifest: Manifest = MANIFEST) -> TripleStore:
    """Make a store that can be opened."""
    store = TripleStore.create(folder, manifest, SEED)
    store.complete()
    return store


def begin_ledger(config: JobConfig, store: TripleStore) -> TripleStore:
    """Begin the ledger of a party's store."""
    ClaimLedger.of(config.ledger_folder, store).begin()
    return store


def at_capacity(kmeans: KMeansSteps) -> KMeansSteps:
    """The steps of the largest run that the store serves."""
    layout = kmeans.layout.at_capacity()
    seeding = None if kmeans.seeding is None else replace(kmeans.seeding, layout=layout)
    return replace(kmeans, layout=layout, seeding=seeding)
