"""Keys of the homomorphic engine for parties in memory, and the ciphertexts that their offline phase would make."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from support.parties import NAMES, InMemoryExchange, Shards, make_shares
from support.row_results import row_results
from support.triple_stores import at_capacity
from veilmeans.crypto import bits, prg, ring
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.io.storage.checkpoints import Checkpoints, assignments
from veilmeans.io.storage.checkpoints import centroids as centroids_folder
from veilmeans.io.storage.encoded_shards import read_rows, write_rows
from veilmeans.io.storage.he_keyring import Keyring
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore, correction_name, store_address
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, Real
from veilmeans.schemas.config import BeamConfig, JobConfig, TriplesConfig
from veilmeans.schemas.kmeans_config import KMeansConfig, NormaliseConfig, RevealConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import RunFolder
from veilmeans.transforms.kmeans.iteration import (
    follow_last,
    iterate,
    mask_operands,
    predict_rows,
    write_first_centroids,
)
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.kmeans.party_state import PartyJob, by_columns, checkpoints_of, read_centroids, total_of
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.ciphertexts import make_ciphertexts
from veilmeans.transforms.offline.dealer import deal_corrections
from veilmeans.transforms.rounds.executor import AddUp, Cut, DescribeFrom, Keep, Lane, Load, Over, Step, has_stopped
from veilmeans.transforms.rounds.he_operations import HEContext, PowerTableCache
from veilmeans.transforms.rounds.interfaces import CiphertextNeed
from veilmeans.transforms.rounds.party_context import OpenPartyContext, _encrypted_centroids
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Stage

SMALL = SchemeParameters("okamoto-uchiyama", 1536)
"""Quick, and too short to be safe."""
PAILLIER = SchemeParameters("paillier", 768)


@cache
def keyrings(parties: int, cipher: SchemeParameters = SMALL) -> tuple[Keyring, ...]:
    """Every party's keys, made once in a test process."""
    keys = [_key(cipher, i) for i in range(parties)]
    return tuple(
        Keyring(keys[i], {j: key.public for j, key in enumerate(keys) if j != i}, bytes([i]) * 32)
        for i in range(parties)
    )


@cache
def _key(cipher: SchemeParameters, number: int) -> he.PrivateKey:
    del number
    return he.generate_key(cipher.scheme, cipher.bits)


def make_ciphers(
    rings: Sequence[Keyring], store: str, iteration: int, shard: int, blindings: Mapping[str, Sequence[CiphertextNeed]]
) -> list[dict[str, Array]]:
    """For each party what it makes beforehand for one shard."""
    made: list[dict[str, Array]] = [{} for _ in rings]
    for stage, asked in blindings.items():
        where = store_address(store, 0, Address("", iteration, stage, shard))
        for blinding in asked:
            name = correction_name(stage, blinding.label)
            made[blinding.maker][name] = make_ciphertexts(blinding, rings[blinding.maker], where)
    return made


Labels = NDArray[np.intp]
Integers = NDArray[np.int64]


def vertical(rows: int, features: Sequence[int], rows_per_shard: int) -> Layout:
    return Layout(True, (rows,) * len(features), tuple(features), rows_per_shard)


def horizontal(rows: Sequence[int], features: int, rows_per_shard: int) -> Layout:
    return Layout(False, tuple(rows), (features,) * len(rows), rows_per_shard)


def kmeans_for(layout: Layout, k: int, normalise: NormaliseConfig | None = None, **fields: Any) -> KMeansSteps:
    """The protocols that `pipelines.session.kmeans_from_config` chooses for such a job; `fields` are the job's own."""
    return kmeans_steps(config_for(layout, k, normalise, **fields))


def config_for(
    layout: Layout,
    k: int,
    normalise: NormaliseConfig | None = None,
    inertia: bool = True,
    scores: bool = False,
    reveal: RevealConfig | None = None,
    **fields: Any,
) -> JobConfig:
    """The configuration of the first party, as far as protocols go. `inertia`, `scores`: whether they may be opened;
    or `reveal`, a policy.

    The schema is passed by: it asks every party for a row and a column, and the protocols do not.
    """
    names = NAMES[: layout.parties]
    rows, features = (dict(zip(names, counts, strict=True)) for counts in (layout.rows, layout.features))
    job = KMeansConfig.model_construct(
        layout="vertical" if layout.vertical else "horizontal",
        rows=layout.total_rows if layout.vertical else rows,
        features=features if layout.vertical else layout.total_features,
        clusters=k,
        normalise=normalise or NormaliseConfig(),
        reveal=reveal or RevealConfig(inertia=names[:1] if inertia else (), scores=names[:1] if scores else ()),
        **fields,
    )
    beam, triples = BeamConfig(rows_per_shard=layout.rows_per_shard), None
    if layout.capacity:
        most = layout.capacity[0] if layout.vertical else dict(zip(names, layout.capacity, strict=True))
        triples = TriplesConfig(store="store", rows=most)
    return JobConfig.model_construct(party=names[0], parties=names, beam=beam, triples=triples, kmeans=job)


