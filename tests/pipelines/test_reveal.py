"""Opened results: each party gets the files, values and shares that the reveal policy names, and no others."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.explained_files import Explained, check_explaining, check_explanations
from support.parties import NAMES, file_mode
from support.run_results import (
    assignment_shares,
    data_layout,
    keep_messages,
    opened_labels,
    read_checkpoint,
    received,
)
from support.worlds import CLUSTERS, World, blobs, make_world, run_in_threads, tables
from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.io.storage.result_files import write_centroids, write_rows
from veilmeans.pipelines.reveal import opening_run, run_reveal
from veilmeans.schemas.address import NAME
from veilmeans.schemas.arrays import Array, Arrays, Real
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.kmeans_config import REVEALED, RevealConfig
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import OPENED, RunFolder
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest
from veilmeans.transforms.statistics.small_clusters import hidden_clusters

pytestmark = pytest.mark.slow

ROWS, ITERATIONS, OUTLIERS = 60, 1, 4


@dataclass(frozen=True)
class Expected:
    """The result in the clear: clusters of all rows, centroids in original units, inertia on the common scale."""

    labels: Array
    centroids: Real
    inertia: float
    scores: Real
    unit: Real
    """The width of each column: 1 on the common scale."""


def in_the_clear(data: Real, method: str, start: Sequence[int], iterations: int = ITERATIONS) -> Expected:
    shift = data.min(axis=0) if method == "minmax" else data.mean(axis=0)
    width = np.ptp(data, axis=0) if method == "minmax" else data.std(axis=0)
    width = np.where(np.ptp(data, axis=0) == 0, 0, width)
    shift = np.where(width == 0, data[0], shift)
    rows = np.divide(data - shift, width, out=np.zeros_like(data), where=width != 0)
    steps = lloyd(lambda: [rows], rows[list(start)], iterations)
    before = nearest(rows, steps[-2].centroids if iterations > 1 else rows[list(start)])
    inertia = float(((rows - steps[-1].centroids[before]) ** 2).sum())
    labels, centroids = nearest(rows, steps[-1].centroids), steps[-1].centroids
    scores = ((rows - centroids[labels]) ** 2).sum(axis=1)
    return Expected(labels, centroids * width + shift, inertia, scores, width)


@dataclass(frozen=True)
class Case:
    """A run: who owns what, on what scale, and what is opened to whom."""

    parties: int
    vertical: bool
    reveal: Mapping[str, Any]
    method: str = "minmax"
    kind: str = "gateway"
    beam: Mapping[str, Any] | None = None
    constant: bool = False
    iterations: int = ITERATIONS
    least: int = 1

    @property
    def data(self) -> Real:
        data = blobs(ROWS, 5)
        if self.constant:
            data[:, 1] = 42.25
        return data

    @property
    def columns(self) -> list[str]:
        return ["amount", "hour[/day]", "visits\nand [eur] \\n", "age", "basket"]

    @property
    def cuts(self) -> list[int]:
        if self.vertical:
            return [2, 4][: self.parties - 1]
        return [17, 40][: self.parties - 1]

    def job(self) -> dict[str, Any]:
        normalise = {"method": self.method, "aggregate": not self.vertical}
        return {
            "layout": "vertical" if self.vertical else "horizontal",
            "clusters": CLUSTERS,
            "max_iter": self.iterations,
            "normalise": normalise,
            "init": {"indices": [0, 1, 5]},
            "reveal": self.reveal,
            "profile_minimum": self.least,
            **({"outliers": {"count": OUTLIERS}} if "outliers" in self.reveal else {}),
        }

    def make(self, folder: Path) -> World:
        parts = tables(self.data, self.columns, self.cuts, axis=1 if self.vertical else 0)
        beam = {"rows_per_shard": 48, **(self.beam or {})}
        return make_world(folder, parts, self.job(), kind=self.kind, beam=beam)

    def own_columns(self, party: int) -> list[int]:
        """The columns of which a party has values."""
        if not self.vertical:
            return list(range(5))
        return np.split(np.arange(5), self.cuts)[party].tolist()

    def own_rows(self, party: int) -> slice:
        ends = [0, *self.cuts, ROWS]
        return slice(0, ROWS) if self.vertical else slice(ends[party], ends[party + 1])


A, B, C = NAMES[:3]
CASES = {
    "nobody learns anything": Case(2, True, {}, iterations=2),
    "assignments to the first": Case(2, True, {"assignments": [A]}),
    "assignments to both, stage by stage": Case(2, True, {"assignments": [B, A]}, beam={"rounds": "stages"}),
    "centroids of its own columns to the second, zscore": Case(2, True, {"centroids": [B]}, "zscore"),
    "all centroids to the first, by files": Case(
        2, True, {"centroids": [A], "columns": "all"}, kind="files", iterations=2
    ),
    "all columns to nobody": Case(2, True, {"assignments": [B], "columns": "all"}),
    "inertia to the second": Case(2, True, {"inertia": [B]}),
    "a constant column, own": Case(2, True, {"centroids": [A, B]}, constant=True),
    "a constant column, all, zscore": Case(
        2, True, {"centroids": [A, B], "columns": "all"}, "zscore", constant=True
    ),
    "each of three something else": Case(
        3, True, {"assignments": [B], "centroids": [A, C], "columns": "all", "inertia": [C]}, iterations=2
    ),
    "one of three, own columns": Case(3, True, {"centroids": [B], "inertia": [A, B]}, "zscore"),
    "scores to the first": Case(2, True, {"scores": [A]}, iterations=2),
    "outliers and clusters to the second, scores to the first": Case(
        3, True, {"outliers": [B], "assignments": [B], "scores": [A], "explanations": [B], "contributions": "all",
            "profiles": [B, C]},
        beam={"rounds": "stages"},
    ),
    "horizontal: outliers with their scores": Case(
        2, False, {"outliers": [A], "scores": [A, B], "explanations": [A], "profiles": [B]}, "zscore"
    ),
    "horizontal: profiles to two of three": Case(3, False, {"profiles": [A, C]}),
    "profiles without small clusters": Case(2, True, {"profiles": [A]}, least=21),
    "horizontal: nobody": Case(2, False, {}),
    "horizontal: all to both": Case(
        2, False, {"assignments": [A, B], "centroids": [A, B], "inertia": [A, B]}, constant=True,
        beam={"rows_per_shard": 16}, iterations=2,
    ),
    "horizontal: centroids to one, all columns, zscore": Case(
        2, False, {"centroids": [B], "columns": "all"}, "zscore", constant=True
    ),
    "horizontal: each of three something else": Case(
        3, False, {"assignments": [A, C], "centroids": [B], "inertia": [A]}, beam={"rounds": "stages"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_everyone_gets_what_the_policy_names_and_nothing_else(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_messages(monkeypatch)
    world = case.make(tmp_path)
    world.train()
    expected = in_the_clear(case.data, case.method, [0, 1, 5], case.iterations)
    reveal = RevealConfig.model_validate(case.reveal)
    for config in world.parties.values():
        check_files(case, config, reveal, expected)
        check_messages(case, world, config, reveal)
    check_shares(world, expected)


def check_files(case: Case, config: JobConfig, reveal: RevealConfig, expected: Expected) -> None:
    """Check that there is a file or a field for each result that a party may know, and no other."""
    me, folder = config.me.index, config.run_folder
    assert [file for file in config.storage.rglob("*") if file.is_file() and file_mode(file) & 0o077] == []
    result = json.loads(folder.result.read_text())
    assert result.pop("iterations") == case.iterations
    assert result.pop("run") == config.run
    assert result.pop("stopped") is False
    assert set(result) == {what for what in REVEALED if config.party in getattr(reveal, what)}
    assert {file.name for file in folder.path.glob("*.parquet")} == {
        f"{what}.parquet" for what in result if what != "inertia"
    }
    assert folder.shares(OPENED).exists() == ("assignments" in result)
    if "inertia" in result:
        assert result["inertia"] == pytest.approx(expected.inertia, abs=ROWS * 2**-16)
    if "assignments" in result:
        check_assignments(result["assignments"], expected.labels[case.own_rows(me)])
    if "scores" in result:
        table = pq.read_table(result["scores"])
        np.testing.assert_allclose(table["score"].to_numpy(), expected.scores[case.own_rows(me)], rtol=0, atol=1e-4)
    if "outliers" in result:
        check_outliers(pq.read_table(result["outliers"]), case, me, reveal, expected)
    if "explanations" in result:
        mine = case.columns, case.own_columns(me), case.own_rows(me)
        clear = Explained.of(case.data, expected.centroids, expected.labels, expected.unit, *mine)
        check_explanations(result["explanations"], clear, OUTLIERS, case.vertical and reveal.contributions == "all")
    if "profiles" in result:
        check_profiles(result["profiles"], case, me, expected)
    if "centroids" in result:
        every = reveal.columns == "all" and case.vertical
        check_centroids(result["centroids"], case, list(range(5)) if every else case.own_columns(me), every, expected)


def check_outliers(table: pa.Table, case: Case, me: int, reveal: RevealConfig, expected: Expected) -> None:
    """Check that the outliers are the rows with the highest scores, with what else was opened of them."""
    mine = case.own_rows(me)
    highest = np.sort(np.argsort(-expected.scores)[:OUTLIERS])
    rows = highest[(highest >= mine.start) & (highest < mine.stop)]
    also = {"cluster": NAMES[me] in reveal.assignments, "score": NAMES[me] in reveal.scores}
    assert table.column_names == ["row", *(name for name, opened in also.items() if opened)]
    assert table["row"].to_pylist() == (rows - mine.start).tolist()
    if also["cluster"]:
        assert table["cluster"].to_pylist() == expected.labels[rows].tolist()
    if also["score"]:
        np.testing.assert_allclose(table["score"].to_numpy(), expected.scores[rows], rtol=0, atol=1e-4)


def check_profiles(file: str, case: Case, me: int, expected: Expected) -> None:
    """Check sizes, means and spreads of the final clusters in a party's own columns, in original units."""
    lines = pq.read_table(file).to_pylist()
    columns = case.own_columns(me)
    assert [(line["cluster"], line["column"]) for line in lines] == [
        (cluster, case.columns[column]) for cluster in range(CLUSTERS) for column in columns
    ]
    hidden = hidden_clusters(np.bincount(expected.labels, minlength=CLUSTERS), case.least)
    assert hidden.any() == (case.least > 1)
    assert [line["hidden"] for line in lines] == np.repeat(hidden, len(columns)).tolist()
    for number, line in enumerate(lines):
        column = columns[number % len(columns)]
        inside, atol = case.data[expected.labels == line["cluster"], column], expected.unit[column] * 2**-12
        assert line["size"] == len(inside)
        if line["hidden"]:
            assert (line["known"], line["mean"], line["spread"]) == (None, None, None)
        else:
            assert line["known"] == len(inside)
            assert line["mean"] == pytest.approx(inside.mean(), abs=atol)
            assert line["spread"] == pytest.approx(inside.std(), abs=atol)
        assert line["mean_of_all"] == pytest.approx(case.data[:, column].mean(), abs=atol)
        assert line["spread_of_all"] == pytest.approx(case.data[:, column].std(), abs=atol)


