"""The steps of a configured job and its needs of the triple store, from public parameters alone."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log2

from veilmeans.crypto.fixed_point import FRACTION_BITS
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters
from veilmeans.io.exchange.link_shaping import Link
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.digests import digest_of_values
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import MOST_CLUSTERS_BY_PAIRS, KMeansConfig
from veilmeans.schemas.layout import Layout, columns_per_shard
from veilmeans.transforms.kmeans.centroid_update import CentroidUpdate
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.kmeans.kmeans_plus_plus import Seeding
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.traced_job import StoreJobs, SweptJobs, TracedJob
from veilmeans.transforms.primitives.argmin import METHODS, Argmin
from veilmeans.transforms.primitives.argmin_choice import choose_argmin
from veilmeans.transforms.products.engine_parameters import ChosenEngines, EngineParameters, HEBounds
from veilmeans.transforms.statistics.explanations import Explanations
from veilmeans.transforms.statistics.outliers import Outliers, choose_digit_bits
from veilmeans.transforms.statistics.profiles import Profiles
from veilmeans.transforms.statistics.weighted_choice import WEIGHT_BITS

_ROOM = 62  # values that are multiplied or truncated stay below 2^62
_COUNT_BITS = 30  # counts that can be divided by are below 2^30
_WORD, _DROP = 32, 20
"""Comparisons are made this narrow, if it costs no more than so many low bits."""


HEBound = Callable[[int, SchemeParameters], HEProductParameters]
"""(owner, cryptosystem) -> the parameters of the owner's homomorphic product."""


def traced_job(config: JobConfig, chosen: ChosenEngines | None = None) -> TracedJob:
    """Trace the largest job of a triple store, with the engines chosen for it: what it asks of the store."""
    return trace_job(kmeans_steps(config.at_capacity(), chosen), statistics_method(config.required_kmeans))


def store_jobs(config: JobConfig, chosen: ChosenEngines | None = None) -> StoreJobs:
    """The jobs for which the configured triple store is made: one, or for a sweep one for each number of clusters."""
    swept = config.swept().values()
    return SweptJobs(tuple(traced_job(part, chosen) for part in swept)) if swept else traced_job(config, chosen)


def statistics_method(job: KMeansConfig) -> str | None:
    """The method by which joint statistics normalise, where there are some."""
    return job.normalise.method if job.aggregates else None


def job_digest(config: JobConfig) -> str:
    """A digest of a job's public parameters before engines are chosen: equal for equal jobs and shapes."""
    job = config.required_kmeans
    requested = [job.engines_of(party) for party in config.parties]
    sparse = [job.sparse.get(party) for party in config.parties]
    public = [None if each is None else each.model_dump() for each in (*requested, *sparse)]
    largest = config.at_capacity()
    parts = [kmeans_steps(part) for part in largest.swept().values()] or kmeans_steps(largest)
    return digest_of_values([parts, public, statistics_method(job)])


def store_iterations(config: JobConfig) -> int:
    """The number of iterations that each run of the store may take."""
    requested, job = config.triples.iterations if config.triples else None, config.required_kmeans
    return 1 if job.predict is not None else requested or job.max_iter


def layout_of(config: JobConfig, job: KMeansConfig) -> Layout:
    """The layout: the rows and columns that each party owns, and the rows that the triple store is for."""
    most = config.triples.rows if config.triples is not None and config.triples.rows is not None else job.required_rows
    rows, features, capacity = (
        tuple(value[name] if isinstance(value, dict) else value for name in config.parties)
        for value in (job.required_rows, job.features, most)
    )
    layout = Layout(job.layout == "vertical", rows, features, config.beam.rows_per_shard)
    return layout if capacity == rows else replace(layout, capacity=capacity)


