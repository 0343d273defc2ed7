"""All that a party receives, keeps and prints during K-means, and what of the others' secrets is in it: nothing.

Real runs, each party a process with its log turned up, that drops no message, no state and no share: so everything
that it ever had on disk is there to be read. From all parties' shares together the tests know what was hidden: values,
centroids, distances, positions, sums and counts of every iteration. None of it may be in what one party has, but for
what the reveal policy names, in the files that it names.
"""

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaos import PATIENCE, in_a_process
from parties import NAMES, write_config
from test_protocols import LIMIT, chi_square
from test_reveal import Configs, changed, checkpoint, keep_messages, labels_of, layout, make_world, received, train
from veilmeans.crypto import bits, ring
from veilmeans.io.checkpoints import Checkpoints
from veilmeans.io.file_exchange import FileExchange
from veilmeans.io.prepare import load_prepared, read_rows
from veilmeans.io.scratch import Scratch
from veilmeans.io.spool import Spool
from veilmeans.pipelines.jobs import job_plan, kmeans_of
from veilmeans.schemas.arrays import Array, from_stream
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import Key
from veilmeans.transforms.open_result import Policy, open_assignments, open_centres
from veilmeans.transforms.statistics import extremes

A, B, C = NAMES[:3]
ROWS, CLUSTERS, ITERATIONS, SHARD = 320, 3, 2, 64
CONTROL = ("handshake", "triples", "checkpoint", "farewell")
"""Stages whose messages say only that, or on which terms, a party takes part."""


@dataclass(frozen=True)
class Scene:
    """A run to look at."""

    parties: int
    vertical: bool
    kind: str
    rounds: str
    normalise: Mapping[str, Any]
    reveal: Mapping[str, Any]

    def make(self, folder: Path) -> Configs:
        job = {
            "layout": "vertical" if self.vertical else "horizontal",
            "clusters": CLUSTERS,
            "max_iter": ITERATIONS,
            "tol": 1e-9,
            "normalise": self.normalise,
            "init": {"seed": 5},
            "reveal": self.reveal,
        }
        engine = {"rows_per_shard": SHARD, "rounds": self.rounds, "state": "scratch"}
        return make_world(folder, parts(self.parties, self.vertical), job, self.kind, engine)

    def may_know(self, party: str, what: str) -> bool:
        return party in self.reveal.get(what, ())


def parts(parties: int, vertical: bool, seed: int = 11) -> list[pa.Table]:
    """Values of many digits, no two alike, in clusters that overlap; nothing else in a run looks like them."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(3e4, 9e4, (CLUSTERS, 6))
    rows = centres[rng.integers(0, CLUSTERS, ROWS)] + rng.normal(0, 9e3, (ROWS, 6))
    if vertical:
        cuts = {2: [2], 3: [1, 3]}[parties]
        columns = np.split(np.arange(6), cuts)
        return [pa.table({f"c{i}": rows[:, i] for i in part}) for part in columns]
    cuts = {2: [128], 3: [64, 192]}[parties]
    return [pa.table({f"c{i}": part[:, i] for i in range(3)}) for part in np.split(rows, cuts)]


SCENES = {
    "vertical, stage by stage": Scene(
        2, True, "gateway", "stages", {}, {"assignments": [A], "centroids": [B], "inertia": [A]}
    ),
    "vertical, three parties, by files": Scene(
        3, True, "files", "whole", {"method": "zscore"}, {"centroids": [C], "columns": "all", "inertia": [B]}
    ),
    "horizontal, by files": Scene(
        2, False, "files", "stages", {"aggregate": True, "method": "zscore"}, {"assignments": [A, B]}
    ),
    "horizontal, three parties": Scene(3, False, "gateway", "whole", {"aggregate": True}, {"centroids": [A, B]}),
}


@pytest.fixture(scope="module", params=SCENES.values(), ids=SCENES.keys())
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Played":
    """A run that has ended, with all that was ever written."""
    folder = tmp_path_factory.mktemp("leaks")
    configs = request.param.make(folder)
    run_watched(configs, folder)
    return Played(request.param, configs, folder)


def run_watched(configs: Mapping[str, JobConfig], folder: Path) -> None:
    """Every party as a process that forgets nothing."""
    processes = []
    for name, config in configs.items():
        file = write_config(config, folder / name / "config.yaml")
        processes.append(in_a_process(_train_and_forget_nothing, file, folder / name / "log"))
    for process in processes:
        process.join(2 * PATIENCE)
        if process.exitcode is None:
            process.kill()
    said = {name: (folder / name / "log").read_text() for name in configs}
    assert [process.exitcode for process in processes] == [0] * len(processes), said


def _train_and_forget_nothing(file: Path, log: Path) -> None:
    from veilmeans.pipelines.cli import main

    output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.getLogger().handlers.clear()
    os.environ["VEILMEANS_DEBUG"] = "1"
    for kind, method in FORGETTING:
        setattr(kind, method, lambda *_, **__: 0)
    sys.argv = ["veilmeans", "-v", "train", "--config", str(file)]
    main()


FORGETTING = (
    (Spool, "collect"), (FileExchange, "collect"), (Checkpoints, "drop_assignments"), (Scratch, "drop"),
    (Scratch, "clear"),
)  # fmt: skip


# What a party has.


@dataclass(frozen=True)
class Evidence:
    """Every array that can be read out of a party's messages and files, and every file as it is."""

    arrays: Sequence[tuple[str, Array]]
    files: Sequence[tuple[str, bytes]]

    def without(self, *endings: str) -> "Evidence":
        """The same less the files of these names."""

        def stays(where: str) -> bool:
            return not any(re.search(ending, where) for ending in endings)

        return Evidence(
            [each for each in self.arrays if stays(each[0])], [each for each in self.files if stays(each[0])]
        )

    def having(self, where: str, content: Array | bytes) -> "Evidence":
        """The same and one thing more."""
        if isinstance(content, bytes):
            return replace(self, files=[*self.files, (where, content)])
        return replace(self, arrays=[*self.arrays, (where, content)])


