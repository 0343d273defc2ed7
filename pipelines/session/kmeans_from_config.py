"""What a configured job computes, from its public parameters alone, and what that asks of the triple store."""

from functools import partial
from math import ceil, log2
from typing import Any

from veilmeans.crypto.fixed_point import FRACTION_BITS
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.pipelines.session.joint_scaling import aggregate_work
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.digests import digest_of_values
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.schemas.layout import Layout, ShardShape, columns_per_shard
from veilmeans.transforms.kmeans.centroid_update import CentroidUpdate
from veilmeans.transforms.kmeans.column_sums import product_protocol
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.requirements import StepShapes, StoreRequirements
from veilmeans.transforms.primitives.argmin_tree import ArgminTree
from veilmeans.transforms.products.engine_parameters import ChosenEngines, EngineParameters, HEBounds
from veilmeans.transforms.rounds.trace import Shapes

_ROOM = 62
"""Values that are multiplied or truncated stay below 2^62."""
_COUNT_BITS = 30
"""Counts that can be divided by are below 2^30."""
_WORD, _DROP = 32, 20
"""Comparisons are made this narrow, if it costs no more than so many low bits."""


def store_requirements(config: JobConfig, chosen: ChosenEngines | None = None) -> StoreRequirements:
    """The plan of the one job in a configuration, with the engines chosen for it."""
    if config.kmeans is not None:
        kmeans = kmeans_steps(config, chosen)
        return kmeans.plan(aggregate_work(config.kmeans, kmeans.layout))
    if config.sums is None:
        raise ConfigError(f"the configuration of {config.party} has no job: add `kmeans:` or `sums:`")
    rows = config.required_triples.rows
    if rows is None:
        raise ConfigError(f"the configuration of {config.party} needs triples.rows: how many rows the data have")
    works = (StepShapes(product_protocol(0, 0), partial(_one_column, len(config.parties))),)
    return StoreRequirements.of_rows(works, rows, config.engine.rows_per_shard)


def total_rows(config: JobConfig) -> int:
    """How many rows the job in a configuration has."""
    return kmeans_steps(config).layout.total_rows if config.kmeans is not None else store_requirements(config).rows


def job_digest(config: JobConfig) -> str:
    """Equal for equal jobs and shapes; found before engines are chosen, so without the plan of a K-means job."""
    if config.kmeans is None:
        return store_requirements(config).digest()
    kmeans, asked = kmeans_steps(config), [config.kmeans.engines_of(party) for party in config.parties]
    extra = [stage.name for work in aggregate_work(config.kmeans, kmeans.layout) for stage in work.protocol.stages()]
    sparse = [config.kmeans.sparse.get(party) for party in config.parties]
    public = [None if each is None else each.model_dump() for each in (*asked, *sparse)]
    return digest_of_values([kmeans, public, extra])


def store_iterations(config: JobConfig) -> int:
    """How many iterations each run of the store may take."""
    asked, job = config.triples.iterations if config.triples else None, config.kmeans
    if job is not None and job.predict is not None:
        return 1
    return asked or (job.max_iter if job else 1)


def _one_column(parties: int, block: ShardShape) -> list[Shapes]:
    """What is asked for does not depend on how many columns a party has."""
    return [{"x": ((block.rows, 1), "uint64")}] * parties


def layout_of(config: JobConfig, job: KMeansConfig) -> Layout:
    """Who owns what."""
    rows, features = (
        tuple(value[name] if isinstance(value, dict) else value for name in config.parties)
        for value in (job.rows, job.features)
    )
    return Layout(job.layout == "vertical", rows, features, config.engine.rows_per_shard)


def kmeans_steps(config: JobConfig, chosen: ChosenEngines | None = None) -> KMeansSteps:
    """The protocols of a K-means job; a ConfigError if its bounds leave too little room.

    `chosen`: the engines of each party's products. Before they are, `auto` stands for `beaver`.
    """
    job = config.required_kmeans
    layout = layout_of(config, job)
    tree = _tree(job, layout)
    centres = CentroidUpdate(
        count_bits=layout.total_rows.bit_length(),
        magnitude=_magnitude(job),
        tol=0 if job.predict else job.tol,
        inertia=bool(job.reveal.inertia),
    )
    _check_room(job, layout, centres)
    engines = _engines(config, chosen or requested_engines(config))
    predicts = job.predict is not None
    return KMeansSteps(layout, job.clusters, tree, centres, columns_per_shard(job.clusters), engines, predicts)


def requested_engines(config: JobConfig) -> ChosenEngines:
    """The engines as configured, `beaver` where the planner is to choose."""
    job = config.kmeans
    if job is None:
        return ()
    asked = [job.engines_of(party) for party in config.parties]
    return tuple(tuple("he" if name == "he" else "beaver" for name in (e.distance, e.update)) for e in asked)


def _magnitude(job: KMeansConfig) -> int:
    """Normalised values are at most 2^magnitude, in their last bit."""
    return FRACTION_BITS + max(0, ceil(log2(max(map(abs, job.interval)))))


def he_bounds(config: JobConfig) -> HEBounds:
    """What homomorphic products of a K-means job may assume."""
    job = config.required_kmeans
    whole = tuple(party in job.sparse and job.sparse[party].whole for party in config.parties)
    return HEBounds(layout_of(config, job), job.clusters, _magnitude(job), whole, store_iterations(config))


def scheme_parameters(config: JobConfig) -> SchemeParameters:
    """The cryptosystem of a K-means job's homomorphic products, if it has any."""
    cipher = config.required_kmeans.cipher
    return SchemeParameters(cipher.scheme, cipher.bits)


