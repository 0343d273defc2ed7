"""All that a party receives, keeps and prints during K-means, and what of the others' secrets is in it: nothing.

Real runs, each party a process with its log turned up, that drops no message, no state and no share: so everything
that it ever had on disk is there to be read. From all parties' shares together the tests know what was hidden: values,
centroids, distances, positions, sums and counts of every iteration. None of it may be in what one party has, but for
what the reveal policy names, in the files that it names.
"""

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.fault_injection import PATIENCE, in_a_process
from support.in_process_run import (
    Configs,
    changed,
    checkpoint,
    keep_messages,
    labels_of,
    layout,
    make_world,
    received,
    train,
)
from support.leak_search import CLUSTERS, Evidence, Secrets, evidence_of, forms, leaks
from support.parties import NAMES, write_config
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto import bits, ring
from veilmeans.io.exchange.file_exchange import FileExchange
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.storage.checkpoints import Checkpoints
from veilmeans.io.storage.encoded_shards import load_encoded_data, read_rows
from veilmeans.io.storage.scratch import Scratch
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, store_requirements
from veilmeans.schemas import layout as layouts
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import VALUES_PER_COLUMN_SHARD
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.kmeans.open_results import RevealPolicy, open_assignments, open_centroids
from veilmeans.transforms.kmeans.steps import KMeansSteps

A, B, C = NAMES[:3]
ROWS, ITERATIONS, SHARD = 320, 2, 128
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
    cells: int = VALUES_PER_COLUMN_SHARD
    """Values in a shard of columns."""

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
        return [pa.table({f"income_{i}_of_last_year": rows[:, i] for i in part}) for part in columns]
    cuts = {2: [128], 3: [64, 128]}[parties]
    return [pa.table({f"income_{i}": part[:, i] for i in range(3)}) for part in np.split(rows, cuts)]


SCENES = {
    "vertical, stage by stage": Scene(
        2, True, "gateway", "stages", {}, {"assignments": [A], "centroids": [B], "inertia": [A]}, cells=12
    ),
    "vertical, three parties, by files": Scene(
        3, True, "files", "whole", {"method": "zscore"}, {"centroids": [C], "columns": "all", "inertia": [B]}, cells=15
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
    scene: Scene = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "VALUES_PER_COLUMN_SHARD", scene.cells)
        configs = scene.make(folder)
        run_watched(configs, folder, scene.cells)
        return Played(scene, configs, folder, kmeans_steps(configs[A]))


def run_watched(configs: Mapping[str, JobConfig], folder: Path, cells: int = VALUES_PER_COLUMN_SHARD) -> None:
    """Every party as a process that forgets nothing."""
    processes = []
    for name, config in configs.items():
        file = write_config(config, folder / name / "config.yaml")
        processes.append(in_a_process(_train_and_forget_nothing, file, folder / name / "log", cells))
    for process in processes:
        process.join(2 * PATIENCE)
        if process.exitcode is None:
            process.kill()
    said = {name: (folder / name / "log").read_text() for name in configs}
    assert [process.exitcode for process in processes] == [0] * len(processes), said


def _train_and_forget_nothing(file: Path, log: Path, cells: int) -> None:
    from veilmeans.pipelines.cli.main import main

    layouts.VALUES_PER_COLUMN_SHARD = cells
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
    (MessageStore, "collect"), (FileExchange, "collect"), (Checkpoints, "drop"), (Scratch, "drop"),
    (Scratch, "clear"),
)  # fmt: skip


