"""Lloyd's iteration as a Beam transform: how many iterations are done goes in, one more comes out.

    done ─▶ shards ─▶ load ─▶ distance ─▶ assign ─▶ keep ─▶ update ─▶ Σ over shards ─▶ centres + checkpoint ─▶ done + 1

What flows between iterations is only a number: shares are read from the checkpoint that the iteration before has left.
After the stop bit was opened nothing flows, so the rest of a pipeline does nothing. Where all rows are few, an
iteration is one element and one call runs all its rounds (`whole`); the messages are the same, so a peer may do
otherwise. So it is with the centres: where one shard has all columns they are one call, and otherwise

    counts ─▶ Σ ─▶ reciprocal ─▶ for each column shard ─┐                       ┌─ counts
    sums by column shards ─▶ Σ of each ─▶ ──────────────┴▶ quotient ─▶ keep ─▶ ─┴▶ Σ ─▶ finish + checkpoint
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apache_beam as beam
import numpy as np

from veilmeans.crypto import prg, ring
from veilmeans.io.checkpoints import OPERANDS, Checkpoints, assignments, centres
from veilmeans.io.prepare import read_rows
from veilmeans.io.triples import Manifest
from veilmeans.schemas.arrays import Array, Arrays
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

    @property
    def column_shards(self) -> list[int]:
        return list(range(len(self.kmeans.column_shards)))


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


def load_centres(job: Job, seat: OpenSeat) -> Arrays:
    """Shares of the centroids with which this iteration begins, of all columns, and of their norms."""
    return {"mu": read_centroids(job, seat, seat.iteration), "u": kept(seat).read(seat.iteration)["u"]}


def read_centroids(job: Job, seat: OpenSeat, done: int) -> ring.Ring:
    """Shares of the centroids (k × d) after so many iterations."""
    store = kept(seat)
    parts = [store.read_shard(centres(done), shard)["mu"] for shard in job.column_shards]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def write_start(job: Job, seat: OpenSeat, share: ring.Ring, squares: ring.Ring, tallies: Tallies) -> None:
    """Checkpoint 0: the first centroids (k × d), their norms, and this party's own Σ|x|²."""
    after = run_bare(job.kmeans.norms, seat, by_columns(job.kmeans, "mu", share), tallies)
    store = kept(seat)
    for shard, state in after.items():
        store.write_shard(centres(0), shard, {"mu": state["mu"]})
    u = ring.total(state["u"] for state in after.values())
    store.write(0, {"u": u, "x2": squares, "stop": np.zeros(1, np.uint8)})


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


def add_up(parts: Iterable[Arrays]) -> dict[str, Array]:
    """Σ of the parts' arrays by their names; a part need not have all of them."""
    by_name: dict[str, list[Array]] = {}
    for part in parts:
        for name, array in part.items():
            by_name.setdefault(name, []).append(array)
    return {name: ring.total(arrays) for name, arrays in by_name.items()}


def by_columns(kmeans: KMeans, name: str, table: Array) -> dict[int, Arrays]:
    """A table of all d columns, shard by shard."""
    return {shard: {name: np.ascontiguousarray(table[:, cut])} for shard, cut in enumerate(kmeans.column_shards)}


def invert(job: Job, seat: OpenSeat, counts: Arrays) -> Arrays:
    """What every column shard's quotient needs of the counts."""
    inverse = run_and_report(job.kmeans.reciprocal, seat, {0: {"n": counts["n"]}})[0]
    return {name: inverse[name] for name in ("v", "y", "empty")}


def load_columns(seat: OpenSeat, shard: int) -> Arrays:
    """Shares of a column shard's centroids with which this iteration begins."""
    return kept(seat).read_shard(centres(seat.iteration), shard)


def keep_columns(seat: OpenSeat, shard: int, after: Arrays) -> Arrays:
    """A column shard's new centroids to disk; what is left is to be added up over the shards."""
    kept(seat).write_shard(centres(seat.iteration + 1), shard, {"mu": after["mu"]})
    return {name: after[name] for name in ("u", "esd")}


def finish_iteration(job: Job, seat: OpenSeat, totals: Arrays) -> int:
    """From the counts and what the column shards add up to, the checkpoint; how many iterations are done."""
    store = kept(seat)
    state = {**totals, "x2": store.read(seat.iteration)["x2"]}
    after = run_and_report(job.kmeans.finish, seat, {0: state})[0]
    done = seat.iteration + 1
    store.write(done, after)
    store.drop_assignments(before=done - 1)
    return done


def finish_whole(job: Job, seat: OpenSeat, sums: Arrays) -> int:
    """All work on the centres in this call."""
    inverse = invert(job, seat, sums)
    parts = by_columns(job.kmeans, "s", sums["s"])
    states = {shard: {**part, **inverse, **load_columns(seat, shard)} for shard, part in parts.items()}
    after = run_and_report(job.kmeans.quotient, seat, states)
    totals = add_up(keep_columns(seat, shard, state) for shard, state in after.items())
    return finish_iteration(job, seat, {**totals, "n": sums["n"]})


def run_and_report(protocol: Protocol, seat: OpenSeat, shards: Mapping[int, Arrays]) -> dict[int, Arrays]:
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
        arrays = {**load_operands(self.job, self.seat, shard), **load_centres(self.job, self.seat)}
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
        return Shard(arrays=add_up(total.arrays for total in totals))

    def extract_output(self, total: Shard) -> Shard:
        return total


