"""Clusters with few rows stay closed (`kmeans.reveal.minimum_size`), whatever else is opened, now and later."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from support.parties import NAMES
from support.run_results import checkpoints_of, data_layout, keep_messages, received
from support.worlds import World, changed_config, deal_stores, make_world, run_in_threads, tables
from veilmeans.crypto import ring
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.predict import run_predict
from veilmeans.pipelines.reporting.audit import run_audit
from veilmeans.pipelines.reporting.results_table import show_results
from veilmeans.pipelines.reveal import run_reveal
from veilmeans.pipelines.session.agreed_terms import agreed_terms
from veilmeans.schemas.arrays import Array, Arrays, Real
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import Command
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.handshake_terms import Terms, first_difference
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import OPEN_CENTROIDS, OPEN_CLUSTERS, PROFILE
from veilmeans.transforms.statistics.profiles import Profiles
from veilmeans.transforms.statistics.small_clusters import OPEN, hidden_clusters

pytestmark = pytest.mark.slow
A, B = NAMES[:2]
SIZES = (12, 5, 2, 1)
CENTRES = np.array([[0.0, 0.0, 0.0, 0.0], [9.0, 1.0, 8.0, 2.0], [1.0, 9.0, 4.0, 7.0], [8.0, 8.0, 1.0, 9.0]])


def rows() -> Real:
    """Four groups that stay as they are from the first iteration on; the last is one row."""
    spread = np.random.default_rng(8).uniform(-0.4, 0.4, (sum(SIZES), 4))
    return np.repeat(CENTRES, SIZES, axis=0) + spread


@dataclass(frozen=True)
class Case:
    """A run whose last clusters are small; `rounds`: as one call, or stage by stage."""

    parties: int
    vertical: bool
    least: int
    rounds: str = "auto"
    products: str = "beaver"
    columns: str = "own"
    starts: int = 1

    def job(self, **reveal: Any) -> dict[str, Any]:
        """All results to all parties, on a scale that opens no single value."""
        named = list(NAMES[: self.parties])
        opened = {**dict.fromkeys(("assignments", "centroids", "inertia", "profiles"), named), "columns": self.columns}
        return {
            "layout": "vertical" if self.vertical else "horizontal",
            "clusters": len(SIZES),
            "max_iter": 2,
            "normalise": {"method": "zscore", "aggregate": not self.vertical, "bound": 4},
            "init": {"indices": [0, 12, 17, 19]},
            "profile_minimum": 1,
            "products": self.products,
            "reveal": {**opened, "minimum_size": self.least, **reveal},
        }

    def make(self, folder: Path, **reveal: Any) -> World:
        cuts = ([2, 3] if self.vertical else [7, 14])[: self.parties - 1]
        data = tables(rows(), list("abcd"), cuts, axis=1 if self.vertical else 0)
        beam = {"rows_per_shard": 8, "values_per_column_shard": 8, "rounds": self.rounds}
        return make_world(folder, data, self.job(**reveal), beam=beam)

    @property
    def closed(self) -> Array:
        return hidden_clusters(np.array(SIZES), self.least)


CASES = {
    "vertical: two small ones have enough rows together": Case(2, True, 3, columns="all"),
    "vertical: the next larger is closed, too": Case(2, True, 4),
    "vertical, three parties, stage by stage": Case(3, True, 4, "stages", columns="all"),
    "vertical, under encryption": Case(2, True, 4, products="he"),
    "horizontal": Case(2, False, 4),
    "horizontal, three parties": Case(3, False, 3, "stages"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_small_clusters_stay_closed(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_messages(monkeypatch)
    world = case.make(tmp_path)
    world.train()
    closed = case.closed
    assert 0 < closed.sum() < len(SIZES)
    for name, config in world.parties.items():
        result = json.loads(world.run_folder(name).result.read_text())
        assert result["withheld"] == np.flatnonzero(closed).tolist()
        check_centroids(world, config, closed)
        check_profiles(world.run_folder(name).profiles, closed)
        check_messages(config, closed)
        console = Console(record=True, width=200)
        show_results(config, console)
        text = console.export_text()
        assert f"clusters {', '.join(map(str, result['withheld']))}: withheld, fewer than {case.least} rows" in text


def check_centroids(world: World, config: JobConfig, closed: Array) -> None:
    """Check that open centroids are their rows' means, and that closed ones are nothing."""
    table = pq.read_table(world.run_folder(config.party).centroids)
    centroids = np.column_stack([column.to_numpy() for column in table.columns[1:]])
    assert np.isnan(centroids[closed]).all()
    means = np.array([part.mean(axis=0) for part in np.split(rows(), np.cumsum(SIZES)[:-1])])
    own = [" abcd".index(name.split(".")[-1]) - 1 for name in table.column_names[1:]]
    np.testing.assert_allclose(centroids[~closed], means[~closed][:, own], atol=1e-3)


