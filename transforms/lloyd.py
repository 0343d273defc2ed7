"""Lloyd's iteration as a Beam transform: how many iterations are done goes in, one more comes out.

    done ─▶ [encrypt ─▶] shards ─▶ load ─▶ distance ─▶ assign ─▶ keep ─▶ update ─▶ Σ over shards ─▶ centres ─▶ done + 1

What flows between iterations is only a number: shares are read from the checkpoint that the iteration before has left.
After the stop bit was opened nothing flows, so the rest of a pipeline does nothing. Where all rows are few, an
iteration is one element and one call runs all its rounds (`whole`); the messages are the same, so a peer may do
otherwise. So it is with the centres: where one shard has all columns they are one call, and otherwise

    counts ─▶ Σ ─▶ reciprocal ─▶ for each column shard ─┐                       ┌─ counts
    sums by column shards ─▶ Σ of each ─▶ [unmask ─▶] ──┴▶ quotient ─▶ keep ─▶ ─┴▶ Σ ─▶ finish + checkpoint

In brackets is what homomorphic products need (`sparse`): before the rows, the encrypted centroids of the peers, column
shard by column shard, which are a side input of all rows; after them, the products of ciphertexts over all shards.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import apache_beam as beam

from veilmeans.io.triples import Manifest
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.at_once import finish_iteration, finish_whole, invert, run_and_report, whole_iteration
from veilmeans.transforms.beam_rounds import RunProtocol
from veilmeans.transforms.job import (
    Job,
    keep_assignments,
    keep_columns,
    keep_encrypted,
    keep_operands,
    kept,
    load_centres,
    load_columns,
    load_operand,
    load_operands,
    stopped,
)
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.seat import OpenSeat
from veilmeans.transforms.totals import add_up, column_range, moduli_of, sums_by_columns
from veilmeans.transforms.triples import CheckTriples, check_shard


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


class ListColumns(Seated):
    """The column shards' numbers, unless the run has stopped."""

    def process(self, done: int) -> Iterator[int]:
        if not stopped(kept(self.seat).read(done)):
            yield from self.job.column_shards


class LoadWide(Seated):
    """A column shard's centroids, to be encrypted."""

    def process(self, shard: int) -> Iterator[tuple[int, Shard]]:
        state = {**load_columns(self.seat, shard), **column_range(self.job.kmeans, shard)}
        yield shard, Shard(arrays=state)


class KeepEncrypted(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        keep_encrypted(self.seat, element[0], element[1].arrays)
        yield element[0]


class LoadShard(Seated):
    """`ready` has the column shards whose encrypted centroids are here; rows are worked on when all of them are."""

    def process(self, shard: int, ready: Sequence[int]) -> Iterator[tuple[int, Shard]]:
        if sorted(ready) != (self.job.column_shards if self.job.kmeans.encrypt else []):
            raise StorageError("encrypted centroids of this iteration are missing: start the run again")
        own = load_operands(self.job, self.seat, shard, self.job.kmeans.engines.distance)
        yield shard, Shard(arrays={**own, **load_centres(self.job, self.seat)})


class KeepAndReload(Seated):
    """Between assign and update: the assignments to disk, the operands from it, so that they pass no barrier."""

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[int, Shard]]:
        shard, state = element
        keep_assignments(self.seat, shard, state.arrays)
        own = load_operands(self.job, self.seat, shard, self.job.kmeans.engines.update)
        yield shard, Shard(arrays={**state.arrays, **own})


class SumShares(beam.CombineFn):
    """Σ of shares mod 2^64, and products of ciphertexts mod the peers' public moduli, in a tree."""

    def __init__(self, moduli: Mapping[int, int] | None = None) -> None:
        self.moduli = moduli or {}

    def create_accumulator(self) -> Shard:
        return Shard()

    def add_input(self, total: Shard, part: Shard) -> Shard:
        return self.merge_accumulators([total, part])

    def merge_accumulators(self, totals: Iterable[Shard]) -> Shard:
        return Shard(arrays=add_up((total.arrays for total in totals), self.moduli))

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
        if stopped(kept(self.seat).read(done)):
            return
        check_all(self.job, self.seat, self.manifest)
        yield whole_iteration(self.job, self.seat)


