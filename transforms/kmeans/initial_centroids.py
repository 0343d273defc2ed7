"""The initial centroids, each party's share of them. Nothing is sent: a party's own values are its share.

random    values drawn from the agreed seed, known to all; the first party's share
indices   k rows, drawn from the agreed seed or named; their owners' values
local     each party's own plaintext K-means; horizontally, the average of all parties'
k-means++ the first row that `indices` draws from the agreed seed; `kmeans.kmeans_plus_plus` chooses the others
"""

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import prg, ring
from veilmeans.io.storage.encoded_shards import EncodedData, read_row, read_rows, read_values
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party

if TYPE_CHECKING:
    from veilmeans.transforms.kmeans.plaintext_kmeans import Sparse


def initial_centroids_share(job: KMeansConfig, layout: Layout, party: Party, prepared: EncodedData) -> ring.Ring:
    """Compute this party's share of μ_0 (k × d) of all starts; of its first row, if k-means++ chooses the others."""
    return np.concatenate([_share_of_start(job, layout, party, prepared, start) for start in range(job.starts)])


def _share_of_start(job: KMeansConfig, layout: Layout, party: Party, prepared: EncodedData, start: int) -> ring.Ring:
    share = np.zeros((job.clusters - job.seeds, layout.total_features), ring.DTYPE)
    columns = layout.own_columns(party.index)
    if job.init.method == "random" and party.first:
        share[:] = fixed.encode(random_centroids(job, layout, start))
    elif job.init.method in ("indices", "k-means++"):
        for cluster, row in enumerate(initial_rows(job, layout, start)[: len(share)]):
            owner, number = layout.find_row(row)
            if owner in (None, party.index):
                share[cluster, columns] = read_row(prepared.folder, *divmod(number, prepared.rows_per_shard))
    elif job.init.method == "local":
        from veilmeans.transforms.kmeans.plaintext_kmeans import local_centroids

        own = local_centroids(lambda: own_normalised_rows(prepared), job.clusters, job.init.seed + start)
        share[:, columns] = fixed.encode(own if layout.vertical else own / layout.parties)
    return share


def initial_rows(job: KMeansConfig, layout: Layout, start: int = 0) -> tuple[int, ...]:
    """Choose the k distinct rows that are the initial centroids of a start."""
    if job.init.indices is not None:
        return job.init.indices
    rows: dict[int, None] = {}
    draw = 0
    while len(rows) < job.clusters:
        words = _draw_public(job.init.seed, f"rows {draw}{_of_start(start)}", (job.clusters,))
        rows.update(dict.fromkeys(int(word) % layout.total_rows for word in words))
        draw += 1
    return tuple(rows)[: job.clusters]


def random_centroids(job: KMeansConfig, layout: Layout, start: int = 0) -> Real:
    """Draw centroids uniformly from the interval of normalised values; with zscore, within one deviation."""
    low, high = (-1.0, 1.0) if job.normalise.method == "zscore" else job.normalise.interval
    words = _draw_public(job.init.seed, f"values{_of_start(start)}", (job.clusters, layout.total_features))
    return low + (high - low) * np.ldexp(words.astype(np.float64), -64)


def _of_start(start: int) -> str:
    """The end of a label: each start draws its own values."""
    return f" of start {start}" if start else ""


def own_sum_of_squares(prepared: EncodedData) -> ring.Ring:
    """Σ|x|² of this party's own values, mod 2^64; `kmeans_from_config` checks that it fits if inertia is computed."""
    values = (fixed.decode(read_values(prepared.folder, shard)) for shard in range(prepared.shards))
    total = sum(float(np.sum(each**2)) for each in values)
    return np.array([round(total * (1 << fixed.FRACTION_BITS)) % (1 << 64)], ring.DTYPE)


def own_normalised_rows(prepared: EncodedData) -> Iterator["Sparse"]:
    """Read this party's normalised rows, shard by shard."""
    import scipy.sparse

    for shard in range(prepared.shards):
        rows = read_rows(prepared.folder, shard)
        yield scipy.sparse.csr_array((fixed.decode(rows.data), rows.indices, rows.indptr), shape=rows.shape)


def _draw_public(seed: int, label: str, shape: tuple[int, ...]) -> ring.Ring:
    """Draw words from the agreed seed: the same for all parties, and not secret."""
    key = hashlib.sha256(f"veilmeans start {seed}".encode()).digest()
    words: ring.Ring = prg.uniform(key, Address("start", 0, "start", 0), label, shape)
    return words
