"""Parts of a run in one call, with all their rounds: what one element does, because it cannot wait for another.

The messages are the same as those of the stages in `LloydIteration`, and so is the order in which they are waited
for: a peer may be there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import apache_beam as beam
import numpy as np

from veilmeans.crypto import ring
from veilmeans.io.storage.checkpoints import ASSIGNMENTS, ENCRYPTED, centroids
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.kmeans.party_state import (
    PartyJob,
    by_columns,
    checkpoints_of,
    column_range,
    has_stopped,
    keep_assignments,
    keep_columns,
    keep_encrypted,
    keep_operands,
    load_centroids,
    load_columns,
    load_operand,
    load_operands,
    moduli_of,
    sums_by_columns,
    total_of,
)
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.store_check import CheckTriples, check_shard
from veilmeans.transforms.rounds.beam_executor import RunProtocol
from veilmeans.transforms.rounds.executor import Tallies, run_bare
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.stage_metrics import count_stage


def write_start(
    job: PartyJob, context: OpenPartyContext, share: ring.Ring, squares: ring.Ring, tallies: Tallies
) -> None:
    """Checkpoint 0: the first centroids (k × d), their norms, and this party's own Σ|x|²."""
    after = run_bare(job.kmeans.norms, context, by_columns(job.kmeans, "mu", share), tallies)
    store = checkpoints_of(context)
    for shard, state in after.items():
        store.write_shard(centroids(0), shard, {"mu": state["mu"]})
    u = ring.total(state["u"] for state in after.values())
    store.write(0, {"u": u, "x2": squares, "stop": np.zeros(1, np.uint8)})


def whole_iteration(job: PartyJob, context: OpenPartyContext) -> int:
    """All rounds of all shards; how many iterations are done."""
    update = job.kmeans.engines.update
    states = {s: {**state, **load_operands(job, context, s, update)} for s, state in assign_whole(job, context).items()}
    sums = run_and_report(job.kmeans.update, context, states)
    return finish_whole(job, context, total_of(sums.values(), moduli_of(job)))


def assign_whole(job: PartyJob, context: OpenPartyContext) -> dict[int, Arrays]:
    """Each shard's positions of the nearest centroids, which are kept."""
    encrypt_whole(job, context)
    begin, engines = load_centroids(job, context), job.kmeans.engines
    states: dict[int, Arrays] = {s: {**load_operands(job, context, s, engines.distance), **begin} for s in job.shards}
    states = run_and_report(job.kmeans.distance, context, states)
    states = run_and_report(job.kmeans.assign, context, states)
    for shard, state in states.items():
        keep_assignments(context, shard, state)
    return states


def encrypt_whole(job: PartyJob, context: OpenPartyContext) -> None:
    """The encrypted centroids of all column shards in this call."""
    if job.kmeans.encrypt is None:
        return
    states = {s: {**load_columns(context, s), **column_range(job.kmeans, s)} for s in job.column_shards}
    for shard, received in run_and_report(job.kmeans.encrypt, context, states).items():
        keep_encrypted(context, shard, received)


def finish_whole(job: PartyJob, context: OpenPartyContext, sums: Arrays) -> int:
    """All work on the centres in this call, in the order in which `CentresByColumns` does it: a peer may be there."""
    inverse = invert(job, context, sums)
    parts: Mapping[int, Arrays] = sums_by_columns(job.kmeans, context.party, sums)
    if job.kmeans.unmask is not None:
        wide = {shard: {**part, **column_range(job.kmeans, shard)} for shard, part in parts.items()}
        parts = run_and_report(job.kmeans.unmask, context, wide)
    states = {shard: {"s": part["s"], **inverse, **load_columns(context, shard)} for shard, part in parts.items()}
    after = run_and_report(job.kmeans.quotient, context, states)
    totals = total_of(keep_columns(context, shard, state) for shard, state in after.items())
    return finish_iteration(job, context, {**totals, "n": sums["n"]})


