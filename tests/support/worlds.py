"""Worlds for tests of whole runs: parties with keys, data and dealt triple stores, to be copied, changed and run.

A copy of a world has the same keys, seeds, data and stores: its shares are those of any other copy, bit for bit.
"""

import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from support.commands import CommandProcess, Ended, Strike, merged, start_command
from support.fault_injection import exit_code
from support.parties import NAMES, free_ports, in_parallel, make_configs
from veilmeans.crypto import prg
from veilmeans.io.ledgers.claim_ledger import ClaimLedger
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.pipelines.offline import manifest_of, run_offline
from veilmeans.pipelines.session.kmeans_from_config import requested_engines, store_iterations, store_jobs, traced_job
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.run_folder import RunFolder
from veilmeans.transforms.offline.dealer import deal_corrections
from veilmeans.transforms.offline.ot_store import StoreMaking

DEALER = "notary"
BOTH = NAMES[:2]
_MOMENT = 2.0
"""Seconds in which a party whose messages are acknowledged reaches its next file."""


@dataclass(frozen=True)
class World:
    """A folder with everything that the members of a run have; `configs` has the dealer's, too, if there is one."""

    folder: Path
    configs: Mapping[str, JobConfig]

    @property
    def parties(self) -> dict[str, JobConfig]:
        """The members who take part in a run; the dealer does not."""
        return {name: config for name, config in self.configs.items() if name != config.dealer}

    def __getitem__(self, name: str) -> JobConfig:
        return self.configs[name]

    def copied(self, folder: Path, **fields: Any) -> "World":
        """Copy the world, with ports of its own; `fields` replace those of every configuration, section by section."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        ports = dict(zip(self._ports(), free_ports(len(self.configs)), strict=True))

        def moved(config: JobConfig) -> JobConfig:
            text = config.model_dump_json().replace(f"{self.folder}/", f"{folder}/")
            return JobConfig.model_validate_json(
                re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda p: str(ports[int(p[0])]), text)
            )

        return World(folder, {name: moved(config) for name, config in self.configs.items()}).altered(**fields)

    def _ports(self) -> list[int]:
        return [int((config.listen or "").rpartition(":")[2]) for config in self.configs.values()]

    def altered(self, *names: str, **fields: Any) -> "World":
        """Replace fields in the configurations of some members, or of all."""
        changed = {name: changed_config(self.configs[name], **fields) for name in names or self.configs}
        return replace(self, configs={**self.configs, **changed})

    def data(self, name: str) -> Path:
        """The data file of a party."""
        return Path(self.configs[name].required_kmeans.data or "")

    def run_folder(self, name: str) -> RunFolder:
        """The folder in which a party keeps its run."""
        return self.configs[name].run_folder

    def train(self) -> None:
        """Train in this process, each party in a thread, over real exchanges."""
        run_in_threads(run_train, self.parties)

    def start(
        self,
        name: str,
        strike: Strike | None = None,
        fields: Mapping[str, Any] | None = None,
        command: str = "train",
    ) -> CommandProcess:
        """Start a party as a process; `fields` go into its file unchecked."""
        return start_command(command, self.configs[name], self.folder, strike, fields)

    def train_until_killed(self, strike: Strike) -> None:
        """Train until every party is killed just before it writes a file.

        Who is killed first, by `strike`, may not have acknowledged the other's last messages. The other then waits for
        that, has written the file neither, and is killed as it waits.
        """
        running = [self.start(name, strike) for name in self.parties]
        wait([each.process.sentinel for each in running])
        for each in running:
            if exit_code(each.process, _MOMENT) is None:
                each.kill()
        assert {each.wait()[0] for each in running} == {-signal.SIGKILL}

    def train_as_processes(self, *names: str) -> dict[str, Ended]:
        """Train with a process for each party, started at once; only those named, if any are."""
        running = {name: self.start(name) for name in names or self.parties}
        return {name: each.wait() for name, each in running.items()}


def changed_config(config: JobConfig, **fields: Any) -> JobConfig:
    """Replace fields of a configuration; a mapping replaces fields within a section."""
    return JobConfig.model_validate(merged(config.model_dump(), fields))


def run_in_threads(job: Callable[[JobConfig], object], configs: Mapping[str, JobConfig]) -> list[Any]:
    """Run a job of all parties in this process; the first error is raised when all have ended."""
    return in_parallel([partial(job, config) for config in configs.values()])


# Making a world.
def make_world(folder: Path, data: Sequence[pa.Table | sp.csr_array], job: Mapping[str, Any], **settings: Any) -> World:
    """A party for each table or matrix, which is its data file, and dealt stores; `job` is what all agree on.

    `settings`: see `make_world_without_stores`.
    """
    world = make_world_without_stores(folder, data, job, **settings)
    deal_stores(world)
    return world


def make_world_without_stores(
    folder: Path,
    data: Sequence[pa.Table | sp.csr_array],
    job: Mapping[str, Any],
    kind: str = "gateway",
    beam: Mapping[str, Any] | None = None,
    ids: str | None = None,
    dealer: str | None = None,
    audit: Mapping[str, Any] | None = None,
    **triples: int,
) -> World:
    names = NAMES[: len(data)]
    rows, widths = ({name: part.shape[axis] for name, part in zip(names, data, strict=True)} for axis in (0, 1))
    widths = {name: width - (ids is not None) for name, width in widths.items()}
    vertical = job["layout"] == "vertical"
    shape = {"rows": rows[names[0]], "features": widths} if vertical else {"rows": rows, "features": widths[names[0]]}
    configs = make_configs(
        folder,
        len(data),
        kind,
        dealer,
        triples={"store": "store", **triples},
        beam=dict(beam or {}),
        audit=dict(audit or {}),
        kmeans={**shape, "tol": 0, "id": ids, **job},
    )
    for name, part in zip(names, data, strict=True):
        configs[name] = changed_config(configs[name], kmeans={"data": str(_write_data(folder / name, part))})
    return World(folder, configs)


def _write_data(folder: Path, part: pa.Table | sp.csr_array) -> Path:
    if isinstance(part, pa.Table):
        pq.write_table(part, folder / "data.parquet")
        return folder / "data.parquet"
    sp.save_npz(folder / "data.npz", part)
    return folder / "data.npz"


def deal_stores(world: World) -> None:
    """Make everyone's store: with ciphertexts by `veilmeans offline`, else directly."""
    if any("he" in engines for engines in requested_engines(world[NAMES[0]])):
        run_in_threads(run_offline, world.configs)
    else:
        deal_directly(world.parties)