def kmeans_steps(config: JobConfig, chosen: ChosenEngines | None = None) -> KMeansSteps:
    """The protocols of a K-means job; a ConfigError if its bounds leave too little room.

    `chosen`: the engines of each party's products. Before they are, `auto` stands for `beaver`. Bounds are those of as
    many rows as the triple store is for: its correlations fit all runs.
    """
    job = config.required_kmeans
    own = layout_of(config, job)
    layout = own.at_capacity()
    assignment = _assignment(config, layout, job.trained_starts, exact=job.predict is not None)
    tol = 0 if job.predict else job.tol
    centroid_update = CentroidUpdate(
        layout.total_rows.bit_length(),
        magnitude=_magnitude(job),
        tol=tol,
        inertia=bool(job.reveal.inertia),
        coordinates=job.trained_clusters * layout.total_features,
    )
    _check_room(job, layout, centroid_update)
    engines = _engines(config, chosen or requested_engines(config))
    columns = columns_per_shard(job.trained_clusters, config.beam.values_per_column_shard)
    predicts, seeding = job.predict is not None, _seeding(config, own, chosen or requested_engines(config))
    about = own, job.clusters, assignment, centroid_update, columns, engines, predicts, seeding, job.assigns_finally
    steps = KMeansSteps(*about, scores=bool(job.reveal.scores), outliers=_outliers(config, own))
    steps = replace(steps, minimum=_minimum_size(job, own))
    if job.assigns_finally:
        steps = replace(steps, last_assignment=_assignment(config, layout, starts=1, exact=True))
    steps = replace(steps, explanations=_explanations(job, own), profiles=_profiles(config, own))
    if job.trained_starts == 1:
        return steps
    one = replace(he_bounds(config), k=job.clusters, starts=1)
    last = _engines_within(config, one.distance, one.update, chosen or requested_engines(config))
    return replace(steps, starts=job.starts, last_engines=last)


def _seeding(config: JobConfig, layout: Layout, chosen: ChosenEngines) -> Seeding | None:
    """k-means++ on these bounds, where it is to choose the first centroids.

    D ≤ d·W² for values in an interval of width W. With s = ⌈log2 (n·d·W²)⌉ − 30 the n weights, each rounded up by less
    than 1, add up to less than 2^30 + n ≤ 2^31.
    """
    job = config.required_kmeans
    if not job.seeds:
        return None
    low, high = job.interval
    widest = _log2(layout.total_features, high - low + 2**-10, high - low + 2**-10) + 2 * FRACTION_BITS
    bits = 1 + int(widest)
    if bits > _ROOM - 1:
        raise ConfigError(
            f"kmeans.init.method is k-means++, and squared distances over {layout.total_features:,} columns of values "
            f"within {_shown(job.interval)} need over 64 bits: lower kmeans.normalise.bound, or choose another method"
        )
    shift = max(1, ceil(widest + log2(layout.at_capacity().total_rows)) - WEIGHT_BITS + 1)
    bounds = replace(he_bounds(config), k=job.starts, starts=0)
    engines = _engines_within(config, bounds.distance, bounds.update, chosen)
    return Seeding(layout, job.starts, job.seeds, bits, shift, engines)


def requested_engines(config: JobConfig) -> ChosenEngines:
    """The engines as configured, `beaver` where the planner is to choose."""
    asked = [config.required_kmeans.engines_of(party) for party in config.parties]
    return tuple(tuple("he" if name == "he" else "beaver" for name in (e.distance, e.update)) for e in asked)


def _magnitude(job: KMeansConfig) -> int:
    """Normalised values are at most 2^magnitude, in their last bit."""
    return FRACTION_BITS + max(0, ceil(log2(max(map(abs, job.interval)))))


def he_bounds(config: JobConfig) -> HEBounds:
    """The bounds within which homomorphic products of a job are exact."""
    job = config.required_kmeans
    integer_valued = tuple(party in job.sparse and job.sparse[party].integer_valued for party in config.parties)
    times = store_iterations(config) + job.seeds + job.assigns_finally
    shape = layout_of(config, job).at_capacity(), job.trained_clusters, _magnitude(job), integer_valued
    return HEBounds(*shape, times, starts=0 if job.trims else job.trained_starts)


def scheme_parameters(config: JobConfig) -> SchemeParameters:
    """The cryptosystem of a K-means job's homomorphic products, if it has any."""
    cipher = config.required_kmeans.cipher
    return SchemeParameters(cipher.scheme, cipher.bits)


def _engines(config: JobConfig, chosen: ChosenEngines) -> EngineParameters:
    """A prediction has no update: what stands there decides nothing."""
    bounds = he_bounds(config)
    update = bounds.update if config.required_kmeans.predict is None else bounds.distance
    return _engines_within(config, bounds.distance, update, chosen)


