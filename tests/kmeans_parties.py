"""K-means of two or three parties in memory: the product's protocols, dealt triples, one thread for each party.

From plain rows to what the parties' shares add up to after every iteration. `check_against_lloyd` says what is right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parties import NAMES, Board, in_parallel, split
from veilmeans.crypto import bits, fixed, prg, ring
from veilmeans.crypto.lloyd import Real, nearest, step
from veilmeans.io.scratch import Scratch
from veilmeans.io.triples import Manifest, StoreRun, TripleStore
from veilmeans.pipelines.jobs import kmeans_of
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import EngineConfig, JobConfig
from veilmeans.schemas.jobs import KMeansJob, NormaliseConfig, RevealConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.bare import run_bare
from veilmeans.transforms.deal import deal
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.lloyd import add_up
from veilmeans.transforms.seat import OpenSeat

Labels = NDArray[np.intp]
Integers = NDArray[np.int64]

TOLERANCE = 2.0**-16
"""How far a centroid may be from float64 Lloyd's, in every coordinate."""
_HALF = 2.0**-21
"""What is lost when a number is rounded to 20 fractional bits, at most."""


def vertical(rows: int, features: Sequence[int], rows_per_shard: int) -> Layout:
    return Layout(True, (rows,) * len(features), tuple(features), rows_per_shard)


def horizontal(rows: Sequence[int], features: int, rows_per_shard: int) -> Layout:
    return Layout(False, tuple(rows), (features,) * len(rows), rows_per_shard)


def kmeans_for(layout: Layout, k: int, normalise: NormaliseConfig | None = None, **fields: Any) -> KMeans:
    """The protocols that `pipelines.jobs` chooses for such a job.

    The schema is passed by: it asks every party for a row and a column, and the protocols do not.
    """
    names = NAMES[: layout.parties]
    rows, features = (dict(zip(names, counts, strict=True)) for counts in (layout.rows, layout.features))
    job = KMeansJob.model_construct(
        layout="vertical" if layout.vertical else "horizontal",
        rows=layout.total_rows if layout.vertical else rows,
        features=features if layout.vertical else layout.total_features,
        clusters=k,
        normalise=normalise or NormaliseConfig(),
        reveal=RevealConfig(inertia=names[:1]),
        **fields,
    )
    engine = EngineConfig(rows_per_shard=layout.rows_per_shard)
    return kmeans_of(JobConfig.model_construct(party=names[0], parties=names, engine=engine, kmeans=job))


@dataclass(frozen=True)
class StoreInMemory(TripleStore):
    """A store whose corrections never see a disk."""

    kept: dict[tuple[int, int], Arrays] = field(default_factory=dict)

    def corrections(self, number: int, iteration: int, shard: int) -> Arrays:
        del number
        return self.kept[iteration, shard]


def deal_plan(kmeans: KMeans, iterations: int) -> list[StoreRun]:
    """What a dealer makes from the plan: a store for each party."""
    plan, parties = kmeans.plan(), kmeans.layout.parties
    manifest = Manifest("store", 1, iterations, plan.rows, "")
    seeds = [prg.derive(b"dealer", f"party {i}") for i in range(parties)]
    stores = [StoreInMemory(folder=None, manifest=manifest, seed=seed) for seed in seeds]  # type: ignore[arg-type]
    for iteration in range(iterations):
        for shard in range(plan.shards):
            needs = plan.needs(shard, iteration)
            for party, arrays in deal(seeds, "store", 0, Address("", iteration, "", shard), needs).items():
                stores[party].kept[iteration, shard] = arrays
    return [StoreRun(store, 0) for store in stores]


@dataclass(frozen=True)
class Iteration:
    """What one iteration's shares add up to: new centroids, the rows' clusters, sizes, stop bit, inertia."""

    centres: Real
    labels: Labels
    counts: Integers
    stop: bool
    inertia: float | None
    board: Board