@dataclass(frozen=True)
class StoreInMemory(TripleStore):
    """A store whose corrections and ciphertexts never see a disk."""

    kept: dict[tuple[int, int], Arrays] = field(default_factory=dict)
    made: dict[tuple[int, int], Arrays] = field(default_factory=dict)

    def ciphertexts(self, number: int, iteration: int, shard: int) -> Arrays:
        del number
        return self.made[iteration, shard]

    def corrections(self, number: int, iteration: int, shard: int) -> Arrays:
        del number
        return self.kept[iteration, shard]


def deal_plan(kmeans: KMeansSteps, iterations: int) -> list[StoreRun]:
    """What a dealer makes from the plan: a store for each party, for as many rows as its capacity."""
    plan, parties = trace_job(at_capacity(kmeans)), kmeans.layout.parties
    manifest = Manifest("store", 1, iterations, plan.rows, "")
    seeds = [prg.derive(b"dealer", f"party {i}") for i in range(parties)]
    stores = [StoreInMemory(folder=None, manifest=manifest, seed=seed) for seed in seeds]  # type: ignore[arg-type]
    for iteration in plan.store_iterations(iterations):
        for shard in range(plan.store_shards):
            needs = plan.needs(shard, iteration)
            for party, arrays in deal_corrections(seeds, "store", 0, Address("", iteration, "", shard), needs).items():
                stores[party].kept[iteration, shard] = arrays
            if kmeans.engines.cipher is not None:
                rings, ciphertexts = keyrings(parties, kmeans.engines.cipher), plan.ciphertext_needs(shard, iteration)
                for party, made in enumerate(make_ciphers(rings, "store", iteration, shard, ciphertexts)):
                    stores[party].made[iteration, shard] = made
    return [StoreRun(store, 0) for store in stores]


@dataclass(frozen=True)
class Iteration:
    """What one iteration's shares add up to: new centroids, the rows' clusters, sizes, stop bit, inertia.

    `final_labels`: the clusters as if this iteration was the last, where the job assigns rows finally; `scores` and
    `outliers` of the rows then, where the job finds them.
    """

    centroids: Real
    labels: Labels
    counts: Integers
    stop: bool
    inertia: float | None
    final_labels: Labels | None = None
    scores: Real | None = None
    outliers: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Table:
    """All parties of a run at one table. They play every round in step, in one thread: messages need no exchange."""

    contexts: tuple[OpenPartyContext, ...]

    @classmethod
    def of(
        cls, stores: Sequence[StoreRun], cipher: SchemeParameters | None = None, folder: Path | None = None
    ) -> "Table":
        """`folder`: below it every party has a folder of its own."""
        names, scratch = NAMES[: len(stores)], Scratch("value")
        contexts = [
            OpenPartyContext(Party(i, names), "test", 0, InMemoryExchange(), bytes([i]) * 32, store, scratch, 1.0)
            for i, store in enumerate(stores)
        ]
        if folder is not None:
            for name in names:
                (folder / name).mkdir()
            contexts = [replace(each, folder=RunFolder(folder / each.party.name)) for each in contexts]
        if cipher is not None:
            rings = keyrings(len(stores), cipher)
            tables = [PowerTableCache(partial(_encrypted_centroids, checkpoints_of(each))) for each in contexts]
            contexts = [replace(each, he_context=HEContext(rings[i], tables[i])) for i, each in enumerate(contexts)]
        return cls(tuple(contexts))

    def at(self, iteration: int) -> "Table":
        return Table(tuple(replace(context, iteration=iteration) for context in self.contexts))

    def after_last(self, done: int) -> "Table":
        """After `done` iterations, with what the stores have once for each run."""
        at = self.at(done).contexts
        return Table(tuple(replace(each, triples=each.triples and replace(each.triples, once=True)) for each in at))

    def run(self, protocol: Protocol, states: Sequence[Shards]) -> list[Shards]:
        """Each party's states, by shard, after all rounds."""
        after = list(states)
        for stage in protocol.stages():
            shards = {shard: self._play(stage, shard, [state[shard] for state in after]) for shard in states[0]}
            after = [{shard: played[i] for shard, played in shards.items()} for i in range(len(self.contexts))]
        return after

    def _play(self, stage: Stage, shard: int, states: Sequence[Arrays]) -> list[Arrays]:
        drawn = [context.randomness(stage, shard) for context in self.contexts]
        parties = [context.party for context in self.contexts]
        sent = [stage.round.send(*each) for each in zip(parties, states, drawn, strict=True)]
        received = []
        for party, mine, randomness in zip(parties, sent, drawn, strict=True):
            inbox = Inbox(party, {i: sent[i].for_peer(party.index) for i in stage.round.senders(party)})
            again = replace(randomness, _claimed={})  # what was expanded to send is expanded already
            received.append(stage.round.receive(party, mine.state, inbox, again))
        return received