def invert(job: PartyJob, context: OpenPartyContext, counts: Arrays) -> Arrays:
    """What every column shard's quotient needs of the counts."""
    inverse = run_and_report(job.kmeans.reciprocal, context, {0: {"n": counts["n"]}})[0]
    return {name: inverse[name] for name in ("v", "y", "empty")}


def finish_iteration(job: PartyJob, context: OpenPartyContext, totals: Arrays) -> int:
    """From the counts and what the column shards add up to, the checkpoint; how many iterations are done."""
    store = checkpoints_of(context)
    state = {**totals, "x2": store.read(context.iteration)["x2"]}
    after = run_and_report(job.kmeans.finish, context, {0: state})[0]
    done = context.iteration + 1
    store.write(done, after)
    store.drop(ASSIGNMENTS, before=done - 1)
    store.drop(ENCRYPTED, before=done)
    return done


def run_and_report(protocol: Protocol, context: OpenPartyContext, shards: Mapping[int, Arrays]) -> dict[int, Arrays]:
    """All rounds in this call, with their costs in Beam's metrics."""
    tallies: Tallies = {}
    after = run_bare(protocol, context, shards, tallies)
    for stage, tally in tallies.items():
        count_stage(stage, tally)
    return after


class Seated(beam.DoFn):
    """A DoFn that plays at this party's seat."""

    def __init__(self, job: PartyJob) -> None:
        self.job = job

    def __dir__(self) -> list[str]:
        """What Beam inspects, nine times a stage."""
        return ["setup", "start_bundle", "process", "finish_bundle"]

    def setup(self) -> None:
        self.context = self.job.context.open()


class ListShards(Seated):
    """The shard numbers, unless the run has stopped."""

    def process(self, done: int) -> Iterator[int]:
        if not has_stopped(checkpoints_of(self.context).read(done)):
            yield from self.job.shards


class ListColumns(Seated):
    """The column shards' numbers, unless the run has stopped."""

    def process(self, done: int) -> Iterator[int]:
        if not has_stopped(checkpoints_of(self.context).read(done)):
            yield from self.job.column_shards


class LoadWide(Seated):
    """A column shard's centroids, to be encrypted."""

    def process(self, shard: int) -> Iterator[tuple[int, Shard]]:
        state = {**load_columns(self.context, shard), **column_range(self.job.kmeans, shard)}
        yield shard, Shard(arrays=state)


class KeepEncrypted(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        keep_encrypted(self.context, element[0], element[1].arrays)
        yield element[0]


class LoadShard(Seated):
    """`ready` has the column shards whose encrypted centroids are here; rows are worked on when all of them are."""

    def process(self, shard: int, ready: Sequence[int]) -> Iterator[tuple[int, Shard]]:
        if sorted(ready) != (self.job.column_shards if self.job.kmeans.encrypt else []):
            raise StorageError("encrypted centroids of this iteration are missing: start the run again")
        own = load_operands(self.job, self.context, shard, self.job.kmeans.engines.distance)
        yield shard, Shard(arrays={**own, **load_centroids(self.job, self.context)})


class KeepAndReload(Seated):
    """Between assign and update: the assignments to disk, the operands from it, so that they pass no barrier."""

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[int, Shard]]:
        shard, state = element
        keep_assignments(self.context, shard, state.arrays)
        own = load_operands(self.job, self.context, shard, self.job.kmeans.engines.update)
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
        return Shard(arrays=total_of((total.arrays for total in totals), self.moduli))

    def extract_output(self, total: Shard) -> Shard:
        return total


class FinishWhole(Seated):
    """One element; so it may run all rounds of all column shards."""

    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        yield finish_whole(self.job, self.context, element[1].arrays)


class Invert(Seated):
    """The counts of all rows in, one element; their reciprocals out, once for each column shard."""

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[int, Shard]]:
        inverse = invert(self.job, self.context, element[1].arrays)
        yield from ((shard, Shard(arrays=dict(inverse))) for shard in self.job.column_shards)


