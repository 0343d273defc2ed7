"""K-means, described once: which steps run over what, what they read and keep, and in which order.

    once            mask operands: X − U to the others;  first centroids: checkpoint 0
    [k − 1 times    [seed-encrypt ─▶] seed-distance ─▶ seed-nearest ─▶ seed-limit ─▶ seed-choose ─▶ seed-update]
    each iteration  [encrypt ─▶] distance ─▶ assign ─▶ update ────────────┐
                                 norms ─┴──▶ stop   ─▶ scale ─┴▶ [unmask ─▶] numerator ─▶ quotient ─▶ checkpoint
                                                                              refine ─┘
    [once           start-norms ─▶ start-choose ─▶ start-take, start-counts]               (the best of several starts)
    [once           minimum-size ─▶ open-centroids]                          (which centroids may ever be opened)
    once            [encrypt ─▶] distance ─▶ assign ─▶ outliers ─▶ explain   (to the last centroids, as in a prediction)
                                                    ─▶ profile ─▶ [profile-hide]
                                 norms ─▶ inertia

    explain         explain ─▶ explain-clusters ─▶ explain-centroids
    outliers        (bits, count) ─▶ threshold ─▶ (choose, count) ─▶ threshold ─▶ … ─▶ (choose, ties) ─▶ (rank, take)

Steps one above the other run in lock-step (`Executor.beside`), so that only the longer one takes time on the link:

    rows            distance   assign              update
    column shards   norms                                              numerator   quotient
    one element                stop                scale               refine
    read            X, ⟨μ⟩                         X                   ⟨μ⟩
    keep                       the assignment                                      ⟨μ⟩, then the checkpoint

`stop` opens whether the centroids moved by less than ε in the iteration before: the run has then ended with that, and
the rest of this one is dropped. The first iteration has no `stop`, and after the last there is none.

Where outliers move no centroid, `outliers` and `weigh` come between `assign` and `update` of each iteration.

In brackets is what homomorphic products need, and k-means++ (`kmeans.kmeans_plus_plus`). A prediction masks its
operands and assigns its rows, once. Executors run these functions, in one call or as a pipeline of stages. Nothing
flows between iterations but their number: shares are read from the checkpoint that the iteration before has left.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

from veilmeans.io.storage.triple_store import Manifest, StoreRun
from veilmeans.schemas.errors import StorageError
from veilmeans.transforms.kmeans import party_state as state
from veilmeans.transforms.kmeans import seed_state
from veilmeans.transforms.kmeans.kmeans_plus_plus import Seeding
from veilmeans.transforms.kmeans.party_state import PartyJob, checkpoints_of
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.executor import (
    BareExecutor,
    CountStage,
    Executor,
    Keep,
    Load,
    Over,
    Step,
    has_stopped,
    only,
)
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.statistics.explanations import COUNTS as EXPLAINED_COUNTS
from veilmeans.transforms.statistics.explanations import Explanations
from veilmeans.transforms.statistics.largest import COUNTS
from veilmeans.transforms.statistics.outliers import Outliers
from veilmeans.transforms.statistics.profiles import SIZES, SUMS, Profiles

S = TypeVar("S")


def mask_operands(operand: Step, run: Executor[S]) -> S:
    """Send every owner's masked matrix to the others, once per run."""
    return run.keep(state.KEEP_OPERANDS, run.rounds(operand, run.shards(Over.ROWS, state.MATRIX_TO_MASK)))


def write_first_centroids(first: Load, checkpoint: Keep, run: Executor[S]) -> S:
    """Keep the shares of the first centroids, and write checkpoint 0."""
    columns = run.keep(state.KEEP_FIRST_CENTROIDS, run.shards(Over.COLUMNS, first))
    return run.keep(checkpoint, run.total(Over.ONE, only(), columns))


def write_first_seeds(first: Load, run: Executor[S]) -> S:
    """Keep the shares of the centroids with which k-means++ begins."""
    return run.keep(seed_state.KEEP_FIRST_SEEDS, run.shards(Over.COLUMNS, first))