def deal_directly(configs: Mapping[str, JobConfig], secret: bytes = b"dealer") -> None:
    """Make everyone's store as `veilmeans offline` does, without messages. The same secret makes the same store."""
    first = next(iter(configs.values()))
    jobs, triples = store_jobs(first), first.required_triples
    manifest = Manifest(triples.store, triples.runs, store_iterations(first), jobs.rows, jobs.digest())
    seeds = [prg.derive(secret, name) for name in configs]
    stores = [
        TripleStore.create(config.store_folder, manifest, seed)
        for config, seed in zip(configs.values(), seeds, strict=True)
    ]
    for number, iteration, shard in jobs.places(manifest.runs, manifest.iterations):
        where, needs = Address("", iteration, "", shard), jobs.of(number).needs(shard, iteration)
        dealt = deal_corrections(seeds, manifest.store, number, where, needs)
        for party, store in enumerate(stores):
            store.write_corrections(number, iteration, shard, dealt.get(party, {}))
    for config, store in zip(configs.values(), stores, strict=True):
        ClaimLedger.of(config.ledger_folder, store).begin()
        store.complete(jobs.numbers(manifest.runs))


def draw_secrets(config: JobConfig) -> None:
    """Draw a party's secrets of the store before it is made."""
    offline, engines = config.offline(), requested_engines(config)
    plan = traced_job(offline, engines)
    StoreMaking(offline, plan, manifest_of(offline, plan, engines)).secrets()


# Data.
CLUSTERS = 3


def blobs(rows: int, columns: int, seed: int = 4) -> Real:
    """Rows around three centroids far apart, in columns of very different scale; no value occurs twice."""
    rng = np.random.default_rng(seed)
    centroids = np.array([[0.1], [0.5], [0.9]]) + rng.uniform(-0.08, 0.08, (CLUSTERS, columns))
    rows_ = centroids[np.arange(rows) % CLUSTERS] + rng.normal(0, 0.03, (rows, columns))
    return rows_ * 10.0 ** np.arange(columns) - 3.0


def tables(data: Real, names: Sequence[str], cuts: Sequence[int], axis: int) -> list[pa.Table]:
    """Cut data into the parties' tables; axis 1: vertical."""
    parts = np.split(data, cuts, axis)
    columns = np.split(np.array(names), cuts) if axis else [np.array(names)] * len(parts)
    return [pa.table(dict(zip(of.tolist(), part.T, strict=True))) for part, of in zip(parts, columns, strict=True)]


# Two companies: few rows in several shards, a few iterations, with a dealer.
ROWS, HALF, ITERATIONS = 200, 120, 4
"""Rows of both; of them payco's, horizontally."""
FEATURES = {"payco": ("amount", "age"), "shop": ("visits", "spent")}
COMMON = ("amount", "visits")