def check_profiles(file: Path, closed: Array) -> None:
    for line in pq.read_table(file).to_pylist():
        hidden = bool(closed[line["cluster"]])
        assert line["hidden"] == hidden
        assert line["size"] == (None if hidden else SIZES[line["cluster"]])
        assert all((line[name] is None) == hidden for name in ("known", "mean", "spread"))
        assert line["mean_of_all"] is not None


def shares_in(config: JobConfig, stage: str) -> list[Arrays]:
    """What the peers sent of a result, each its share."""
    found: list[tuple[MessageKey, Arrays]] = [
        (key, arrays)
        for key, arrays in received(config)
        if key.address.stage.startswith(stage) and not key.address.stage.endswith(".commit")
    ]
    return [arrays for _, arrays in found]


def check_messages(config: JobConfig, closed: Array) -> None:
    """Attack: whatever a party adds up of an opening, its own shares among them, is 0 of clusters that are closed."""
    for stage, names in (("reveal-centroids", {"mu", OPEN}), ("reveal-profiles", {"n", "s", OPEN})):
        sent = shares_in(config, stage)
        assert len(sent) == len(config.online().peers)
        assert set(sent[0]) - {"commit.nonce", "shift", "factor", "names", "inertia"} == names
        for name in names:
            own = own_share(config, stage, name, sent[0][name].shape)
            opened = ring.total([own, *(each[name] for each in sent)])[: len(SIZES)]
            assert not opened[closed].any()
            assert opened[~closed].reshape(len(opened[~closed]), -1).any(axis=1).all()


def own_share(config: JobConfig, stage: str, name: str, shape: tuple[int, ...]) -> Array:
    """A party's own share of what is opened to it."""
    store = checkpoints_of(config)
    if name == "mu":
        parts = [store.read_shard(OPEN_CENTROIDS, shard)["mu"] for shard in store.shards(OPEN_CENTROIDS)]
        mu = np.concatenate(parts, axis=1)
        layout = data_layout(config)
        return mu if shape == mu.shape else np.ascontiguousarray(mu[:, layout.own_columns(config.me.index)])
    profile = store.read_shard(PROFILE if stage == "reveal-profiles" else OPEN_CLUSTERS, 0)
    if name != "s":
        return profile[name]
    everyone = tuple(range(len(config.parties)))
    columns = Profiles(data_layout(config), len(SIZES), everyone, 0).columns(config.me.index)
    return np.ascontiguousarray(profile["s"][:, columns])