def choose_centroid(seeding: Seeding, run: Executor[S]) -> S:
    """Choose one more centroid of each start by k-means++, before the first iteration; see `kmeans_plus_plus`."""
    after = []
    if seeding.encrypt is not None:
        columns = run.load(state.COLUMN_RANGE, run.shards(Over.COLUMNS, seed_state.NEWEST_SEEDS))
        after = [run.keep(state.KEEP_ENCRYPTED, run.rounds(seeding.encrypt, columns))]
    rows = run.shards(Over.ROWS, seed_state.SEED_OPERANDS, after)
    columns = run.shards(Over.COLUMNS, seed_state.NEWEST_SEEDS, after)
    drawn = run.shards(Over.ONE, seed_state.NOTHING, after)
    lanes = (seeding.distance, rows), (seeding.norms, columns), (seeding.draw, drawn)
    products, squares, drawn = run.beside(*lanes)
    norms = run.total(Over.ROWS, state.to_every_row_shard, run.total(Over.ONE, only("u"), squares))
    distances = run.load(seed_state.ROW_WEIGHTS, run.join(products, norms))
    weighed = run.keep(seed_state.KEEP_SEED_WEIGHTS, run.rounds(seeding.nearest, distances))
    limits = run.rounds(seeding.limit, run.total(Over.ONE, seed_state.sums_of_weights, weighed, drawn))
    limited = run.join(weighed, run.total(Over.ROWS, seed_state.limits_to_every_row_shard, limits))
    chosen = run.load(seed_state.SEED_UPDATE_OPERANDS, run.rounds(seeding.choose, limited))
    columns = run.total(Over.COLUMNS, state.sums_by_columns, run.rounds(seeding.update, chosen))
    if seeding.unmask is not None:
        columns = run.rounds(seeding.unmask, run.load(state.COLUMN_RANGE, columns))
    return run.keep(seed_state.KEEP_SEEDS, columns)


def measure_distances(steps: KMeansSteps, run: Executor[S], after: Sequence[S] = ()) -> tuple[S, S]:
    """Compute each row's distances to all centroids; what the column shards add up to comes with them."""
    if steps.encrypt is not None:
        columns = run.load(state.COLUMN_RANGE, run.shards(Over.COLUMNS, state.COLUMN_CENTROIDS, after))
        after = [*after, run.keep(state.KEEP_ENCRYPTED, run.rounds(steps.encrypt, columns))]
    rows = run.shards(Over.ROWS, state.DISTANCE_OPERANDS, after)
    columns = run.shards(Over.COLUMNS, state.MOVED_CENTROIDS, after)
    products, squares = run.beside((steps.distance, rows), (steps.norms, columns))
    totals = run.total(Over.ONE, state.everything, squares)
    return run.join(products, run.total(Over.ROWS, state.to_every_row_shard, totals)), totals


def iterate(steps: KMeansSteps, first: bool, run: Executor[S]) -> S:
    """Run one iteration of Lloyd's algorithm, unless the one before was the last; the first has none before it."""
    distances, totals = measure_distances(steps, run)
    if steps.trims:
        distances = run.load(state.ROW_SQUARES, distances)
    if first or steps.stop is None:
        assigned = run.rounds(steps.assign, distances)
    else:
        assigned, stop = run.beside((steps.assign, distances), (steps.stop, totals))
        assigned = run.unless(run.keep(state.KEEP_STOP, stop), assigned)
    assigned = run.keep(state.KEEP_ASSIGNMENTS, assigned)
    if steps.outliers is not None and steps.trims:
        assigned = run.rounds(steps.weigh, find_outliers(steps.outliers, steps, run, assigned))
    counts = run.total(Over.ONE, only("n"), assigned)
    sums, scaled = run.beside((steps.update, run.load(state.UPDATE_OPERANDS, assigned)), (steps.scale, counts))
    if len(steps.column_shards) > 1:
        return update_centroids(steps, run, sums, scaled)
    together = run.total(Over.ONE, state.everything, sums, scaled)
    return run.in_one_call(partial(_update_from_one_element, steps), together)


def _update_from_one_element(steps: KMeansSteps, run: Executor[S], together: S) -> S:
    """Work on the centroids of one column shard is one call."""
    return update_centroids(steps, run, together, together)


