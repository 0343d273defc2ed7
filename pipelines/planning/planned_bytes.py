"""The exact bytes of a planned run: messages of each step, the triple store, and files on disk. Nothing is dealt."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from veilmeans.crypto.bits import word_count
from veilmeans.crypto.correlations import CorrelationPart, Kind
from veilmeans.io.files.tagged_files import TAG_SIZE
from veilmeans.io.storage.triple_store import correction_name
from veilmeans.pipelines.planning.plan_schema import DiskPlan, OfflinePlan, StepPlan, Traffic, TripleCount
from veilmeans.pipelines.session.kmeans_from_config import (
    iterations_per_pipeline,
    runs_in_one_call,
    statistics_method,
    store_iterations,
)
from veilmeans.pipelines.session.result_opening import policy_of
from veilmeans.schemas.arrays import ArraySpec, Spec, payload_size
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import HEADER_SIZE
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.kmeans.steps import KMeansSteps, step_name
from veilmeans.transforms.offline.dealer import corrected_parts
from veilmeans.transforms.offline.traced_job import EqualPlaces, JobStep, Needs, StoreJobs, TracedJob
from veilmeans.transforms.rounds.trace import StageTrace
from veilmeans.transforms.statistics.explanations import EXPLAINED, EXPLAINED_SCORE

if TYPE_CHECKING:
    from veilmeans.pipelines.planning.planned_ot import MadeStore

_TAG = 64  # bytes of the tag before the arrays of a checkpoint (`io.storage.checkpoints`)
_UNITS = {"Mul": "products", "MatMul": "words", "Operand": "words"}
_UNITS |= dict.fromkeys(("BitProducts", "Inject", "DaBit"), "bits")
"""The unit in which a kind of correlation is counted, if it is not "values"."""


def _group_equal_shards(traced: TracedJob, iterations: int) -> Iterator[tuple[int, int, int]]:
    """Group the shards of one run by shape: a shard and an iteration of each group, and the number of its members.

    The first shard and the first iteration also have what is done once.
    """
    groups: dict[object, list[int]] = {}
    for shard in range(traced.store_shards):
        shape = (traced.row_shapes[shard : shard + 1], traced.column_shapes[shard : shard + 1], shard == 0)
        groups.setdefault(shape, []).append(shard)
    for shards in groups.values():
        yield shards[0], 0, len(shards)
        if iterations > 1:
            yield shards[0], 1, len(shards) * (iterations - 1)
        if seeds := -traced.store_iterations(iterations).start:
            yield shards[0], -1, len(shards) * seeds


def plan_offline(config: JobConfig, jobs: StoreJobs, party: int) -> OfflinePlan:
    """Plan the triple store of the party with this index. A shard for which nothing is dealt has an empty file."""
    runs, iterations = config.required_triples.runs, store_iterations(config)
    groups = [
        EqualPlaces(job, shard, at, runs * count)
        for job in map(jobs.of, range(len(config.swept()) or 1))
        for shard, at, count in _group_equal_shards(job, iterations)
    ]
    has_ciphertexts = any(each.job.ciphertext_needs(each.shard, each.iteration) for each in groups)
    store = None if config.provider == "dealer" else _made_store(config, groups)
    messages = received = ciphertexts = cipher_bytes = stored = 0
    triples: Counter[str] = Counter()
    for group in groups:
        needs, made, count = group.needs, _ciphertext_spec(group, party), group.count
        triples += Counter({name: count * n for name, n in _count_triples(party, needs).items()})
        kept = _spec(corrected_parts(party, needs)) if store is None else store.stored(party, needs)
        messages += count * bool(kept)
        received += count * payload_size(kept) * bool(kept)
        ciphertexts += count * sum(prod(spec.shape) for spec in made)
        cipher_bytes += count * payload_size(made) * bool(made)
        stored += count * (payload_size(kept) + TAG_SIZE + (payload_size(made) + TAG_SIZE) * has_ciphertexts)
    counts = tuple(TripleCount(name, _UNITS.get(name, "values"), n) for name, n in sorted(triples.items()))
    plan = OfflinePlan(runs, iterations, config.dealer, messages, received, counts, ciphertexts, cipher_bytes, stored)
    return plan if store is None else store.planned(plan, party)


def _made_store(config: JobConfig, groups: list[EqualPlaces]) -> "MadeStore":
    """The store that the parties make themselves. Its import brings numba, which other plans do without."""
    from veilmeans.pipelines.planning.planned_ot import MadeStore

    return MadeStore(config, tuple(groups))


def _count_triples(party: int, needs: Needs) -> Counter[str]:
    """Count a party's correlations by kind."""
    counts: Counter[str] = Counter()
    for kind in (need.kind for stage_needs in needs.values() for need in stage_needs):
        if any(party in part.holders for part in (*kind.uniform_parts(), *kind.determined_parts())):
            counts[type(kind).__name__] += _size(kind)
    return counts


