"""Parts of a run in one call, with all their rounds: what one element does, because it cannot wait for another.

The messages are the same as those of the stages in `transforms.lloyd`, and so is the order in which they are waited
for: a peer may be there.
"""

from collections.abc import Mapping

import numpy as np

from veilmeans.crypto import ring
from veilmeans.io.checkpoints import ASSIGNMENTS, ENCRYPTED, centres
from veilmeans.schemas.arrays import Arrays
from veilmeans.transforms.bare import Tallies, run_bare
from veilmeans.transforms.beam_rounds import report
from veilmeans.transforms.job import (
    Job,
    keep_assignments,
    keep_columns,
    keep_encrypted,
    kept,
    load_centres,
    load_columns,
    load_operands,
)
from veilmeans.transforms.rounds import Protocol
from veilmeans.transforms.seat import OpenSeat
from veilmeans.transforms.totals import add_up, by_columns, column_range, moduli_of, sums_by_columns


def write_start(job: Job, seat: OpenSeat, share: ring.Ring, squares: ring.Ring, tallies: Tallies) -> None:
    """Checkpoint 0: the first centroids (k × d), their norms, and this party's own Σ|x|²."""
    after = run_bare(job.kmeans.norms, seat, by_columns(job.kmeans, "mu", share), tallies)
    store = kept(seat)
    for shard, state in after.items():
        store.write_shard(centres(0), shard, {"mu": state["mu"]})
    u = ring.total(state["u"] for state in after.values())
    store.write(0, {"u": u, "x2": squares, "stop": np.zeros(1, np.uint8)})


def whole_iteration(job: Job, seat: OpenSeat) -> int:
    """All rounds of all shards; how many iterations are done."""
    update = job.kmeans.engines.update
    states = {s: {**state, **load_operands(job, seat, s, update)} for s, state in assign_whole(job, seat).items()}
    sums = run_and_report(job.kmeans.update, seat, states)
    return finish_whole(job, seat, add_up(sums.values(), moduli_of(job)))


def assign_whole(job: Job, seat: OpenSeat) -> dict[int, Arrays]:
    """Each shard's positions of the nearest centroids, which are kept."""
    encrypt_whole(job, seat)
    begin, engines = load_centres(job, seat), job.kmeans.engines
    states: dict[int, Arrays] = {s: {**load_operands(job, seat, s, engines.distance), **begin} for s in job.shards}
    states = run_and_report(job.kmeans.distance, seat, states)
    states = run_and_report(job.kmeans.assign, seat, states)
    for shard, state in states.items():
        keep_assignments(seat, shard, state)
    return states


def encrypt_whole(job: Job, seat: OpenSeat) -> None:
    """The encrypted centroids of all column shards in this call."""
    if job.kmeans.encrypt is None:
        return
    states = {s: {**load_columns(seat, s), **column_range(job.kmeans, s)} for s in job.column_shards}
    for shard, received in run_and_report(job.kmeans.encrypt, seat, states).items():
        keep_encrypted(seat, shard, received)


def finish_whole(job: Job, seat: OpenSeat, sums: Arrays) -> int:
    """All work on the centres in this call, in the order in which `CentresByColumns` does it: a peer may be there."""
    inverse = invert(job, seat, sums)
    parts: Mapping[int, Arrays] = sums_by_columns(job.kmeans, seat.party, sums)
    if job.kmeans.unmask is not None:
        wide = {shard: {**part, **column_range(job.kmeans, shard)} for shard, part in parts.items()}
        parts = run_and_report(job.kmeans.unmask, seat, wide)
    states = {shard: {"s": part["s"], **inverse, **load_columns(seat, shard)} for shard, part in parts.items()}
    after = run_and_report(job.kmeans.quotient, seat, states)
    totals = add_up(keep_columns(seat, shard, state) for shard, state in after.items())
    return finish_iteration(job, seat, {**totals, "n": sums["n"]})


def invert(job: Job, seat: OpenSeat, counts: Arrays) -> Arrays:
    """What every column shard's quotient needs of the counts."""
    inverse = run_and_report(job.kmeans.reciprocal, seat, {0: {"n": counts["n"]}})[0]
    return {name: inverse[name] for name in ("v", "y", "empty")}


def finish_iteration(job: Job, seat: OpenSeat, totals: Arrays) -> int:
    """From the counts and what the column shards add up to, the checkpoint; how many iterations are done."""
    store = kept(seat)
    state = {**totals, "x2": store.read(seat.iteration)["x2"]}
    after = run_and_report(job.kmeans.finish, seat, {0: state})[0]
    done = seat.iteration + 1
    store.write(done, after)
    store.drop(ASSIGNMENTS, before=done - 1)
    store.drop(ENCRYPTED, before=done)
    return done


def run_and_report(protocol: Protocol, seat: OpenSeat, shards: Mapping[int, Arrays]) -> dict[int, Arrays]:
    """All rounds in this call, with their costs in Beam's metrics."""
    tallies: Tallies = {}
    after = run_bare(protocol, seat, shards, tallies)
    for stage, tally in tallies.items():
        report(stage, tally)
    return after
