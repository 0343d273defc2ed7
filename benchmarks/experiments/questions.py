"""The parts of the paper's five questions, by sizes: the paper's, or tiny ones that only try the tool."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.experiments.partial_stores import costs_of_distance, costs_of_phase, with_operand
from benchmarks.experiments.parts import Part, Values
from benchmarks.experiments.sparse_scaling import BY_COLUMNS_ZEROS, BY_ZEROS_COLUMNS, WIDE_COLUMNS, WIDE_ZEROS
from benchmarks.experiments.unvectorised import Products, measure_products
from benchmarks.fraud import data_sets, run_once
from benchmarks.kmeans_runs import PARTIES, Shape, finished_run, measure, opened_centroids
from benchmarks.offline import WARM_UP
from benchmarks.peer_jobs import PeerJob
from benchmarks.sparse_runs import ENGINES, LINKS, Case, step_costs
from benchmarks.spu.spu_runs import CHEETAH, SEMI2K, measure_spu
from benchmarks.wan import SHAPE as WAN_SHAPE
from benchmarks.wan import iteration_seconds
from veilmeans.pipelines.planning.plan_vs_run import compare_with_run
from veilmeans.pipelines.reporting.cost_summary import costs_by_phase
from veilmeans.pipelines.session.kmeans_from_config import traced_job
from veilmeans.schemas.config import load_config

PROVIDERS = ("dealer", "ot", "iknp")
PHASES = ("S1", "S2", "S3")
_IKNP_SHARD = 16_384  # rows: IKNP's messages are large


@dataclass(frozen=True)
class Sizes:
    """The sizes of all questions."""

    q1: tuple[tuple[int, int, int], ...] = ((10_000, 2, 2), (10_000, 2, 5), (100_000, 2, 2), (100_000, 2, 5))
    """Rows, columns and clusters of the paper's tables."""
    q1_wide: tuple[int, int, int] = (10_000, 16, 4)
    """A job with more columns, which the paper does not have."""
    q1_small: int = 10_000
    """Rows up to which CHEETAH is run, and the best of several runs counts for SEMI2K."""
    q1_repeats: int = 3
    q1_iterations: int = 10
    q2: tuple[int, int, int] = (1_000, 4, 20)
    q3_rows: int = 1_000
    q3_columns: tuple[int, ...] = (2, 4, 6, 8)
    q3_iterations: int = 20
    q4_rows: tuple[int, int] = (8_192, 32_768)
    """Rows of the two runs of which larger ones are scaled."""
    q4_columns: tuple[int, ...] = (1, 4, 16, 64)
    """Columns of each party: d is twice as many."""
    q4_zeros: tuple[float, ...] = (0, 0.5, 0.9, 0.99)
    q4_wide_rows: int = 4_096
    q4_whole: tuple[tuple[str, float, int, int], ...] = tuple(
        ("beaver", BY_COLUMNS_ZEROS, columns, 1_000_000) for columns in (1, 4, 16)
    )
    """Engine, zeros, columns and rows of what is run in the paper's size."""
    q5_runs: int = 10


PAPER = Sizes()
TINY = Sizes(
    q1=((500, 2, 2), (600, 2, 2)),
    q1_wide=(500, 16, 4),
    q1_small=500,
    q1_repeats=1,
    q1_iterations=2,
    q2=(200, 4, 2),
    q3_rows=50,
    q3_columns=(2, 8),
    q3_iterations=2,
    q4_rows=(256, 512),
    q4_columns=(1, 64),
    q4_zeros=(0.99,),
    q4_wide_rows=128,
    q4_whole=(("beaver", BY_COLUMNS_ZEROS, 1, 1_024),),
    q5_runs=1,
)


def all_parts(sizes: Sizes, data: Path, spu: bool) -> list[Part]:
    """The parts of all questions; without SPU, if it cannot be installed."""
    made = q1(sizes, spu), q2(sizes), q3(sizes), q4(sizes), q5(sizes, data)
    return [part for parts in made for part in parts]


