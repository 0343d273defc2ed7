"""k-means++ with all parties in step, from a given first row, and in the clear with the same random numbers."""

from dataclasses import replace
from functools import partial, reduce

import numpy as np

from support.kmeans_in_memory import InStepExecutor, parties_in_step
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import prg, ring
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays, Real
from veilmeans.transforms.kmeans.iteration import choose_centroid, mask_operands, write_first_seeds
from veilmeans.transforms.kmeans.kmeans_plus_plus import Seeding
from veilmeans.transforms.kmeans.party_state import PartyJob, by_columns
from veilmeans.transforms.kmeans.seed_state import ALL_SEEDS
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.executor import Load, Over
from veilmeans.transforms.rounds.party_context import OpenPartyContext

DRAWN_BITS = 31


def run_seeding(kmeans: KMeansSteps, rows: Real, first: int) -> tuple[Real, list[float]]:
    """Choose the centroids of normalised rows; return them, and the secret random numbers in [0, 1)."""
    assert kmeans.seeding is not None
    times = kmeans.seeding.times
    with parties_in_step(kmeans, rows, 1) as run:
        if kmeans.operand is not None:
            mask_operands(kmeans.operand, run)
        write_first_seeds(Load(partial(_share_of_row, rows, first), lambda *_: ()), run)
        for iteration in range(-times, 0):
            choose_centroid(kmeans.seeding, replace(run, table=run.table.at(iteration)))
        shares = run.shards(Over.COLUMNS, ALL_SEEDS)
        centroids = np.concatenate([ring.total(state["mu"] for state in each) for each in shares.values()], axis=1)
        return fixed.decode(centroids), _drawn_numbers(run, times)


def _share_of_row(rows: Real, row: int, job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """What a party owns of a row, as `initial_centroids` has it."""
    layout, party = job.steps.layout, context.party.index
    share = np.zeros((1, layout.total_features), ring.DTYPE)
    if layout.find_row(row)[0] in (None, party):
        columns = layout.own_columns(party)
        share[0, columns] = fixed.encode(rows[row])[columns]
    return by_columns(job.steps, "mu", share)[shard]


def _drawn_numbers(run: InStepExecutor, times: int) -> list[float]:
    """Put the parties' random bits together."""
    numbers = []
    for iteration in range(-times, 0):
        address = Address("test", iteration, "seed-draw.00.b2a", 0)
        own = [prg.uniform(each.seed, address, "draw", (DRAWN_BITS,)) for each in run.table.contexts]
        bits = reduce(np.bitwise_xor, own) & ring.DTYPE(1)
        numbers.append(float(np.ldexp(bits.astype(np.float64), np.arange(DRAWN_BITS)).sum()) / 2**DRAWN_BITS)
    return numbers


def chosen_in_the_clear(rows: Real, first: int, numbers: list[float]) -> list[tuple[int, float]]:
    """Each chosen row, and how far the limit is from the next prefix sum."""
    weights, chosen = np.full(len(rows), np.inf), [(first, np.inf)]
    for number in numbers:
        weights = np.minimum(weights, ((rows - rows[chosen[-1][0]]) ** 2).sum(axis=1))
        up_to = np.cumsum(weights)
        limit = number * up_to[-1]
        row = min(int(np.searchsorted(up_to, limit, side="right")), len(rows) - 1)
        chosen.append((row, float(np.abs(up_to - limit).min())))
    return chosen


def check_seeds(kmeans: KMeansSteps, rows: Real, first: int = 7) -> list[int]:
    """Compare the choices, up to one whose limit is within the rounding of all weights; return the chosen rows."""
    assert kmeans.seeding is not None
    rows = fixed.decode(fixed.encode(rows))
    centroids, numbers = run_seeding(kmeans, rows, first)
    rounding, same = _rounding(kmeans.seeding, len(rows)), []
    for centroid in centroids:
        assert (rows == centroid).all(axis=1).any(), "every centroid is a row, to the last bit"
    for centroid, (row, margin) in zip(centroids, chosen_in_the_clear(rows, first, numbers), strict=True):
        if margin <= rounding:
            break
        np.testing.assert_array_equal(centroid, rows[row])
        same.append(row)
    return same


def check_seeds_of_many_rows(kmeans: KMeansSteps, rows: Real, first: int) -> list[int]:
    """Compare all choices, each after those that were made on shares; return the chosen rows.

    Of many rows the rounding of all weights exceeds the weight of one. So the limit must be between the prefix sums
    before and after the chosen row, or as near to them as the rounding.
    """
    assert kmeans.seeding is not None
    rows = fixed.decode(fixed.encode(rows))
    centroids, numbers = run_seeding(kmeans, rows, first)
    np.testing.assert_array_equal(centroids[0], rows[first])
    weights, chosen, rounding = np.full(len(rows), np.inf), [first], _rounding(kmeans.seeding, len(rows))
    for number, centroid in zip(numbers, centroids[1:], strict=True):
        weights = np.minimum(weights, ((rows - rows[chosen[-1]]) ** 2).sum(axis=1))
        up_to = np.cumsum(weights)
        limit, found = number * up_to[-1], np.flatnonzero((rows == centroid).all(axis=1))
        off = np.maximum(up_to[found] - weights[found] - limit, limit - up_to[found])
        assert off.min() <= rounding < up_to[-1] / 100
        chosen.append(int(found[off.argmin()]))
        assert weights[chosen[-1]] > 0
    return chosen


def _rounding(seeding: Seeding, rows: int) -> float:
    """The largest error of a prefix sum, and of the limit, by the rounding of all weights."""
    return 2 * rows * 2.0 ** (seeding.shift - 2 * fixed.FRACTION_BITS)
