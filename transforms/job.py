"""One party's side of a K-means run: what it plays, and what it reads from and keeps on its own disk.

Operands and centroids are read where they are needed, so that they pass no barrier; see `io.checkpoints`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.sparse_product import SparseProduct
from veilmeans.io.checkpoints import OPERANDS, Checkpoints, assignments, centres, encrypted
from veilmeans.io.prepared import read_rows
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import Place
from veilmeans.transforms.cross import block_state
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.seat import OpenSeat, Seat, checkpoints
from veilmeans.transforms.sparse import sparse_state


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
