"""One party's side of a K-means run: what it reads from its own disk and keeps there, and how shards are added up.

Operands and centroids are read where they are needed, so that they pass no barrier; see `io.storage.checkpoints`. Each
`Load` also says what shapes it has, so that the same descriptions can be traced without data.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from veilmeans.crypto import ring
from veilmeans.io.storage.checkpoints import Checkpoints, assignments, centroids, encrypted, final_centroids, scores
from veilmeans.io.storage.encoded_shards import (
    pad_rows,
    pad_sparse_rows,
    read_dense_rows,
    read_labels,
    read_row_squares,
    read_rows,
)
from veilmeans.io.storage.he_keyring import peer_moduli
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.layout import RowShard
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import (
    ASSIGNMENTS,
    CHOSEN,
    ENCRYPTED,
    EXPLAINED_CENTROIDS,
    OPEN_CENTROIDS,
    OPEN_CLUSTERS,
    OPERANDS,
    PROFILE,
)
from veilmeans.transforms.kmeans import state_shapes as shapes
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.products.cross_product import shape_to_state
from veilmeans.transforms.products.he_product import (
    OwnerProducts,
    ciphertexts_within,
    csr_to_state,
    multiply_ciphertexts,
)
from veilmeans.transforms.rounds.executor import AddUp, Keep, Load, Over, has_stopped
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext, run_checkpoints
from veilmeans.transforms.statistics.explanations import EXPLAINED, EXPLAINED_SCORE, HAS
from veilmeans.transforms.statistics.largest import BELOW, SHARD, counts_before
from veilmeans.transforms.statistics.profiles import RECIPIENTS, SIZES, SUMS
from veilmeans.transforms.statistics.small_clusters import OPEN


@dataclass(frozen=True)
class PartyJob:
    """One party's side of a K-means run: its steps, its context, and the folder of its own encoded rows.

    `one_call`: all rounds of an iteration run in one call here.
    """

    steps: KMeansSteps
    context: PartyContext
    encoded: Path
    one_call: bool

    def at_iteration(self, iteration: int) -> "PartyJob":
        """The same job with the context of an iteration."""
        return replace(self, context=replace(self.context, iteration=iteration))

    def choosing_start(self, done: int) -> "PartyJob":
        """The job of all starts after its `done` iterations, for what is done once then."""
        return replace(self, context=replace(self.context, iteration=done, once=True))

    def after_last(self, done: int) -> "PartyJob":
        """The job after its `done` iterations, for what is done once then."""
        return replace(self.choosing_start(done), steps=self.steps.last)

    @property
    def parameters(self) -> KMeansSteps:
        return self.steps

    @property
    def row_shards(self) -> list[RowShard]:
        return self.steps.layout.row_shards()

    def shard_numbers(self, over: Over) -> list[int]:
        if over is Over.ROWS:
            return self.steps.layout.row_shard_numbers()
        return list(range(len(self.steps.column_shards) if over is Over.COLUMNS else 1))

    def add_up(self) -> AddUp:
        """Σ of shares mod 2^64; Π of ciphertexts under the peers' public moduli, where there are some."""
        if self.steps.engines.cipher is None:
            return partial(total_of, peer_moduli={})
        return partial(total_of, peer_moduli=peer_moduli(self.context.config.store_folder, self.context.config.me))


def checkpoints_of(context: OpenPartyContext) -> Checkpoints:
    """This party's checkpoints of the run."""
    return run_checkpoints(context.folder, context.seed, context.await_durable)


# loads
def _own_matrix(job: PartyJob, context: OpenPartyContext, shard: int, sparse: bool = False) -> Arrays:
    """This party's own matrix of a row shard: dense, or in compressed rows for `he`."""
    row_shard = job.steps.layout.row_shard(shard)
    shape, rows = _shape_of(row_shard), row_shard.shape.rows
    if row_shard.owner not in (None, context.party.index):
        return {**shape, "x": np.zeros((rows, 0), ring.DTYPE)}
    if sparse:
        return {**shape, **csr_to_state(pad_sparse_rows(read_rows(job.encoded, row_shard.index), rows))}
    return {**shape, "x": pad_rows(read_dense_rows(job.encoded, row_shard.index), rows)}


def _shape_of(row_shard: RowShard) -> Arrays:
    return shape_to_state(row_shard.shape, row_shard.padding)