@dataclass(frozen=True)
class Player:
    """One party's side of all iterations."""

    kmeans: KMeans
    seat: OpenSeat
    own: Mapping[int, Arrays]
    start: ring.Ring

    def play(self, iterations: int) -> list[dict[str, Any]]:
        """Its shares after every iteration, in the steps of `transforms.lloyd`."""
        kmeans, seat = self.kmeans, self.seat
        operands = run_bare(kmeans.operand, seat, self.own)
        centres = run_bare(kmeans.norms, seat, {0: {"mu": self.start}})[0]
        squares = sum(float(np.sum(fixed.decode(state["x"]) ** 2)) for state in self.own.values())
        x2 = fixed.encode(np.array([squares]))
        after = []
        for iteration in range(iterations):
            here = replace(seat, iteration=iteration)
            now = {name: centres[name] for name in ("mu", "u")}
            states = run_bare(kmeans.distance, here, {shard: {**x, **now} for shard, x in operands.items()})
            states = run_bare(kmeans.assign, here, states)
            sums = run_bare(kmeans.update, here, {s: {**state, **operands[s]} for s, state in states.items()})
            total = add_up(sums.values())
            centres = run_bare(kmeans.centres, here, {0: {"mu": centres["mu"], "x2": x2, **total}})[0]
            after.append({**centres, "n": total["n"], "c": {shard: state["c"] for shard, state in states.items()}})
        return after


def run_kmeans(kmeans: KMeans, rows: Real, start: Real, iterations: int) -> list[Iteration]:
    """All parties at once, over one board; the rows are normalised, the first party's (or columns) first."""
    board, stores, names = Board(), deal_plan(kmeans, iterations), NAMES[: kmeans.layout.parties]
    shares = split(fixed.encode(start), len(names), seed=1)
    players = []
    for i, store in enumerate(stores):
        seat = OpenSeat(Party(i, names), "test", 0, board, bytes([i]) * 32, store, Scratch("value"), 60.0)
        players.append(Player(kmeans, seat, own_matrices(kmeans.layout, rows, i), shares[i]))
    outcomes = in_parallel([partial(player.play, iterations) for player in players])
    return [_joined(kmeans.layout, each, board) for each in zip(*outcomes, strict=True)]


def own_matrices(layout: Layout, rows: Real, party: int) -> dict[int, Arrays]:
    """Shard by shard what a party owns, in fixed point."""
    own, first = {}, 0
    for shard, place in enumerate(layout.places()):
        here = rows[first : first + place.block.rows]
        first += place.block.rows
        columns = layout.own_columns(party) if place.owner in (None, party) else slice(0, 0)
        own[shard] = {"x": fixed.encode(here[:, columns])}
    return own


def _joined(layout: Layout, shares: Sequence[Mapping[str, Any]], board: Board) -> Iteration:
    labels = [
        _opened_labels([share["c"][shard] for share in shares], place.block.rows)
        for shard, place in enumerate(layout.places())
    ]
    inertia = _total(shares, "inertia") if "inertia" in shares[0] else None
    stops = {bool(share["stop"][0]) for share in shares}
    assert len(stops) == 1
    return Iteration(
        centres=fixed.decode(_total(shares, "mu")),
        labels=np.concatenate(labels),
        counts=ring.decode(_total(shares, "n")),
        stop=stops.pop(),
        inertia=None if inertia is None else float(fixed.decode(inertia)[0]),
        board=board,
    )


def _total(shares: Sequence[Mapping[str, Any]], name: str) -> ring.Ring:
    return ring.total(share[name] for share in shares)


def _opened_labels(shares: Sequence[Array], rows: int) -> Labels:
    hot = bits.unpack_rows(reduce(np.bitwise_xor, shares), rows)
    assert (hot.sum(axis=0) == 1).all()
    return hot.argmax(axis=0)


