"""How large the store of a job is, and what a party keeps of a run: from the plan alone, without dealing anything."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from veilmeans.crypto.correlations import Kind, Part
from veilmeans.io.triples import correction_name
from veilmeans.pipelines.estimate import Disk, Offline, StepPlan, Triples
from veilmeans.pipelines.jobs import store_iterations
from veilmeans.pipelines.prepare import declared, iterations_at_once, runs_whole
from veilmeans.schemas.arrays import ArraySpec, Spec, payload_size
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import HEADER_SIZE
from veilmeans.transforms.deal import corrected_parts
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.plan import Needs, Plan

_TAG = 64
"""Bytes before what a checkpoint keeps (`io.checkpoints`)."""
_UNITS = {
    "Mul": "products",
    "And": "bits",
    "PairAnd": "bits",
    "Inject": "bits",
    "DaBit": "bits",
    "Trunc": "values",
    "MatMul": "words",
    "Operand": "words",
}
"""In what a kind is counted."""


@dataclass(frozen=True)
class _Shards:
    """Shards of the store that are alike, over all iterations of a run: one of them, and how many there are."""

    shard: int
    iteration: int
    count: int


def alike(plan: Plan, iterations: int) -> Iterator[_Shards]:
    """The shards of all iterations of one run. The first shard has what is done once, the first iteration, too."""
    groups: dict[object, list[int]] = {}
    for shard in range(plan.shards):
        like = (plan.blocks[shard : shard + 1], plan.columns[shard : shard + 1], shard == 0)
        groups.setdefault(like, []).append(shard)
    for shards in groups.values():
        yield _Shards(shards[0], 0, len(shards))
        if iterations > 1:
            yield _Shards(shards[0], 1, len(shards) * (iterations - 1))


def offline_of(config: JobConfig, plan: Plan, party: int) -> Offline:
    """The store of the party with this index. A shard for which nothing is dealt or made has an empty file."""
    runs, iterations = config.needed_triples.runs, store_iterations(config)
    messages = size = ciphertexts = cipher_bytes = stored = 0
    has_ciphers = any(plan.blindings(each.shard, each.iteration) for each in alike(plan, iterations))
    triples: Counter[str] = Counter()
    for each in alike(plan, iterations):
        count = runs * each.count
        needs = plan.needs(each.shard, each.iteration)
        triples += Counter({name: count * n for name, n in _triples(party, needs).items()})
        dealt, made = _spec(corrected_parts(party, needs)), _ciphers(plan, each, party)
        messages += count * bool(dealt)
        size += count * payload_size(dealt) * bool(dealt)
        ciphertexts += count * sum(prod(spec.shape) for spec in made)
        cipher_bytes += count * payload_size(made) * bool(made)
        stored += count * (payload_size(dealt) + payload_size(made) * has_ciphers)
    found = tuple(Triples(name, _UNITS.get(name, "values"), n) for name, n in sorted(triples.items()))
    return Offline(runs, iterations, config.dealer, messages, size, found, ciphertexts, cipher_bytes, stored)


def _triples(party: int, needs: Needs) -> Counter[str]:
    """Of which kind how much the party has a part in."""
    found: Counter[str] = Counter()
    for kind in (need.kind for asked in needs.values() for need in asked):
        if any(party in part.holders for part in (*kind.free(), *kind.bound())):
            found[type(kind).__name__] += _size(kind)
    return found


def _size(kind: Kind) -> int:
    """Elements of what it is for: its first determined part, or the mask where it has none."""
    part = (*kind.bound(), *kind.free())[0]
    elements = prod(part.shape)
    return elements * np.dtype(part.dtype).itemsize * 8 if part.sharing == "xor" else elements


def _spec(parts: Mapping[str, Part]) -> Spec:
    return tuple(ArraySpec(name, np.dtype(part.dtype).str, part.shape) for name, part in parts.items())


def _ciphers(plan: Plan, each: _Shards, party: int) -> Spec:
    """The ciphertexts that a party makes for one shard."""
    return tuple(
        ArraySpec(correction_name(stage, blinding.label), blinding.product.cipher.dtype.str, (blinding.count,))
        for stage, blindings in plan.blindings(each.shard, each.iteration).items()
        for blinding in blindings
        if blinding.maker == party
    )


def disk_of(config: JobConfig, kmeans: KMeans, offline: Offline | None, steps: tuple[StepPlan, ...]) -> Disk:
    """What this party keeps: of the store and its own data, and of one run at its end."""
    store = offline.bytes_stored if offline else 0
    inbox = _inbox(config, kmeans, steps)
    return Disk(store, _prepared(config), _checkpoints(config, kmeans), _operands(config, kmeans), inbox)


def _prepared(config: JobConfig) -> int:
    """Compressed rows: a word and a column number for each nonzero, where a row begins, and its id."""
    job = config.needed_kmeans
    rows, columns = declared(config, job)
    told = job.sparse.get(config.party)
    nonzeros = columns if told is None or told.nonzeros is None else min(columns, told.nonzeros)
    return int(rows * (12 * nonzeros + 8 + (8 if job.id else 0)))


def _kept(**shapes: tuple[tuple[int, ...], str]) -> int:
    return _TAG + payload_size(tuple(ArraySpec(name, np.dtype(d).str, shape) for name, (shape, d) in shapes.items()))


def _checkpoints(config: JobConfig, kmeans: KMeans) -> int:
    """Centroids of every iteration, assignments of the last two, encrypted centroids of the last."""
    k, layout = kmeans.k, kmeans.layout
    inertia = {"inertia": ((1,), "uint64")} if kmeans.work.inertia else {}
    small = _kept(u=((k,), "uint64"), stop=((1,), "uint8"), **inertia, x2=((1,), "uint64"))
    centres = sum(_kept(mu=((k, each.stop - each.start), "uint64")) for each in kmeans.column_shards)
    shards = Counter(place.block.rows for place in layout.places())
    assigned = sum(count * _kept(c=((k, -(-rows // 8)), "uint8")) for rows, count in shards.items())
    mine = kmeans.engines.distance[config.me.index]
    encrypted = 0
    if mine is not None:
        encrypted = layout.features[config.me.index] * mine.packs * mine.cipher.size * (layout.parties - 1)
    return (config.needed_kmeans.iterations + 1) * (small + centres) + 2 * assigned + encrypted


def _operands(config: JobConfig, kmeans: KMeans) -> int:
    """The others' masked matrices."""
    others = [i for i in sorted(kmeans.engines.masked) if i != config.me.index]
    if not kmeans.engines.masked:
        return 0
    blocks = Counter(place.block for place in kmeans.layout.places())
    return sum(
        count * _kept(**{f"e{i}": ((block.rows, block.widths[i]), "uint64") for i in others if block.widths[i]})
        for block, count in blocks.items()
    )


def _inbox(config: JobConfig, kmeans: KMeans, steps: tuple[StepPlan, ...]) -> int:
    """What we receive waits until a pipeline has ended, and that of one more iteration stays."""
    job = config.needed_kmeans
    iterations = min(job.max_iter, iterations_at_once(config, runs_whole(config, kmeans)) + 2)
    times = [iterations if each.step.when == "iteration" else 1 for each in steps]
    sizes = [each.each.bytes_received + HEADER_SIZE * each.each.messages for each in steps]
    return sum(size * count for size, count in zip(sizes, times, strict=True))