def update_centroids(steps: KMeansSteps, run: Executor[S], sums: S, scaled: S) -> S:
    """Divide the clusters' sums by their counts, and write the checkpoint."""
    columns = run.total(Over.COLUMNS, state.sums_by_columns, sums)
    if steps.unmask is not None:
        columns = run.rounds(steps.unmask, run.load(state.COLUMN_RANGE, run.after(columns, scaled)))
    columns = run.join(columns, run.total(Over.COLUMNS, state.scale_to_every_column_shard, scaled))
    factors = run.total(Over.ONE, only("y", "e"), scaled)
    columns = run.load(state.COLUMN_CENTROIDS, columns)
    numerators, inverse = run.beside((steps.numerator, columns), (steps.refine, factors))
    divided = run.join(numerators, run.total(Over.COLUMNS, state.reciprocal_to_every_column_shard, inverse))
    new = run.keep(state.KEEP_CENTROIDS, run.rounds(steps.quotient, divided))
    counts = run.total(Over.ONE, only("n"), new, scaled)
    return run.keep(state.KEEP_CHECKPOINT, run.load(state.SQUARES, counts))


def choose_start(steps: KMeansSteps, run: Executor[S]) -> S:
    """Choose the start of the least inertia after the last iteration, and keep its centroids and counts."""
    columns = run.rounds(steps.start_norms, run.shards(Over.COLUMNS, state.COLUMN_CENTROIDS))
    norms = run.load(state.LAST_COUNTS, run.total(Over.ONE, only("u"), columns))
    chosen = run.rounds(steps.choose_best, norms)
    best = run.total(Over.COLUMNS, state.best_to_every_column_shard, chosen)
    columns, counts = run.beside((steps.take_best, run.load(state.COLUMN_CENTROIDS, best)), (steps.take_counts, chosen))
    kept = run.keep(state.KEEP_CHOSEN, columns)
    return run.keep(state.KEEP_CHOSEN_COUNTS, run.after(counts, kept))


def follow_last(steps: KMeansSteps, run: Executor[S]) -> S:
    """Assign the rows to the last centroids, and compute the inertia, if the job asks for it; `steps` are the last."""
    closed = [close_small_clusters(steps, run)] if steps.closes else []
    if steps.final_assignment:
        distances, norms = measure_distances(steps, run, closed)
        assigned = assign_rows(steps, run, distances)
        if steps.profiles is not None:
            assigned = profile_clusters(steps.profiles, steps, run, assigned)
        return compute_inertia(steps, run, run.after(norms, assigned)) if steps.centroid_update.inertia else assigned
    if not steps.centroid_update.inertia:
        return closed[0]
    columns = run.rounds(steps.norms, run.shards(Over.COLUMNS, state.MOVED_CENTROIDS, closed))
    return compute_inertia(steps, run, run.total(Over.ONE, only("u"), columns))


def close_small_clusters(steps: KMeansSteps, run: Executor[S]) -> S:
    """Find the clusters whose centroids may be opened, and keep the centroids with 0 in place of others, on shares."""
    found = run.rounds(steps.keep_open, run.shards(Over.ONE, state.CLUSTER_COUNTS))
    found = run.keep(state.KEEP_OPEN_CLUSTERS, found)
    columns = run.load(state.COLUMN_CENTROIDS, run.total(Over.COLUMNS, state.open_to_every_column_shard, found))
    return run.keep(state.KEEP_OPEN_CENTROIDS, run.rounds(steps.open_centroids, columns))


def compute_inertia(steps: KMeansSteps, run: Executor[S], norms: S) -> S:
    """Compute the inertia of the last iteration's assignment and its means, and add it to the last checkpoint."""
    return run.keep(state.KEEP_INERTIA, run.rounds(steps.inertia, run.load(state.LAST_COUNTS, norms)))


def predict_rows(steps: KMeansSteps, run: Executor[S]) -> S:
    """Mask the operands of new rows and assign the rows to the centroids of checkpoint 0."""
    masked = [] if steps.operand is None else [mask_operands(steps.operand, run)]
    distances, _ = measure_distances(steps, run, masked)
    return assign_rows(steps, run, distances)


def assign_rows(steps: KMeansSteps, run: Executor[S], distances: S) -> S:
    """Assign the rows of a prediction, or to the last centroids; keep their scores, and which are outliers."""
    if not steps.measures:
        return run.keep(state.KEEP_ASSIGNMENTS, run.rounds(steps.assign, distances))
    assigned = run.rounds(steps.assign, run.load(state.ROW_SQUARES, distances))
    assigned = run.keep(state.KEEP_ASSIGNMENTS, assigned)
    if steps.outliers is not None:
        assigned = find_outliers(steps.outliers, steps, run, assigned)
    if steps.explanations is not None:
        assigned = explain_outliers(steps.explanations, steps, run, assigned)
    return run.keep(state.KEEP_SCORES, assigned)