@dataclass(frozen=True)
class JobInMemory(PartyJob):
    """A party's job whose keys are in memory."""

    keyring: Keyring | None = None

    def add_up(self) -> AddUp:
        others = self.keyring.others if self.keyring is not None else {}
        return partial(total_of, peer_moduli={i: int(key.modulus) for i, key in others.items()})


States = dict[int, list[Arrays]]
"""Shard -> every party's state."""


@dataclass(frozen=True)
class InStepExecutor:
    """All parties run a description in step: what the product describes, over files of their own in memory."""

    table: Table
    jobs: Sequence[JobInMemory]
    totals: dict[str, list[Arrays]] = field(default_factory=dict)

    def shards(self, over: Over, load: Load, after: Sequence[States] = ()) -> States:
        del after
        return {shard: self._read(load, shard) for shard in self.jobs[0].shard_numbers(over)}

    def load(self, load: Load, states: States) -> States:
        return {
            shard: [{**mine, **more} for mine, more in zip(each, self._read(load, shard), strict=True)]
            for shard, each in states.items()
        }

    def rounds(self, step: Step, states: States) -> States:
        by_party = [{shard: each[i] for shard, each in states.items()} for i in range(len(self.jobs))]
        after = self.table.run(step.protocol, by_party)
        return {shard: [each[shard] for each in after] for shard in states}

    def beside(self, *lanes: Lane[States]) -> list[States]:
        """Lanes are independent of each other: parties in step may run them one after the other."""
        return [self.rounds(step, states) for step, states in lanes]

    def unless(self, stop: States, states: States) -> States:
        """Note the stop bit, and continue in any case: a test compares all iterations with Lloyd's."""
        self.totals["stop"] = stop[0]
        return states

    def keep(self, keep: Keep, states: States) -> States:
        for shard, each in states.items():
            for job, context, state in zip(self.jobs, self.table.contexts, each, strict=True):
                keep.write(job, context, shard, state)
        return states

    def total(self, over: Over, cut: Cut, *states: States) -> States:
        del over
        totals: dict[int, list[Arrays]] = {}
        for i, job in enumerate(self.jobs):
            parts: dict[int, list[Arrays]] = {}
            for each in (each for one in states for each in one.values()):
                for key, part in cut(job.parameters, self.table.contexts[i].party, each[i]).items():
                    parts.setdefault(key, []).append(part)
            for key, found in sorted(parts.items()):
                totals.setdefault(key, []).append(job.add_up()(found))
        if 0 in totals and "n" in totals[0][0]:
            self.totals["counts"] = totals[0]
        return totals

    def join(self, left: States, right: States) -> States:
        return {
            shard: [{**mine, **more} for mine, more in zip(each, right[shard], strict=True)]
            for shard, each in left.items()
        }

    def after(self, states: States, ready: States) -> States:
        del ready
        return states

    def in_one_call(self, description: DescribeFrom, states: States) -> States:
        result: States = description(self, states)
        return result

    def _read(self, load: Load, shard: int) -> list[Arrays]:
        return [load.read(job, context, shard) for job, context in zip(self.jobs, self.table.contexts, strict=True)]