def _engines(config: JobConfig, chosen: ChosenEngines) -> EngineParameters:
    """A prediction has no update: what stands there decides nothing."""
    cipher, bounds = scheme_parameters(config), he_bounds(config)
    update = bounds.update if config.required_kmeans.predict is None else bounds.distance
    try:
        return EngineParameters(
            tuple(bounds.distance(i, cipher) if each[0] == "he" else None for i, each in enumerate(chosen)),
            tuple(update(i, cipher) if each[1] == "he" else None for i, each in enumerate(chosen)),
        )
    except ValueError:
        raise ConfigError(
            f"a plaintext of kmeans.cipher ({cipher.bits} bits) has no room for a product of so many rows and columns: "
            "set kmeans.cipher.bits to 3072, or kmeans.products to beaver"
        ) from None


def _tree(job: KMeansConfig, layout: Layout) -> ArgminTree:
    """Comparisons as narrow as bounds allow: two distances of a row differ by at most d·W·w.

    Centroids lie in an interval of width w, values in one that is wider by m on each side, W = w + 2m. For a value's
    distances a and b to two centroids δ apart, |a² − b²| = δ·|a + b| ≤ δ·(2·(w + m) − δ) ≤ w·W.
    """
    values, centres = (high - low + 2**-10 for low, high in (job.interval, job.normalise.interval))
    widest = _log2(layout.total_features, values, centres) + 2 * FRACTION_BITS
    if widest >= 63:
        field, what = "kmeans.normalise.bound", "normalise (minmax or zscore), or lower the bound"
        if job.predict is not None:
            field, what = "kmeans.predict.margin", "lower it"
        raise ConfigError(
            f"{field} is too large: squared distances over {layout.total_features:,} columns of values within "
            f"{_shown(job.interval)} need over 64 bits; {what}"
        )
    bits = 2 + int(widest)
    drop = job.drop_bits
    if drop is None:
        drop = bits - _WORD if 0 < bits - _WORD <= _DROP else 0
    if bits - drop < 2:
        raise ConfigError(f"kmeans.drop_bits is {drop}, and distances have {bits} bits: leave at least 2 of them")
    return ArgminTree(compare_bits=bits, drop=drop)


def _check_room(job: KMeansConfig, layout: Layout, centres: CentroidUpdate) -> None:
    """Norms, the centroids' movement and the inertia must fit."""
    low, high = job.normalise.interval
    d, bound, within = layout.total_features, max(abs(low), abs(high)), _shown((low, high))
    if _log2(d, bound, bound) + 2 * FRACTION_BITS >= _ROOM:
        raise ConfigError(f"{d:,} columns of values within {within} are too many: leave out some")
    if job.predict is not None:
        return
    if job.tol and _log2(job.tol) + 2 * FRACTION_BITS >= _ROOM:
        raise ConfigError(f"kmeans.tol is {job.tol:g}, and must be below {1 << _ROOM - 2 * FRACTION_BITS:,}")
    if job.tol and _log2(job.clusters, d, high - low, high - low) + 2 * FRACTION_BITS >= _ROOM:
        raise ConfigError(
            f"the movement of {job.clusters:,} centroids of {d:,} columns within {within} needs over 64 bits: "
            "lower kmeans.normalise.bound, or set kmeans.tol to 0"
        )
    if centres.inertia and _log2(layout.total_rows, d, bound, bound) + FRACTION_BITS >= _ROOM:
        raise ConfigError("the inertia of so many rows does not fit in 64 bits: leave out kmeans.reveal.inertia")
    if centres.count_bits > _COUNT_BITS:
        raise ConfigError(f"{layout.total_rows:,} rows are too many: there can be {(1 << _COUNT_BITS) - 1:,}")


def _log2(*factors: float) -> float:
    """Of the factors' product, which may be too large or too small for a float."""
    return sum(map(log2, factors))


def _shown(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"[{low:g}, {high:g}]"


LOCAL_FIELDS = {
    "data", "id", "columns", "categories", "one_hot", "unseen", "multi_hot", "missing", "iterations_per_pipeline"
}  # fmt: skip
"""Fields of the job that are each party's own."""
_ONLY_TRAINING = {"max_iter", "tol", "init"}
_FEW_ROWS = 1 << 17
"""Up to so many rows an iteration is one element."""
_ITERATIONS = 10
"""In one pipeline, where each is one call."""


def runs_in_one_call(config: JobConfig, kmeans: KMeansSteps) -> bool:
    """Whether all rounds of an iteration run in one call here."""
    rounds = config.engine.rounds
    return rounds == "whole" or (rounds == "auto" and kmeans.layout.total_rows <= _FEW_ROWS)


def not_agreed(job: KMeansConfig) -> dict[str, Any]:
    """The fields that parties need not have alike, as pydantic excludes them."""
    if job.predict is None:
        return dict.fromkeys({*LOCAL_FIELDS, "predict"}, True)
    return {**dict.fromkeys(LOCAL_FIELDS | _ONLY_TRAINING, True), "predict": {"outside"}}


def check_command(config: JobConfig, predicts: bool) -> None:
    """Refuse a configuration that is for the other command."""
    predict = config.required_kmeans.predict
    if predict is not None and not predicts:
        raise ConfigError(
            f"run {config.run!r} predicts with the model {predict.model!r} (kmeans.predict): run `veilmeans predict`"
        )
    if predict is None and predicts:
        raise ConfigError(
            f"run {config.run!r} trains: run `veilmeans train`, or, to predict with it, write a configuration for new "
            "rows with `veilmeans predict --new`"
        )


def iterations_per_pipeline(config: JobConfig, whole: bool) -> int:
    """How many iterations are one pipeline."""
    return config.required_kmeans.iterations_per_pipeline or (_ITERATIONS if whole else 1)
