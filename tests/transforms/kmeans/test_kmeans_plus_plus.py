"""k-means++ on shares against k-means++ in the clear with the same randomness: the same rows are chosen."""

from dataclasses import replace
from functools import partial, reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kmeans_in_memory import InStepExecutor, horizontal, kmeans_for, parties_in_step, vertical
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import prg, ring
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays, Real
from veilmeans.schemas.kmeans_config import InitConfig, NormaliseConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.iteration import choose_centroid, mask_operands, write_first_seeds
from veilmeans.transforms.kmeans.party_state import ALL_SEEDS, PartyJob, by_columns
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.executor import Load, Over
from veilmeans.transforms.rounds.party_context import OpenPartyContext

INIT = InitConfig(method="k-means++")
DRAWN_BITS = 31
LAYOUTS = {
    "vertical": vertical(50, (2, 3), 20),
    "vertical, three": vertical(50, (2, 1, 2), 33),
    "horizontal": horizontal((20, 30), 5, 13),
    "horizontal, three": horizontal((20, 1, 29), 5, 50),
    "one shard": vertical(50, (4, 1), 100),
}


def drawn_numbers(run: InStepExecutor, times: int) -> list[float]:
    """The secret random numbers in [0, 1), from the seeds of all parties."""
    numbers = []
    for iteration in range(-times, 0):
        address = Address("test", iteration, "seed-draw.00.b2a", 0)
        shares = [prg.uniform(each.seed, address, "draw", (DRAWN_BITS,)) for each in run.table.contexts]
        bits = reduce(np.bitwise_xor, shares) & ring.DTYPE(1)
        numbers.append(float(np.ldexp(bits.astype(np.float64), np.arange(DRAWN_BITS)).sum()) / 2**DRAWN_BITS)
    return numbers


def chosen_in_the_clear(rows: Real, first: int, numbers: list[float]) -> list[tuple[int, float]]:
    """Each chosen row, and how far its choice is from another, in squared distances."""
    weights, chosen = np.full(len(rows), np.inf), [(first, np.inf)]
    for number in numbers:
        weights = np.minimum(weights, ((rows - rows[chosen[-1][0]]) ** 2).sum(axis=1))
        up_to = np.cumsum(weights)
        limit = number * up_to[-1]
        row = min(int(np.searchsorted(up_to, limit, side="right")), len(rows) - 1)
        chosen.append((row, float(np.abs(up_to - limit).min())))
    return chosen


def share_of_row(kmeans: KMeansSteps, rows: Real, row: int, job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """What a party owns of a row, as `initial_centroids` has it."""
    layout, party = kmeans.layout, context.party.index
    share = np.zeros((1, layout.total_features), ring.DTYPE)
    if layout.find_row(row)[0] in (None, party):
        columns = layout.own_columns(party)
        share[0, columns] = fixed.encode(rows[row : row + 1])[0, columns]
    return by_columns(job.steps, "mu", share)[shard]


def seed(kmeans: KMeansSteps, rows: Real, first: int) -> tuple[Real, list[float]]:
    """The centroids that are chosen on shares, and the drawn numbers."""
    assert kmeans.seeding is not None
    times = kmeans.seeding.times
    with parties_in_step(kmeans, rows, 1) as run:
        if kmeans.operand is not None:
            mask_operands(kmeans.operand, run)
        write_first_seeds(Load(partial(share_of_row, kmeans, rows, first), lambda *_: ()), run)
        for iteration in range(-times, 0):
            choose_centroid(kmeans.seeding, replace(run, table=run.table.at(iteration)))
        parts = run.shards(Over.COLUMNS, ALL_SEEDS)
        centroids = np.concatenate([ring.total(s["mu"] for s in parts[i]) for i in parts], axis=1)
        return fixed.decode(centroids), drawn_numbers(run, times)


def check_seeds(kmeans: KMeansSteps, rows: Real, first: int) -> list[int]:
    """Compare the choices; where the limit is within the rounding of all weights, only that a row was chosen."""
    assert kmeans.seeding is not None
    rows = fixed.decode(fixed.encode(rows))
    centroids, numbers = seed(kmeans, rows, first)
    rounding = 2 * len(rows) * 2.0 ** (kmeans.seeding.shift - 2 * fixed.FRACTION_BITS)
    chosen = chosen_in_the_clear(rows, first, numbers)
    for centroid, (row, margin) in zip(centroids, chosen, strict=True):
        assert (rows == centroid).all(axis=1).any()
        if margin <= rounding:
            break
        np.testing.assert_array_equal(centroid, rows[row])
    else:
        return [row for row, _ in chosen]
    return []


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("columns", [2, 100])
def test_rows_are_those_that_kmeans_plus_plus_chooses(name: str, columns: int) -> None:
    rows = np.random.default_rng(3).random((50, 5))
    kmeans = replace(kmeans_for(LAYOUTS[name], 4, init=INIT, products="beaver"), columns_per_shard=columns)
    assert len(set(check_seeds(kmeans, rows, first=7))) == 4