def check_all(job: Job, seat: OpenSeat, manifest: Manifest) -> None:
    """Whether the store that a worker sees has all shards of this iteration."""
    for shard in max(job.shards, job.column_shards, key=len):
        check_shard(seat.triples, manifest, seat.iteration, shard)


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
            | "Rows" >> AssignRows(job, self.manifest)
            | "Keep" >> beam.ParDo(KeepAndReload(job)).with_output_types(tuple[int, Shard])
            | "Update" >> RunProtocol(job.kmeans.update, job.seat)
        )
        if len(job.column_shards) > 1:
            return sums | "Centres" >> CentresByColumns(job, self.manifest)
        return (
            sums
            | "One key" >> beam.MapTuple(_under_one_key).with_output_types(tuple[int, Shard])
            | "Sum" >> beam.CombinePerKey(SumShares(moduli_of(job)))
            | "Centres" >> beam.ParDo(FinishWhole(job)).with_output_types(int)
        )


@dataclass
class AssignRows(beam.PTransform):
    """done in; out each shard of rows, with the positions of their nearest centroids as "c"."""

    job: Job
    manifest: Manifest

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[tuple[int, Shard]]:
        job = self.job
        ready = beam.pvalue.AsList(done | "Encrypt" >> EncryptCentres(job))
        return (
            done
            | "Shards" >> beam.ParDo(ListShards(job)).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
            | "Load" >> beam.ParDo(LoadShard(job), ready).with_output_types(tuple[int, Shard])
            | "Check triples" >> CheckTriples(job.seat, self.manifest)
            | "Distance" >> RunProtocol(job.kmeans.distance, job.seat)
            | "Assign" >> RunProtocol(job.kmeans.assign, job.seat)
        )


@dataclass
class EncryptCentres(beam.PTransform):
    """done in; out, where products are homomorphic, each column shard whose encrypted centroids are here."""

    job: Job

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[int]:
        job, encrypt = self.job, self.job.kmeans.encrypt
        if encrypt is None:
            return done | "None" >> beam.FlatMap(_nothing).with_output_types(int)
        return (
            done
            | "Columns" >> beam.ParDo(ListColumns(job)).with_output_types(int)
            | "Spread columns" >> beam.Reshuffle()
            | "Load wide" >> beam.ParDo(LoadWide(job)).with_output_types(tuple[int, Shard])
            | "Encrypted" >> RunProtocol(encrypt, job.seat)
            | "Keep encrypted" >> beam.ParDo(KeepEncrypted(job)).with_output_types(int)
        )


@dataclass
class CentresByColumns(beam.PTransform):
    """Each row shard's sums and counts in, done + 1 out; the rounds on k × d values go over column shards.

    `sums` has all rows' sums by column shard, and every column shard goes on from there by itself. Unmasking waits for
    the reciprocals: parties that wait for each other's messages must do so in one order.
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
            | "Cut" >> beam.FlatMapTuple(partial(_sums, job)).with_output_types(tuple[int, Shard])
            | "Sum columns" >> beam.CombinePerKey(SumShares(moduli_of(job)))
        )
        if job.kmeans.unmask is not None:
            ready = beam.pvalue.AsList(inverse | "Ready" >> beam.Keys())
            sums = (
                sums
                | "Range" >> beam.Map(partial(_with_range, job.kmeans), ready).with_output_types(tuple[int, Shard])
                | "Unmask" >> RunProtocol(job.kmeans.unmask, job.seat)
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


def _nothing(done: int) -> list[int]:
    del done
    return []


def _sums(job: Job, shard: int, state: Shard) -> Iterator[tuple[int, Shard]]:
    del shard
    for column_shard, part in sums_by_columns(job.kmeans, job.seat.config.me, state.arrays).items():
        yield column_shard, Shard(arrays=part)


def _with_range(kmeans: KMeans, element: tuple[int, Shard], ready: Sequence[int]) -> tuple[int, Shard]:
    del ready
    shard, state = element
    return shard, Shard(arrays={**state.arrays, **column_range(kmeans, shard)})


class LoadOwn(Seated):
    def process(self, shard: int) -> Iterator[tuple[int, Shard]]:
        yield shard, Shard(arrays=dict(load_operand(self.job, self.seat, shard)))


class KeepOperands(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        keep_operands(self.seat, element[0], element[1].arrays)
        yield element[0]


class WholeOperands(Seated):
    def process(self, shards: list[int]) -> Iterator[int]:
        own = {shard: load_operand(self.job, self.seat, shard) for shard in shards}
        for shard, state in run_and_report(self.job.kmeans.operand, self.seat, own).items():
            keep_operands(self.seat, shard, state)
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