def _engines_within(config: JobConfig, distance: HEBound, update: HEBound, chosen: ChosenEngines) -> EngineParameters:
    cipher = scheme_parameters(config)
    try:
        return EngineParameters(
            tuple(distance(i, cipher) if each[0] == "he" else None for i, each in enumerate(chosen)),
            tuple(update(i, cipher) if each[1] == "he" else None for i, each in enumerate(chosen)),
        )
    except ValueError:
        raise ConfigError(
            f"a plaintext of kmeans.cipher ({cipher.bits} bits) has no room for a product of so many rows and columns: "
            "set kmeans.cipher.bits to 3072, or kmeans.products to beaver"
        ) from None


def _assignment(config: JobConfig, layout: Layout, starts: int, exact: bool) -> Argmin:
    """The assignment of rows, as configured, or as link and provider have it sooner.

    `exact`: to final centroids, so that a prediction of the trained rows finds the same clusters.
    """
    job, link = config.required_kmeans, Link.from_config(config.link)
    methods = METHODS if job.assignment == "auto" else (job.assignment,)
    comparisons = _comparisons(job, layout, exact)
    shape = job.clusters, layout.total_rows * starts, layout.parties
    return choose_argmin(comparisons, *shape, link.rate, link.round_trip, methods, config.provider)


def _outliers(config: JobConfig, layout: Layout) -> Outliers | None:
    """The search for outliers, in as few rounds as the link makes worth their bytes."""
    job, link = config.required_kmeans, Link.from_config(config.link)
    if job.outliers is None:
        return None
    rows, count = layout.at_capacity().total_rows, job.outliers.of(layout.total_rows)
    outliers = Outliers(count, score_bits(job, layout), rows.bit_length(), during_training=job.trims)
    return choose_digit_bits(outliers, rows, layout.parties, link.rate, link.round_trip)


def _explanations(job: KMeansConfig, layout: Layout) -> Explanations | None:
    """The explanation of outliers, if somebody is to learn it."""
    if not job.reveal.explanations:
        return None
    groups, others = 1 if layout.vertical else layout.parties, job.reveal.contributions == "all"
    rows = layout.at_capacity().total_rows
    return Explanations(job.clusters, groups, rows.bit_length(), others and layout.vertical)


def _profiles(config: JobConfig, layout: Layout) -> Profiles | None:
    """The profiles of the final clusters, if somebody is to learn them; squares as exact as their sums have room."""
    job = config.required_kmeans
    if not job.reveal.profiles:
        return None
    bound = max(1.0, *map(abs, job.normalise.interval))
    square_bits = min(2 * FRACTION_BITS, int(_ROOM - _log2(layout.at_capacity().total_rows, bound, bound)))
    if square_bits < FRACTION_BITS:
        raise ConfigError("sums of squares of so many rows do not fit in 64 bits: leave out kmeans.reveal.profiles")
    recipients = tuple(sorted(map(config.parties.index, job.reveal.profiles)))
    least = min(max(job.profile_minimum, job.reveal.minimum_size), layout.total_rows)
    return Profiles(layout.at_capacity(), job.clusters, recipients, square_bits, least)


def _minimum_size(job: KMeansConfig, layout: Layout) -> int:
    """The rows that a cluster must have to be opened; a ConfigError if there are fewer, or opened sums are."""
    least, clustered = job.reveal.minimum_size, layout.total_rows
    if job.trims and job.outliers is not None:
        clustered -= job.outliers.of(layout.total_rows)
    if job.predict is None and least > clustered:
        raise ConfigError(
            f"kmeans.reveal.minimum_size is {least:,}, and only {clustered:,} rows are in clusters: lower it"
        )
    if job.aggregates and least > min(layout.rows):
        raise ConfigError(
            f"kmeans.normalise.aggregate opens sums of all rows, from which a party's own {min(layout.rows):,} follow, "
            f"fewer than kmeans.reveal.minimum_size ({least:,}): set normalise.method to none, or lower minimum_size"
        )
    return least


def _comparisons(job: KMeansConfig, layout: Layout, exact: bool) -> Argmin:
    """Comparisons as narrow as bounds allow: two distances of a row differ by at most d·W·w. `exact`: no bits dropped.

    Centroids lie in an interval of width w, values in one that is wider by m on each side, W = w + 2m. For a value's
    distances a and b to two centroids δ apart, |a² − b²| = δ·|a + b| ≤ δ·(2·(w + m) − δ) ≤ w·W.
    """
    values, centroids = (high - low + 2**-10 for low, high in (job.interval, job.normalise.interval))
    widest = _log2(layout.total_features, values, centroids) + 2 * FRACTION_BITS
    if widest + 2**-20 >= 63:
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
        drop = bits - _WORD if 0 < bits - _WORD <= _DROP and not exact else 0
    if bits - drop < 2:
        raise ConfigError(f"kmeans.drop_bits is {drop}, and distances have {bits} bits: leave at least 2 of them")
    if drop:  # shares are rounded one by one, and equal ones kept in order
        bits = 2 + int(log2(2**widest + (MOST_CLUSTERS_BY_PAIRS + 1) * layout.parties * 2**drop))
    return Argmin(compare_bits=bits, drop=drop)


