"""One party's side of a K-means run: what it plays, and what it reads from and keeps on its own disk.

Operands and centroids are read where they are needed, so that they pass no barrier; see `io.storage.checkpoints`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.io.storage.checkpoints import ENCRYPTED, OPERANDS, Checkpoints, assignments, centroids, encrypted
from veilmeans.io.storage.encoded_shards import read_rows
from veilmeans.io.storage.he_keyring import moduli
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.layout import RowShard
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.products.cross_product import shape_to_state
from veilmeans.transforms.products.he_product import ciphertexts_within, csr_to_state, multiply_ciphertexts
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext, checkpoints


@dataclass(frozen=True)
class PartyJob:
    """One party's side of a K-means run: what it plays, where its own rows are, whether an iteration is one call."""

    kmeans: KMeansSteps
    context: PartyContext
    prepared: Path
    whole: bool

    def place(self, shard: int) -> RowShard:
        return self.kmeans.layout.row_shards()[shard]

    @property
    def shards(self) -> list[int]:
        return list(range(len(self.kmeans.layout.row_shards())))

    @property
    def column_shards(self) -> list[int]:
        return list(range(len(self.kmeans.column_shards)))


def checkpoints_of(context: OpenPartyContext) -> Checkpoints:
    """This party's checkpoints of the run."""
    return checkpoints(context.folder, context.seed)


def has_stopped(checkpoint: Arrays) -> bool:
    """Whether the stop bit was opened as 1."""
    return bool(checkpoint["stop"].any())


def load_own(job: PartyJob, context: OpenPartyContext, shard: int, engine: HEProductParameters | None = None) -> Arrays:
    """My own matrix of a shard, its rows × the columns that I own there: dense, or in compressed rows for `he`."""
    place = job.place(shard)
    shape = shape_to_state(place.block)
    if place.owner not in (None, context.party.index):
        return {**shape, "x": np.zeros((place.block.rows, 0), ring.DTYPE)}
    rows = read_rows(job.prepared, place.index)
    return {**shape, "x": rows.toarray()} if engine is None else {**shape, **csr_to_state(rows)}