def explain_outliers(explanations: Explanations, steps: KMeansSteps, run: Executor[S], found: S) -> S:
    """Select the outliers' clusters and scores, and the centroids of these clusters, on shares."""
    explain, clusters, centroids = steps.explain(explanations)
    rows = run.rounds(explain, found)
    counts = run.total(Over.ONE, only(EXPLAINED_COUNTS), rows)
    has = run.rounds(clusters, run.load(state.OPEN_BITS, counts) if steps.closes else counts)
    columns = run.load(state.COLUMN_CENTROIDS, run.total(Over.COLUMNS, state.explained_to_every_column_shard, has))
    return run.after(rows, run.keep(state.KEEP_EXPLAINED, run.rounds(centroids, columns)))


def profile_clusters(profiles: Profiles, steps: KMeansSteps, run: Executor[S], assigned: S) -> S:
    """Sum the rows of each final cluster, in the columns of those who get profiles, on shares."""
    rows = run.rounds(steps.profile(profiles), run.load(state.PROFILE_OPERANDS, assigned))
    sums = run.total(Over.ONE, only(SIZES, SUMS), rows)
    if steps.small_clusters is not None:
        sums = run.rounds(steps.hide(steps.small_clusters), sums)
    return run.keep(state.KEEP_PROFILE, sums)


def find_outliers(outliers: Outliers, steps: KMeansSteps, run: Executor[S], scored: S) -> S:
    """Find the rows with the largest scores, digit by digit of the score that separates them from the others."""
    begin, *moves, take = outliers.row_steps(steps.prefix, steps.layout.parties)
    rows = run.rounds(begin, scored)
    for threshold, move in zip(outliers.thresholds(steps.prefix, steps.layout.parties), moves, strict=True):
        below = run.rounds(threshold, run.total(Over.ONE, only(COUNTS), rows))
        rows = run.rounds(move, run.join(rows, run.total(Over.ROWS, state.below_to_every_row_shard, below)))
    rows = run.load(state.SHARD_NUMBER, rows)
    return run.rounds(take, run.join(rows, run.total(Over.ROWS, state.ranks_to_row_shards, rows)))


# in one process
def may_begin(job: PartyJob, context: OpenPartyContext, manifest: Manifest) -> bool:
    """Return whether the run has not stopped; raise StorageError unless the triple store serves this iteration.

    The states that the iteration before has left in the scratch folder are deleted.
    """
    context.scratch.clear(context.run, context.iteration - 1)
    if has_stopped(checkpoints_of(context).read(context.iteration)):
        return False
    for shard in max((job.shard_numbers(over) for over in Over), key=len):
        check_shard(context.triples, manifest, context.iteration, shard)
    return True


def run_iterations(job: PartyJob, manifest: Manifest, iterations: Iterable[int], count: CountStage) -> None:
    """Run iterations one after the other in this process, until the run has stopped."""
    for iteration in iterations:
        at = job.at_iteration(iteration)
        context = at.context.open()
        if not may_begin(at, context, manifest):
            return
        if not iterate(job.steps, iteration == 0, BareExecutor(at, context, count)):
            return  # the stop bit of the iteration before was 1


def run_prediction(job: PartyJob, manifest: Manifest, count: CountStage) -> None:
    """Assign the rows of a prediction in this process."""
    context = job.context.open()
    if may_begin(job, context, manifest):
        predict_rows(job.steps, BareExecutor(job, context, count))


def check_shard(claimed: StoreRun | None, manifest: Manifest, iteration: int, shard: int) -> None:
    """Raise StorageError unless the worker's triple store is the one in `manifest` and has this shard."""
    if claimed is None or claimed.store.manifest != manifest:
        raise StorageError(f"a worker does not see the triple store {manifest.store!r}: is `storage` shared with it?")
    if iteration >= manifest.iterations or not claimed.has_corrections(iteration, shard):
        raise StorageError(f"the triple store {manifest.store!r} has nothing for iteration {iteration}, shard {shard}")