def q1(sizes: Sizes, spu: bool) -> Iterator[Part]:
    """The paper's Tables 1 and 2: online, offline by three providers, and SPU on the same rows.

    Online times are compared with SPU's: the best of several runs counts, but for SEMI2K with many rows, whose
    minutes vary little, and for CHEETAH. The providers without a dealer are run once.
    """
    for rows, columns, clusters in (*sizes.q1, sizes.q1_wide):
        job, small = PeerJob(rows, columns, clusters, sizes.q1_iterations), rows <= sizes.q1_small
        providers = PROVIDERS if columns == 2 else PROVIDERS[:2]
        repeats = {provider: sizes.q1_repeats if provider == "dealer" else 1 for provider in providers}
        for provider, times in repeats.items():
            yield _q1_part(job, provider, times, partial(_ours, job, provider, times))
        protocols = {SEMI2K: sizes.q1_repeats if small else 1} | ({CHEETAH: 1} if small else {})
        for protocol, times in protocols.items() if spu else ():
            yield _q1_part(job, protocol, times, partial(_spu, job, protocol, times))


def _q1_part(job: PeerJob, system: str, repeats: int, run: Callable[[], Values]) -> Part:
    return _part("q1", f"{job.name}, {system}", run, **asdict(job), system=system, repeats=repeats)


def q2(sizes: Sizes) -> Iterator[Part]:
    """S1, S2, S3 over a WAN, online and offline, without a dealer and with one."""
    rows, clusters, iterations = sizes.q2
    for provider in ("ot", "dealer"):
        shape = Shape(rows, 2, clusters, iterations, link=dict(WAN_SHAPE), provider=provider, slow_offline=True)
        settings = {"rows": rows, "clusters": clusters, "iterations": iterations, "provider": provider}
        yield _part(
            "q2", f"steps over a WAN, {provider}", partial(_steps, replace(shape, products="beaver")), **settings
        )


def q3(sizes: Sizes) -> Iterator[Part]:
    """The distance step vectorised, and with one product for each value."""
    for columns in sizes.q3_columns:
        shape = Shape(sizes.q3_rows, columns, 4, sizes.q3_iterations, link=dict(WAN_SHAPE), products="beaver")
        settings = {"rows": shape.rows, "columns": columns, "iterations": shape.iterations}
        yield _part("q3", f"d={columns}, vectorised", partial(_vectorised, shape), **settings, vectorised=True)
        products = Products(shape.rows, columns, 4, shape.iterations, dict(WAN_SHAPE))
        yield _part("q3", f"d={columns}, by value", partial(measure_products, products), **settings, vectorised=False)


def q4(sizes: Sizes) -> Iterator[Part]:
    """The distance step over a WAN with and without the sparse engine: by columns, and by zeros and rows."""
    kinds = [(engine, BY_COLUMNS_ZEROS, columns) for engine in ENGINES for columns in sizes.q4_columns]
    kinds += [("he", zeros, BY_ZEROS_COLUMNS) for zeros in sizes.q4_zeros]
    runs = [(*kind, rows) for kind in kinds for rows in sizes.q4_rows]
    runs += [(engine, WIDE_ZEROS, WIDE_COLUMNS, sizes.q4_wide_rows) for engine in ENGINES]
    runs += sizes.q4_whole
    for engine, zeros, columns, rows in runs:
        case = Case(engine, zeros, columns, rows, "WAN", 2)
        name = f"{engine}, {zeros:.0%} zeros, {columns} columns each, n={rows:,}"
        yield _part("q4", name, partial(_distance, case), **asdict(case), shape=LINKS[case.link])


def q5(sizes: Sizes, data: Path) -> Iterator[Part]:
    """Outliers and fraud by the Jaccard coefficient; one part for each data set and seed."""
    for each in data_sets(data):
        for seed in range(sizes.q5_runs):
            yield _part("q5", f"{each.name}, seed {seed}", partial(run_once, each, seed), data=each.name, seed=seed)


