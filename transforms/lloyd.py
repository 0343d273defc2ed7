"""Lloyd's iteration as a Beam transform: how many iterations are done goes in, one more comes out.

    done ─▶ shards ─▶ load ─▶ distance ─▶ assign ─▶ keep ─▶ update ─▶ Σ over shards ─▶ centres + checkpoint ─▶ done + 1

What flows between iterations is only a number: shares are read from the checkpoint that the iteration before has left.
After the stop bit was opened nothing flows, so the rest of a pipeline does nothing. Where all rows are few, an
iteration is one element and one call runs all its rounds (`whole`); the messages are the same, so a peer may do
otherwise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
import numpy as np

from veilmeans.crypto import prg, ring
from veilmeans.io.checkpoints import OPERANDS, Checkpoints, assignments
from veilmeans.io.prepared import read_rows
from veilmeans.io.triples import Manifest
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.layout import Place
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.bare import Tallies, run_bare
from veilmeans.transforms.beam_rounds import RunProtocol, report
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.rounds import Protocol
from veilmeans.transforms.seat import OpenSeat, Seat
from veilmeans.transforms.triples import CheckTriples, check_shard


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


def kept(seat: OpenSeat) -> Checkpoints:
    """This party's checkpoints of the run."""
    return Checkpoints(seat.folder, prg.derive(seat.seed, "checkpoints"))


def stopped(checkpoint: Arrays) -> bool:
    """Whether the stop bit was opened as 1."""
    return bool(checkpoint["stop"].any())


def load_own(job: Job, seat: OpenSeat, shard: int) -> Arrays:
    """My own matrix of a shard: its rows × the columns that I own there."""
    place = job.place(shard)
    if place.owner not in (None, seat.party.index):
        return {"x": np.zeros((place.block.rows, 0), ring.DTYPE)}
    return {"x": read_rows(job.prepared, place.index).toarray()}


def load_operands(job: Job, seat: OpenSeat, shard: int) -> Arrays:
    """My own matrix and the others' masked ones."""
    return {**load_own(job, seat, shard), **kept(seat).read_shard(OPERANDS, shard)}


def load_centres(seat: OpenSeat) -> Arrays:
    """Shares of the centroids with which this iteration begins, and of their norms."""
    checkpoint = kept(seat).read(seat.iteration)
    return {name: checkpoint[name] for name in ("mu", "u")}


def keep_operands(job: Job, seat: OpenSeat, shard: int, state: Arrays) -> None:
    """Store what the others sent, if it has the shape it must have."""
    block = job.place(shard).block
    masked = {f"e{peer}": state[f"e{peer}"] for peer in seat.party.others}
    for peer in seat.party.others:
        found, due = masked[f"e{peer}"].shape, (block.rows, block.widths[peer])
        if found != due:
            raise RefusedError(f"{seat.party.names[peer]} sent a masked matrix of {found} where {due} was due")
    kept(seat).write_shard(OPERANDS, shard, masked)


def keep_assignments(seat: OpenSeat, shard: int, state: Arrays) -> None:
    kept(seat).write_shard(assignments(seat.iteration + 1), shard, {"c": state["c"]})


def add_up(parts: Iterable[Arrays]) -> Arrays:
    """Σ of the shards' sums and counts."""
    parts = list(parts)
    return {name: ring.total(part[name] for part in parts) for name in ("s", "n")}


def finish_iteration(job: Job, seat: OpenSeat, sums: Arrays) -> int:
    """The k × d work, then the checkpoint; how many iterations are done."""
    store = kept(seat)
    before = store.read(seat.iteration)
    state = {"mu": before["mu"], "x2": before["x2"], **sums}
    after = run_and_report(job.kmeans.centres, seat, {0: state})[0]
    done = seat.iteration + 1
    store.write(done, after)
    store.drop_assignments(before=done - 1)
    return done


def run_and_report(protocol: Protocol, seat: OpenSeat, shards: dict[int, Arrays]) -> dict[int, Arrays]:
    """All rounds in this call, with their costs in Beam's metrics."""
    tallies: Tallies = {}
    after = run_bare(protocol, seat, shards, tallies)
    for stage, tally in tallies.items():
        report(stage, tally)
    return after