class LoadColumns(Seated):
    """A column shard's sums and reciprocals in; beside them its centroids out."""

    def process(self, element: tuple[int, Iterable[Shard]]) -> Iterator[tuple[int, Shard]]:
        shard, parts = element
        arrays = {name: array for part in parts for name, array in part.arrays.items()}
        yield shard, Shard(arrays={**arrays, **load_columns(self.context, shard)})


class KeepColumns(Seated):
    """Under one key what is to be added up over the column shards."""

    def process(self, element: tuple[int, Shard]) -> Iterator[tuple[int, Shard]]:
        shard, state = element
        yield 0, Shard(arrays=dict(keep_columns(self.context, shard, state.arrays)))


class FinishIteration(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        yield finish_iteration(self.job, self.context, element[1].arrays)


class WholeIteration(Seated):
    """All rounds of all shards in one call: one element cannot wait for another."""

    def __init__(self, job: PartyJob, manifest: Manifest) -> None:
        super().__init__(job)
        self.manifest = manifest

    def process(self, done: int) -> Iterator[int]:
        if has_stopped(checkpoints_of(self.context).read(done)):
            return
        check_all(self.job, self.context, self.manifest)
        yield whole_iteration(self.job, self.context)


def check_all(job: PartyJob, context: OpenPartyContext, manifest: Manifest) -> None:
    """Whether the store that a worker sees has all shards of this iteration."""
    for shard in max(job.shards, job.column_shards, key=len):
        check_shard(context.triples, manifest, context.iteration, shard)


@dataclass
class LloydIteration(beam.PTransform):
    """done in, done + 1 out; nothing where the run has stopped. `manifest` is of the store that the run has claimed."""

    job: PartyJob
    manifest: Manifest

    def __post_init__(self) -> None:
        super().__init__(f"Iteration {self.job.context.iteration + 1}")

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[int]:
        job = self.job
        if job.whole:
            return done | "Iterate" >> beam.ParDo(WholeIteration(job, self.manifest)).with_output_types(int)
        sums = (
            done
            | "Rows" >> AssignRows(job, self.manifest)
            | "Keep" >> beam.ParDo(KeepAndReload(job)).with_output_types(tuple[int, Shard])
            | "Update" >> RunProtocol(job.kmeans.update, job.context)
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

    job: PartyJob
    manifest: Manifest

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[tuple[int, Shard]]:
        job = self.job
        ready = beam.pvalue.AsList(done | "Encrypt" >> EncryptCentres(job))
        return (
            done
            | "Shards" >> beam.ParDo(ListShards(job)).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
            | "Load" >> beam.ParDo(LoadShard(job), ready).with_output_types(tuple[int, Shard])
            | "Check triples" >> CheckTriples(job.context, self.manifest)
            | "Distance" >> RunProtocol(job.kmeans.distance, job.context)
            | "Assign" >> RunProtocol(job.kmeans.assign, job.context)
        )


@dataclass
class EncryptCentres(beam.PTransform):
    """done in; out, where products are homomorphic, each column shard whose encrypted centroids are here."""

    job: PartyJob

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[int]:
        job, encrypt = self.job, self.job.kmeans.encrypt
        if encrypt is None:
            return done | "None" >> beam.FlatMap(_nothing).with_output_types(int)
        return (
            done
            | "Columns" >> beam.ParDo(ListColumns(job)).with_output_types(int)
            | "Spread columns" >> beam.Reshuffle()
            | "Load wide" >> beam.ParDo(LoadWide(job)).with_output_types(tuple[int, Shard])
            | "Encrypted" >> RunProtocol(encrypt, job.context)
            | "Keep encrypted" >> beam.ParDo(KeepEncrypted(job)).with_output_types(int)
        )


@dataclass
class CentresByColumns(beam.PTransform):
    """Each row shard's sums and counts in, done + 1 out; the rounds on k × d values go over column shards.

    `sums` has all rows' sums by column shard, and every column shard goes on from there by itself. Unmasking waits for
    the reciprocals: parties that wait for each other's messages must do so in one order.
    """

    job: PartyJob
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
                | "Unmask" >> RunProtocol(job.kmeans.unmask, job.context)
            )
        parts = (
            (sums, inverse)
            | "Beside" >> beam.Flatten()
            | "Join" >> beam.GroupByKey()
            | "Load columns" >> beam.ParDo(LoadColumns(job)).with_output_types(tuple[int, Shard])
            | "Check triples of columns" >> CheckTriples(job.context, self.manifest)
            | "Quotient" >> RunProtocol(job.kmeans.quotient, job.context)
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


def _sums(job: PartyJob, shard: int, state: Shard) -> Iterator[tuple[int, Shard]]:
    del shard
    for column_shard, part in sums_by_columns(job.kmeans, job.context.config.me, state.arrays).items():
        yield column_shard, Shard(arrays=part)


def _with_range(kmeans: KMeansSteps, element: tuple[int, Shard], ready: Sequence[int]) -> tuple[int, Shard]:
    del ready
    shard, state = element
    return shard, Shard(arrays={**state.arrays, **column_range(kmeans, shard)})


class LoadOwn(Seated):
    def process(self, shard: int) -> Iterator[tuple[int, Shard]]:
        yield shard, Shard(arrays=dict(load_operand(self.job, self.context, shard)))


class KeepOperands(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        keep_operands(self.context, element[0], element[1].arrays)
        yield element[0]


class WholeOperands(Seated):
    def process(self, shards: list[int]) -> Iterator[int]:
        own = {shard: load_operand(self.job, self.context, shard) for shard in shards}
        for shard, state in run_and_report(self.job.kmeans.operand, self.context, own).items():
            keep_operands(self.context, shard, state)
            yield shard


@dataclass
class ExchangeOperands(beam.PTransform):
    """Once per run: shard numbers in; every owner's masked matrix reaches the others and is kept there."""

    job: PartyJob

    def expand(self, start: beam.PCollection[list[int]]) -> beam.PCollection[int]:
        if self.job.whole:
            return start | beam.ParDo(WholeOperands(self.job)).with_output_types(int)
        return (
            start
            | "Shards" >> beam.FlatMap(list).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
            | "Load" >> beam.ParDo(LoadOwn(self.job)).with_output_types(tuple[int, Shard])
            | "Operands" >> RunProtocol(self.job.kmeans.operand, self.job.context)
            | "Keep" >> beam.ParDo(KeepOperands(self.job)).with_output_types(int)
        )


@dataclass
class PredictRows(beam.PTransform):
    """All shards' numbers in, as one element; each of them out when its assignments are kept."""

    job: PartyJob
    manifest: Manifest

    def expand(self, start: beam.PCollection[list[int]]) -> beam.PCollection[int]:
        job, done = self.job, start
        if job.kmeans.engines.masked:
            done = start | "Operands" >> ExchangeOperands(job) | "All" >> beam.combiners.Count.Globally()
        done = done | "Begin" >> beam.Map(_begin).with_output_types(int)
        if job.whole:
            return done | "Assign" >> beam.ParDo(WholePrediction(job, self.manifest)).with_output_types(int)
        return (
            done
            | "Rows" >> AssignRows(job, self.manifest)
            | "Keep" >> beam.ParDo(KeepAssignments(job)).with_output_types(int)
        )


class KeepAssignments(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        keep_assignments(self.context, element[0], element[1].arrays)
        yield element[0]


class WholePrediction(Seated):
    """All rounds of all shards in one call."""

    def __init__(self, job: PartyJob, manifest: Manifest) -> None:
        super().__init__(job)
        self.manifest = manifest

    def process(self, done: int) -> Iterator[int]:
        del done
        check_all(self.job, self.context, self.manifest)
        yield from assign_whole(self.job, self.context)


def _begin(operands: object) -> int:
    """No iteration is done."""
    del operands
    return 0