@pytest.mark.parametrize("case", [Case(2, True, 2), Case(2, False, 2)], ids=["vertical", "horizontal"])
def test_with_as_many_clusters_as_rows_no_row_is_opened(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_messages(monkeypatch)
    few = np.random.default_rng(2).uniform(-1, 1, (6, 4))
    data = tables(few, list("abcd"), [2 if case.vertical else 3], axis=1 if case.vertical else 0)
    job = {**case.job(), "clusters": 6, "init": {"indices": list(range(6))}}
    world = make_world(tmp_path, data, job, beam={"rows_per_shard": 4})
    world.train()
    for name, config in world.parties.items():
        table = pq.read_table(world.run_folder(name).centroids)
        assert np.isnan(np.column_stack([column.to_numpy() for column in table.columns[1:]])).all()
        assert json.loads(world.run_folder(name).result.read_text())["withheld"] == list(range(6))
        (sent,) = shares_in(config, "reveal-centroids")
        assert not ring.total([sent["mu"], own_share(config, "reveal-centroids", "mu", sent["mu"].shape)]).any()


def test_a_later_opening_keeps_them_closed(tmp_path: Path) -> None:
    case = Case(2, True, 4)
    world = case.make(tmp_path, centroids=[], profiles=[], inertia=[])
    world.train()
    later = world.altered(kmeans={"reveal": {"centroids": [A, B]}})
    run_in_threads(run_reveal, later.parties)
    for config in later.parties.values():
        check_centroids(later, config, case.closed)
    without = later.altered(kmeans={"reveal": {"minimum_size": 0}})
    with pytest.raises(ConfigError, match=r"only kmeans\.reveal may, without minimum_size"):
        run_in_threads(run_reveal, without.parties)


@pytest.mark.parametrize("command", ["train", "predict", "reveal"])
def test_all_parties_agree_on_it(tmp_path: Path, command: Command) -> None:
    world = Case(2, True, 4).make(tmp_path)
    other = changed_config(world[B], kmeans={"reveal": {"minimum_size": 0}})
    here, there = (Terms(agreed_terms(config, command)) for config in (world[A], other))
    assert first_difference(here, there, B) == f"kmeans.reveal.minimum_size is 4 here and not set at {B}"
    assert "kmeans.reveal.minimum_size" not in there.agreed  # runs without it are as they were


def test_explanations_of_a_prediction_keep_them_closed(tmp_path: Path) -> None:
    """The model's small clusters stay closed, however many new rows are in them."""
    case = Case(2, True, 4, columns="own")
    job = case.job(inertia=[], profiles=[]) | {"outliers": {"count": 8}}
    job["reveal"] |= {"outliers": [A, B], "explanations": [A, B]}
    world = make_world(tmp_path, tables(rows(), list("abcd"), [2], axis=1), job, beam={"rows_per_shard": 8})
    world.train()
    reveal = {"centroids": [], "assignments": [A, B], "outliers": [A, B], "explanations": [A, B]}
    fields = {"predict": {"model": "test"}, "reveal": reveal}
    prediction = world.altered(run="new", triples={"store": "new"}, kmeans=fields)
    deal_stores(prediction)
    run_in_threads(run_predict, prediction.parties)
    for each in (world, prediction):
        for name in each.parties:
            lines = pq.read_table(each.run_folder(name).explanations).to_pylist()
            assert {line["cluster"] for line in lines} - set(np.flatnonzero(case.closed).tolist())
            for line in lines:
                withheld = bool(case.closed[line["cluster"]])
                assert np.isnan(line["difference"]) == withheld == bool(np.isnan(line["contribution"])), line
    with pytest.raises(ConfigError, match="minimum_size is 0, and the model"):
        run_in_threads(run_predict, prediction.altered(run="other", kmeans={"reveal": {"minimum_size": 0}}).parties)


def test_the_audit_replays_it(tmp_path: Path) -> None:
    world = Case(2, True, 4).make(tmp_path).altered(audit={"keep": True})
    world.train()
    for config in world.parties.values():
        assert "shares that this party has kept" in list(run_audit(config, None, None))[-1]


def test_the_plan_has_its_steps(tmp_path: Path) -> None:
    world = Case(2, True, 4).make(tmp_path)
    plan = plan_ahead(world[A])
    assert "centroids (of clusters with fewer than 4 rows only which they are)" in {each.what for each in plan.opened}
    steps = {each.step.name for each in plan.steps}
    assert {"last-minimum-size", "last-open-centroids", "last-profile-hide"} <= steps


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"reveal": {"scores": [A]}}, "reveal.scores: not with reveal.minimum_size"),
        ({"reveal": {"minimum_size": 21}}, "only 20 rows are in clusters"),
        ({"reveal": {"minimum_size": 8}}, "a party's own 6 follow"),
        ({"normalise": {"method": "minmax", "bound": None}}, "one row's, which reveal.minimum_size does not allow"),
    ],
)
def test_what_would_open_single_rows_is_refused(tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    world = Case(3, False, 4).make(tmp_path)
    with pytest.raises((ConfigError, ValueError), match=what):
        plan_ahead(world.altered(kmeans=fields)[A])
