"""Triple stores without corrections, for tests of claims."""

from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.schemas.run_folder import StoreFolder

MANIFEST = Manifest("october", runs=3, iterations=2, rows=5, plan="digest")
SEED = bytes(range(32))


def make_store(folder: StoreFolder, manifest: Manifest = MANIFEST) -> TripleStore:
    """Make a store that can be opened."""
    store = TripleStore.create(folder, manifest, SEED)
    store.complete()
    return store
