"""Keys of the homomorphic engine for parties in memory, and the ciphertexts that their offline phase would make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from support.parties import NAMES, Board, Shards, split
from veilmeans.crypto import bits, prg, ring
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters
from veilmeans.io.storage.he_keyring import Keyring
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore, correction_name, store_address
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, Real
from veilmeans.schemas.config import BeamConfig, JobConfig
from veilmeans.schemas.kmeans_config import KMeansConfig, NormaliseConfig, RevealConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.party_state import by_columns, column_range, sums_by_columns, total_of
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest, plaintext_iteration
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.ciphertexts import make_ciphertexts
from veilmeans.transforms.offline.dealer import deal
from veilmeans.transforms.products.cross_product import shape_to_state
from veilmeans.transforms.products.he_product import csr_to_state
from veilmeans.transforms.rounds.he_operations import HEContext, Tables
from veilmeans.transforms.rounds.interfaces import CiphertextNeed
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Stage, without

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
    return he.generate(cipher.scheme, cipher.bits)


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
TOLERANCE = 2.0**-16
"""How far a centroid may be from float64 Lloyd's, in every coordinate."""
_HALF = 2.0**-21
"""What is lost when a number is rounded to 20 fractional bits, at most."""


def vertical(rows: int, features: Sequence[int], rows_per_shard: int) -> Layout:
    return Layout(True, (rows,) * len(features), tuple(features), rows_per_shard)


def horizontal(rows: Sequence[int], features: int, rows_per_shard: int) -> Layout:
    return Layout(False, tuple(rows), (features,) * len(rows), rows_per_shard)


def kmeans_for(
    layout: Layout, k: int, normalise: NormaliseConfig | None = None, inertia: bool = True, **fields: Any
) -> KMeansSteps:
    """The protocols that `pipelines.session.kmeans_from_config` chooses for such a job; `fields` are the job's own."""
    return kmeans_steps(config_for(layout, k, normalise, inertia, **fields))


def config_for(
    layout: Layout, k: int, normalise: NormaliseConfig | None = None, inertia: bool = True, **fields: Any
) -> JobConfig:
    """The configuration of the first party, as far as protocols go.

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
        reveal=RevealConfig(inertia=names[:1] if inertia else ()),
        **fields,
    )
    engine = BeamConfig(rows_per_shard=layout.rows_per_shard)
    return JobConfig.model_construct(party=names[0], parties=names, engine=engine, kmeans=job)


@dataclass(frozen=True)
class StoreInMemory(TripleStore):
    """A store whose corrections and ciphertexts never see a disk."""

    kept: dict[tuple[int, int], Arrays] = field(default_factory=dict)
    made: dict[tuple[int, int], Arrays] = field(default_factory=dict)

    def ciphers(self, number: int, iteration: int, shard: int) -> Arrays:
        del number
        return self.made[iteration, shard]

    def corrections(self, number: int, iteration: int, shard: int) -> Arrays:
        del number
        return self.kept[iteration, shard]


def deal_plan(kmeans: KMeansSteps, iterations: int) -> list[StoreRun]:
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
            if kmeans.engines.cipher is not None:
                rings, ciphertexts = keyrings(parties, kmeans.engines.cipher), plan.ciphertext_needs(shard, iteration)
                for party, made in enumerate(make_ciphers(rings, "store", iteration, shard, ciphertexts)):
                    stores[party].made[iteration, shard] = made
    return [StoreRun(store, 0) for store in stores]


@dataclass(frozen=True)
class Iteration:
    """What one iteration's shares add up to: new centroids, the rows' clusters, sizes, stop bit, inertia."""

    centres: Real
    labels: Labels
    counts: Integers
    stop: bool
    inertia: float | None


@dataclass(frozen=True)
class Table:
    """All parties of a run at one table. They play every round in step, in one thread: messages need no exchange."""

    contexts: tuple[OpenPartyContext, ...]

    @classmethod
    def of(cls, stores: Sequence[StoreRun], cipher: SchemeParameters | None = None) -> "Table":
        names, scratch = NAMES[: len(stores)], Scratch("value")
        contexts = [
            OpenPartyContext(Party(i, names), "test", 0, Board(), bytes([i]) * 32, store, scratch, 1.0)
            for i, store in enumerate(stores)
        ]
        if cipher is not None:
            rings = keyrings(len(stores), cipher)
            contexts = [replace(each, ciphers=HEContext(rings[i], Tables(_unread))) for i, each in enumerate(contexts)]
        return cls(tuple(contexts))

    def reading(self, encrypted: Sequence[Shards]) -> "Table":
        """With the peers' encrypted centroids at hand, as column shards have brought them."""
        contexts = [
            replace(context, ciphers=replace(context.ciphers, tables=Tables(partial(_read, received))))
            for context, received in zip(self.contexts, encrypted, strict=True)
        ]
        return Table(tuple(contexts))

    def at(self, iteration: int) -> "Table":
        return Table(tuple(replace(context, iteration=iteration) for context in self.contexts))

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