class Seated(beam.DoFn):
    """A DoFn that plays at this party's seat."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __dir__(self) -> list[str]:
        """What Beam inspects, nine times a stage."""
        return ["setup", "start_bundle", "process", "finish_bundle"]

    def setup(self) -> None:
        self.seat = self.job.seat.open()


class ListShards(Seated):
    """The shard numbers, unless the run has stopped."""

    def process(self, done: int) -> Iterator[int]:
        if not stopped(kept(self.seat).read(done)):
            yield from self.job.shards


class LoadShard(Seated):
    def process(self, shard: int) -> Iterator[tuple[int, Shard]]:
        arrays = {**load_operands(self.job, self.seat, shard), **load_centres(self.seat)}
        yield shard, Shard(arrays=arrays)


class KeepAndReload(Seated):
    """Between assign and update: the assignments to disk, the operands from it, so that they pass no barrier."""

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[int, Shard]]:
        shard, state = element
        keep_assignments(self.seat, shard, state.arrays)
        yield shard, Shard(arrays={**state.arrays, **load_operands(self.job, self.seat, shard)})


class SumShares(beam.CombineFn):
    """Σ of shares mod 2^64, in a tree."""

    def create_accumulator(self) -> Shard:
        return Shard()

    def add_input(self, total: Shard, part: Shard) -> Shard:
        return self.merge_accumulators([total, part])

    def merge_accumulators(self, totals: Iterable[Shard]) -> Shard:
        parts = [total.arrays for total in totals if total.arrays]
        return Shard(arrays=dict(add_up(parts))) if parts else Shard()

    def extract_output(self, total: Shard) -> Shard:
        return total


class FinishIteration(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        yield finish_iteration(self.job, self.seat, element[1].arrays)


class WholeIteration(Seated):
    """All rounds of all shards in one call: one element cannot wait for another."""

    def __init__(self, job: Job, manifest: Manifest) -> None:
        super().__init__(job)
        self.manifest = manifest

    def process(self, done: int) -> Iterator[int]:
        job, seat = self.job, self.seat
        if stopped(kept(seat).read(done)):
            return
        for shard in job.shards:
            check_shard(seat.triples, self.manifest, seat.iteration, shard)
        operands = {shard: load_operands(job, seat, shard) for shard in job.shards}
        centres = load_centres(seat)
        states = run_and_report(job.kmeans.distance, seat, {s: {**x, **centres} for s, x in operands.items()})
        states = run_and_report(job.kmeans.assign, seat, states)
        for shard, state in states.items():
            keep_assignments(seat, shard, state)
        sums = run_and_report(job.kmeans.update, seat, {s: {**state, **operands[s]} for s, state in states.items()})
        yield finish_iteration(job, seat, add_up(sums.values()))


@dataclass
class LloydIteration(beam.PTransform):
    """done in, done + 1 out; nothing where the run has stopped. `manifest` is of the store that the run has claimed."""

    job: Job
    manifest: Manifest

    def __post_init__(self) -> None:
        super().__init__(f"Iteration {self.job.seat.iteration + 1}")

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[int]:
        job = self.job
        if job.whole:
            return done | "Iterate" >> beam.ParDo(WholeIteration(job, self.manifest)).with_output_types(int)
        return (
            done
            | "Shards" >> beam.ParDo(ListShards(job)).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
            | "Load" >> beam.ParDo(LoadShard(job)).with_output_types(tuple[int, Shard])
            | "Check triples" >> CheckTriples(job.seat, self.manifest)
            | "Distance" >> RunProtocol(job.kmeans.distance, job.seat)
            | "Assign" >> RunProtocol(job.kmeans.assign, job.seat)
            | "Keep" >> beam.ParDo(KeepAndReload(job)).with_output_types(tuple[int, Shard])
            | "Update" >> RunProtocol(job.kmeans.update, job.seat)
            | "One key" >> beam.MapTuple(_under_one_key).with_output_types(tuple[int, Shard])
            | "Sum" >> beam.CombinePerKey(SumShares())
            | "Centres" >> beam.ParDo(FinishIteration(job)).with_output_types(int)
        )


def _under_one_key(shard: int, state: Shard) -> tuple[int, Shard]:
    del shard
    return 0, state


class LoadOwn(Seated):
    def process(self, shard: int) -> Iterator[tuple[int, Shard]]:
        yield shard, Shard(arrays=dict(load_own(self.job, self.seat, shard)))


class KeepOperands(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        keep_operands(self.job, self.seat, element[0], element[1].arrays)
        yield element[0]


class WholeOperands(Seated):
    def process(self, shards: list[int]) -> Iterator[int]:
        own = {shard: load_own(self.job, self.seat, shard) for shard in shards}
        for shard, state in run_and_report(self.job.kmeans.operand, self.seat, own).items():
            keep_operands(self.job, self.seat, shard, state)
            yield shard


@dataclass
class ExchangeOperands(beam.PTransform):
    """Once per run: shard numbers in; every owner's masked matrix reaches the others and is kept there."""

    job: Job

    def expand(self, start: beam.PCollection[list[int]]) -> beam.PCollection[int]:
        if self.job.whole:
            return start | beam.ParDo(WholeOperands(self.job)).with_output_types(int)
        return (
            start
            | "Shards" >> beam.FlatMap(list).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
            | "Load" >> beam.ParDo(LoadOwn(self.job)).with_output_types(tuple[int, Shard])
            | "Operands" >> RunProtocol(self.job.kmeans.operand, self.job.seat)
            | "Keep" >> beam.ParDo(KeepOperands(self.job)).with_output_types(int)
        )
