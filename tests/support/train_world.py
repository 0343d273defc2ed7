"""Worlds for `veilmeans train`: two companies with keys, data and a store, to be copied, disturbed and trained in.

A copy of a world has the same keys, seeds, data and store: its shares are those of any other copy, bit for bit.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import yaml

from support.commands import Line, _run, run_all
from support.fault_injection import PATIENCE, files_below, in_a_process
from support.parties import make_configs, write_config
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import VALUES_PER_COLUMN_SHARD

ROWS, CLUSTERS, ITERATIONS, ROWS_PER_SHARD = 200, 3, 4, 120
HALF = 120
"""Horizontally, payco's rows."""
DEALER = "notary"
BOTH = ("payco", "shop")
FEATURES = {"payco": ("amount", "age"), "shop": ("visits", "spent")}
COMMON = ("amount", "visits")
RANGES = {name: [-50.0, 50.0] for name in COMMON}
Ended = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class World:
    """A folder with all that the members of a run have; `configs` names the dealer, too."""

    folder: Path
    configs: Mapping[str, JobConfig]
    cells: int = VALUES_PER_COLUMN_SHARD
    """Values in a shard of columns, for all processes of this world."""

    def copied(self, folder: Path, **fields: Any) -> "World":
        """The same world elsewhere; `fields` replace those of every configuration, parts of it field by field."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return replace(self, folder=folder, configs=self._moved(folder)).altered(**fields)

    def altered(self, *names: str, **fields: Any) -> "World":
        """With other fields in the configurations of some members, or of all."""
        changed = {name: changed_config(self.configs[name], fields) for name in names or self.configs}
        return replace(self, configs={**self.configs, **changed})

    def data(self, name: str) -> Path:
        return self.folder / name / "data.parquet"

    def kept(self, name: str) -> Path:
        """What a party keeps of the run."""
        return self.configs[name].run_folder

    @property
    def values(self) -> pa.Table:
        """All that both have."""
        return pa.table(
            {str(i): column for i, column in enumerate(values(4).T)} | {"4": values(2)[:, 0], "5": values(2)[:, 1]}
        )

    def start(self, name: str, strike: "Strike | None" = None, fields: Mapping[str, Any] | None = None) -> "Training":
        """`fields` go into the file as they are, right or wrong."""
        return Training(self.configs[name], self.folder, strike, fields or {}, self.cells)

    def train(self, *names: str) -> Ended:
        """Exit code and output of parties that start at once; of all of them, if none is named."""
        running = {name: self.start(name) for name in names or BOTH}
        return {name: each.wait() for name, each in running.items()}

    def _moved(self, folder: Path) -> dict[str, JobConfig]:
        return {
            name: JobConfig.model_validate_json(config.model_dump_json().replace(f"{self.folder}/", f"{folder}/"))
            for name, config in self.configs.items()
        }


def changed_config(config: JobConfig, fields: Mapping[str, Any]) -> JobConfig:
    """The configuration with some fields replaced; a mapping replaces fields within a part."""
    return JobConfig.model_validate(merged(config.model_dump(), fields))


def merged(old: Any, new: Any) -> Any:
    if not isinstance(new, Mapping) or not isinstance(old, dict):
        return new
    return {**old, **{name: merged(old.get(name), value) for name, value in new.items()}}


def make_world(folder: Path, layout: str, cells: int = VALUES_PER_COLUMN_SHARD, **job: Any) -> World:
    """A world for a few iterations over few rows in several shards, with its store."""
    vertical = layout == "vertical"
    shapes: dict[str, Any] = {"rows": ROWS, "features": {name: len(FEATURES[name]) for name in BOTH}}
    if not vertical:
        shapes = {"rows": {"payco": HALF, "shop": ROWS - HALF}, "features": len(COMMON)}
        shapes["normalise"] = {"aggregate": True}
    reveal = {"assignments": BOTH, "centroids": BOTH, "inertia": ["payco"]}
    kmeans = {"layout": layout, "clusters": CLUSTERS, "max_iter": ITERATIONS, "tol": 0, "reveal": reveal, **shapes}
    kmeans["iterations_per_pipeline"] = 1  # messages are dropped after each pipeline
    configs = make_configs(
        folder,
        dealer=DEALER,
        triples={"store": "store"},
        engine={"rows_per_shard": ROWS_PER_SHARD},
        kmeans={**kmeans, "id": "id" if vertical else None, **job},
    )
    world = World(folder, {name: _with_data(config, folder, name) for name, config in configs.items()}, cells)
    write_data(world, vertical)
    made = run_all("offline", world.configs, folder, cells)
    assert {code for code, _ in made.values()} == {0}, made
    return world


def _with_data(config: JobConfig, folder: Path, name: str) -> JobConfig:
    if name == DEALER:
        return config
    return changed_config(config, {"kmeans": {"data": str(folder / name / "data.parquet")}})


def values(columns: int, seed: int = 1) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Made-up values (rows × columns) around a few centres."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-30, 30, (CLUSTERS + 1, columns))
    return centres[rng.integers(0, len(centres), ROWS)] + rng.normal(size=(ROWS, columns))


def write_data(world: World, vertical: bool) -> None:
    """Vertically each has its own columns and the same ids; horizontally the same columns of its own rows."""
    if vertical:
        table = values(4)
        ids = np.arange(1000, 1000 + ROWS)
        for i, name in enumerate(BOTH):
            columns = dict(zip(FEATURES[name], table[:, 2 * i : 2 * i + 2].T, strict=True))
            pa.parquet.write_table(pa.table({"id": ids, **columns}), world.data(name))
        return
    table = values(2)
    for name, rows in zip(BOTH, (table[:HALF], table[HALF:]), strict=True):
        pa.parquet.write_table(pa.table(dict(zip(COMMON, rows.T, strict=True))), world.data(name))


# Processes that die.
@dataclass(frozen=True)
class Strike:
    """When a process ends itself with SIGKILL: as it is about to make its `number`-th change of a file or folder.

    Only changes whose path has `what` in it count, and only those that `event` audits. With an `error`, the process
    lives, and this change and all later ones of the kind fail so.
    """

    what: str = ""
    number: int = 1
    event: str = ""
    error: int | None = None

    def counts(self, event: str, details: tuple[Any, ...]) -> bool:
        known = event == self.event if self.event else event in _CHANGES
        return known and self.what in _path(event, details)


_CHANGES = {"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
"""All that lasts appears, moves or goes by one of these. (`os.replace` is audited as a rename.)"""


class Training(Line):
    """`veilmeans train` of one party as a process, which may have to die.

    Threads take turns: whoever starts a process also reads how the others have ended.
    """

    _turn = threading.Lock()

    def __init__(
        self, config: JobConfig, folder: Path, strike: Strike | None, fields: Mapping[str, Any], cells: int
    ) -> None:
        file = write_config(config, folder / f"{config.party}.yaml")
        if fields:
            file.write_text(yaml.safe_dump(merged(yaml.safe_load(file.read_text()), fields)))
        self.log = folder / f"{config.party}-{time.monotonic_ns()}.log"
        with self._turn:
            self.process = in_a_process(_train, ["train", "--config", str(file)], self.log, strike, cells)

    def kill(self) -> None:
        with self._turn:
            super().kill()

    def wait(self) -> tuple[int, str]:
        connection.wait([self.process.sentinel], PATIENCE)
        with self._turn:
            self.process.join(0)
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f"still running after {PATIENCE:g} s: {self.log.read_text()}")
        return self.process.exitcode, self.log.read_text() if self.log.exists() else ""


def _train(arguments: list[str], log: Path, strike: Strike | None, cells: int) -> None:
    seen = 0

    def watch(event: str, details: tuple[Any, ...]) -> None:
        nonlocal seen
        if strike is None or not strike.counts(event, details):
            return
        seen += 1
        if seen >= strike.number:
            if strike.error is not None:
                raise OSError(strike.error, os.strerror(strike.error))
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    _run(arguments, log, None, cells)


def _path(event: str, details: tuple[Any, ...]) -> str:
    """What appears or goes: a rename or a link names it second."""
    return str(details[1 if event in ("os.rename", "os.link") else 0])


def restarted(world: World, name: str, strikes: Sequence[Strike]) -> list[tuple[int, str]]:
    """Start a party again and again, with the next strike each time, then in peace; how each start has ended."""
    return [world.start(name, strike).wait() for strike in [*strikes, None]]


def play(world: World, strikes: Mapping[str, Sequence[Strike]]) -> None:
    """A run in which each party dies at its strikes and is started again, whatever the other does meanwhile."""
    with ThreadPoolExecutor(2) as pool:
        ended = dict(zip(BOTH, pool.map(lambda name: restarted(world, name, strikes.get(name, ())), BOTH), strict=True))
    for name, ends in ended.items():
        codes = [code for code, _ in ends]
        assert codes == [-signal.SIGKILL] * len(strikes.get(name, ())) + [0], (name, codes, ended)


# What is left in the end.
def shares(world: World) -> dict[str, bytes]:
    """The last checkpoint, centroids and assignments of both parties, as they lie on disk."""
    found = {}
    for name in BOTH:
        kept = world.kept(name)
        done = max(int(file.stem) for file in (kept / "checkpoints").glob("*.arrow"))
        files = [kept / f"checkpoints/{done}.arrow"]
        files += [file for kind in ("centres", "assignments") for file in (kept / f"{kind}/{done}").glob("*.arrow")]
        found |= {f"{name}/{file.relative_to(kept)}": file.read_bytes() for file in files}
    return found


def results(world: World) -> dict[str, list[dict[str, Any]]]:
    """What each party was told, row by row."""
    files = [world.kept(name) / table for name in BOTH for table in ("assignments.parquet", "centroids.parquet")]
    return {str(file.relative_to(world.folder)): pa.parquet.read_table(file).to_pylist() for file in files}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def sentences(output: str) -> list[str]:
    """The lines in which a command says why it ends."""
    return [line.removeprefix("error: ") for line in output.splitlines() if line.startswith("error: ")]


def tells_values(output: str, table: pa.Table) -> Iterator[str]:
    """The numbers of a table that occur in a text, to five digits."""
    for column in table.columns:
        for value in column.to_pylist():
            if isinstance(value, float) and f"{value:.5g}" in output:
                yield f"{value:.5g}"
