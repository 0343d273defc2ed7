"""K-means, described once: which steps run over what, what they read and keep, and in which order.

    once            mask operands: X − U to the others;  first centroids: their norms, checkpoint 0
    each iteration  [encrypt ─▶] distance ─▶ assign ─▶ update ─▶ Σ over row shards ─▶ new centroids ─▶ checkpoint

and the new centroids, over column shards:

    counts ─▶ Σ ─▶ reciprocal ─▶ to each column shard ──┐                       ┌─ counts
    sums by column shards ─▶ Σ of each ─▶ [unmask ─▶] ──┴▶ quotient ─▶ keep ─▶ ─┴▶ Σ ─▶ finish ─▶ checkpoint

In brackets is what homomorphic products need. A prediction masks its operands and assigns its rows, once. Executors
run these functions, in one call or as a pipeline of stages. Nothing flows between iterations but their number: shares
are read from the checkpoint that the iteration before has left.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import apache_beam as beam

from veilmeans.io.storage.triple_store import Manifest, StoreRun
from veilmeans.schemas.errors import StorageError
from veilmeans.transforms.kmeans import party_state as state
from veilmeans.transforms.kmeans.party_state import PartyJob, checkpoints_of, has_stopped
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.beam_executor import RunDescription
from veilmeans.transforms.rounds.executor import Executor, Keep, Load, Over, Step, only

S = TypeVar("S")


def mask_operands(operand: Step, run: Executor[S]) -> S:
    """Send every owner's masked matrix to the others, once per run."""
    return run.keep(state.KEEP_OPERANDS, run.rounds(operand, run.shards(Over.ROWS, state.MATRIX_TO_MASK)))


def write_first_centroids(steps: KMeansSteps, first: Load, checkpoint: Keep, run: Executor[S]) -> S:
    """Compute the norms of the first centroids, and write checkpoint 0."""
    columns = run.rounds(steps.norms, run.shards(Over.COLUMNS, first))
    norms = run.total(Over.ONE, only("u"), run.keep(state.KEEP_FIRST_CENTROIDS, columns))
    return run.keep(checkpoint, norms)


def assign_rows(steps: KMeansSteps, run: Executor[S], after: Sequence[S] = ()) -> S:
    """Find each row's nearest centroid, as a shared one-hot row "c": half of an iteration, and all of a prediction."""
    if steps.encrypt is not None:
        columns = run.load(state.COLUMN_RANGE, run.shards(Over.COLUMNS, state.COLUMN_CENTROIDS, after))
        after = [*after, run.keep(state.KEEP_ENCRYPTED, run.rounds(steps.encrypt, columns))]
    distances = run.rounds(steps.distance, run.shards(Over.ROWS, state.DISTANCE_OPERANDS, after))
    return run.keep(state.KEEP_ASSIGNMENTS, run.rounds(steps.assign, distances))


def iterate(steps: KMeansSteps, run: Executor[S]) -> S:
    """Run one iteration of Lloyd's algorithm. Work on the centroids of one column shard is one call."""
    sums = run.rounds(steps.update, run.load(state.UPDATE_OPERANDS, assign_rows(steps, run)))
    if len(steps.column_shards) > 1:
        return update_centroids(steps, run, sums)
    return run.in_one_call(partial(update_centroids, steps), run.total(Over.ONE, state.everything, sums))


def update_centroids(steps: KMeansSteps, run: Executor[S], sums: S) -> S:
    """Divide the clusters' sums by their counts, and write the checkpoint.

    Unmasking waits for the reciprocals: parties that wait for each other's messages must do so in one order.
    """
    counts = run.total(Over.ONE, only("n"), sums)
    inverse = run.rounds(steps.reciprocal, counts)
    columns = run.total(Over.COLUMNS, state.sums_by_columns, sums)
    if steps.unmask is not None:
        columns = run.rounds(steps.unmask, run.load(state.COLUMN_RANGE, run.after(columns, inverse)))
    divided = run.join(columns, run.total(Over.COLUMNS, state.to_every_column_shard, inverse))
    new = run.keep(state.KEEP_CENTROIDS, run.rounds(steps.quotient, run.load(state.COLUMN_CENTROIDS, divided)))
    totals = run.load(state.SQUARES, run.total(Over.ONE, only("u", "esd", "n"), new, counts))
    return run.keep(state.KEEP_CHECKPOINT, run.rounds(steps.finish, totals))


def predict_rows(steps: KMeansSteps, run: Executor[S]) -> S:
    """Mask the operands of new rows and assign the rows to the centroids of checkpoint 0."""
    masked = [] if steps.operand is None else [mask_operands(steps.operand, run)]
    return assign_rows(steps, run, masked)


# as Beam transforms
@dataclass
class LloydIteration(beam.PTransform):
    """Run `iterate`: the number of iterations done in, one more out; nothing where the run has stopped.

    `manifest` is of the triple store that the run has claimed: a side input, against which the store that a worker sees
    is checked.
    """

    job: PartyJob
    manifest: Manifest

    def __post_init__(self) -> None:
        super().__init__(f"Iteration {self.job.context.iteration + 1}")

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[int]:
        begun = done | "Begin" >> _begin(self.job, self.manifest, done.pipeline)
        finished = begun | "Iterate" >> RunDescription(self.job, partial(iterate, self.job.steps), self.job.one_call)
        return finished | "Done" >> beam.Map(_next, self.job.context.iteration + 1).with_output_types(int)


@dataclass
class PredictRows(beam.PTransform):
    """Run `predict_rows`; the number of each row shard whose assignments are kept comes out."""

    job: PartyJob
    manifest: Manifest

    def expand(self, begin: beam.PCollection[int]) -> beam.PCollection[int]:
        begun = begin | "Begin" >> _begin(self.job, self.manifest, begin.pipeline)
        return begun | "Predict" >> RunDescription(self.job, partial(predict_rows, self.job.steps), self.job.one_call)


def _begin(job: PartyJob, manifest: Manifest, pipeline: beam.Pipeline) -> beam.PTransform:
    manifests = pipeline | f"Manifest {job.context.iteration}" >> beam.Create([manifest])
    return beam.ParDo(BeginIteration(job), beam.pvalue.AsSingleton(manifests))


def _next(_shard: int, done: int) -> int:
    return done


class BeginIteration(beam.DoFn):
    """Pass the number of iterations on, unless the run has stopped, if the triple store serves this iteration."""

    def __init__(self, job: PartyJob) -> None:
        self.job = job

    def setup(self) -> None:
        self.context = self.job.context.open()

    def process(self, done: int, manifest: Manifest) -> Iterator[int]:
        if has_stopped(checkpoints_of(self.context).read(done)):
            return
        for shard in max((self.job.shard_numbers(over) for over in Over), key=len):
            check_shard(self.context.triples, manifest, self.context.iteration, shard)
        yield done


def check_shard(claimed: StoreRun | None, manifest: Manifest, iteration: int, shard: int) -> None:
    """Raise StorageError unless the worker's triple store is the one in `manifest` and has this shard."""
    if claimed is None or claimed.store.manifest != manifest:
        raise StorageError(f"a worker does not see the triple store {manifest.store!r}: is `storage` shared with it?")
    if iteration >= manifest.iterations or not claimed.has_corrections(iteration, shard):
        raise StorageError(f"the triple store {manifest.store!r} has nothing for iteration {iteration}, shard {shard}")