def check_assignments(file: str, labels: Array) -> None:
    table = pq.read_table(file)
    assert table.column_names == ["row", "cluster"]
    assert table["row"].to_pylist() == list(range(len(labels)))
    assert table["cluster"].to_pylist() == labels.tolist()


def check_centroids(file: str, case: Case, columns: list[int], every: bool, expected: Expected) -> None:
    table = pq.read_table(file)
    owners = [next(i for i in range(case.parties) if column in case.own_columns(i)) for column in columns]
    names = [case.columns[column] for column in columns]
    full = [f"{NAMES[owner]}.{name}" for owner, name in zip(owners, names, strict=True)]
    assert table.column_names == ["cluster", *(full if every else names)]
    assert table["cluster"].to_pylist() == list(range(CLUSTERS))
    centroids = np.column_stack([column.to_numpy() for column in table.columns[1:]])
    difference = np.abs(centroids - expected.centroids[:, columns])
    assert (difference <= expected.unit[columns] * 2**-16).all()


def uncommitted(config: JobConfig) -> list[tuple[MessageKey, Arrays]]:
    """The messages of a run without commitments, and without the nonces in what was committed to."""
    messages = [(key, arrays) for key, arrays in received(config) if not key.address.stage.endswith(".commit")]
    return [(key, {name: a for name, a in arrays.items() if name != "commit.nonce"}) for key, arrays in messages]