def check_against_lloyd(kmeans: KMeans, rows: Real, start: Real, iterations: int) -> list[Iteration]:
    """Run it, and hold every iteration against float64 Lloyd from the same start on the same, unrounded rows.

    1. On the parties' own fixed-point numbers assignments are exact, but for near-ties: the chosen centroid is
       farther than the nearest by less than (M − 1)·2^(drop−40) for each of the tree's ⌈log2 k⌉ levels.
    2. Rows that Lloyd puts elsewhere are near-ties for Lloyd, too, but for what rounding adds. Lloyd then goes on
       with these rows where the parties have put them.
    3. Centroids are within 2^-16 of Lloyd's.
    """
    found = run_kmeans(kmeans, rows, start, iterations)
    before, secure = np.asarray(start, np.float64), fixed.decode(fixed.encode(start))
    for iteration in found:
        assert_near_ties_only(kmeans, rows, secure, iteration.labels)
        after = lloyd_with(kmeans, rows, before, secure, iteration)
        np.testing.assert_allclose(iteration.centres, after, rtol=0, atol=TOLERANCE)
        np.testing.assert_array_equal(iteration.counts, np.bincount(iteration.labels, minlength=kmeans.k))
        assert_inertia(rows, after, iteration)
        before, secure = after, iteration.centres
    return found


def near_tie(kmeans: KMeans) -> int:
    """How much farther than the nearest the chosen centroid may be, with 40 fractional bits; 1 means not at all."""
    lost = (kmeans.layout.parties - 1) * 2**kmeans.tree.drop if kmeans.tree.drop else 0
    return 1 + ceil(log2(kmeans.k)) * lost


def assert_near_ties_only(kmeans: KMeans, rows: Real, secure: Real, labels: Labels) -> None:
    """Against integers, without any rounding; ties go to the lower index."""
    scores = integer_scores(rows, secure)
    excess = scores[np.arange(len(rows)), labels] - scores.min(axis=1)
    assert excess.max() < near_tie(kmeans)
    if kmeans.tree.drop == 0:
        np.testing.assert_array_equal(labels, scores.argmin(axis=1))


def integer_scores(rows: Real, centres: Real) -> Integers:
    """|μ|² − 2·x·μ of the rounded rows, n × k, exactly."""
    x, mu = (ring.decode(fixed.encode(values)) for values in (rows, centres))
    scores: Integers = (mu**2).sum(axis=1) - 2 * np.einsum("nd,kd->nk", x, mu)
    return scores


def lloyd_with(kmeans: KMeans, rows: Real, before: Real, secure: Real, iteration: Iteration) -> Real:
    """Lloyd's next centroids, where near-ties go as the parties had it."""
    (moved,) = np.nonzero(nearest(rows, before) != iteration.labels)
    if not len(moved):
        return step(lambda: [rows], before).centres
    squares = ((rows[moved, None, :] - before) ** 2).sum(axis=2)
    excess = squares[np.arange(len(moved)), iteration.labels[moved]] - squares.min(axis=1)
    error = float(np.abs(secure - before).max())
    assert (excess < near_tie(kmeans) * 2.0**-40 + rounding(squares.max(axis=1), rows.shape[1], error)).all()
    means = [rows[iteration.labels == j].mean(axis=0) if n else before[j] for j, n in enumerate(iteration.counts)]
    return np.array(means)


def rounding(squares: Real, columns: int, error: float) -> Real:
    """How much a difference of two squared distances changes if each coordinate of x − μ is off by e.

    e is 2^-21 for x and `error` for μ; (a + e)² − a² = 2ae + e², Σ|a| ≤ √(d·Σa²), and there are two distances.
    """
    e = _HALF + error
    return 2 * (2 * e * np.sqrt(columns * squares) + columns * e**2)


def assert_inertia(rows: Real, after: Real, iteration: Iteration) -> None:
    """Σ|x − μ'|² to the rows' own centroids; each of Σ|x|² and n·|μ'|² is off by 2·|x|·e + e² in every coordinate."""
    if iteration.inertia is None:
        return
    inertia = float(((rows - after[iteration.labels]) ** 2).sum())
    e = _HALF + float(np.abs(iteration.centres - after).max())
    largest = max(np.abs(rows).max(), np.abs(after).max())
    off = rows.size * 2 * (2 * largest * e + e**2) + (len(rows) + 4) * _HALF
    assert abs(iteration.inertia - inertia) <= off