@contextmanager
def parties_in_step(kmeans: KMeansSteps, rows: Real, iterations: int) -> Iterator[InStepExecutor]:
    """Every party with its encoded rows and a folder of its own, before the first iteration."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(dir=memory) as folder:
        table = Table.of(deal_plan(kmeans, iterations), kmeans.engines.cipher, Path(folder))
        jobs = []
        for context in table.contexts:
            encoded = Path(folder) / context.party.name / "encoded"
            encoded.mkdir()
            for shard, x in enumerate(own_matrices(kmeans.layout, rows, context.party.index)):
                write_rows(encoded, shard, x.indptr.astype(np.int64), x.indices.astype(np.int32), x.data, x.shape[1])
            keyring = context.he_context.keyring if context.he_context is not None else None
            jobs.append(JobInMemory(kmeans, None, encoded, True, keyring))  # type: ignore[arg-type]
        yield InStepExecutor(table, jobs)


def run_kmeans(kmeans: KMeansSteps, rows: Real, start: Real, iterations: int) -> list[Iteration]:
    """Run `kmeans.iteration` on normalised rows; the first party's (or its columns) come first.

    With a tolerance one more iteration runs, which opens the stop bit of the last.
    """
    shares = make_shares(fixed.encode(start), kmeans.layout.parties, seed=1)
    columns = [by_columns(kmeans, "mu", share) for share in shares]
    found: list[Iteration] = []
    with parties_in_step(kmeans, rows, iterations + 1) as run:
        if kmeans.operand is not None:
            mask_operands(kmeans.operand, run)
        write_first_centroids(Load(partial(of_party, columns), lambda *_: ()), FIRST_CHECKPOINT, run)
        for number in range(iterations + (kmeans.stop is not None)):
            found.append(_iterate(kmeans, replace(run, table=run.table.at(number))))
            if "stop" in run.totals:
                (stop,) = {has_stopped(state) for state in run.totals["stop"]}
                found[-2] = replace(found[-2], stop=stop)
    return found[:iterations]


def _iterate(kmeans: KMeansSteps, run: InStepExecutor) -> Iteration:
    """Run one iteration, and compute the inertia as if it was the last."""
    done = run.table.contexts[0].iteration + 1
    iterate(kmeans, done == 1, run)
    stores = [checkpoints_of(context) for context in run.table.contexts]
    if kmeans.ends_with_more:
        last_jobs = [replace(job, steps=kmeans.last) for job in run.jobs]
        follow_last(kmeans.last, replace(run, jobs=last_jobs, table=run.table.after_last(done), totals={}))
    checkpoints = [store.read(done) for store in stores]
    shares = [read_centroids(job, store, centroids_folder(done)) for job, store in zip(run.jobs, stores, strict=True)]
    return Iteration(
        centroids=fixed.decode(ring.total(shares)),
        labels=labels_of(kmeans.layout, stores, done),
        counts=ring.decode(_total(run.totals["counts"], "n")),
        stop=False,
        inertia=float(fixed.decode(_total(checkpoints, "inertia"))[0]) if "inertia" in checkpoints[0] else None,
        final_labels=labels_of(kmeans.layout, stores, done + 1) if kmeans.final_assignment else None,
        **row_results(kmeans.last, stores, done + 1),
    )


def run_prediction(kmeans: KMeansSteps, rows: Real, centroids: Real) -> Labels:
    """Run `predict_rows`: the clusters of normalised rows, from shares of centroids."""
    return predict_and_score(kmeans, rows, centroids)[0]


def predict_and_score(kmeans: KMeansSteps, rows: Real, centroids: Real) -> tuple[Labels, dict[str, Any]]:
    """Run `predict_rows`: the clusters of normalised rows, and their scores and outliers if the job finds them."""
    shares = make_shares(fixed.encode(centroids), kmeans.layout.parties, seed=1)
    with parties_in_step(kmeans, rows, 1) as run:
        stores = [checkpoints_of(context) for context in run.table.contexts]
        for store, share in zip(stores, shares, strict=True):
            for shard, state in by_columns(kmeans, "mu", share).items():
                store.write_shard(centroids_folder(0), shard, state)
            store.write(0, {"stop": np.zeros(1, np.uint8)})
        predict_rows(kmeans, run)
        return labels_of(kmeans.layout, stores, 1), row_results(kmeans, stores, 1)


def of_party(columns: Sequence[Shards], job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    del job
    return columns[context.party.index][shard]


def _write_first_checkpoint(job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    """With Σ|x|² of what the party owns, as `initial_centroids` has it."""
    del shard, state
    own = [row_shard.index for row_shard in job.row_shards if row_shard.owner in (None, context.party.index)]
    squares = sum(float(np.sum(fixed.decode(read_rows(job.encoded, index).data) ** 2)) for index in own)
    stop = np.zeros(1, np.uint8)
    checkpoints_of(context).write(0, {"x2": fixed.encode(np.array([squares])), "stop": stop})


FIRST_CHECKPOINT = Keep("checkpoint", _write_first_checkpoint)


def own_matrices(layout: Layout, rows: Real, party: int) -> list[csr_array]:
    """What a party owns of each of its row shards, in fixed point."""
    own, first = [], 0
    for row_shard in layout.row_shards():
        here = rows[first : first + row_shard.rows]
        first += row_shard.rows
        if row_shard.owner in (None, party):
            own.append(csr_array(fixed.encode(here[:, layout.own_columns(party)])))
    return own


def labels_of(layout: Layout, stores: Sequence[Checkpoints], done: int) -> Labels:
    """The clusters of all rows, that the parties' shares together are."""
    labels = [
        _opened_labels([store.read_shard(assignments(done), each.number)["c"] for store in stores], each.rows)
        for each in layout.row_shards()
    ]
    return np.concatenate(labels)


def _total(states: Sequence[Arrays], name: str) -> ring.Ring:
    return ring.total(state[name] for state in states)


def _opened_labels(shares: Sequence[Array], rows: int) -> Labels:
    hot = bits.unpack_rows(reduce(np.bitwise_xor, shares), rows)
    assert (hot.sum(axis=0) == 1).all()
    return hot.argmax(axis=0)