def evidence_of(config: JobConfig, folder: Path) -> Evidence:
    """All that `config`'s party has."""
    files = [path for path in sorted((folder / config.party).rglob("*")) if path.is_file()]
    raw = [(str(path.relative_to(folder)), path.read_bytes()) for path in files]
    arrays = [(f"{where}: {name}", array) for where, data in raw for name, array in _arrays_in(where, data)]
    for key, message in received(config):
        arrays += [(f"message {key}: {name}", array) for name, array in message.items()]
    return Evidence(arrays, raw)


def _arrays_in(where: str, data: bytes) -> Iterator[tuple[str, Array]]:
    if where.endswith(".parquet"):
        table = pq.read_table(pa.BufferReader(data))
        yield from ((name, table[name].to_numpy()) for name in table.column_names)
    if where.endswith(".arrow") and "ids" not in Path(where).name:
        tagged = any(f"/{kind}/" in where for kind in ("checkpoints", "assignments", "operands", "opened"))
        arrays = from_stream(pa.py_buffer(data[64 if tagged else 0 :]))
        yield from ((name, array) for name, array in arrays.items() if name not in ("indptr", "indices", "shape"))


# What is hidden.


@dataclass(frozen=True)
class Secrets:
    """What a party must not have: ring elements, real numbers, positions; and what it knows anyway."""

    words: Array
    reals: Array
    labels: Sequence[Array]

    @cached_property
    def wide(self) -> Array:
        """Eight bytes that mean something wherever they stand: no small numbers."""
        shifted = (self.words + np.uint64(1 << 23)) >= np.uint64(1 << 24)
        return np.unique(np.concatenate([self.words[shifted], self.reals.view(np.uint64), *self._packed()]))

    def _packed(self) -> Iterator[Array]:
        """Positions as packed bits, eight bytes at each place; either way round, in our order and in numpy's."""
        for labels in self.labels:
            hot = (labels == np.arange(CLUSTERS)[:, None]).astype(np.uint8)
            ours = [*bits.pack_rows(hot), *np.packbits(hot, axis=1), *np.packbits(hot, axis=1, bitorder="little")]
            for row in (*ours, *(~each for each in ours)):
                found = windows(row.tobytes())
                yield found[~np.isin(found, [0, 2**64 - 1])]