def run_kmeans(kmeans: KMeansSteps, rows: Real, start: Real, iterations: int) -> list[Iteration]:
    """The steps of `kmeans.iteration`. The rows are normalised; the first party's (or its columns) come first."""
    layout, table = kmeans.layout, Table.of(deal_plan(kmeans, iterations), kmeans.engines.cipher)
    own = [own_matrices(layout, rows, party) for party in range(layout.parties)]
    operands = table.run(kmeans.operand, own)
    moduli = [moduli_at(context) for context in table.contexts]
    shares = split(fixed.encode(start), layout.parties, seed=1)
    columns = table.run(kmeans.norms, [by_columns(kmeans, "mu", share) for share in shares])
    norms = [ring.total(state["u"] for state in each.values()) for each in columns]
    found = []
    for iteration in range(iterations):
        here = table.at(iteration)
        begin = [{"mu": in_one(mu), "u": u} for mu, u in zip(columns, norms, strict=True)]
        here, assigned = _assign(kmeans, here, operands, columns, begin)
        right = _for_engines(kmeans.engines.update, operands)
        sums = here.run(kmeans.update, [_beside(x, c) for x, c in zip(right, assigned, strict=True)])
        total = [
            {**total_of(parts.values(), modulus), "x2": own_squares(x)}
            for parts, x, modulus in zip(sums, own, moduli, strict=True)
        ]
        columns, after = run_centres(kmeans, here, columns, total)
        norms = [state["u"] for state in after]
        found.append(_joined(layout, columns, after, assigned, total))
    return found


def _assign(
    kmeans: KMeansSteps, table: Table, operands: Sequence[Shards], columns: Sequence[Shards], begin: Sequence[Arrays]
) -> tuple[Table, list[Shards]]:
    """Every party's positions; the table has the peers' encrypted centroids, where there are some."""
    if kmeans.encrypt is not None:
        table = table.reading(table.run(kmeans.encrypt, [_ranged(kmeans, mu) for mu in columns]))
    right = _for_engines(kmeans.engines.distance, operands)
    states = table.run(kmeans.distance, [_each(x, mu, "mu", "u") for x, mu in zip(right, begin, strict=True)])
    return table, table.run(kmeans.assign, states)


def run_prediction(kmeans: KMeansSteps, rows: Real, centres: Real) -> Labels:
    """The steps of `kmeans.iteration`: the clusters of normalised rows, from shares of centroids and norms."""
    layout, table = kmeans.layout, Table.of(deal_plan(kmeans, 1), kmeans.engines.cipher)
    own: list[Shards] = [own_matrices(layout, rows, party) for party in range(layout.parties)]
    operands = table.run(kmeans.operand, own) if kmeans.engines.masked else own
    mu = fixed.encode(centres)
    shares = split(mu, layout.parties, seed=1)
    norms = split((mu * mu).sum(axis=1, dtype=ring.DTYPE), layout.parties, seed=2)
    columns: list[Shards] = [by_columns(kmeans, "mu", share) for share in shares]
    begin = [{"mu": share, "u": u} for share, u in zip(shares, norms, strict=True)]
    _, assigned = _assign(kmeans, table, operands, columns, begin)
    return _labels(layout, assigned)


def run_centres(
    kmeans: KMeansSteps, table: Table, columns: Sequence[Shards], total: Sequence[Arrays]
) -> tuple[list[Shards], list[Arrays]]:
    """The new centroids by column shards, and what a checkpoint keeps beside them; `total` has "s", "n" and "x2"."""
    inverse = table.run(kmeans.reciprocal, [{0: {"n": each["n"]}} for each in total])
    sums: list[Shards] = [
        sums_by_columns(kmeans, context.party, each) for context, each in zip(table.contexts, total, strict=True)
    ]
    if kmeans.unmask is not None:
        sums = table.run(kmeans.unmask, [_ranged(kmeans, each) for each in sums])
    states = [_beside(s, mu) for s, mu in zip(sums, columns, strict=True)]
    begin = [_each(state, inv[0], "v", "y", "empty") for state, inv in zip(states, inverse, strict=True)]
    quotients = table.run(kmeans.quotient, begin)
    ends = [total_of({name: each[name] for name in ("u", "esd")} for each in q.values()) for q in quotients]
    finished = [{0: {**end, "n": t["n"], "x2": t["x2"]}} for end, t in zip(ends, total, strict=True)]
    return quotients, [each[0] for each in table.run(kmeans.finish, finished)]


def moduli_at(context: OpenPartyContext) -> dict[int, int]:
    """The peers' public moduli that a party has."""
    return {i: int(key.modulus) for i, key in context.ciphers.keyring.others.items()} if context.ciphers else {}


