"""Sums over shards of rows: of shares mod 2^64, of ciphertexts as products; and their cut into shards of columns."""

from collections.abc import Iterable, Mapping

import numpy as np

from veilmeans.crypto import ring
from veilmeans.io.keyring import moduli
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.job import Job
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.sparse import found_in, multiply_found


def add_up(parts: Iterable[Arrays], moduli: Mapping[int, int] | None = None) -> dict[str, Array]:
    """Σ of the parts' shares by their names, and products of their ciphertexts; a part need not have all of them."""
    parts = list(parts)
    found = multiply_found(parts, moduli or {})
    by_name: dict[str, list[Array]] = {}
    for part in parts:
        for name, array in part.items():
            if name not in found:
                by_name.setdefault(name, []).append(array)
    return {**{name: ring.total(arrays) for name, arrays in by_name.items()}, **found}


def by_columns(kmeans: KMeans, name: str, table: Array) -> dict[int, dict[str, Array]]:
    """A table of all d columns, shard by shard."""
    return {shard: {name: np.ascontiguousarray(table[:, cut])} for shard, cut in enumerate(kmeans.column_shards)}


def sums_by_columns(kmeans: KMeans, party: Party, sums: Arrays) -> dict[int, dict[str, Array]]:
    """Sums of all columns, and what was accumulated in ciphertexts for my own, column shard by column shard."""
    parts = by_columns(kmeans, "s", sums["s"])
    first = kmeans.layout.own_columns(party.index).start
    for part, cut in zip(parts.values(), kmeans.column_shards, strict=True):
        own = kmeans.layout.own_within(party.index, cut)
        part |= found_in(sums, party, own.start - first, own.stop - first)
    return parts


def column_range(kmeans: KMeans, shard: int) -> dict[str, Array]:
    """Which columns a column shard has, into its state."""
    cut = kmeans.column_shards[shard]
    return {"columns": np.array([cut.start, cut.stop])}


def moduli_of(job: Job) -> dict[int, int]:
    """The peers' public moduli, where ciphertexts are multiplied."""
    if job.kmeans.engines.cipher is None:
        return {}
    return moduli(job.seat.config.store_folder, job.seat.config.me)
