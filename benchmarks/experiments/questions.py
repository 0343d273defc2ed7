"""The parts of the paper's five questions, by sizes: the paper's, or tiny ones that only try the tool."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.experiments.offline_costs import by_phase, of_distance, of_products
from benchmarks.experiments.parts import Part, Values
from benchmarks.experiments.unvectorised import Products, measure_products
from benchmarks.fraud import data_sets, run_once
from benchmarks.kmeans_runs import Measured, Shape, finished_run, opened_centroids
from benchmarks.peer_jobs import PeerJob
from benchmarks.sparse_runs import LINKS, Case, step_costs
from benchmarks.spu.spu_runs import CHEETAH, SEMI2K, measure_spu
from benchmarks.wan import SHAPE as WAN_SHAPE
from veilmeans.pipelines.reporting.cost_summary import costs_by_phase
from veilmeans.pipelines.session.kmeans_from_config import traced_job
from veilmeans.schemas.config import load_config

PROVIDERS = ("dealer", "ot", "iknp")
_IKNP_SHARD = 16_384  # rows: IKNP's messages are large


@dataclass(frozen=True)
class Sizes:
    """The sizes of all questions."""

    q1: tuple[tuple[int, int], ...] = ((10_000, 2), (10_000, 5), (100_000, 2), (100_000, 5))
    q1_cheetah: tuple[tuple[int, int], ...] = ((10_000, 2), (10_000, 5), (100_000, 2))
    q1_iterations: int = 10
    q2: tuple[int, int, int] = (1_000, 4, 20)
    q3_rows: int = 1_000
    q3_columns: tuple[int, ...] = (2, 4, 6, 8)
    q3_iterations: int = 20
    q4_rows: tuple[int, int] = (32_768, 65_536)
    q4_columns: tuple[int, ...] = (4, 16, 64, 256)
    q4_zeros: tuple[float, ...] = (0, 0.5, 0.9, 0.99)
    q5_runs: int = 10


PAPER = Sizes()
TINY = Sizes(
    q1=((500, 2), (500, 5)),
    q1_cheetah=((500, 2),),
    q1_iterations=2,
    q2=(200, 4, 2),
    q3_rows=50,
    q3_columns=(2, 4),
    q3_iterations=2,
    q4_rows=(256, 512),
    q4_columns=(4, 8),
    q4_zeros=(0.5, 0.99),
    q5_runs=1,
)


def all_parts(sizes: Sizes, data: Path, spu: bool) -> list[Part]:
    """The parts of all questions; without SPU, if it cannot be installed."""
    made = q1(sizes, spu), q2(sizes), q3(sizes), q4(sizes), q5(sizes, data)
    return [part for parts in made for part in parts]


def q1(sizes: Sizes, spu: bool) -> Iterator[Part]:
    """The paper's Tables 1 and 2: online, offline by three providers, and SPU on the same rows."""
    for rows, clusters in sizes.q1:
        job = PeerJob(rows, 2, clusters, sizes.q1_iterations)
        for provider in PROVIDERS:
            yield _part("q1", f"{job.name}, {provider}", partial(_ours, job, provider), **asdict(job), system=provider)
        protocols = [SEMI2K, *([CHEETAH] if (rows, clusters) in sizes.q1_cheetah else [])]
        for protocol in protocols if spu else ():
            yield _part("q1", f"{job.name}, {protocol}", partial(_spu, job, protocol), **asdict(job), system=protocol)


def q2(sizes: Sizes) -> Iterator[Part]:
    """S1, S2, S3 over a WAN, online and offline."""
    rows, clusters, iterations = sizes.q2
    shape = Shape(rows, 2, clusters, iterations, link=dict(WAN_SHAPE), provider="ot", slow_offline=True)
    yield _part("q2", "steps over a WAN", partial(_steps, shape), rows=rows, clusters=clusters, iterations=iterations)


def q3(sizes: Sizes) -> Iterator[Part]:
    """The distance step vectorised, and with one product for each value."""
    for columns in sizes.q3_columns:
        shape = Shape(sizes.q3_rows, columns, 4, sizes.q3_iterations, link=dict(WAN_SHAPE))
        settings = {"rows": shape.rows, "columns": columns, "iterations": shape.iterations}
        yield _part("q3", f"d={columns}, vectorised", partial(_vectorised, shape), **settings, vectorised=True)
        products = Products(shape.rows, columns, 4, shape.iterations, dict(WAN_SHAPE))
        yield _part("q3", f"d={columns}, by value", partial(_by_value, shape, products), **settings, vectorised=False)