def score_bits(job: KMeansConfig, layout: Layout) -> int:
    """The bits of a row's squared distance to a centroid, with 2f fractional bits."""
    (low, high), (least, most) = job.interval, job.normalise.interval
    farthest = max(high - least, most - low) + 2**-10
    return 1 + int(_log2(layout.total_features, farthest, farthest) + 2 * FRACTION_BITS)


def _check_room(job: KMeansConfig, layout: Layout, centroid_update: CentroidUpdate) -> None:
    """Norms, the centroids' movement and the inertia must fit."""
    low, high = job.normalise.interval
    d, bound, within = layout.total_features, max(abs(low), abs(high)), _shown((low, high))
    if _log2(d, bound, bound) + 2 * FRACTION_BITS >= _ROOM:
        raise ConfigError(f"{d:,} columns of values within {within} are too many: leave out some")
    if (job.reveal.scores or job.outliers) and score_bits(job, layout) > _ROOM:
        raise ConfigError(
            f"squared distances over {d:,} columns of values within {_shown(job.interval)} need over {_ROOM} bits: "
            "leave out kmeans.reveal.scores and kmeans.outliers"
        )
    if job.predict is not None:
        return
    if job.tol and _log2(job.tol) + 2 * FRACTION_BITS >= _ROOM:
        raise ConfigError(f"kmeans.tol is {job.tol:g}, and must be below {1 << _ROOM - 2 * FRACTION_BITS:,}")
    if job.tol and _log2(job.trained_clusters, d, high - low, high - low) + 2 * FRACTION_BITS >= _ROOM:
        raise ConfigError(
            f"the movement of {job.trained_clusters:,} centroids of {d:,} columns within {within} needs over 64 bits: "
            "lower kmeans.normalise.bound, or set kmeans.tol to 0"
        )
    compared = job.trained_starts > 1
    if (centroid_update.inertia or compared) and _log2(layout.total_rows, d, bound, bound) + FRACTION_BITS >= _ROOM:
        remedy = "set kmeans.starts to 1" if compared else "leave out kmeans.reveal.inertia"
        raise ConfigError(f"the inertia of so many rows does not fit in 64 bits: {remedy}")
    if centroid_update.count_bits > _COUNT_BITS:
        raise ConfigError(f"{layout.total_rows:,} rows are too many: there can be {(1 << _COUNT_BITS) - 1:,}")


def _log2(*factors: float) -> float:
    """log2 of a product of factors, which itself may be too large or too small for a float."""
    return sum(map(log2, factors))


def _shown(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:g}, {interval[1]:g}]"


_FEW_ROWS = 1 << 17  # up to this many rows an iteration is one element
_ITERATIONS = 10  # iterations in one pipeline, where each is one call


def runs_in_one_call(config: JobConfig, kmeans: KMeansSteps) -> bool:
    """True if all rounds of an iteration run in one call at this party."""
    rounds = config.beam.rounds
    return rounds == "one_call" or (rounds == "auto" and kmeans.layout.total_rows <= _FEW_ROWS)


def check_command(config: JobConfig, predicts: bool) -> None:
    """Refuse a configuration that is for another command."""
    run, predict = config.run, config.required_kmeans.predict
    if config.required_kmeans.sweep is not None:
        raise ConfigError(f"run {run!r} is a sweep (kmeans.sweep): run `veilmeans sweep`, or set kmeans.sweep to null")
    if predict is not None and not predicts:
        raise ConfigError(f"run {run!r} predicts with {predict.model!r} (kmeans.predict): run `veilmeans predict`")
    if predict is None and predicts:
        raise ConfigError(f"run {run!r} trains: run `veilmeans train`; for new rows, `veilmeans config predict`")


def iterations_per_pipeline(config: JobConfig, one_call: bool) -> int:
    """The number of iterations in one pipeline."""
    return config.required_kmeans.iterations_per_pipeline or (_ITERATIONS if one_call else 1)