def company_values(columns: int, rows: int = ROWS) -> Real:
    """Made-up values around a few centroids."""
    rng = np.random.default_rng(1)
    centroids = rng.uniform(-30, 30, (CLUSTERS + 1, columns))
    return centroids[rng.integers(0, len(centroids), rows)] + rng.normal(size=(rows, columns))


def two_companies(
    folder: Path, layout: str, rows: int = ROWS, half: int = HALF, beam: Mapping[str, Any] | None = None, **job: Any
) -> World:
    """Vertically each has its own columns and the same ids; horizontally the same columns of its own rows."""
    vertical = layout == "vertical"
    if vertical:
        table, ids = company_values(4, rows), {"id": np.arange(1000, 1000 + rows)}
        columns = {name: table[:, 2 * i : 2 * i + 2] for i, name in enumerate(BOTH)}
        data = [pa.table({**ids, **dict(zip(FEATURES[name], columns[name].T, strict=True))}) for name in BOTH]
    else:
        data = tables(company_values(2, rows), COMMON, [half], axis=0)
    agreed = {
        "layout": layout,
        "clusters": CLUSTERS,
        "max_iter": ITERATIONS,
        "normalise": {"aggregate": not vertical},
        "reveal": {"assignments": BOTH, "centroids": BOTH, "inertia": ["payco"]},
        "iterations_per_pipeline": 1,  # messages are dropped after each pipeline
        **job,
    }
    sharded = {"rows_per_shard": 120, **(beam or {})}
    return make_world(folder, data, agreed, beam=sharded, ids="id" if vertical else None, dealer=DEALER)


PLUS_PLUS = {"method": "k-means++"}


# Companies that use the engine he.
HE_ROWS, HE_WIDTHS, HE_ITERATIONS = 42, {"payco": 5, "shop": 3}, 2


def sparse_matrix() -> Real:
    """Mostly zeros, with a row and a column without a value, in clusters that do not overlap."""
    rng = np.random.default_rng(3)
    columns = sum(HE_WIDTHS.values())
    centroids = rng.uniform(0, 4, (CLUSTERS, columns)) * (rng.random((CLUSTERS, columns)) < 0.5)
    rows = centroids[rng.integers(0, CLUSTERS, HE_ROWS)] * rng.uniform(0.9, 1.1, (HE_ROWS, columns))
    rows[5], rows[:, 2] = 0, 0
    return rows


def he_by_columns(folder: Path) -> World:
    """Columns in .npz files; two columns make a column shard: the third has payco's last column and shop's first."""
    data = [sp.csr_array(part) for part in np.split(sparse_matrix(), [HE_WIDTHS["payco"]], axis=1)]
    job = {"layout": "vertical", "clusters": CLUSTERS, "max_iter": HE_ITERATIONS, "products": "he"}
    job["reveal"] = {"assignments": BOTH, "centroids": BOTH}
    beam = {"rows_per_shard": 20, "values_per_column_shard": 2 * CLUSTERS}
    return make_world(folder, data, job, beam=beam, dealer=DEALER)


def he_by_rows(folder: Path) -> World:
    """Rows in Parquet files, on a joint scale; one column makes a column shard."""
    beam = {"rows_per_shard": 17, "values_per_column_shard": CLUSTERS}
    return two_companies(folder, "horizontal", 60, 34, beam, max_iter=HE_ITERATIONS, products="he", init=PLUS_PLUS)


# Parties that die.
def restarted(world: World, name: str, strikes: Sequence[Strike], command: str = "train") -> list[Ended]:
    """Start a party again and again, with the next strike each time, then undisturbed; return how each start ended."""
    return [world.start(name, strike, command=command).wait() for strike in [*strikes, None]]


def train_under_strikes(world: World, strikes: Mapping[str, Sequence[Strike]]) -> None:
    """Train while each party dies at its strikes and is restarted, whatever the other does meanwhile."""
    under_strikes(world, strikes, "train")


def under_strikes(world: World, strikes: Mapping[str, Sequence[Strike]], command: str) -> None:
    """Run a command at both parties, while each dies at its strikes and is restarted."""
    with ThreadPoolExecutor(2) as pool:
        each = pool.map(lambda name: restarted(world, name, strikes.get(name, ()), command), BOTH)
        ended = dict(zip(BOTH, each, strict=True))
    for name, ends in ended.items():
        codes = [code for code, _ in ends]
        assert codes == [-signal.SIGKILL] * len(strikes.get(name, ())) + [0], (name, codes, ended)
