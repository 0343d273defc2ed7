"""How large the store of a job is, and what a party keeps of a run: from the plan alone, without dealing anything."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from veilmeans.crypto import bits
from veilmeans.crypto.correlations import CorrelationPart, Kind
from veilmeans.crypto.wide_ring import WORDS
from veilmeans.io.storage.triple_store import correction_name
from veilmeans.pipelines.planning.plan_schema import Disk, Offline, StepPlan, Traffic, Triples
from veilmeans.pipelines.session.joint_scaling import aggregate_work
from veilmeans.pipelines.session.kmeans_from_config import iterations_per_pipeline, runs_in_one_call, store_iterations
from veilmeans.pipelines.session.result_opening import policy_of
from veilmeans.schemas.arrays import Array, ArraySpec, Spec, payload_size
from veilmeans.schemas.config import JobConfig, declared_shape
from veilmeans.schemas.layout import Layout, ShardShape
from veilmeans.schemas.message import HEADER_SIZE
from veilmeans.transforms.kmeans.joint_statistics import MOMENTS
from veilmeans.transforms.kmeans.open_results import RevealPolicy, open_assignments, open_centroids
from veilmeans.transforms.kmeans.steps import KMeansSteps, Step, step_of, steps_of
from veilmeans.transforms.offline.dealer import corrected_parts
from veilmeans.transforms.offline.requirements import Needs, Over, StepShapes, StoreRequirements
from veilmeans.transforms.rounds.trace import Shapes, StageTrace

_TAG = 64
"""Bytes before what a checkpoint keeps (`io.storage.checkpoints`)."""
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


def alike(plan: StoreRequirements, iterations: int) -> Iterator[_Shards]:
    """The shards of all iterations of one run. The first shard has what is done once, the first iteration, too."""
    groups: dict[object, list[int]] = {}
    for shard in range(plan.shards):
        like = (plan.blocks[shard : shard + 1], plan.columns[shard : shard + 1], shard == 0)
        groups.setdefault(like, []).append(shard)
    for shards in groups.values():
        yield _Shards(shards[0], 0, len(shards))
        if iterations > 1:
            yield _Shards(shards[0], 1, len(shards) * (iterations - 1))


def offline_of(config: JobConfig, plan: StoreRequirements, party: int) -> Offline:
    """The store of the party with this index. A shard for which nothing is dealt or made has an empty file."""
    runs, iterations = config.required_triples.runs, store_iterations(config)
    messages = size = ciphertexts = cipher_bytes = stored = 0
    has_ciphers = any(plan.ciphertext_needs(each.shard, each.iteration) for each in alike(plan, iterations))
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
        if any(party in part.holders for part in (*kind.uniform_parts(), *kind.determined_parts())):
            found[type(kind).__name__] += _size(kind)
    return found


def _size(kind: Kind) -> int:
    """Elements of what it is for: its first determined part, or the mask where it has none."""
    part = (*kind.determined_parts(), *kind.uniform_parts())[0]
    elements = prod(part.shape)
    return elements * np.dtype(part.dtype).itemsize * 8 if part.sharing == "xor" else elements


def _spec(parts: Mapping[str, CorrelationPart]) -> Spec:
    return tuple(ArraySpec(name, np.dtype(part.dtype).str, part.shape) for name, part in parts.items())


def _ciphers(plan: StoreRequirements, each: _Shards, party: int) -> Spec:
    """The ciphertexts that a party makes for one shard."""
    return tuple(
        ArraySpec(correction_name(stage, blinding.label), blinding.product.cipher.dtype.str, (blinding.count,))
        for stage, blindings in plan.ciphertext_needs(each.shard, each.iteration).items()
        for blinding in blindings
        if blinding.maker == party
    )


def disk_of(config: JobConfig, kmeans: KMeansSteps, offline: Offline | None, steps: tuple[StepPlan, ...]) -> Disk:
    """What this party keeps: of the store and its own data, and of one run at its end."""
    store = offline.bytes_stored if offline else 0
    inbox = _inbox(config, kmeans, steps)
    return Disk(store, _prepared(config), _checkpoints(config, kmeans), _operands(config, kmeans), inbox)


def _prepared(config: JobConfig) -> int:
    """Compressed rows: a word and a column number for each nonzero, where a row begins, and its id."""
    job = config.required_kmeans
    rows, columns = declared_shape(config, job)
    told = job.sparse.get(config.party)
    nonzeros = columns if told is None or told.nonzeros is None else min(columns, told.nonzeros)
    return int(rows * (12 * nonzeros + 8 + (8 if job.id else 0)))


def _kept(**shapes: tuple[tuple[int, ...], str]) -> int:
    return _TAG + payload_size(tuple(ArraySpec(name, np.dtype(d).str, shape) for name, (shape, d) in shapes.items()))


def _checkpoints(config: JobConfig, kmeans: KMeansSteps) -> int:
    """Centroids of every iteration, assignments of the last two, encrypted centroids of the last."""
    k, layout = kmeans.k, kmeans.layout
    inertia = {"inertia": ((1,), "uint64")} if kmeans.work.inertia else {}
    small = _kept(u=((k,), "uint64"), stop=((1,), "uint8"), **inertia, x2=((1,), "uint64"))
    centres = sum(_kept(mu=((k, each.stop - each.start), "uint64")) for each in kmeans.column_shards)
    shards = Counter(place.block.rows for place in layout.row_shards())
    assigned = sum(count * _kept(c=((k, -(-rows // 8)), "uint8")) for rows, count in shards.items())
    mine = kmeans.engines.distance[config.me.index]
    encrypted = 0
    if mine is not None:
        encrypted = layout.features[config.me.index] * mine.packs * mine.cipher.size * (layout.parties - 1)
    return (config.required_kmeans.iterations + 1) * (small + centres) + 2 * assigned + encrypted


def _operands(config: JobConfig, kmeans: KMeansSteps) -> int:
    """The others' masked matrices."""
    others = [i for i in sorted(kmeans.engines.masked) if i != config.me.index]
    if not kmeans.engines.masked:
        return 0
    blocks = Counter(place.block for place in kmeans.layout.row_shards())
    return sum(
        count * _kept(**{f"e{i}": ((block.rows, block.widths[i]), "uint64") for i in others if block.widths[i]})
        for block, count in blocks.items()
    )


