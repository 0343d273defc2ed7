"""One party's side of a K-means run: what it plays, and what it reads from and keeps on its own disk.

Operands and centroids are read where they are needed, so that they pass no barrier; see `io.storage.checkpoints`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.he.product_parameters import SparseProduct
from veilmeans.io.storage.checkpoints import ENCRYPTED, OPERANDS, Checkpoints, assignments, centres, encrypted
from veilmeans.io.storage.encoded_shards import read_rows
from veilmeans.io.storage.he_keyring import moduli
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.layout import Place
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.steps import KMeans
from veilmeans.transforms.products.cross_product import block_state
from veilmeans.transforms.products.he_product import found_in, multiply_found, sparse_state
from veilmeans.transforms.rounds.party_context import OpenSeat, Seat, checkpoints


@dataclass(frozen=True)
class Job:
    """One party's side of a K-means run: what it plays, where its own rows are, whether an iteration is one call."""

    kmeans: KMeans
    seat: Seat
    prepared: Path
    whole: bool

    def place(self, shard: int) -> Place:
        return self.kmeans.layout.places()[shard]

    @property
    def shards(self) -> list[int]:
        return list(range(len(self.kmeans.layout.places())))

    @property
    def column_shards(self) -> list[int]:
        return list(range(len(self.kmeans.column_shards)))


def kept(seat: OpenSeat) -> Checkpoints:
    """This party's checkpoints of the run."""
    return checkpoints(seat.folder, seat.seed)


def stopped(checkpoint: Arrays) -> bool:
    """Whether the stop bit was opened as 1."""
    return bool(checkpoint["stop"].any())


def load_own(job: Job, seat: OpenSeat, shard: int, engine: SparseProduct | None = None) -> Arrays:
    """My own matrix of a shard, its rows × the columns that I own there: dense, or in compressed rows for `he`."""
    place = job.place(shard)
    shape = block_state(place.block)
    if place.owner not in (None, seat.party.index):
        return {**shape, "x": np.zeros((place.block.rows, 0), ring.DTYPE)}
    rows = read_rows(job.prepared, place.index)
    return {**shape, "x": rows.toarray()} if engine is None else {**shape, **sparse_state(rows)}


def load_operand(job: Job, seat: OpenSeat, shard: int) -> Arrays:
    """My own matrix of a shard, if it is to be sent masked."""
    if seat.party.index in job.kmeans.engines.masked:
        return load_own(job, seat, shard)
    return block_state(job.place(shard).block)


def load_operands(job: Job, seat: OpenSeat, shard: int, engines: Sequence[SparseProduct | None]) -> Arrays:
    """My own matrix, and the masked ones of others."""
    own = load_own(job, seat, shard, engines[seat.party.index])
    return {**own, **(kept(seat).read_shard(OPERANDS, shard) if job.kmeans.engines.masked else {})}


def load_centres(job: Job, seat: OpenSeat) -> Arrays:
    """Shares of the centroids with which this iteration begins, of all columns, and of their norms."""
    return {"mu": read_centroids(job, kept(seat), seat.iteration), "u": kept(seat).read(seat.iteration)["u"]}


def read_centroids(job: Job, store: Checkpoints, done: int) -> ring.Ring:
    """Shares of the centroids (k × d) after so many iterations."""
    parts = [store.read_shard(centres(done), shard)["mu"] for shard in job.column_shards]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def load_columns(seat: OpenSeat, shard: int) -> Arrays:
    """Shares of a column shard's centroids with which this iteration begins."""
    return kept(seat).read_shard(centres(seat.iteration), shard)


def keep_operands(seat: OpenSeat, shard: int, state: Arrays) -> None:
    """Store what the others sent."""
    names = [f"e{peer}" for peer in seat.party.others]
    kept(seat).write_shard(OPERANDS, shard, {name: state[name] for name in names if name in state})


def keep_assignments(seat: OpenSeat, shard: int, state: Arrays) -> None:
    kept(seat).write_shard(assignments(seat.iteration + 1), shard, {"c": state["c"]})


def keep_encrypted(seat: OpenSeat, shard: int, received: Arrays) -> None:
    """The peers' encrypted centroids of a column shard, for all rows of this iteration."""
    kept(seat).write_shard(encrypted(seat.iteration), shard, received)


def keep_columns(seat: OpenSeat, shard: int, after: Arrays) -> Arrays:
    """A column shard's new centroids to disk; what is left is to be added up over the shards."""
    kept(seat).write_shard(centres(seat.iteration + 1), shard, {"mu": after["mu"]})
    return {name: after[name] for name in ("u", "esd")}


_GOES_ON = np.zeros(1, np.uint8)
"""As stop bit: there is something to do."""


def copy_model(job: Job, seat: OpenSeat, model: Checkpoints, done: int) -> None:
    """Checkpoint 0: shares of the model's centroids after its `done` iterations, and of their norms; as they are."""
    kind = centres(done)
    parts = [model.read_shard(kind, shard)["mu"] for shard in model.shards(kind)]
    norms = model.read(done)["u"]
    mu: ring.Ring = np.concatenate(parts, axis=1) if parts else np.zeros((0, 0), ring.DTYPE)
    if mu.shape != (job.kmeans.k, job.kmeans.layout.total_features):
        raise StorageError(f"{model.folder / kind} lacks shares of centroids: restore it from a backup")
    store = kept(seat)
    for shard, state in by_columns(job.kmeans, "mu", mu).items():
        store.write_shard(centres(0), shard, state)
    store.write(0, {"u": norms, "stop": _GOES_ON})


def finish_prediction(job: Job, seat: OpenSeat) -> None:
    """Checkpoint 1, when every shard's assignments are kept."""
    store = kept(seat)
    if store.shards(assignments(1)) != job.shards:
        raise StorageError(f"assignments of run {seat.run!r} are missing: start it again")
    store.write(1, {"stop": _GOES_ON})
    store.drop(ENCRYPTED, before=1)


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