def q4(sizes: Sizes) -> Iterator[Part]:
    """The distance step with and without the sparse engine: by columns, and by zeros and rows."""
    least, most = sizes.q4_rows
    cases = [Case(engine, 0.2, d, least, "WAN", 2) for engine in ("he", "beaver") for d in sizes.q4_columns]
    for engine in ("he", "beaver"):
        for zeros in sizes.q4_zeros if engine == "he" else (0.5,):
            cases += [Case(engine, zeros, 64, rows, "LAN", 2) for rows in (least, most)]
            cases.append(Case(engine, zeros, 64, least, "WAN", 2))
    for case in cases:
        name = f"{case.engine}, {case.zeros:.0%} zeros, d={case.columns} each, n={case.rows:,}, {case.link}"
        yield _part("q4", name, partial(_distance, case), **asdict(case), shape=LINKS[case.link])


def q5(sizes: Sizes, data: Path) -> Iterator[Part]:
    """Outliers and fraud by the Jaccard coefficient; one part for each data set and seed."""
    for each in data_sets(data):
        for seed in range(sizes.q5_runs):
            yield _part("q5", f"{each.name}, seed {seed}", partial(run_once, each, seed), data=each.name, seed=seed)


def _part(question: str, name: str, run: Callable[[], Values], **settings: Any) -> Part:
    return Part(question, name, settings, run)


def _ours(job: PeerJob, provider: str) -> Values:
    beam = {"rows_per_shard": _IKNP_SHARD} if provider == "iknp" else {}
    with finished_run(replace(job.shape, provider=provider, beam=beam), rows=job.data) as (folder, measured):
        deviation = job.deviation(opened_centroids(folder))
    offline_mb = measured.offline_mb if provider == "dealer" else measured.offline_sent_mb
    return {
        "online_s": measured.online,
        "online_mb": measured.online_mb,
        "offline_s": measured.offline,
        "offline_mb": offline_mb,
        "rounds": _rounds(measured),
        "deviation": deviation,
    }


def _rounds(measured: Measured) -> int:
    """The stages in which a party sends or receives something."""
    stages = next(iter(measured.reports.values()))["stages"]
    return sum(bool(counts.get("messages") or counts.get("bytes_received")) for counts in stages.values())


def _spu(job: PeerJob, protocol: str) -> Values:
    measured = measure_spu(protocol, job.data, job.clusters, job.iterations)
    deviation = job.deviation(measured.centroids)
    return {"online_s": measured.run_s, "online_mb": measured.traffic_mb, "deviation": deviation}


def _steps(shape: Shape) -> Values:
    """Online by the report's stages; offline by counts of each step, and all of it as measured."""
    with finished_run(shape) as (folder, measured):
        config = load_config(folder / "payco" / "config.yaml")
        steps = traced_job(config).steps
        costs = {name: costs_by_phase(each["stages"], steps) for name, each in measured.reports.items()}
        offline = by_phase(config)
    values: Values = {
        "offline_s": measured.offline,
        "offline_mb": measured.offline_sent_mb,
        "online_s": measured.online,
    }
    for phase in ("S1", "S2", "S3"):
        of_parties = [each[phase] for each in costs.values()]
        values[phase] = {
            "online_s": max(each.seconds for each in of_parties),
            "online_mb": sum(each.sent for each in of_parties) / 1e6,
            **offline[phase],
        }
    return values


def _vectorised(shape: Shape) -> Values:
    with finished_run(shape) as (folder, measured):
        config = load_config(folder / "payco" / "config.yaml")
        seconds, megabytes = step_costs(measured).sum(axis=1).tolist()
        return {"online_s": seconds, "online_mb": megabytes, **of_distance(config)}


def _by_value(shape: Shape, products: Products) -> Values:
    measured = measure_products(products)
    return {"online_s": measured["seconds"], "online_mb": measured["mb"], **of_products(shape, products)}


def _distance(case: Case) -> Values:
    with finished_run(case.shape) as (_, measured):
        costs = step_costs(measured)
    (once_s, each_s), (once_mb, each_mb) = costs.tolist()
    return {"once_s": once_s, "each_s": each_s, "once_mb": once_mb, "each_mb": each_mb}