def _inbox(config: JobConfig, kmeans: KMeansSteps, steps: tuple[StepPlan, ...]) -> int:
    """What we receive waits until a pipeline has ended, and that of one more iteration stays."""
    job = config.required_kmeans
    iterations = min(job.max_iter, iterations_per_pipeline(config, runs_in_one_call(config, kmeans)) + 2)
    times = [iterations if each.step.when == "iteration" else 1 for each in steps]
    sizes = [each.each.bytes_received + HEADER_SIZE * each.each.messages for each in steps]
    return sum(size * count for size, count in zip(sizes, times, strict=True))


Counted = list[tuple[int, StageTrace]]
"""The stages of a step, each with the number of shards that are alike in it."""
NAME_LENGTH = 8
"""Letters of a column's name, where names are told and not known yet."""


def steps_with_stages(config: JobConfig, kmeans: KMeansSteps) -> list[tuple[Step, Counted]]:
    """The steps of the job in their order, with the stages of each."""
    works = {step_of(f"{work.protocol.name}."): work for work in _works(config, kmeans)}
    opened = [name for name in ("reveal-assignments", "reveal-centres") if name in works]
    statistics = next((name for name in ("extremes", "moments") if name in works), None)
    plan = kmeans.plan()
    return [
        (step, StoreRequirements((works[step.name],), plan.blocks, plan.columns).counted(0))
        for step in steps_of(kmeans, statistics, opened)
    ]


def _works(config: JobConfig, kmeans: KMeansSteps) -> tuple[StepShapes, ...]:
    job, layout = config.required_kmeans, kmeans.layout
    works = (*kmeans.plan(aggregate_work(job, layout)).works,)
    if job.aggregates and job.normalise.method == "zscore":
        works += (StepShapes(MOMENTS, partial(_moments, layout), Over.ONE, first=True),)
    policy = policy_of(config, layout, job.reveal)
    if policy.assignments:
        works += (StepShapes(open_assignments(policy), partial(_assignments, kmeans)),)
    if policy.centroids or policy.inertia:
        works += (StepShapes(open_centroids(policy), partial(_centres, kmeans, policy), Over.ONE),)
    return works


def _moments(layout: Layout, block: ShardShape) -> Sequence[Shapes]:
    del block
    return [{"x": ((WORDS, 2, layout.total_features), "uint64")}] * layout.parties


def _assignments(kmeans: KMeansSteps, block: ShardShape) -> Sequence[Shapes]:
    """All rows in the first cluster, as the first party's share says."""
    layout, width = kmeans.layout, bits.padded(block.rows) // 8
    owner = layout.parties if layout.vertical else int(np.argmax(block.widths))
    shares: list[Array] = [np.zeros((kmeans.k, width), np.uint8) for _ in range(layout.parties)]
    shares[0][0] = 0xFF
    public = {"rows": np.array([block.rows]), "owner": np.array([owner])}
    return [{"c": share, **public} for share in shares]


def _centres(kmeans: KMeansSteps, policy: RevealPolicy, block: ShardShape) -> Sequence[Shapes]:
    """Names of columns are told with their scales; of how many letters is estimated."""
    del block
    shares: Shapes = {"mu": ((kmeans.k, kmeans.layout.total_features), "uint64"), "inertia": ((1,), "uint64")}
    return [
        {**shares, **dict.fromkeys(("shift", "factor"), ((d,), "float64")), "names": ((_letters(d),), "uint8")}
        for d in policy.layout.features
    ]


def _letters(columns: int) -> int:
    return columns * (NAME_LENGTH + 1) - 1


def traffic_of(config: JobConfig, counted: Counted) -> Traffic:
    """What these stages move between this party and its peers."""
    me, names = config.me.index, config.parties
    rounds: set[str] = set()
    messages, sent, received = 0, Counter[str](), Counter[str]()
    for count, stage in counted:
        for message in stage.messages:
            if me == message.sender:
                messages += count
                sent[names[message.recipient]] += count * message.size
            elif me == message.recipient:
                received[names[message.sender]] += count * message.size
            else:
                continue
            rounds.add(stage.name)
    return Traffic(len(rounds), messages, dict(sent), dict(received))


def busiest(counted: Counted) -> int:
    """Bytes that the party with most to send sends, stage by stage: what a link is waited for."""
    stages: dict[str, Counter[int]] = {}
    for count, stage in counted:
        for message in stage.messages:
            stages.setdefault(stage.name, Counter())[message.sender] += count * message.size
    return sum(max(senders.values()) for senders in stages.values())
