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
from pathlib import Path

import apache_beam as beam
import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.sparse_product import SparseProduct
from veilmeans.io.checkpoints import ASSIGNMENTS, ENCRYPTED, OPERANDS, Checkpoints, assignments, centres, encrypted
from veilmeans.io.keyring import moduli
from veilmeans.io.prepared import read_rows
from veilmeans.io.triples import Manifest
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.layout import Place
from veilmeans.schemas.party import Party
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.bare import Tallies, run_bare
from veilmeans.transforms.beam_rounds import RunProtocol, report
from veilmeans.transforms.cross import block_state
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.rounds import Protocol
from veilmeans.transforms.seat import OpenSeat, Seat, checkpoints
from veilmeans.transforms.sparse import found_in, multiply_found, sparse_state
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
    return checkpoints(seat.folder, seat.seed)


def stopped(checkpoint: Arrays) -> bool:
    """Whether the stop bit was opened as 1."""
    return bool(checkpoint["stop"].any())


def load_own(job: Job, seat: OpenSeat, shard: int, engine: SparseProduct | None = None) -> Arrays:
    """My own matrix of a shard, its rows × the columns that I own there: dense, or in compressed rows for `he`."""
    place = job.place(shard)
    shape = block_state(place.block)
    if place.owner not in (None, seat.party.index):
        return {**shape, "x": np.zeros((place.block.rows, 0), ring.DTYPE)}
    rows = read_rows(job.prepared, place.index)
    return {**shape, "x": rows.toarray()} if engine is None else {**shape, **sparse_state(rows)}


def load_operand(job: Job, seat: OpenSeat, shard: int) -> Arrays:
    """My own matrix of a shard, if it is to be sent masked."""
    if seat.party.index in job.kmeans.engines.masked:
        return load_own(job, seat, shard)
    return block_state(job.place(shard).block)


def load_operands(job: Job, seat: OpenSeat, shard: int, engines: Sequence[SparseProduct | None]) -> Arrays:
    """My own matrix, and the masked ones of others."""
    own = load_own(job, seat, shard, engines[seat.party.index])
    return {**own, **(kept(seat).read_shard(OPERANDS, shard) if job.kmeans.engines.masked else {})}


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
    """Store what the others sent."""
    del job
    names = [f"e{peer}" for peer in seat.party.others]
    kept(seat).write_shard(OPERANDS, shard, {name: state[name] for name in names if name in state})


def keep_assignments(seat: OpenSeat, shard: int, state: Arrays) -> None:
    kept(seat).write_shard(assignments(seat.iteration + 1), shard, {"c": state["c"]})


def add_up(parts: Iterable[Arrays], moduli: Mapping[int, int] | None = None) -> dict[str, Array]:
    """Σ of the parts' shares by their names, and products of their ciphertexts; a part need not have all of them."""
    parts = list(parts)
    found = multiply_found(parts, moduli or {})
    by_name: dict[str, list[Array]] = {}
    for part in parts:
        for name, array in part.items():
            if name not in found:
                by_name.setdefault(name, []).append(array)
    return {**{name: ring.total(arrays) for name, arrays in by_name.items()}, **found}


def by_columns(kmeans: KMeans, name: str, table: Array) -> dict[int, dict[str, Array]]:
    """A table of all d columns, shard by shard."""
    return {shard: {name: np.ascontiguousarray(table[:, cut])} for shard, cut in enumerate(kmeans.column_shards)}


def sums_by_columns(kmeans: KMeans, party: Party, sums: Arrays) -> dict[int, dict[str, Array]]:
    """Sums of all columns, and what was accumulated in ciphertexts for my own, column shard by column shard."""
    parts = by_columns(kmeans, "s", sums["s"])
    own = kmeans.layout.own_columns(party.index)
    for part, cut in zip(parts.values(), kmeans.column_shards, strict=True):
        first, last = max(cut.start, own.start), max(own.start, min(cut.stop, own.stop))
        part |= found_in(sums, party, first - own.start, max(first, last) - own.start)
    return parts


def column_range(kmeans: KMeans, shard: int) -> dict[str, Array]:
    """Which columns a column shard has, into its state."""
    cut = kmeans.column_shards[shard]
    return {"columns": np.array([cut.start, cut.stop])}


def moduli_of(job: Job) -> dict[int, int]:
    """The peers' public moduli, where ciphertexts are multiplied."""
    if job.kmeans.engines.cipher is None:
        return {}
    return moduli(job.seat.config.store_folder, job.seat.config.me)


def invert(job: Job, seat: OpenSeat, counts: Arrays) -> Arrays:
    """What every column shard's quotient needs of the counts."""
    inverse = run_and_report(job.kmeans.reciprocal, seat, {0: {"n": counts["n"]}})[0]
    return {name: inverse[name] for name in ("v", "y", "empty")}


def load_columns(seat: OpenSeat, shard: int) -> Arrays:
    """Shares of a column shard's centroids with which this iteration begins."""
    return kept(seat).read_shard(centres(seat.iteration), shard)


def keep_encrypted(seat: OpenSeat, shard: int, received: Arrays) -> None:
    """The peers' encrypted centroids of a column shard, for all rows of this iteration."""
    kept(seat).write_shard(encrypted(seat.iteration), shard, received)


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
    store.drop(ASSIGNMENTS, before=done - 1)
    store.drop(ENCRYPTED, before=done)
    return done


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
        job, seat = self.job, self.seat
        if stopped(kept(seat).read(done)):
            return
        for shard in max(job.shards, job.column_shards, key=len):
            check_shard(seat.triples, self.manifest, seat.iteration, shard)
        encrypt_whole(job, seat)
        begin, engines = load_centres(job, seat), job.kmeans.engines
        states: dict[int, Arrays] = {s: {**load_operands(job, seat, s, engines.distance), **begin} for s in job.shards}
        states = run_and_report(job.kmeans.distance, seat, states)
        states = run_and_report(job.kmeans.assign, seat, states)
        for shard, state in states.items():
            keep_assignments(seat, shard, state)
        states = {s: {**state, **load_operands(job, seat, s, engines.update)} for s, state in states.items()}
        sums = run_and_report(job.kmeans.update, seat, states)
        yield finish_whole(job, seat, add_up(sums.values(), moduli_of(job)))


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
        ready = beam.pvalue.AsList(done | "Encrypt" >> EncryptCentres(job))
        sums = (
            done
            | "Shards" >> beam.ParDo(ListShards(job)).with_output_types(int)
            | "Spread" >> beam.Reshuffle()
            | "Load" >> beam.ParDo(LoadShard(job), ready).with_output_types(tuple[int, Shard])
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
            | "Sum" >> beam.CombinePerKey(SumShares(moduli_of(job)))
            | "Centres" >> beam.ParDo(FinishWhole(job)).with_output_types(int)
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
        keep_operands(self.job, self.seat, element[0], element[1].arrays)
        yield element[0]


class WholeOperands(Seated):
    def process(self, shards: list[int]) -> Iterator[int]:
        own = {shard: load_operand(self.job, self.seat, shard) for shard in shards}
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