def load_operand(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """My own matrix of a shard, if it is to be sent masked."""
    if context.party.index in job.kmeans.engines.masked:
        return load_own(job, context, shard)
    return shape_to_state(job.place(shard).block)


def load_operands(
    job: PartyJob, context: OpenPartyContext, shard: int, engines: Sequence[HEProductParameters | None]
) -> Arrays:
    """My own matrix, and the masked ones of others."""
    own = load_own(job, context, shard, engines[context.party.index])
    return {**own, **(checkpoints_of(context).read_shard(OPERANDS, shard) if job.kmeans.engines.masked else {})}


def load_centroids(job: PartyJob, context: OpenPartyContext) -> Arrays:
    """Shares of the centroids with which this iteration begins, of all columns, and of their norms."""
    return {
        "mu": read_centroids(job, checkpoints_of(context), context.iteration),
        "u": checkpoints_of(context).read(context.iteration)["u"],
    }


def read_centroids(job: PartyJob, store: Checkpoints, done: int) -> ring.Ring:
    """Shares of the centroids (k × d) after so many iterations."""
    parts = [store.read_shard(centroids(done), shard)["mu"] for shard in job.column_shards]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def load_columns(context: OpenPartyContext, shard: int) -> Arrays:
    """Shares of a column shard's centroids with which this iteration begins."""
    return checkpoints_of(context).read_shard(centroids(context.iteration), shard)


def keep_operands(context: OpenPartyContext, shard: int, state: Arrays) -> None:
    """Store what the others sent."""
    names = [f"e{peer}" for peer in context.party.others]
    checkpoints_of(context).write_shard(OPERANDS, shard, {name: state[name] for name in names if name in state})


def keep_assignments(context: OpenPartyContext, shard: int, state: Arrays) -> None:
    checkpoints_of(context).write_shard(assignments(context.iteration + 1), shard, {"c": state["c"]})


def keep_encrypted(context: OpenPartyContext, shard: int, received: Arrays) -> None:
    """The peers' encrypted centroids of a column shard, for all rows of this iteration."""
    checkpoints_of(context).write_shard(encrypted(context.iteration), shard, received)


def keep_columns(context: OpenPartyContext, shard: int, after: Arrays) -> Arrays:
    """A column shard's new centroids to disk; what is left is to be added up over the shards."""
    checkpoints_of(context).write_shard(centroids(context.iteration + 1), shard, {"mu": after["mu"]})
    return {name: after[name] for name in ("u", "esd")}


_GOES_ON = np.zeros(1, np.uint8)
"""As stop bit: there is something to do."""


def copy_model(job: PartyJob, context: OpenPartyContext, model: Checkpoints, done: int) -> None:
    """Checkpoint 0: shares of the model's centroids after its `done` iterations, and of their norms; as they are."""
    kind = centroids(done)
    parts = [model.read_shard(kind, shard)["mu"] for shard in model.shards(kind)]
    norms = model.read(done)["u"]
    mu: ring.Ring = np.concatenate(parts, axis=1) if parts else np.zeros((0, 0), ring.DTYPE)
    if mu.shape != (job.kmeans.k, job.kmeans.layout.total_features):
        raise StorageError(f"{model.folder / kind} lacks shares of centroids: restore it from a backup")
    store = checkpoints_of(context)
    for shard, state in by_columns(job.kmeans, "mu", mu).items():
        store.write_shard(centroids(0), shard, state)
    store.write(0, {"u": norms, "stop": _GOES_ON})


def finish_prediction(job: PartyJob, context: OpenPartyContext) -> None:
    """Checkpoint 1, when every shard's assignments are kept."""
    store = checkpoints_of(context)
    if store.shards(assignments(1)) != job.shards:
        raise StorageError(f"assignments of run {context.run!r} are missing: start it again")
    store.write(1, {"stop": _GOES_ON})
    store.drop(ENCRYPTED, before=1)


def total_of(parts: Iterable[Arrays], moduli: Mapping[int, int] | None = None) -> dict[str, Array]:
    """Σ of the parts' shares by their names, and products of their ciphertexts; a part need not have all of them."""
    parts = list(parts)
    found = multiply_ciphertexts(parts, moduli or {})
    by_name: dict[str, list[Array]] = {}
    for part in parts:
        for name, array in part.items():
            if name not in found:
                by_name.setdefault(name, []).append(array)
    return {**{name: ring.total(arrays) for name, arrays in by_name.items()}, **found}


def by_columns(kmeans: KMeansSteps, name: str, table: Array) -> dict[int, dict[str, Array]]:
    """A table of all d columns, shard by shard."""
    return {shard: {name: np.ascontiguousarray(table[:, cut])} for shard, cut in enumerate(kmeans.column_shards)}


def sums_by_columns(kmeans: KMeansSteps, party: Party, sums: Arrays) -> dict[int, dict[str, Array]]:
    """Sums of all columns, and what was accumulated in ciphertexts for my own, column shard by column shard."""
    parts = by_columns(kmeans, "s", sums["s"])
    first = kmeans.layout.own_columns(party.index).start
    for part, cut in zip(parts.values(), kmeans.column_shards, strict=True):
        own = kmeans.layout.own_within(party.index, cut)
        part |= ciphertexts_within(sums, party, own.start - first, own.stop - first)
    return parts


def column_range(kmeans: KMeansSteps, shard: int) -> dict[str, Array]:
    """Which columns a column shard has, into its state."""
    cut = kmeans.column_shards[shard]
    return {"columns": np.array([cut.start, cut.stop])}


def moduli_of(job: PartyJob) -> dict[int, int]:
    """The peers' public moduli, where ciphertexts are multiplied."""
    if job.kmeans.engines.cipher is None:
        return {}
    return moduli(job.context.config.store_folder, job.context.config.me)