def _size(kind: Kind) -> int:
    """Number of elements of its first determined part, or of the mask if it has none."""
    part = (*kind.determined_parts(), *kind.uniform_parts())[0]
    elements = prod(part.shape)
    return elements * np.dtype(part.dtype).itemsize * 8 if part.sharing == "xor" else elements


def _spec(parts: Mapping[str, CorrelationPart]) -> Spec:
    return tuple(ArraySpec(name, np.dtype(part.dtype).str, part.shape) for name, part in parts.items())


def _ciphertext_spec(group: EqualPlaces, party: int) -> Spec:
    """The ciphertexts that a party makes for one place."""
    return tuple(
        ArraySpec(correction_name(stage, blinding.label), blinding.product.cipher.dtype.str, (blinding.count,))
        for stage, blindings in group.job.ciphertext_needs(group.shard, group.iteration).items()
        for blinding in blindings
        if blinding.maker == party
    )


def plan_disk(
    config: JobConfig, kmeans: KMeansSteps, offline: OfflinePlan | None, steps: tuple[StepPlan, ...]
) -> DiskPlan:
    """Plan the files of this party: triple store, own data, and one run at its end."""
    sizes = _prepared_bytes(config), _checkpoint_bytes(config, kmeans), _operand_bytes(config, kmeans)
    return DiskPlan(offline.bytes_stored if offline else 0, *sizes, _inbox_bytes(config, kmeans, steps))


def _prepared_bytes(config: JobConfig) -> int:
    """Estimate compressed rows: a word and a column number for each nonzero, the start of each row, and its id."""
    job = config.required_kmeans
    rows, columns = config.declared_shape
    sparse = job.sparse.get(config.party)
    nonzeros = columns if sparse is None or sparse.nonzeros is None else min(columns, sparse.nonzeros)
    return int(rows * (12 * nonzeros + 8 + (8 if job.id else 0) + (1 if job.label else 0)))


def _file_bytes(**shapes: tuple[tuple[int, ...], str]) -> int:
    """Size of a checkpoint file with arrays of these shapes and types."""
    return _TAG + payload_size(tuple(ArraySpec(name, np.dtype(d).str, shape) for name, (shape, d) in shapes.items()))


def _checkpoint_bytes(config: JobConfig, kmeans: KMeansSteps) -> int:
    """Centroids of every iteration, assignments of the last two, encrypted centroids of the last; the last scores."""
    k, layout = kmeans.all_clusters, kmeans.layout
    small = _file_bytes(n=((k,), "uint64"), x2=((1,), "uint64"), stop=((1,), "uint8"))
    centroids = sum(_file_bytes(mu=((k, each.stop - each.start), "uint64")) for each in kmeans.column_shards)
    shards = Counter(row_shard.shape.rows for row_shard in layout.row_shards())
    assigned = sum(count * _file_bytes(c=((k, word_count(rows)), "uint64")) for rows, count in shards.items())
    last = kmeans if kmeans.predicts else kmeans.last
    scores = sum(count * _score_bytes(last, rows) for rows, count in shards.items()) if last.measures else 0
    if last.explanations is not None:
        groups, widths = last.explanations.groups, [each.stop - each.start for each in last.column_shards]
        scores += sum(_file_bytes(mu=((groups, kmeans.k, width), "uint64")) for width in widths)
    if last.profiles is not None:
        profiles = last.profiles
        sizes, sums = ((profiles.k,), "uint64"), ((profiles.k + 1, profiles.width), "uint64")
        scores += _file_bytes(n=sizes, s=sums, to=((len(profiles.recipients),), "int64"))
    product = kmeans.engines.distance[config.me.index]
    row_bytes = 0 if product is None else product.packs * product.cipher.size
    encrypted = layout.features[config.me.index] * row_bytes * (layout.parties - 1)
    return (config.required_kmeans.iterations + 1) * (small + centroids) + 2 * assigned + scores + encrypted


