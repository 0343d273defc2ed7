"""Q3's other side: the distance step with one product for each value, X·μᵀ as n·d·k products of two shared numbers.

It uses the product's round `multiply`, all products in one round of each iteration, between two processes over mutual
TLS with the link shaped. Each product has a Beaver triple of its own: both factors are masked for it, and so a value of
X is masked k times in every iteration; the vectorised step masks X once in a run. The triples are made before, by `ot`
over the same link.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.experiments.partial_stores import make_stores
from benchmarks.kmeans_runs import PARTIES, Shape, shape_links, write_configurations
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import prg
from veilmeans.io.exchange.handshake import exchange_terms
from veilmeans.io.storage.run_report import bytes_sent
from veilmeans.pipelines.session.session import exchange_farewells, open_session
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.layout import ShardShape
from veilmeans.transforms.offline.traced_job import JobStep, TracedJob
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.rounds.executor import Over, StageCosts, run_rounds
from veilmeans.transforms.rounds.party_context import PartyContext
from veilmeans.transforms.rounds.trace import trace

PROTOCOL = multiply("x", "y", "z").named("distance")


@dataclass(frozen=True)
class Products:
    """n rows × d columns, half of them at each party, times k centroids, t times."""

    rows: int
    columns: int
    clusters: int
    iterations: int
    link: dict[str, float]

    @property
    def count(self) -> int:
        return self.rows * self.columns * self.clusters

    def inputs(self) -> tuple[Array, Array]:
        """X (n × d) and μ (k × d), the same at both processes: each takes its own part."""
        rng = np.random.default_rng(3)
        x, mu = rng.random((self.rows, self.columns)), rng.random((self.clusters, self.columns))
        return fixed.encode(x), fixed.encode(mu)

    def state(self, party: int) -> Arrays:
        """A party's shares of both factors of all products: its own columns of X, and half of μ."""
        x, mu = self.inputs()
        own = np.arange(self.columns) * len(PARTIES) // self.columns == party
        mask = prg.uniform(b"\\0" * 32, Address("mu", 0, "", 0), "mask", mu.shape)
        share = mask if party else mu - mask
        shape = self.rows, self.clusters, self.columns
        factors = {"x": np.where(own, x, np.uint64(0))[:, None, :], "y": share[None]}
        return {name: np.ascontiguousarray(np.broadcast_to(each, shape)).reshape(-1) for name, each in factors.items()}

    def distances(self, products: Sequence[Array]) -> Array:
        """X·μᵀ from both parties' shares of all products."""
        shape = self.rows, self.clusters, self.columns
        total: Array = np.add.reduce(products).reshape(shape).sum(axis=2, dtype=np.uint64)
        return total


def measure_products(job: Products) -> dict[str, float]:
    """Make the triples, run both processes, and refuse a wrong result; the slower party's seconds and all bytes."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as name:
        folder = Path(name)
        shape = Shape(job.rows, job.columns, job.clusters, job.iterations, link=dict(job.link), provider="ot")
        write_configurations(folder, shape)
        shape_links(folder, shape)
        offline = make_stores(folder, partial(one_triple_for_each, job))
        configs = [load_config(folder / party / "config.yaml").online() for party in PARTIES]
        run = get_context("spawn").Process
        processes = [run(target=_take_part, args=(job, config, folder)) for config in configs]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                raise RuntimeError("a party of the unvectorised step has failed")
        found = [json.loads((folder / f"{party}.json").read_text()) for party in PARTIES]
        x, mu = job.inputs()
        result = job.distances([np.load(folder / f"{party}.npy") for party in PARTIES])
        if not np.array_equal(result, x @ mu.T):
            raise RuntimeError("the unvectorised products are wrong")
    sent, rounds = sum(each["bytes"] for each in found), found[0]["rounds"]
    return {"online_s": max(each["seconds"] for each in found), "online_mb": sent / 1e6, "rounds": rounds, **offline}


def one_triple_for_each(products: Products, job: TracedJob) -> TracedJob:
    """The job whose only step is all products of an iteration."""
    values = dict.fromkeys(("x", "y"), ((products.count,), "uint64"))
    shard = ShardShape(products.rows)
    stages = {shard: tuple(trace(PROTOCOL, [values] * len(PARTIES)))}
    step = JobStep("distance", "X·μᵀ", "S1", Over.ROWS, "iteration", (), stages)
    return replace(job, row_shapes=(shard,), column_shapes=(), steps=(step,))


def _take_part(job: Products, config: JobConfig, folder: Path) -> None:
    """Be one party: all iterations, timed from the handshake's end on."""
    costs, state = StageCosts(), job.state(config.me.index)
    with open_session(config) as exchange:
        terms = dict.fromkeys(config.peers, Terms({}))
        exchange_terms(exchange, config.party, config.run, terms, config.run_folder, config.exchange.timeout_s)
        start = time.perf_counter()
        for iteration in range(job.iterations):
            context = PartyContext(config, "", iteration, store_number=0).open()
            ended = run_rounds(PROTOCOL, context, {0: state}, costs)
        seconds = time.perf_counter() - start
        exchange_farewells(exchange, config, iteration=job.iterations)
    np.save(folder / f"{config.party}.npy", ended[0]["z"])
    counts = costs.counts()
    result = {"seconds": seconds, "bytes": bytes_sent(counts), "rounds": len(counts) * job.iterations}
    (folder / f"{config.party}.json").write_text(json.dumps(result))
