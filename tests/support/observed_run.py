"""Runs in which no party drops a message, a state or a share: everything that it ever had on disk can be read.

From all parties' shares together, the tests know what is hidden from each: values, centroids, distances, assignments,
sums and counts of every iteration.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.commands import redirect_output
from support.fault_injection import PATIENCE, exit_code, start_process
from support.leak_search import CLUSTERS, Evidence, Secrets, evidence_of, related_forms
from support.parties import NAMES, write_config
from support.run_results import data_layout, opened_labels, opened_weights, read_checkpoint
from support.worlds import World, make_world
from veilmeans.crypto import bits, ring
from veilmeans.io.exchange.file_exchange import FileExchange
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.storage.checkpoints import Checkpoints
from veilmeans.io.storage.encoded_shards import complete_folders, load_encoded_data, read_rows
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.kmeans_config import REVEALED
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.statistics.outliers import Outliers

ROWS, ITERATIONS, ROWS_PER_SHARD = 320, 2, 128


@dataclass(frozen=True)
class Scenario:
    """A kind of run to observe."""

    parties: int
    vertical: bool
    kind: str
    rounds: str
    normalise: Mapping[str, Any]
    reveal: Mapping[str, Any]
    values_per_column_shard: int = 1 << 18
    outliers: Mapping[str, Any] | None = None
    init: str = "indices"

    def make(self, folder: Path) -> World:
        job = {
            "layout": "vertical" if self.vertical else "horizontal",
            "clusters": CLUSTERS,
            "max_iter": ITERATIONS,
            "tol": 1e-9,
            "normalise": self.normalise,
            "init": {"seed": 5, "method": self.init},
            "reveal": self.reveal,
            "outliers": self.outliers,
        }
        beam = {"rows_per_shard": ROWS_PER_SHARD, "rounds": self.rounds, "state": "scratch"}
        beam["values_per_column_shard"] = self.values_per_column_shard
        return make_world(folder, income_tables(self.parties, self.vertical), job, kind=self.kind, beam=beam)

    def may_know(self, party: str, result: str) -> bool:
        return party in self.reveal.get(result, ())


def income_tables(parties: int, vertical: bool) -> list[pa.Table]:
    """Values of many digits, none of which occurs twice, in clusters that overlap."""
    rng = np.random.default_rng(11)
    centroids = rng.uniform(3e4, 9e4, (CLUSTERS, 6))
    rows = centroids[rng.integers(0, CLUSTERS, ROWS)] + rng.normal(0, 9e3, (ROWS, 6))
    if vertical:
        cuts = {2: [2], 3: [1, 3]}[parties]
        columns = np.split(np.arange(6), cuts)
        return [pa.table({f"income_{i}_of_last_year": rows[:, i] for i in part}) for part in columns]
    cuts = {2: [128], 3: [64, 128]}[parties]
    return [pa.table({f"income_{i}": part[:, i] for i in range(3)}) for part in np.split(rows, cuts)]


def train_and_keep_everything(world: World) -> None:
    """Train with a process for each party that drops nothing and logs everything."""
    processes = {}
    for name, config in world.parties.items():
        file = write_config(config, world.folder / name / "config.yaml")
        processes[name] = start_process(_train_and_keep_everything, file, world.folder / name / "log")
    for process in processes.values():
        if exit_code(process, PATIENCE) is None:
            process.kill()
    logs = {name: (world.folder / name / "log").read_text() for name in processes}
    assert {name: process.exitcode for name, process in processes.items()} == dict.fromkeys(processes, 0), logs


def _train_and_keep_everything(file: Path, log: Path) -> None:
    from veilmeans.pipelines.cli.main import main

    redirect_output(log)
    os.environ["VEILMEANS_DEBUG"] = "1"
    for kind, method in DROPPING:
        setattr(kind, method, lambda *_, **__: 0)
    sys.argv = ["veilmeans", "-v", "train", "--config", str(file)]
    main()


DROPPING = (
    (MessageStore, "drop_messages"), (FileExchange, "drop_messages"), (Checkpoints, "drop"), (Scratch, "drop"),
    (Scratch, "clear"), (Checkpoints, "drop_all_but"), (Checkpoints, "drop_old"), (TripleStore, "forget"),
)  # fmt: skip


@dataclass(frozen=True)
class ObservedRun:
    """A finished run in which nothing was dropped. Everyone's secrets can be put together here."""

    scenario: Scenario
    world: World
    _computed: dict[str, Any] = field(default_factory=dict)

    @property
    def parties(self) -> list[str]:
        return list(self.world.parties)

    @property
    def steps(self) -> KMeansSteps:
        return kmeans_steps(self.world[NAMES[0]])

    def evidence(self, party: str) -> Evidence:
        """Everything that a party has."""
        if party not in self._computed:
            self._computed[party] = evidence_of(self.world[party], self.world.folder)
        return self._computed[party]

    def allowed_places(self, party: str) -> list[str]:
        """Patterns of the places where the reveal policy puts what this party may know."""
        may = {result: self.scenario.may_know(party, result) for result in REVEALED}
        files = ["/opened/", "/assignments.parquet"] if may["assignments"] else []
        files += ["/opened-scores/"] if may["scores"] or may["outliers"] else []
        files += ["/opened-explanations/"] if may["explanations"] else []
        written = ("centroids", "scores", "outliers", "explanations", "profiles")
        files += [f"/{result}.parquet" for result in written if may[result]]
        if may["centroids"] and self.scenario.reveal.get("columns") == "all":
            files += [r"message .*reveal-centroids.*: (shift|factor|names): "]
        return files + (["/result.json"] if may["inertia"] else [])

    def values(self, party: str) -> Array:
        """A party's normalised rows as ring elements."""
        folders = complete_folders(self.world[party].storage_folder.prepared)
        (prepared,) = filter(None, (load_encoded_data(each.path) for each in folders))
        return np.concatenate([read_rows(prepared.folder, i).toarray() for i in range(prepared.shards)])

    def raw(self, party: str) -> Array:
        """A party's rows as they are in its data file."""
        table = pq.read_table(self.world.data(party))
        return np.column_stack([column.to_numpy() for column in table.columns])

    def secrets(self, *parties: str) -> Secrets:
        """The values and texts that must be hidden from these parties, even if they pool what they have."""
        key = f"secrets {parties}"
        if key not in self._computed:
            self._computed[key] = self._secrets(*parties)
        return self._computed[key]

    def _secrets(self, *parties: str) -> Secrets:
        others = [name for name in self.parties if name not in parties]
        theirs = [form for name in others for form in related_forms(self.values(name))]
        own = [form for name in parties for form in related_forms(self.values(name))]
        public = np.array([0, 1, 2, 1 << 20, 1 << 21, *self._rows_of_shards()], np.uint64)
        known = np.concatenate([*own, *self._own_seed_norms(parties), public, -public])
        words = np.setdiff1d(np.concatenate([*theirs, *self.intermediates()]), known)
        reals = np.concatenate([self.raw(name).reshape(-1) for name in others])
        if self.scenario.normalise.get("aggregate"):  # a column's extremes are opened to all
            every = np.concatenate([self.raw(name) for name in self.parties])
            reals = np.setdiff1d(reals, [every.min(axis=0), every.max(axis=0)])
        normal = np.concatenate([self.values(name).reshape(-1) for name in others]).view(np.int64) / 2**20
        reals = np.concatenate([reals, np.setdiff1d(normal, [0, 1])])
        texts = [text for name in others for text in self._texts(name)]
        return Secrets(words, reals, [label for labels in self.labels() for label in labels], texts)

    def _rows_of_shards(self) -> list[int]:
        """The number of rows of each row shard: public, and part of a shard's state."""
        return [each.shape.rows for each in data_layout(self.world[NAMES[0]]).row_shards()]

    def _texts(self, party: str) -> Iterator[bytes]:
        """Names of a party's own columns, the path of its data, and its keys."""
        yield f"{party}/data.parquet".encode()
        if self.scenario.vertical:
            yield from (name.encode() for name in pq.read_schema(self.world.data(party)).names)
        yield from self.keys(party)

    def keys(self, party: str) -> Iterator[bytes]:
        """Parts of a party's secret files, as bytes and in hexadecimal."""
        config = self.world[party]
        for file in (config.seed, config.store_folder.file_key, config.key):
            content = file.read_bytes()
            middle = content[len(content) // 2 :][:24]
            yield from (middle, middle.hex().encode())

    def labels(self) -> list[list[Array]]:
        """For each iteration, the clusters of each row shard's rows; last those by the final centroids."""
        if "labels" not in self._computed:
            done = range(1, ITERATIONS + 2)
            self._computed["labels"] = [opened_labels(self.world.parties, iterations) for iterations in done]
        return self._computed["labels"]

    def opened(self, name: str, iterations: int) -> Array:
        """Open an array of the checkpoint after so many iterations from everyone's shares."""
        return ring.total([read_checkpoint(config, iterations)[name] for config in self.world.parties.values()])

    def rows(self) -> Array:
        """Everyone's rows and columns as ring elements."""
        return np.concatenate([self.values(name) for name in self.parties], axis=1 if self.scenario.vertical else 0)

    def distances(self, iterations: int = 0) -> Array:
        """D' (k × n) of the iteration after so many."""
        mu = self.opened("mu", iterations)
        return norms(mu)[:, None] - np.uint64(2) * (mu @ self.rows().T)

    def scores(self, iterations: int) -> Array:
        """|x − μ|² of each row to its own centroid after so many iterations."""
        x, labels = self.rows(), np.concatenate(self.labels()[iterations])
        return self.distances(iterations)[labels, np.arange(ROWS)] + norms(x)

    def search_values(self, iterations: int) -> dict[str, Array]:
        """What the search for outliers computes: bits of scores, counts at each candidate of the threshold, and it."""
        search = self.steps.outliers or Outliers(ROWS // 16, 44, ROWS.bit_length())
        scores = self.scores(iterations) >> np.uint64(search.score_bits - search.search.width)
        threshold, counts = 0, []
        for bit in reversed(range(search.search.width)):
            counts.append(int((scores >= threshold + (1 << bit)).sum()))
            threshold += (counts[-1] >= search.count) << bit
        values = {
            "bits": scores,
            "counts": counts,
            "threshold": [threshold],
            "outliers": bits.pack(scores >= threshold),
        }
        return {name: np.asarray(array, np.uint64) for name, array in values.items()}

    def intermediates(self) -> list[Array]:
        """Everything that a run computes on the way, in the clear."""
        if "intermediates" not in self._computed:
            self._computed["intermediates"] = [array.reshape(-1) for array in self._intermediates()]
        return self._computed["intermediates"]

    def _intermediates(self) -> Iterator[Array]:
        x = self.rows()
        starts = np.cumsum([0, *self._rows_of_shards()])
        for iterations in range(ITERATIONS + 1):
            mu = self.opened("mu", iterations)
            yield from (*related_forms(mu), norms(mu))
            scores, shown = self.scores(iterations), self.scores(iterations) >> np.uint64(20)
            yield from (*related_forms(scores), shown, shown + np.uint64(1), *self.search_values(iterations).values())
        if self.steps.seeding is not None:
            yield from self._weights(x)
        for iterations, labels in enumerate(self.labels()):
            distances = self.distances(iterations)
            assert (distances.view(np.int64).argmin(axis=0) == np.concatenate(labels)).mean() > 0.99
            yield distances
            yield from self._differences(distances)
            hot = (np.concatenate(labels) == np.arange(CLUSTERS)[:, None]).astype(np.uint64)
            for start, end in [(0, ROWS), *pairwise(starts)]:
                yield hot[:, start:end] @ x[start:end]
                yield hot[:, start:end].sum(axis=1, dtype=np.uint64)

    def _own_seed_norms(self, parties: Iterable[str]) -> Iterator[Array]:
        """|μ|² of those centroids that k-means++ chose among these parties' own rows: they keep |x|² of all of them."""
        if self.steps.seeding is not None and not self.scenario.vertical:
            rows = np.concatenate([self.values(name) for name in parties])
            yield from (norms(each[None]) for each in self.opened("mu", 0) if (rows == each).all(axis=1).any())

    def _weights(self, x: Array) -> Iterator[Array]:
        """Squared distances to each centroid that k-means++ chose, the rows' weights, and their prefix sums."""
        mu = self.opened("mu", 0)
        for number in range(1, CLUSTERS):
            distances = ((x - mu[number - 1]) ** np.uint64(2)).sum(axis=1, dtype=np.uint64)
            weights = opened_weights(self.world.parties, number)
            assert np.all(weights <= (distances >> np.uint64(self.steps.seeding.shift)) + np.uint64(1))
            large = distances > 2**30  # a small weight, such as 0 and 1, is any number
            yield from (distances[large], weights[weights > 2**16], np.cumsum(weights)[weights > 2**16])

    def _differences(self, distances: Array) -> Iterator[Array]:
        """Differences of each pair of clusters' distances; also as comparisons cut them, two neighbours in a word."""
        for i, j in combinations(range(CLUSTERS), 2):
            difference = distances[i] - distances[j]
            yield from (difference, -difference)
            short = (difference >> np.uint64(self.steps.assignment.drop)).astype(np.uint32)
            yield from (short.view(np.uint64), short[1:-1].view(np.uint64), bits.to_planes(short, 32))


def norms(mu: Array) -> Array:
    """|μ_j|² of all centroids."""
    return ring.total(list((mu * mu).T))