def _score_bytes(last: KMeansSteps, rows: int) -> int:
    """A row shard's scores that may be opened, its outliers, and their clusters."""
    kept: dict[str, tuple[tuple[int, ...], str]] = {"shown": ((rows,), "uint64")} if last.shows else {}
    kept |= {"outlier": ((word_count(rows),), "uint64")} if last.outliers else {}
    if last.explanations is not None:
        kept[EXPLAINED] = ((last.k, word_count(rows)), "uint64")
        kept |= {EXPLAINED_SCORE: ((rows,), "uint64")} if last.explanations.others else {}
    return _file_bytes(**kept)


def _operand_bytes(config: JobConfig, kmeans: KMeansSteps) -> int:
    """Size of the peers' masked matrices."""
    if not kmeans.engines.masked:
        return 0
    others = sorted(kmeans.engines.masked - {config.me.index})
    shapes = Counter(row_shard.shape for row_shard in kmeans.layout.row_shards())
    return sum(
        count * _file_bytes(**{f"e{i}": ((shape.rows, shape.widths[i]), "uint64") for i in others if shape.widths[i]})
        for shape, count in shapes.items()
    )


def _inbox_bytes(config: JobConfig, kmeans: KMeansSteps, steps: tuple[StepPlan, ...]) -> int:
    """Estimate the inbox: messages stay until a pipeline has ended, and those of one more iteration stay longer."""
    job = config.required_kmeans
    iterations = min(job.max_iter, iterations_per_pipeline(config, runs_in_one_call(config, kmeans)) + 2)
    times = [each.step.times(iterations) for each in steps]
    sizes = [each.each.bytes_received + HEADER_SIZE * each.each.messages for each in steps]
    return sum(size * count for size, count in zip(sizes, times, strict=True))


StageCounts = list[tuple[int, StageTrace]]
"""The stages of a step, each with the number of shards that have equal messages in it."""


def planned_job(config: JobConfig, steps: KMeansSteps) -> TracedJob:
    """Trace the configured job, with the openings that its policy names."""
    job = config.required_kmeans
    return trace_job(steps, statistics_method(job), policy_of(config, steps.layout, job.reveal))


def plan_steps(config: JobConfig, traced: TracedJob, iterations: int) -> tuple[StepPlan, ...]:
    """Plan the traffic of all steps."""
    traffic = {step.name: traffic_of(config, traced.stage_counts(step)) for step in traced.steps}
    stages = {stage.name for step in traced.steps for stage in _stages_with(config.me.index, traced, step)}
    waits = waits_of(traced.steps, stages)
    return tuple(
        StepPlan(step, step.times(iterations), replace(traffic[step.name], waits=waits[step.name]))
        for step in traced.steps
    )


def _stages_with(party: int, traced: TracedJob, step: JobStep) -> Iterator[StageTrace]:
    """The stages of a step in which a party sends or receives."""
    for _, stage in traced.stage_counts(step):
        if any(party in (message.sender, message.recipient) for message in stage.messages):
            yield stage


def waits_of(steps: Sequence[JobStep], stages: Iterable[str]) -> Counter[str]:
    """Count the rounds on the critical path by steps, from the names of the stages that have messages.

    Round i of steps beside each other is one wait; the longest of them has it.
    """
    rounds: dict[str, set[int]] = defaultdict(set)
    for stage in stages:
        rounds[step_name(stage)].add(int(stage.split(".")[1]))
    waits: Counter[str] = Counter()
    for lanes in dict.fromkeys(step.beside or (step.name,) for step in steps):
        seen: set[int] = set()
        for lane in sorted({step_name(name) for name in lanes}, key=lambda name: -len(rounds[name])):
            waits[lane] += len(rounds[lane] - seen)
            seen |= rounds[lane]
    return waits


def traffic_of(config: JobConfig, counted: StageCounts) -> Traffic:
    """Count the messages of these stages between this party and its peers."""
    me, names = config.me.index, config.parties
    rounds, messages, sent, received = set[str](), 0, Counter[str](), Counter[str]()
    bytes_by_sender: dict[str, Counter[int]] = defaultdict(Counter)
    for count, stage in counted:
        for message in stage.messages:
            size = count * message.size
            bytes_by_sender[stage.name][message.sender] += size
            if me == message.sender:
                messages += count
                sent[names[message.recipient]] += size
            if me == message.recipient:
                received[names[message.sender]] += size
            if me in (message.sender, message.recipient):
                rounds.add(stage.name)
    bottleneck_bytes = sum(max(senders.values()) for senders in bytes_by_sender.values())
    return Traffic(len(rounds), messages, dict(sent), dict(received), bottleneck_bytes)
