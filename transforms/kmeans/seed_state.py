"""One party's side of k-means++: what it reads and keeps, and how shards are added up; see `party_state`.

Centroids have numbers from 0, and the last one is chosen in the iteration before the first, −1.
"""

from collections.abc import Mapping

import numpy as np

from veilmeans.crypto import ring
from veilmeans.io.storage.checkpoints import seed_weights, seeds
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import ENCRYPTED, SEED_WEIGHTS, SEEDS
from veilmeans.transforms.kmeans import state_shapes as shapes
from veilmeans.transforms.kmeans.party_state import PartyJob, checkpoints_of, operands_of, own_row_squares
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.executor import Keep, Load, Over
from veilmeans.transforms.rounds.party_context import OpenPartyContext


# loads
def _newest(job: PartyJob, context: OpenPartyContext) -> int:
    """The number of the newest centroid."""
    return context.iteration + shapes.seeding_of(job.steps).times


def _newest_seeds(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """Shares of a column shard's newest centroids."""
    return checkpoints_of(context).read_shard(seeds(_newest(job, context)), shard)


def _seed_operands(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """The operands of the distances to the newest centroids, and shares of these."""
    parts = [_newest_seeds(job, context, column_shard)["mu"] for column_shard in job.shard_numbers(Over.COLUMNS)]
    return {
        **operands_of(job, context, shard, shapes.seeding_of(job.steps).engines.distance),
        "mu": np.concatenate(parts, axis=1),
    }


def _seed_weights(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """Shares of a row shard's weights, this party's |x|² of each row, and the shard's number."""
    number, seeding = {"number": np.array([shard])}, shapes.seeding_of(job.steps)
    if _newest(job, context):
        return {**number, **checkpoints_of(context).read_shard(seed_weights(_newest(job, context)), shard)}
    squares = own_row_squares(job, context, shard)
    farthest = seeding.farthest if context.party.first else 0
    return {**number, "v": np.full((seeding.choices, len(squares)), farthest, ring.DTYPE), "x2": squares}


def _seed_update_operands(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    return operands_of(job, context, shard, shapes.seeding_of(job.steps).engines.update)


def _all_seeds(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """Shares of a column shard's first centroids, when all are chosen."""
    store = checkpoints_of(context)
    parts = [store.read_shard(seeds(number), shard)["mu"] for number in range(shapes.seeding_of(job.steps).times + 1)]
    return {"mu": np.stack(parts, axis=1).reshape(-1, parts[0].shape[1])}


def _nothing(_job: PartyJob, _context: OpenPartyContext, _shard: int) -> Arrays:
    """The beginning of a step that needs randomness alone."""
    return {}


NEWEST_SEEDS = Load(_newest_seeds, shapes.newest_seeds, kept=("seeds",))
SEED_OPERANDS = Load(_seed_operands, shapes.seed_operands, kept=("scale", "operands", "seeds", "encrypted"))
ROW_WEIGHTS = Load(_seed_weights, shapes.seed_weights, kept=("scale", "weights"))
SEED_UPDATE_OPERANDS = Load(_seed_update_operands, shapes.seed_update_operands, kept=("operands",))
ALL_SEEDS = Load(_all_seeds, shapes.column_centroids, kept=("seeds",))
NOTHING = Load(_nothing, shapes.nothing)


# keeps
def _keep_first_seeds(_job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    checkpoints_of(context).write_shard(seeds(0), shard, {"mu": state["mu"]})


def _keep_seeds(job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    """Keep the new centroids of a column shard; the last row is the sum of all other rows."""
    number = _newest(job, context) + 1
    checkpoints_of(context).write_shard(seeds(number), shard, {"mu": np.ascontiguousarray(state["s"][:-1])})


def _keep_seed_weights(job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    number = _newest(job, context) + 1
    checkpoints_of(context).write_shard(seed_weights(number), shard, {name: state[name] for name in ("v", "x2")})


def drop_seeds(context: OpenPartyContext) -> None:
    """Delete what only k-means++ needs, when checkpoint 0 has the first centroids."""
    store = checkpoints_of(context)
    for kind in (SEEDS, SEED_WEIGHTS):
        store.drop(kind)
    store.drop(ENCRYPTED, before=0)


KEEP_FIRST_SEEDS = Keep("seeds", _keep_first_seeds)
KEEP_SEEDS = Keep("seeds", _keep_seeds)
KEEP_SEED_WEIGHTS = Keep("weights", _keep_seed_weights)


# totals
def sums_of_weights(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Put the sum of a row shard's weights at its place among all shards' sums; the drawn numbers pass."""
    if "r" in state:
        return {0: {"r": state["r"]}}
    weights = state["v"]
    sums = np.zeros((steps.layout.row_shard_numbers()[-1] + 1, len(weights)), ring.DTYPE)
    sums[int(state["number"][0])] = ring.column_sums(np.ascontiguousarray(weights.T))
    return {0: {"sums": sums}}


def limits_to_every_row_shard(steps: KMeansSteps, _party: Party, state: Arrays) -> Mapping[int, Arrays]:
    """Give every row shard the limit, and the sum of the weights before it."""
    return {shard: {"t": state["t"], "before": state["before"][shard]} for shard in steps.layout.row_shard_numbers()}