def _unread(iteration: int, peer: int) -> Array:
    raise AssertionError(f"nothing of party {peer} was encrypted in iteration {iteration}")


def _read(received: Shards, iteration: int, peer: int) -> Array:
    del iteration
    return np.concatenate([state[f"y{peer}"] for state in received.values() if f"y{peer}" in state])


def _ranged(kmeans: KMeansSteps, shards: Shards) -> Shards:
    return {shard: {**arrays, **column_range(kmeans, shard)} for shard, arrays in shards.items()}


def _for_engines(engines: Sequence[HEProductParameters | None], operands: Sequence[Shards]) -> list[Shards]:
    """The operands with each party's own matrix as its engine wants it: compressed rows where it is homomorphic."""
    return [
        operand if engine is None else {shard: _compressed(arrays) for shard, arrays in operand.items()}
        for engine, operand in zip(engines, operands, strict=True)
    ]


def _compressed(arrays: Arrays) -> Arrays:
    if not arrays["x"].shape[1]:
        return arrays
    return {**without(arrays, "x"), **csr_to_state(csr_array(arrays["x"]))}


def in_one(columns: Shards) -> ring.Ring:
    """The centroids of all column shards, side by side."""
    return np.concatenate([state["mu"] for state in columns.values()], axis=1)


def _each(shards: Shards, other: Arrays, *names: str) -> Shards:
    """Some arrays beside those of every shard."""
    return {shard: {**arrays, **{name: other[name] for name in names}} for shard, arrays in shards.items()}


def _beside(shards: Shards, others: Shards) -> Shards:
    return {shard: {**arrays, **others[shard]} for shard, arrays in shards.items()}


def own_squares(own: Shards) -> ring.Ring:
    """Σ|x|² of what a party owns, as `transforms.kmeans.initial_centroids` has it."""
    return fixed.encode(np.array([sum(float(np.sum(fixed.decode(arrays["x"]) ** 2)) for arrays in own.values())]))


def own_matrices(layout: Layout, rows: Real, party: int) -> dict[int, Arrays]:
    """Shard by shard what a party owns, in fixed point."""
    own, first = {}, 0
    for shard, place in enumerate(layout.row_shards()):
        here = rows[first : first + place.block.rows]
        first += place.block.rows
        columns = layout.own_columns(party) if place.owner in (None, party) else slice(0, 0)
        own[shard] = {"x": fixed.encode(here[:, columns]), **shape_to_state(place.block)}
    return own


def _joined(
    layout: Layout,
    columns: Sequence[Shards],
    states: Sequence[Arrays],
    assigned: Sequence[Shards],
    total: Sequence[Arrays],
) -> Iteration:
    (stop,) = {bool(state["stop"][0]) for state in states}
    return Iteration(
        centres=fixed.decode(ring.total(in_one(each) for each in columns)),
        labels=_labels(layout, assigned),
        counts=ring.decode(_total(total, "n")),
        stop=stop,
        inertia=float(fixed.decode(_total(states, "inertia"))[0]) if "inertia" in states[0] else None,
    )


def _labels(layout: Layout, assigned: Sequence[Shards]) -> Labels:
    """The clusters of all rows, that the parties' positions together are."""
    labels = [
        _opened_labels([party[shard]["c"] for party in assigned], place.block.rows)
        for shard, place in enumerate(layout.row_shards())
    ]
    return np.concatenate(labels)


def _total(states: Sequence[Arrays], name: str) -> ring.Ring:
    return ring.total(state[name] for state in states)


def _opened_labels(shares: Sequence[Array], rows: int) -> Labels:
    hot = bits.unpack_rows(reduce(np.bitwise_xor, shares), rows)
    assert (hot.sum(axis=0) == 1).all()
    return hot.argmax(axis=0)


def check_against_lloyd(kmeans: KMeansSteps, rows: Real, start: Real, iterations: int) -> list[Iteration]:
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


def near_tie(kmeans: KMeansSteps) -> int:
    """How much farther than the nearest the chosen centroid may be, with 40 fractional bits; 1 means not at all."""
    lost = (kmeans.layout.parties - 1) * 2**kmeans.tree.drop if kmeans.tree.drop else 0
    return 1 + ceil(log2(kmeans.k)) * lost


def assert_near_ties_only(kmeans: KMeansSteps, rows: Real, secure: Real, labels: Labels) -> None:
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


def lloyd_with(kmeans: KMeansSteps, rows: Real, before: Real, secure: Real, iteration: Iteration) -> Real:
    """Lloyd's next centroids, where near-ties go as the parties had it."""
    (moved,) = np.nonzero(nearest(rows, before) != iteration.labels)
    if not len(moved):
        return plaintext_iteration(lambda: [rows], before).centres
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