def windows(data: bytes) -> Array:
    """The eight bytes at each place, as words."""
    parts = [np.frombuffer(data[i : i + (len(data) - i) // 8 * 8], np.uint64) for i in range(min(8, len(data)))]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def forms(values: Array) -> list[Array]:
    """x, −x, 2x, −2x."""
    flat = values.reshape(-1)
    return [flat, -flat, flat << np.uint64(1), -(flat << np.uint64(1))]


@dataclass(frozen=True)
class Played:
    """A run that has ended. From here everyone's secrets can be put together."""

    scene: Scene
    configs: Configs
    folder: Path
    _kept: dict[str, Any] = field(default_factory=dict)

    def evidence(self, party: str) -> Evidence:
        return self._kept.setdefault(party, evidence_of(self.configs[party], self.folder))

    def named(self, party: str) -> list[str]:
        """Where the policy puts what this party may know; patterns."""
        may = {what: self.scene.may_know(party, what) for what in ("assignments", "centroids", "inertia")}
        files = ["/opened/", "/assignments.parquet"] if may["assignments"] else []
        files += ["/centroids.parquet"] if may["centroids"] else []
        return files + (["/result.json"] if may["inertia"] else [])

    def values(self, party: str) -> Array:
        """A party's normalised rows as ring elements."""
        folders = [load_prepared(each) for each in (self.configs[party].storage / "prepared").glob("prepared-*")]
        (prepared,) = filter(None, folders)
        return np.concatenate([read_rows(prepared.folder, i).toarray() for i in range(prepared.shards)])

    def raw(self, party: str) -> Array:
        table = pq.read_table(self.folder / party / "data.parquet")
        return np.column_stack([column.to_numpy() for column in table.columns])

    def secrets(self, *party: str) -> Secrets:
        """What these parties together must not know."""
        others = [name for name in self.configs if name not in party]
        theirs = [form for name in others for form in forms(self.values(name))]
        own = [form for name in party for form in forms(self.values(name))]
        public = np.array([0, 1, 2, 1 << 20, 1 << 21], np.uint64)
        known = np.concatenate([*own, public, -public])
        words = np.setdiff1d(np.concatenate([*theirs, *self.intermediates()]), known)
        reals = np.concatenate([self.raw(name).reshape(-1) for name in others])
        if self.scene.normalise.get("aggregate"):  # the ends of a column are opened to all
            every = np.concatenate([self.raw(name) for name in self.configs])
            reals = np.setdiff1d(reals, [every.min(axis=0), every.max(axis=0)])
        normal = np.concatenate([self.values(name).reshape(-1) for name in others]).view(np.int64) / 2**20
        reals = np.concatenate([reals, np.setdiff1d(normal, [0, 1])])
        return Secrets(words, reals, [label for labels in self.labels() for label in labels])

    def labels(self) -> list[list[Array]]:
        """For each iteration, the clusters of each shard's rows."""
        if "labels" not in self._kept:
            self._kept["labels"] = [labels_of(self.configs, done) for done in range(1, ITERATIONS + 1)]
        return self._kept["labels"]

    def shared(self, name: str, done: int) -> Array:
        """What everyone's shares in a checkpoint add up to."""
        return ring.total([checkpoint(config, done)[name] for config in self.configs.values()])

    def intermediates(self) -> list[Array]:
        """Everything that a run computes on the way, in the clear."""
        if "intermediates" not in self._kept:
            self._kept["intermediates"] = [array.reshape(-1) for array in self._intermediates()]
        return self._kept["intermediates"]

    def _intermediates(self) -> Iterator[Array]:
        x = np.concatenate([self.values(name) for name in self.configs], axis=1 if self.scene.vertical else 0)
        starts = np.cumsum([0, *(place.block.rows for place in layout(self.configs[A]).places())])
        for done in range(ITERATIONS + 1):
            mu, u = self.shared("mu", done), self.shared("u", done)
            yield from (*forms(mu), u)
            np.testing.assert_array_equal(u, ring.total(list((mu * mu).T)))
        for done, labels in enumerate(self.labels()):
            mu, u = self.shared("mu", done), self.shared("u", done)
            distances = u[:, None] - np.uint64(2) * (mu @ x.T)
            assert (distances.view(np.int64).argmin(axis=0) == np.concatenate(labels)).mean() > 0.99
            yield distances
            yield from self._differences(distances)
            hot = (np.concatenate(labels) == np.arange(CLUSTERS)[:, None]).astype(np.uint64)
            for start, end in [(0, ROWS), *zip(starts, starts[1:], strict=False)]:
                yield hot[:, start:end] @ x[start:end]
                yield hot[:, start:end].sum(axis=1, dtype=np.uint64)

    def _differences(self, distances: Array) -> Iterator[Array]:
        """Of each pair of clusters; and cut as comparisons do it, two neighbours in eight bytes."""
        tree = kmeans_of(self.configs[A]).tree
        for i, j in combinations(range(CLUSTERS), 2):
            difference = distances[i] - distances[j]
            yield from (difference, -difference)
            short = (difference >> np.uint64(tree.drop)).astype(np.uint32)
            for each in (short, bits.reverse_index(short)):
                yield from (each.view(np.uint64), each[1:-1].view(np.uint64))


# Looking.


def leaks(found: Evidence, secrets: Secrets) -> list[str]:
    """Where any of the secrets is in the evidence."""
    return [
        *_words_in_arrays(found, secrets),
        *_bytes_in_files(found, secrets),
        *_labels_in_arrays(found, secrets),
        *_numbers_in_text(found, secrets),
    ]


def _words_in_arrays(found: Evidence, secrets: Secrets) -> Iterator[str]:
    for where, array in found.arrays:
        if array.dtype in (np.uint64, np.int64):
            yield from _hits(where, "word", array.view(np.uint64), secrets.words)
        if array.dtype == np.float64:
            yield from ([f"{where}: real"] if _close(array.reshape(-1), np.sort(secrets.reals)) else [])
        yield from _hits(where, "bytes", windows(np.ascontiguousarray(array).tobytes()), secrets.wide)


def _hits(where: str, what: str, words: Array, secret: Array) -> list[str]:
    """`secret` is sorted."""
    return [f"{where}: {what}"] if (secret[np.searchsorted(secret[:-1], words)] == words).any() else []


def _close(values: Array, secret: Array) -> bool:
    """Whether one of the values is a secret but for the tenth digit; `secret` is sorted."""
    above = np.clip(np.searchsorted(secret, values), 1, len(secret) - 1)
    distance = np.minimum(np.abs(secret[above] - values), np.abs(secret[above - 1] - values))
    return bool((distance <= 1e-9 * np.abs(values)).any())


def _bytes_in_files(found: Evidence, secrets: Secrets) -> Iterator[str]:
    for where, data in found.files:
        yield from _hits(where, "bytes", windows(data), secrets.wide)


def _labels_in_arrays(found: Evidence, secrets: Secrets) -> Iterator[str]:
    """Positions as numbers or as zeros and ones, in integers of any width."""
    looked_for = [labels for labels in secrets.labels if len(labels) >= 24]
    hot = [(labels == j) for labels in looked_for for j in range(CLUSTERS)]
    runs = [each[:32].astype(np.uint8).tobytes() for each in (*looked_for, *hot)]
    for where, array in found.arrays:
        if array.dtype.kind in "iub" and array.size >= 24 and array.max() < CLUSTERS:
            small = np.ascontiguousarray(array).astype(np.uint8).tobytes()
            if any(run in small for run in runs):
                yield f"{where}: labels"


_NUMBER = re.compile(rb"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


def _numbers_in_text(found: Evidence, secrets: Secrets) -> Iterator[str]:
    words = np.concatenate([secrets.words.view(np.int64), secrets.words.view(np.int64) / 2**20])
    secret = np.sort(np.concatenate([secrets.reals, words[np.abs(words) > 1000]]))
    for where, data in found.files:
        if not where.endswith(("json", "log", "yaml", "txt")):
            continue
        for text in {text for text in _NUMBER.findall(data) if len(text.strip(b"-0.")) >= 7}:
            if _close(np.array([float(text)]), secret):
                yield f"{where}: text {text.decode()}"


# The tests.


def test_nothing_that_a_party_has_shows_what_is_hidden_from_it_but_what_the_policy_names(played: Played) -> None:
    for party in played.configs:
        hits = leaks(played.evidence(party), played.secrets(party))
        named = [each for each in hits if any(re.search(name, each) for name in played.named(party))]
        assert [each for each in hits if each not in named] == []
        assert any("labels" in each for each in named) == played.scene.may_know(party, "assignments")