def _matrix_to_mask(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """This party's own matrix of a row shard, if it is to be sent masked."""
    if context.party.index in job.steps.engines.masked:
        return _own_matrix(job, context, shard)
    return _shape_of(job.steps.layout.row_shard(shard))


def operands_of(job: PartyJob, context: OpenPartyContext, shard: int, engines: OwnerProducts) -> Arrays:
    """This party's own matrix, and the masked matrices of the others."""
    own = _own_matrix(job, context, shard, sparse=engines[context.party.index] is not None)
    return {**own, **(checkpoints_of(context).read_shard(OPERANDS, shard) if job.steps.engines.masked else {})}


def _distance_operands(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """The operands of the distances, and shares of all centroids as this iteration begins."""
    operands = operands_of(job, context, shard, job.steps.engines.distance)
    return {**operands, "mu": read_centroids(job, checkpoints_of(context), _kind(job, context))}


def _update_operands(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    return operands_of(job, context, shard, job.steps.engines.update)


def _profile_operands(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """This party's values, squares and labels of a row shard, where they are part of profiles."""
    row_shard, me, profiles = job.steps.layout.row_shard(shard), context.party.index, shapes.profiles_of(job.steps)
    shape = profiles.shape(row_shard.shape)
    x = np.zeros((shape.rows, 0), ring.DTYPE)
    if shape.widths[me]:
        values, labels = read_dense_rows(job.encoded, row_shard.index), read_labels(job.encoded, row_shard.index)
        x = pad_rows(profiles.operand(me, values, labels), shape.rows)
    return {**shape_to_state(shape, row_shard.padding), "x": x}


def _column_centroids(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """Shares of a column shard's centroids as this iteration begins."""
    return checkpoints_of(context).read_shard(_kind(job, context), shard)


def _kind(job: PartyJob, context: OpenPartyContext) -> str:
    """The kind of the centroids as this iteration begins: of all starts, or of the one that was chosen."""
    return centroids(context.iteration) if job.steps.starts > 1 else final_centroids(context.folder, context.iteration)


def _moved_centroids(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """Shares of a column shard's centroids, and of those before the last iteration if there is a tolerance."""
    mu = _column_centroids(job, context, shard)
    if not job.steps.centroid_update.threshold:
        return mu
    before = checkpoints_of(context).read_shard(centroids(max(0, context.iteration - 1)), shard)
    return {**mu, "before": before["mu"]}


def _last_counts(job: PartyJob, context: OpenPartyContext, _shard: int) -> Arrays:
    """Shares of the counts, of all starts or of the one that was chosen, and Σ|x|² of what this party owns."""
    return {**_cluster_counts(job, context, _shard), "x2": checkpoints_of(context).read(context.iteration)["x2"]}


def _cluster_counts(job: PartyJob, context: OpenPartyContext, _shard: int) -> Arrays:
    """Shares of how many rows each centroid is the mean of, of all starts or of the one that was chosen."""
    checkpoint = checkpoints_of(context).read(context.iteration)
    counts = _CHOSEN_COUNTS if job.steps.starts == 1 and _CHOSEN_COUNTS in checkpoint else "n"
    return {SIZES: checkpoint[counts]}


def _open_bits(_job: PartyJob, context: OpenPartyContext, _shard: int) -> Arrays:
    """Shares of which centroids may be opened."""
    return checkpoints_of(context).read_shard(OPEN_CLUSTERS, 0)


def _column_range(job: PartyJob, _context: OpenPartyContext, shard: int) -> Arrays:
    """The columns of a column shard: the first, and the last + 1."""
    cut = job.steps.column_shards[shard]
    return {"columns": np.array([cut.start, cut.stop])}


def _squares(_job: PartyJob, context: OpenPartyContext, _shard: int) -> Arrays:
    """Σ|x|² of what this party owns."""
    return {"x2": checkpoints_of(context).read(context.iteration)["x2"]}


def own_row_squares(job: PartyJob, context: OpenPartyContext, shard: int) -> ring.Ring:
    """|x|² of what this party owns of each row, with 2f fractional bits; a share, as the owners' sum is |x|²."""
    row_shard = job.steps.layout.row_shard(shard)
    if row_shard.owner not in (None, context.party.index):
        return np.zeros(row_shard.shape.rows, ring.DTYPE)
    return pad_rows(read_row_squares(job.encoded, row_shard.index), row_shard.shape.rows)


def _row_squares(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    return {"x2": own_row_squares(job, context, shard)}


def _shard_number(_job: PartyJob, _context: OpenPartyContext, shard: int) -> Arrays:
    return {SHARD: np.array([shard])}


def read_centroids(job: PartyJob, store: Checkpoints, kind: str) -> ring.Ring:
    """Read shares of all centroids (k × d) of this kind."""
    parts = [store.read_shard(kind, shard)["mu"] for shard in job.shard_numbers(Over.COLUMNS)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


MATRIX_TO_MASK = Load(_matrix_to_mask, shapes.matrix_to_mask, kept=("scale",))
DISTANCE_OPERANDS = Load(
    _distance_operands, shapes.distance_operands, kept=("scale", "operands", "centroids", "checkpoint", "encrypted")
)
UPDATE_OPERANDS = Load(_update_operands, shapes.update_operands, kept=("operands",))
PROFILE_OPERANDS = Load(_profile_operands, shapes.profile_operands)
COLUMN_CENTROIDS = Load(_column_centroids, shapes.column_centroids, kept=("centroids",))
MOVED_CENTROIDS = Load(_moved_centroids, shapes.moved_centroids, kept=("centroids", "checkpoint"))
LAST_COUNTS = Load(_last_counts, shapes.counts_and_squares, kept=("checkpoint",))
CLUSTER_COUNTS = Load(_cluster_counts, shapes.cluster_counts, kept=("checkpoint",))
OPEN_BITS = Load(_open_bits, shapes.open_bits, kept=("open",))
COLUMN_RANGE = Load(_column_range, shapes.column_range)
SQUARES = Load(_squares, shapes.squares)
ROW_SQUARES = Load(_row_squares, shapes.row_squares)
SHARD_NUMBER = Load(_shard_number, shapes.shard_number)


# keeps
def _keep_operands(_job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    """The masked matrices that the others sent."""
    names = [f"e{peer}" for peer in context.party.others]
    checkpoints_of(context).write_shard(OPERANDS, shard, {name: state[name] for name in names if name in state})


def _keep_shard(
    folder: Callable[[int], str],
    later: int,
    names: tuple[str, ...],
    _job: PartyJob,
    context: OpenPartyContext,
    shard: int,
    state: Arrays,
) -> None:
    """Write these arrays of a shard to the folder of the iteration that is `later` ones after this."""
    arrays = {name: state[name] for name in names or state}
    checkpoints_of(context).write_shard(folder(context.iteration + later), shard, arrays)


def _keep_scores(_job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    """Shares of the scores that may be opened, of the outliers' bits, and of what explains them."""
    names = ("shown", "outlier", EXPLAINED, EXPLAINED_SCORE)
    found = {name: state[name] for name in names if name in state}
    checkpoints_of(context).write_shard(scores(context.iteration + 1), shard, found)


def _write_checkpoint(_job: PartyJob, context: OpenPartyContext, _shard: int, state: Arrays) -> None:
    """The checkpoint that ends an iteration; what no later one needs is dropped."""
    store, done = checkpoints_of(context), context.iteration + 1
    store.write(done, {**state, "stop": _NOT_STOPPED})
    store.drop(ASSIGNMENTS, before=done - 1)
    store.drop(ENCRYPTED, before=done)


def _write_stop(_job: PartyJob, context: OpenPartyContext, _shard: int, state: Arrays) -> None:
    """Mark the checkpoint that this iteration began with as the last one, if the stop bit is 1."""
    if has_stopped(state):
        store, done = checkpoints_of(context), context.iteration
        store.write(done, {**store.read(done), "stop": state["stop"]})
        store.drop(ENCRYPTED, before=done + 1)


def _write_inertia(_job: PartyJob, context: OpenPartyContext, _shard: int, state: Arrays) -> None:
    """Add the inertia to the last checkpoint."""
    store, done = checkpoints_of(context), context.iteration
    store.write(done, {**store.read(done), "inertia": state["inertia"]})


_CHOSEN_COUNTS = "chosen.n"
"""The counts of the best start, in the last checkpoint."""


def _keep_chosen(_job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    checkpoints_of(context).write_shard(CHOSEN, shard, {"mu": state["mu"]})


def _keep_explained(_job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    names = ["mu", *([HAS] if HAS in state else [])]
    checkpoints_of(context).write_shard(EXPLAINED_CENTROIDS, shard, {name: state[name] for name in names})


def _keep_open_clusters(_job: PartyJob, context: OpenPartyContext, _shard: int, state: Arrays) -> None:
    checkpoints_of(context).write_shard(OPEN_CLUSTERS, 0, {OPEN: state[OPEN]})


def _keep_open_centroids(_job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    checkpoints_of(context).write_shard(OPEN_CENTROIDS, shard, {"mu": state["mu"]})


def _keep_profile(job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    """Shares of sizes and sums, and for whom the sums are."""
    recipients = np.array(shapes.profiles_of(job.steps).recipients)
    kept = {SIZES: state[SIZES], SUMS: state[SUMS], RECIPIENTS: recipients}
    kept |= {OPEN: state[OPEN]} if OPEN in state else {}
    checkpoints_of(context).write_shard(PROFILE, shard, kept)


def _write_chosen_counts(_job: PartyJob, context: OpenPartyContext, _shard: int, state: Arrays) -> None:
    store, done = checkpoints_of(context), context.iteration
    store.write(done, {**store.read(done), _CHOSEN_COUNTS: state["n"]})


def first_checkpoint(squares: ring.Ring) -> Keep:
    """Checkpoint 0: this party's own Σ|x|²."""

    def write(_job: PartyJob, context: OpenPartyContext, _shard: int, _state: Arrays) -> None:
        checkpoints_of(context).write(0, {"x2": squares, "stop": _NOT_STOPPED})

    return Keep("checkpoint", write)


KEEP_OPERANDS = Keep("operands", _keep_operands)
KEEP_ASSIGNMENTS = Keep("assignments", partial(_keep_shard, assignments, 1, ("c",)))
KEEP_SCORES = Keep("scores", _keep_scores)
KEEP_ENCRYPTED = Keep("encrypted", partial(_keep_shard, encrypted, 0, ()))
KEEP_CENTROIDS = Keep("centroids", partial(_keep_shard, centroids, 1, ("mu",)))
KEEP_FIRST_CENTROIDS = Keep("centroids", partial(_keep_shard, centroids, 0, ("mu",)))
KEEP_CHOSEN = Keep("centroids", _keep_chosen)
KEEP_EXPLAINED = Keep("explained", _keep_explained)
KEEP_OPEN_CLUSTERS = Keep("open", _keep_open_clusters)
KEEP_OPEN_CENTROIDS = Keep("open centroids", _keep_open_centroids)
KEEP_PROFILE = Keep("profile", _keep_profile)
KEEP_CHOSEN_COUNTS = Keep("checkpoint", _write_chosen_counts)
KEEP_CHECKPOINT = Keep("checkpoint", _write_checkpoint)
KEEP_STOP = Keep("stop", _write_stop)
KEEP_INERTIA = Keep("inertia", _write_inertia)
_NOT_STOPPED = np.zeros(1, np.uint8)  # the stop bit of a checkpoint that no iteration has written


# checkpoints of a prediction, and of an assignment after the last iteration
def copy_model(job: PartyJob, context: OpenPartyContext, model: Checkpoints, done: int) -> None:
    """Write checkpoint 0 from the model's shares of centroids after its `done` iterations."""
    folder = final_centroids(model.folder, done)
    parts = [model.read_shard(folder, shard)["mu"] for shard in model.shards(folder)]
    mu: ring.Ring = np.concatenate(parts, axis=1) if parts else np.zeros((0, 0), ring.DTYPE)
    if mu.shape != (job.steps.k, job.steps.layout.total_features):
        raise StorageError(f"{model.folder.shares(folder)} lacks shares of centroids: restore it from a backup")
    store = checkpoints_of(context)
    for shard, state in by_columns(job.steps, "mu", mu).items():
        store.write_shard(centroids(0), shard, state)
    if job.steps.closes:
        store.write_shard(OPEN_CLUSTERS, 0, model.read_shard(OPEN_CLUSTERS, 0))
    store.write(0, {"stop": _NOT_STOPPED})


def finish_prediction(job: PartyJob, context: OpenPartyContext) -> None:
    """Write checkpoint 1, when every row shard's assignments are kept."""
    store = _check_assignments(job, context)
    store.write(1, {"stop": _NOT_STOPPED})
    store.drop(ENCRYPTED, before=1)


def _check_assignments(job: PartyJob, context: OpenPartyContext) -> Checkpoints:
    """Return this party's checkpoints, if every row shard's assignments to these centroids are kept."""
    store, done = checkpoints_of(context), context.iteration + 1
    for kind in (assignments(done), *([scores(done)] if job.steps.measures else [])):
        if store.shards(kind) != job.shard_numbers(Over.ROWS):
            raise StorageError(f"{kind} of run {context.run!r} are missing: run the command again, it resumes")
    return store


FINISHED = "finished"
"""The mark in the last checkpoint: what follows the last iteration is done."""


def finish_training(job: PartyJob, context: OpenPartyContext) -> None:
    """Mark the last checkpoint, when every row shard's assignments to the final centroids are kept."""
    store, done = checkpoints_of(context), context.iteration
    if job.steps.final_assignment:
        _check_assignments(job, context).drop(ASSIGNMENTS, before=done + 1)
    if job.steps.profiles is not None and not store.shards(PROFILE):
        raise StorageError(f"profiles of run {context.run!r} are missing: run the command again, it resumes")
    if job.steps.closes and store.shards(OPEN_CENTROIDS) != job.shard_numbers(Over.COLUMNS):
        raise StorageError(f"centroids of run {context.run!r} are missing: run the command again, it resumes")
    store.write(done, {**store.read(done), FINISHED: np.ones(1, np.uint8)})
    store.drop(ENCRYPTED, before=done + 1)


# totals
def total_of(parts: Iterable[Arrays], peer_moduli: Mapping[int, int]) -> dict[str, Array]:
    """Add up shares by their names and multiply ciphertexts; a part need not have all names."""
    parts = list(parts)
    ciphertexts = multiply_ciphertexts(parts, peer_moduli)
    shares: dict[str, list[Array]] = {}
    for part in parts:
        for name, array in part.items():
            if name not in ciphertexts:
                shares.setdefault(name, []).append(array)
    return {**{name: ring.total(arrays) for name, arrays in shares.items()}, **ciphertexts}


def everything(_steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """A cut that takes all of a shard's arrays under the one key 0."""
    return {0: state}


def by_columns(steps: KMeansSteps, name: str, table: Array) -> dict[int, dict[str, Array]]:
    """Cut a table of all d columns into column shards."""
    return {shard: {name: np.ascontiguousarray(table[:, cut])} for shard, cut in enumerate(steps.column_shards)}


def sums_by_columns(steps: KMeansSteps, party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Cut the sums of all columns, and the ciphertexts accumulated for this party's own, into column shards."""
    parts = by_columns(steps, "s", state["s"])
    first = steps.layout.own_columns(party.index).start
    for part, cut in zip(parts.values(), steps.column_shards, strict=True):
        own = steps.layout.own_columns_within(party.index, cut)
        part |= ciphertexts_within(state, party, own.start - first, own.stop - first)
    return parts


def to_every_row_shard(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every row shard the centroids' norms."""
    return _to_all(steps.layout.row_shard_numbers(), state, "u")


def below_to_every_row_shard(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every row shard the bits that say how the threshold's digit compares."""
    return _to_all(steps.layout.row_shard_numbers(), state, BELOW)


def ranks_to_row_shards(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every row shard the ranks with which it begins."""
    return counts_before(steps.layout.row_shard_numbers(), state)


def scale_to_every_column_shard(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every column shard what its numerator needs of the counts."""
    return _to_all(range(len(steps.column_shards)), state, "w", "empty")


def best_to_every_column_shard(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every column shard the bits of the best start."""
    return _to_all(range(len(steps.column_shards)), state, "best")


def open_to_every_column_shard(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every column shard the bits of the clusters that may be opened."""
    return _to_all(range(len(steps.column_shards)), state, OPEN)


def explained_to_every_column_shard(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every column shard the bits of the clusters that have an outlier."""
    return _to_all(range(len(steps.column_shards)), state, HAS)


def reciprocal_to_every_column_shard(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every column shard the reciprocals of the counts."""
    return _to_all(range(len(steps.column_shards)), state, "y")


def _to_all(shards: Iterable[int], state: Arrays, *names: str) -> dict[int, Arrays]:
    return {shard: {name: state[name] for name in names} for shard in shards}
