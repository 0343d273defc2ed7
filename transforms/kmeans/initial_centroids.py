"""The first centroids, each party's share of them. Nothing is sent: what a party knows is its share, the others' is 0.

random    values drawn from the agreed seed, known to all; the first party's share
indices   k rows, drawn from the agreed seed or named; their owners' values
local     each party's own plaintext K-means; horizontally, the average of all parties'
"""

import hashlib
from collections.abc import Iterator

import numpy as np
import scipy.sparse

from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import prg, ring
from veilmeans.io.storage.encoded_shards import EncodedData, read_rows
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.plaintext_kmeans import Sparse, local_start


def first_centroids_share(job: KMeansConfig, layout: Layout, party: Party, prepared: EncodedData) -> ring.Ring:
    """This party's share of μ_0 (k × d)."""
    share = np.zeros((job.clusters, layout.total_features), ring.DTYPE)
    columns = layout.own_columns(party.index)
    if job.init.method == "random" and party.first:
        share[:] = fixed.encode(random_values(job, layout))
    elif job.init.method == "indices":
        for cluster, row in enumerate(first_rows(job, layout)):
            owner, number = layout.find_row(row)
            if owner in (None, party.index):
                share[cluster, columns] = _row(prepared, number)
    elif job.init.method == "local":
        own = local_start(lambda: own_rows(prepared), job.clusters, job.init.seed)
        share[:, columns] = fixed.encode(own if layout.vertical else own / layout.parties)
    return share


def first_rows(job: KMeansConfig, layout: Layout) -> tuple[int, ...]:
    """The k distinct rows at which the centroids start."""
    if job.init.indices is not None:
        return job.init.indices
    found: dict[int, None] = {}
    draw = 0
    while len(found) < job.clusters:
        words = _public(job.init.seed, f"rows {draw}", (job.clusters,))
        found.update(dict.fromkeys(int(word) % layout.total_rows for word in words))
        draw += 1
    return tuple(found)[: job.clusters]


def random_values(job: KMeansConfig, layout: Layout) -> Real:
    """Uniform in the interval of normalised values; with zscore, within one deviation."""
    low, high = (-1.0, 1.0) if job.normalise.method == "zscore" else job.normalise.interval
    words = _public(job.init.seed, "values", (job.clusters, layout.total_features))
    return low + (high - low) * np.ldexp(words.astype(np.float64), -64)


def own_squares(prepared: EncodedData) -> ring.Ring:
    """Σ|x|² of this party's own values, mod 2^64; where inertia is asked for, it fits (`kmeans_from_config`)."""
    total = sum(float(np.sum(block.data**2)) for block in own_rows(prepared))
    return np.array([round(total * (1 << fixed.FRACTION_BITS)) % (1 << 64)], ring.DTYPE)


def own_rows(prepared: EncodedData) -> Iterator[Sparse]:
    """This party's normalised rows, shard by shard."""
    for shard in range(prepared.shards):
        rows = read_rows(prepared.folder, shard)
        yield scipy.sparse.csr_array((fixed.decode(rows.data), rows.indices, rows.indptr), shape=rows.shape)


def _row(prepared: EncodedData, number: int) -> ring.Ring:
    shard, inside = divmod(number, prepared.rows_per_shard)
    row: ring.Ring = read_rows(prepared.folder, shard)[[inside]].toarray()[0]
    return row


def _public(seed: int, label: str, shape: tuple[int, ...]) -> ring.Ring:
    """Words that everyone draws alike from the agreed seed; they are no secret."""
    key = hashlib.sha256(f"veilmeans start {seed}".encode()).digest()
    words: ring.Ring = prg.uniform(key, Address("start", 0, "start", 0), label, shape)
    return words