# What is hidden.
@dataclass(frozen=True)
class Played:
    """A run that has ended. From here everyone's secrets can be put together."""

    scene: Scene
    configs: Configs
    folder: Path
    kmeans: KMeansSteps
    _kept: dict[str, Any] = field(default_factory=dict)

    def evidence(self, party: str) -> Evidence:
        if party not in self._kept:
            self._kept[party] = evidence_of(self.configs[party], self.folder)
        return self._kept[party]

    def named(self, party: str) -> list[str]:
        """Where the policy puts what this party may know; patterns."""
        may = {what: self.scene.may_know(party, what) for what in ("assignments", "centroids", "inertia")}
        files = ["/opened/", "/assignments.parquet"] if may["assignments"] else []
        files += ["/centroids.parquet"] if may["centroids"] else []
        if may["centroids"] and self.scene.reveal.get("columns") == "all":
            files += [r"message .*reveal-centres.*: (shift|factor|names): "]
        return files + (["/result.json"] if may["inertia"] else [])

    def values(self, party: str) -> Array:
        """A party's normalised rows as ring elements."""
        folders = [load_encoded_data(each) for each in (self.configs[party].storage / "prepared").glob("prepared-*")]
        (prepared,) = filter(None, folders)
        return np.concatenate([read_rows(prepared.folder, i).toarray() for i in range(prepared.shards)])

    def raw(self, party: str) -> Array:
        table = pq.read_table(self.folder / party / "data.parquet")
        return np.column_stack([column.to_numpy() for column in table.columns])

    def secrets(self, *party: str) -> Secrets:
        """What these parties together must not know."""
        place = f"secrets {party}"
        if place not in self._kept:
            self._kept[place] = self._secrets(*party)
        return self._kept[place]

    def _secrets(self, *party: str) -> Secrets:
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
        texts = [text for name in others for text in self._texts(name)]
        return Secrets(words, reals, [label for labels in self.labels() for label in labels], texts)

    def _texts(self, party: str) -> Iterator[bytes]:
        """Names of columns that are a party's own, where its data are, and its keys."""
        yield f"{party}/data.parquet".encode()
        if self.scene.vertical:
            yield from (name.encode() for name in pq.read_schema(self.folder / party / "data.parquet").names)
        yield from self.keys(party)

    def keys(self, party: str) -> Iterator[bytes]:
        """The secret files of a party, as bytes and as text."""
        config = self.configs[party]
        for file in (config.seed, config.store_folder / "seed", config.key):
            content = file.read_bytes()
            middle = content[len(content) // 2 :][:24]
            yield from (middle, middle.hex().encode())

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

    def rows(self) -> Array:
        """Everyone's rows and columns."""
        return np.concatenate([self.values(name) for name in self.configs], axis=1 if self.scene.vertical else 0)

    def distances(self, done: int = 0) -> Array:
        """D' (k × n) of the iteration after so many."""
        mu, u = self.shared("mu", done), self.shared("u", done)
        return u[:, None] - np.uint64(2) * (mu @ self.rows().T)

    def _intermediates(self) -> Iterator[Array]:
        x = self.rows()
        starts = np.cumsum([0, *(place.block.rows for place in layout(self.configs[A]).row_shards())])
        for done in range(ITERATIONS + 1):
            mu, u = self.shared("mu", done), self.shared("u", done)
            yield from (*forms(mu), u)
            np.testing.assert_array_equal(u, ring.total(list((mu * mu).T)))
        for done, labels in enumerate(self.labels()):
            distances = self.distances(done)
            assert (distances.view(np.int64).argmin(axis=0) == np.concatenate(labels)).mean() > 0.99
            yield distances
            yield from self._differences(distances)
            hot = (np.concatenate(labels) == np.arange(CLUSTERS)[:, None]).astype(np.uint64)
            for start, end in [(0, ROWS), *pairwise(starts)]:
                yield hot[:, start:end] @ x[start:end]
                yield hot[:, start:end].sum(axis=1, dtype=np.uint64)

    def _differences(self, distances: Array) -> Iterator[Array]:
        """Of each pair of clusters; and cut as comparisons do it, two neighbours in eight bytes."""
        tree = self.kmeans.tree
        for i, j in combinations(range(CLUSTERS), 2):
            difference = distances[i] - distances[j]
            yield from (difference, -difference)
            short = (difference >> np.uint64(tree.drop)).astype(np.uint32)
            for each in (short, bits.reverse_index(short)):
                yield from (each.view(np.uint64), each[1:-1].view(np.uint64))


# The tests.
def test_nothing_that_a_party_has_shows_what_is_hidden_from_it_but_what_the_policy_names(played: Played) -> None:
    for party in played.configs:
        hits = leaks(played.evidence(party), played.secrets(party))
        named = [each for each in hits if any(re.search(name, each) for name in played.named(party))]
        assert [each for each in hits if each not in named] == []
        assert any("labels" in each for each in named) == played.scene.may_know(party, "assignments")


def test_all_that_was_ever_there_is_looked_at(played: Played) -> None:
    """Messages of every round of every shard and iteration; shares, states, log and report."""
    kmeans = played.kmeans
    shards, columns = len(layout(played.configs[A]).row_shards()), len(kmeans.column_shards)
    works = [(work, shards) for work in (kmeans.distance, kmeans.assign, kmeans.update)]
    works += [(kmeans.reciprocal, 1), (kmeans.quotient, columns), (kmeans.finish, 1)]
    due = {
        (iteration, stage.name, shard)
        for iteration in range(ITERATIONS)
        for work, count in works
        for stage in work.stages()
        for shard in range(count)
    }
    first = ((kmeans.operand, shards), (kmeans.norms, columns))
    due |= {(0, stage.name, shard) for work, count in first for stage in work.stages() for shard in range(count)}
    for party, config in played.configs.items():
        keys = [key for key, _ in received(config)]
        for peer in config.online().peers:
            places = {
                (key.address.iteration, key.address.stage, key.address.shard) for key in keys if key.sender == peer
            }
            assert places >= due
        files = dict(played.evidence(party).files)
        run = f"{party}/storage/runs/test"
        assert {f"{run}/checkpoints/{i}.arrow" for i in range(ITERATIONS + 1)} <= files.keys()
        assert {f"{run}/centres/{i}/{c}.arrow" for i in range(ITERATIONS + 1) for c in range(columns)} <= files.keys()
        assert {f"{run}/assignments/{i + 1}/0.arrow" for i in range(ITERATIONS)} <= files.keys()
        assert {f"{run}/operands/0.arrow", f"{run}/report.json", f"{party}/config.yaml"} <= files.keys()
        assert any("/scratch/" in where for where in files) == (played.scene.rounds == "stages")
        assert b"state cache" in files[f"{party}/log"]  # Beam's own words
        names = {where.rpartition(": ")[2] for where, _ in played.evidence(party).arrays}
        assert {"mu", "u", "x2", "stop", "c", "e", "values"} <= names


PLANTED: dict[str, Callable[[Played], Array | bytes]] = {
    "a value": lambda played: played.values(B)[7:8, 0],
    "a value less another mask": lambda played: -played.values(B)[9:10],
    "twice a value": lambda played: played.values(B)[3:4] * np.uint64(2),
    "a centroid": lambda played: np.append(np.zeros(5, np.uint64), played.shared("mu", 1)[0, 0]),
    "the last centroids": lambda played: played.shared("mu", ITERATIONS),
    "a norm": lambda played: played.shared("u", 1)[:1],
    "counts": lambda played: np.bincount(np.concatenate(played.labels()[0])).astype(np.uint64),
    "positions": lambda played: played.labels()[1][0].astype(np.int32),
    "positions as bits": lambda played: bits.pack_rows((played.labels()[0][1] == 0)[None, :]),
    "one-hot rows": lambda played: (played.labels()[0][1] == np.arange(CLUSTERS)[:, None]).astype(np.uint64),
    "a distance in a file": lambda played: b"???" + played.distances()[0][5:6].tobytes(),
    "a number in a file": lambda played: b"-" + played.raw(B)[4:5, 0].tobytes(),
    "a number in a log": lambda played: f"row 3 is {played.raw(B)[3, 0]:.11g}, strange".encode(),
    "a normalised number in a log": lambda played: f"[{played.values(B).view(np.int64)[3, 0] / 2**20}]".encode(),
    "a distance in a log": lambda played: f"={int(played.distances()[1].view(np.int64)[3])}*".encode(),
    "a seed": lambda played: b"00" + played.configs[B].seed.read_bytes(),
    "a key in hexadecimal": lambda played: played.configs[B].key.read_bytes().hex().encode(),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_secret_is_found(played: Played, what: str) -> None:
    """One unmasked thing among all that a party has: the search has teeth."""
    planted = PLANTED[what](played)
    found = Evidence([], []).having("planted.log", planted)
    assert any(each.startswith("planted") for each in leaks(found, played.secrets(A)))


def test_no_party_prints_keeps_or_sends_its_own_keys(played: Played) -> None:
    for party, config in played.configs.items():
        secret_files = [f"{party}.key$", f"{party}.seed$", "store/seed$"]
        found = played.evidence(party).without(*secret_files)
        sent = [each for peer in config.online().peers for each in played.evidence(peer).files]
        assert not [where for where, data in (*found.files, *sent) for key in played.keys(party) if key in data]


def test_what_several_parties_pool_shows_nothing_of_the_last_one(played: Played) -> None:
    """Any two of three: what the shares in their files add up to, by sum and by XOR."""
    for pool in combinations(played.configs, len(played.configs) - 1):
        if len(pool) < 2:
            continue
        held = [_by_place(played.evidence(party), party) for party in pool]
        places = set(held[0]).intersection(*held[1:])
        assert len(places) > 20
        sums = [(place, reduce(np.add, [each[place] for each in held])) for place in places]
        sums += [(place, reduce(np.bitwise_xor, [each[place] for each in held])) for place in places]
        hits = leaks(Evidence(sums, []), played.secrets(*pool))
        assert [each for each in hits if "opened" not in each] == []


def _by_place(found: Evidence, party: str) -> dict[str, Array]:
    """A party's own files in its run, under names that others have, too."""
    own = f"{party}/storage/"
    shares = [(where.removeprefix(own), array) for where, array in found.arrays if where.startswith(own)]
    return {
        f"{where} {array.shape}": array
        for where, array in shares
        if where.startswith(("runs/", "scratch/")) and array.dtype.kind == "u"
    }


# Masks.
Messages = list[tuple[MessageKey, str, Array]]


def masked(config: JobConfig) -> Messages:
    """Every array that came to a party and should look like nothing: not what all may know."""
    return [
        (key, name, array)
        for key, arrays in received(config)
        for name, array in arrays.items()
        if key.address.stage not in CONTROL and name not in ("shift", "factor", "names")
    ]


def opens(stage: str) -> bool:
    """Whether the shares in a stage's messages add up to something that is meant to be known."""
    return stage.endswith((".stop", ".reveal", ".show", ".assignments", ".centres"))


def test_everything_that_arrives_is_uniform(played: Played) -> None:
    """χ² of the bytes of each kind of array, over shards and iterations; where they are few, the number of ones."""
    for config in played.configs.values():
        kinds: dict[tuple[str, str, str], list[Array]] = {}
        for key, name, array in masked(config):
            if key.address.stage.endswith(".stop"):
                assert array.shape == (1,)
                assert array[0] in (0, 1)
            else:
                kinds.setdefault((key.sender, key.address.stage, name), []).append(array.reshape(-1))
        assert len(kinds) > 50
        uneven = [kind for kind, arrays in kinds.items() if not is_uniform(np.concatenate(arrays))]
        assert uneven == []


def is_uniform(array: Array) -> bool:
    """Seven deviations are passed with probability below 10^-11, LIMIT with 2·10^-13."""
    raw = array.view(np.uint8)
    ones, count = int(np.unpackbits(raw).sum(dtype=int)), raw.size * 8
    if abs(ones - count / 2) >= 7 * count**0.5 / 2:
        return False
    return raw.size < 2560 or chi_square(raw) < LIMIT


def test_what_is_opened_on_the_way_is_uniform_and_no_secret(played: Played) -> None:
    """All shares of a masked value together: the value less its mask, not the value."""
    totals: dict[tuple[Any, str], dict[str, Array]] = {}
    for config in played.configs.values():
        for key, name, array in masked(config):
            if not opens(key.address.stage):
                totals.setdefault((key.address, name), {})[key.sender] = array
    everyone = len(played.configs)
    whole = {where: list(each.values()) for where, each in totals.items() if len(each) == everyone}
    sums = [
        (f"{address.stage} {name}", reduce(operation, arrays))
        for (address, name), arrays in whole.items()
        if len({array.shape for array in arrays}) == 1
        for operation in (np.add, np.bitwise_xor)
    ]
    assert len(sums) > 100
    assert leaks(Evidence(sums, []), played.secrets(A)) == []
    added = [array for _, array in sums[::2] if array.dtype == np.uint64]
    assert too_close(added) == 0  # nor is any mask used for two values
    kinds: dict[str, list[Array]] = {}
    for where, array in sums:
        kinds.setdefault(where, []).append(array.reshape(-1))
    assert [where for where, arrays in kinds.items() if not is_uniform(np.concatenate(arrays))] == []


def test_no_mask_is_used_twice(played: Played) -> None:
    """No eight bytes come twice, and no two words are as close as two values under one mask would be."""
    for config in played.configs.values():
        arrays = masked(config)
        assert repeated(arrays) == []
        assert too_close([array for _, _, array in arrays if array.dtype == np.uint64]) == 0


def repeated(messages: Messages) -> list[str]:
    seen: dict[int, str] = {}
    twice = []
    for key, name, array in messages:
        data = array.tobytes()
        for word in np.frombuffer(data[: len(data) // 8 * 8], np.uint64).tolist():
            here = f"{key} {name}"
            if seen.setdefault(word, here) != here or word in (0, 2**64 - 1):
                twice.append(f"{here} and {seen[word]}")
    return twice


def too_close(arrays: Sequence[Array]) -> int:
    """How many words have another within 2^21; among 10^5 uniform ones, one in a thousand times."""
    words = np.sort(np.concatenate([array.reshape(-1) for array in arrays]))
    return int((np.diff(words) < 1 << 21).sum())


def test_a_mask_used_twice_is_found(played: Played) -> None:
    messages = masked(played.configs[A])
    key, name, array = max(messages, key=lambda each: each[2].size * (each[2].dtype == np.uint64))
    other = replace(key, address=replace(key.address, iteration=9))
    assert repeated([*messages, (other, name, array)])
    x = played.values(B)
    difference = np.resize(x - x[::-1], array.shape)
    assert too_close([array, array + difference]) > 10


@pytest.mark.parametrize("vertical", [True, False])
def test_lengths_do_not_depend_on_the_others_data(
    tmp_path: Path, vertical: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run again with other data of the others, sparse and clustered otherwise: as many bytes, other bytes."""
    keep_messages(monkeypatch)
    normalise = {} if vertical else {"ranges": {f"income_{i}": (0.0, 2e5) for i in range(3)}}
    scene = Scene(2, vertical, "gateway", "whole", normalise, {"assignments": [A], "inertia": [A, B]})
    configs = scene.make(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    others = _moved(configs, tmp_path / "one", tmp_path / "other")
    table = parts(2, vertical)[1]
    emptied = [np.where(np.arange(table.num_rows) % 5, 0.0, column.to_numpy()) for column in table.columns]
    pq.write_table(pa.table(emptied, names=table.column_names), tmp_path / "other" / B / "data.parquet")
    lengths = []
    for world in (configs, others):
        train(world)
        lengths.append(
            {key: {name: array.nbytes for name, array in arrays.items()} for key, arrays in received(world[A])}
        )
    assert lengths[0] == lengths[1]
    assert len(lengths[0]) > 100
    assert not np.array_equal(labels_of(configs)[0], labels_of(others)[0])


def _moved(configs: Configs, source: Path, target: Path) -> Configs:
    """The configurations of a copied world."""
    return {
        name: JobConfig.model_validate_json(config.model_dump_json().replace(str(source), str(target)))
        for name, config in configs.items()
    }


def test_ranges_that_a_party_sets_for_its_own_columns_are_told_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_messages(monkeypatch)
    scene = Scene(2, True, "gateway", "whole", {}, {})
    configs = scene.make(tmp_path)
    for name, table in zip(configs, parts(2, True), strict=True):
        ranges = dict.fromkeys(table.column_names, (-1234.5678, 234567.891))
        configs[name] = changed(configs[name], normalise={"ranges": ranges})
    train(configs)
    for config in configs.values():
        heard = b"".join(array.tobytes() for _, arrays in received(config) for array in arrays.values())
        assert b"1234.5" not in heard
        assert b"234567" not in heard
        assert b"income" not in heard


def test_no_two_stages_of_a_run_have_one_name(played: Played) -> None:
    """A name is part of every address: one name for two stages would be one mask for two values."""
    config = played.configs[A]
    policy = RevealPolicy(layout(config))
    protocols = [work.protocol for work in store_requirements(config).works]
    protocols += [open_assignments(policy), open_centroids(policy)]
    names = [stage.name for protocol in protocols for stage in protocol.stages()]
    assert len(set(names)) == len(names) > 30
    assert not set(names) & set(CONTROL)