def check_messages(case: Case, world: World, config: JobConfig, reveal: RevealConfig) -> None:
    """Check that a message holds shares of what its recipient may know, and no share of anything else."""
    named = {what: config.party in getattr(reveal, what) for what in REVEALED}
    every = reveal.columns == "all" and case.vertical
    columns = list(range(5)) if every else case.own_columns(config.me.index)
    openings: dict[str, set[str]] = {}
    row_shards = data_layout(config).row_shards()
    shares = {peer: read_checkpoint(world[peer]) for peer in config.online().peers}
    rows = {peer: assignment_shares(world[peer]) for peer in config.online().peers}
    for key, arrays in uncommitted(config):
        stage, shard = key.address.stage, key.address.shard
        mine = row_shards[shard].owner in (None, config.me.index) if shard < len(row_shards) else False
        if stage.startswith("reveal-assignments"):
            assert set(arrays) == ({"c"} if named["assignments"] and mine else set())
            for array in arrays.values():
                np.testing.assert_array_equal(array, rows[key.sender][shard])
        elif stage.startswith("reveal-scores"):
            wanted = {name for name, what in (("shown", "scores"), ("outlier", "outliers")) if named[what] and mine}
            assert set(arrays) == wanted
        elif stage.startswith("reveal-expla"):
            whole = case.vertical and reveal.contributions == "all"
            check_explaining(stage, arrays, named["explanations"], mine, whole, len(case.own_columns(config.me.index)))
        elif stage.startswith("reveal-profiles"):
            width = 2 * len(case.own_columns(config.me.index)) + 2
            shapes = {"n": (CLUSTERS,), "s": (CLUSTERS + 1, width)} if named["profiles"] else {}
            assert {name: array.shape for name, array in arrays.items()} == shapes
        elif stage.startswith("reveal-centroids"):
            wanted = {"mu"} if named["centroids"] else set()
            wanted |= {"shift", "factor", "names"} if named["centroids"] and every else set()
            wanted |= {"inertia"} if named["inertia"] else set()
            assert set(arrays) == wanted
            if "mu" in arrays:
                np.testing.assert_array_equal(arrays["mu"], shares[key.sender]["mu"][:, columns])
        else:
            assert not stage.startswith("reveal")
            check_no_share(arrays, shares[key.sender], rows[key.sender])
        openings.setdefault(key.sender, set()).add(stage.split("-")[1] if stage.startswith("reveal") else "")
    for stages in openings.values():
        assert ("assignments" in {s.split(".")[0] for s in stages}) == bool(reveal.assignments)
        assert ("scores" in {s.split(".")[0] for s in stages}) == bool(reveal.scores or reveal.outliers)
        assert ("explanations" in {s.split(".")[0] for s in stages}) == bool(reveal.explanations)
        assert ("profiles" in {s.split(".")[0] for s in stages}) == bool(reveal.profiles)
        assert ("centroids" in {s.split(".")[0] for s in stages}) == bool(reveal.centroids or reveal.inertia)