class FinishWhole(Seated):
    """One element; so it may run all rounds of all column shards."""

    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        yield finish_whole(self.job, self.seat, element[1].arrays)


class Invert(Seated):
    """The counts of all rows in, one element; their reciprocals out, once for each column shard."""

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[int, Shard]]:
        inverse = invert(self.job, self.seat, element[1].arrays)
        yield from ((shard, Shard(arrays=dict(inverse))) for shard in self.job.column_shards)


class LoadColumns(Seated):
    """A column shard's sums and reciprocals in; beside them its centroids out."""

    def process(self, element: tuple[int, Iterable[Shard]]) -> Iterator[tuple[int, Shard]]:
        shard, parts = element
        arrays = {name: array for part in parts for name, array in part.arrays.items()}
        yield shard, Shard(arrays={**arrays, **load_columns(self.seat, shard)})


class KeepColumns(Seated):
    """Under one key what is to be added up over the column shards."""

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[int, Shard]]:
        shard, state = element
        yield 0, Shard(arrays=dict(keep_columns(self.seat, shard, state.arrays)))


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
        for shard in max(job.shards, job.column_shards, key=len):
            check_shard(seat.triples, self.manifest, seat.iteration, shard)
        operands = {shard: load_operands(job, seat, shard) for shard in job.shards}
        begin = load_centres(job, seat)
        states = run_and_report(job.kmeans.distance, seat, {s: {**x, **begin} for s, x in operands.items()})
        states = run_and_report(job.kmeans.assign, seat, states)
        for shard, state in states.items():
            keep_assignments(seat, shard, state)
        sums = run_and_report(job.kmeans.update, seat, {s: {**state, **operands[s]} for s, state in states.items()})
        yield finish_whole(job, seat, add_up(sums.values()))


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
        sums = (
            done
            | "Shards" >> beam.ParDo(ListShards(job)).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
            | "Load" >> beam.ParDo(LoadShard(job)).with_output_types(tuple[int, Shard])
            | "Check triples" >> CheckTriples(job.seat, self.manifest)
            | "Distance" >> RunProtocol(job.kmeans.distance, job.seat)
            | "Assign" >> RunProtocol(job.kmeans.assign, job.seat)
            | "Keep" >> beam.ParDo(KeepAndReload(job)).with_output_types(tuple[int, Shard])
            | "Update" >> RunProtocol(job.kmeans.update, job.seat)
        )
        if len(job.column_shards) > 1:
            return sums | "Centres" >> CentresByColumns(job, self.manifest)
        return (
            sums
            | "One key" >> beam.MapTuple(_under_one_key).with_output_types(tuple[int, Shard])
            | "Sum" >> beam.CombinePerKey(SumShares())
            | "Centres" >> beam.ParDo(FinishWhole(job)).with_output_types(int)
        )


@dataclass
class CentresByColumns(beam.PTransform):
    """Each row shard's sums and counts in, done + 1 out; the rounds on k × d values go over column shards.

    `sums` has all rows' sums by column shard, and every column shard goes on from there by itself.
    """

    job: Job
    manifest: Manifest

    def expand(self, shards: beam.PCollection[tuple[int, Shard]]) -> beam.PCollection[int]:
        job = self.job
        counts = (
            shards
            | "Counts" >> beam.MapTuple(_counts).with_output_types(tuple[int, Shard])
            | "Sum counts" >> beam.CombinePerKey(SumShares())
        )
        inverse = counts | "Reciprocal" >> beam.ParDo(Invert(job)).with_output_types(tuple[int, Shard])
        sums = (
            shards
            | "Cut" >> beam.FlatMapTuple(partial(_sums, job.kmeans)).with_output_types(tuple[int, Shard])
            | "Sum columns" >> beam.CombinePerKey(SumShares())
        )
        parts = (
            (sums, inverse)
            | "Beside" >> beam.Flatten()
            | "Join" >> beam.GroupByKey()
            | "Load columns" >> beam.ParDo(LoadColumns(job)).with_output_types(tuple[int, Shard])
            | "Check triples of columns" >> CheckTriples(job.seat, self.manifest)
            | "Quotient" >> RunProtocol(job.kmeans.quotient, job.seat)
            | "Keep columns" >> beam.ParDo(KeepColumns(job)).with_output_types(tuple[int, Shard])
        )
        return (
            (parts, counts)
            | "With counts" >> beam.Flatten()
            | "Sum all" >> beam.CombinePerKey(SumShares())
            | "Finish" >> beam.ParDo(FinishIteration(job)).with_output_types(int)
        )


def _under_one_key(shard: int, state: Shard) -> tuple[int, Shard]:
    del shard
    return 0, state


def _counts(shard: int, state: Shard) -> tuple[int, Shard]:
    del shard
    return 0, Shard(arrays={"n": state.arrays["n"]})


def _sums(kmeans: KMeans, shard: int, state: Shard) -> Iterator[tuple[int, Shard]]:
    del shard
    for column_shard, part in by_columns(kmeans, "s", state.arrays["s"]).items():
        yield column_shard, Shard(arrays=dict(part))


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