def _part(question: str, name: str, run: Callable[[], Values], **settings: Any) -> Part:
    return Part(question, name, settings, run)


def _ours(job: PeerJob, provider: str, repeats: int) -> Values:
    """The run whose online phase was fastest; all of them must send the same bytes in the same rounds."""
    warm_up()
    beam = {"rows_per_shard": _IKNP_SHARD} if provider == "iknp" else {}
    shape = replace(job.shape, provider=provider, beam=beam, products="beaver")
    found = [_our_run(job, shape) for _ in range(repeats)]
    for name in ("online_mb", "offline_mb", "rounds"):
        if len({each[name] for each in found}) > 1:
            raise RuntimeError(f"{job.name}, {provider}: {name} differs between runs: {[each[name] for each in found]}")
    return min(found, key=lambda each: float(each["online_s"]))


@cache
def warm_up() -> None:
    """Compile what numba then keeps on disk, by a small run that is not measured."""
    measure(WARM_UP)


def _our_run(job: PeerJob, shape: Shape) -> Values:
    with finished_run(shape, rows=job.data) as (folder, measured):
        deviation = job.deviation(opened_centroids(folder))
        rounds = _rounds(folder)
    return {
        "online_s": measured.online,
        "online_mb": measured.online_mb,
        "command_s": measured.online_wall,
        "offline_s": measured.offline,
        "offline_mb": measured.offline_mb if shape.dealer else measured.offline_sent_mb,
        "peak_gib": measured.peak_gib,
        "rounds": rounds,
        "deviation": deviation,
    }


def _rounds(folder: Path) -> int:
    """The rounds of a finished run that wait for each other, from its report."""
    return compare_with_run(load_config(folder / PARTIES[0] / "config.yaml")).total.measured.rounds


def _spu(job: PeerJob, protocol: str, repeats: int) -> Values:
    runs = [measure_spu(protocol, job.data, job.clusters, job.iterations) for _ in range(repeats)]
    best = min(runs, key=lambda each: each.run_s)
    return {
        "online_s": best.run_s,
        "online_mb": best.traffic_mb,
        "command_s": best.command_s,
        "peak_gib": best.peak_gib,
        "deviation": job.deviation(best.centroids),
    }


def _steps(shape: Shape) -> Values:
    """Online by the report's stages; offline by a store for each step alone, and by the run's own."""
    warm_up()
    with finished_run(shape) as (folder, measured):
        config = load_config(folder / PARTIES[0] / "config.yaml")
        steps = with_operand(traced_job(config).steps)
        costs = {name: costs_by_phase(each["stages"], steps) for name, each in measured.reports.items()}
        rounds = _rounds(folder)
    values: Values = {
        "offline_s": measured.offline,
        "offline_mb": measured.offline_mb if shape.dealer else measured.offline_sent_mb,
        "online_s": measured.online,
        "online_mb": measured.online_mb,
        "iteration_s": iteration_seconds(measured),
        "rounds": rounds,
    }
    for phase in PHASES:
        of_parties = [each[phase] for each in costs.values()]
        values[phase] = {
            "online_s": max(each.seconds for each in of_parties),
            "online_mb": sum(each.sent for each in of_parties) / 1e6,
            **({} if shape.dealer else costs_of_phase(shape, phase)),
        }
    return values


def _vectorised(shape: Shape) -> Values:
    with finished_run(shape) as (folder, measured):
        seconds, megabytes = step_costs(measured).sum(axis=1).tolist()
        rounds = _rounds(folder)
    return {"online_s": seconds, "online_mb": megabytes, "rounds": rounds, **costs_of_distance(shape)}


def _distance(case: Case) -> Values:
    with finished_run(case.shape) as (folder, measured):
        (once_s, each_s), (once_mb, each_mb) = step_costs(measured).tolist()
        rounds = _rounds(folder)
    return {"once_s": once_s, "each_s": each_s, "once_mb": once_mb, "each_mb": each_mb, "rounds": rounds}