def check_no_share(arrays: Arrays, shares: Arrays, rows: Sequence[Array]) -> None:
    """Check that none of the sender's final shares, nor a part of one, is in a message of an earlier round."""
    words = np.concatenate([array.reshape(-1) for name, array in shares.items() if name in ("mu", "u", "inertia")])
    for array in arrays.values():
        if array.dtype == ring.DTYPE:
            assert not np.isin(array, words).any()
        assert not any(row.tobytes() in array.tobytes() for shard in rows for row in shard if row.size >= 6)


def check_shares(world: World, expected: Expected) -> None:
    """Check that all shares are kept, whatever was opened, and add up to the result."""
    assert np.concatenate(opened_labels(world.parties)).tolist() == expected.labels.tolist()
    shares = [read_checkpoint(config)["mu"] for config in world.parties.values()]
    assert all(np.unique(share).size == share.size for share in shares)
    centroids = fixed.decode(ring.total(shares))
    assert ((centroids > -4) & (centroids < 4)).all()


# Ids.
IDS = (
    pa.array([1000 - 7 * i for i in range(ROWS)], pa.int32()),
    pa.array([f"kunde-{i * 37 % ROWS:04d}" for i in range(ROWS)]),
)


@pytest.mark.parametrize(
    ("vertical", "kinds"),
    [(True, (0, 0)), (True, (1, 1)), (False, (0, 1))],
    ids=["vertical, integers", "vertical, text", "horizontal, integers and text"],
)
def test_ids_come_back_in_order_and_with_their_type(tmp_path: Path, vertical: bool, kinds: tuple[int, int]) -> None:
    """Horizontally, each party's ids are its own, and may be of another type."""
    case = Case(2, vertical, {"assignments": [A, B]})
    ids = [IDS[kind] for kind in kinds]
    parts = []
    for i, table in enumerate(tables(case.data, case.columns, case.cuts, axis=1 if vertical else 0)):
        parts.append(table.append_column("customer", ids[i][case.own_rows(i)]))
    world = make_world(tmp_path, parts, case.job(), beam={"rows_per_shard": 16}, ids="customer")
    world.train()
    labels = in_the_clear(case.data, "minmax", [0, 1, 5]).labels
    for i, (config, part) in enumerate(zip(world.parties.values(), parts, strict=True)):
        table = pq.read_table(config.run_folder.assignments)
        assert table.column_names == ["customer", "cluster"]
        assert table["customer"].type == ids[i].type
        assert table["customer"].to_pylist() == part["customer"].to_pylist()
        assert table["cluster"].to_pylist() == labels[case.own_rows(i)].tolist()


# Opening more after the run.
def with_policy(world: World, **reveal: Any) -> World:
    """Replace the policy: nothing is opened but what `reveal` names."""
    nobody = {"assignments": [], "centroids": [], "inertia": []}
    return world.altered(kmeans={"reveal": {**nobody, **reveal}})


@pytest.mark.parametrize("vertical", [True, False], ids=["vertical", "horizontal"])
def test_more_is_opened_later_by_a_policy_that_all_agree_on(
    tmp_path: Path, vertical: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data are gone by then; what the first policy opened stays."""
    keep_messages(monkeypatch)
    case = Case(2, vertical, {"inertia": [A]})
    world = case.make(tmp_path)
    world.train()
    for name in world.parties:
        world.data(name).unlink()
    later = with_policy(world, assignments=[B], centroids=[A])
    run_in_threads(run_reveal, later.parties)
    labels = in_the_clear(case.data, "minmax", [0, 1, 5]).labels
    first, second = (world.run_folder(name) for name in (A, B))
    check_assignments(str(second.assignments), labels[case.own_rows(1)])
    assert first.centroids.exists()
    assert not first.assignments.exists()
    assert not second.centroids.exists()
    assert "inertia" in json.loads(first.result.read_text())
    assert "inertia" not in json.loads(second.result.read_text())
    messages = [each for config in world.parties.values() for each in uncommitted(config)]
    opening = [(key, arrays) for key, arrays in messages if key.address.stage.startswith("reveal")]
    opened = [(key.recipient, name) for key, arrays in opening for name in arrays]
    assert set(opened) == {(A, "inertia"), (A, "mu"), (B, "c")}


def test_nothing_is_opened_later_where_policies_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_messages(monkeypatch)
    world = Case(2, True, {}).make(tmp_path)
    world.train()
    later = {A: with_policy(world, centroids=[A])[A], B: with_policy(world, centroids=[A, B])[B]}
    with pytest.raises(HandshakeError, match=r"kmeans\.reveal\.centroids"):
        run_in_threads(run_reveal, later)
    for config in world.parties.values():
        assert not list(config.run_folder.path.glob("*.parquet"))
        assert not [key for key, _ in received(config) if key.address.stage.startswith("reveal")]


runs = st.from_regex(NAME, fullmatch=True).filter(lambda run: not run.startswith(("open-", "store-")))
policies = st.sampled_from(["reveal", "0123456789ab"])


@given(runs, runs, policies, policies)
@example("a" * 60 + "1", "a" * 60 + "2", "reveal", "reveal")
@example("spring", "spring.reveal", "reveal", "reveal")
@example("a" * 80, opening_run("a" * 80, "reveal").removeprefix("open-").removesuffix(".reveal"), "reveal", "reveal")
def test_openings_of_two_runs_never_have_one_name(run: str, other: str, policy: str, second: str) -> None:
    opening = opening_run(run, policy)
    assert NAME.fullmatch(opening)
    assert (opening == opening_run(other, second)) == ((run, policy) == (other, second))
    assert opening != other


# The files.
def test_columns_called_cluster_stay_beside_the_clusters(tmp_path: Path) -> None:
    """A feature called cluster does not replace the cluster's number, and neither does an id of that name."""
    written = write_centroids(RunFolder(tmp_path), ["cluster", "hour"], np.array([[0.5, 1.5], [2.5, 3.5]]))
    columns = [column.to_pylist() for column in pq.read_table(written).columns]
    assert columns == [[0, 1], [0.5, 2.5], [1.5, 3.5]]
    labels = np.array([1, 0], np.int32)
    rows = [(pa.array(["x", "y"]), {"cluster": labels})]
    table = pq.read_table(write_rows(RunFolder(tmp_path).assignments, "cluster", rows))
    assert [column.to_pylist() for column in table.columns] == [["x", "y"], [1, 0]]
