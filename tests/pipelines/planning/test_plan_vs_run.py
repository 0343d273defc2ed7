"""`veilmeans plan --compare` of five runs: measured rounds, messages and bytes are the planned ones, step by step.

Every run is of processes over gateways: vertical, horizontal, of three parties, with he, and stage by stage over
several shards.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.commands import assert_all_succeeded
from support.parties import NAMES, write_config
from support.run_results import file_contents
from support.worlds import (
    BOTH,
    DEALER,
    World,
    blobs,
    changed_config,
    he_by_columns,
    make_world,
    make_world_without_stores,
    tables,
)
from veilmeans.pipelines.cli.main import app
from veilmeans.pipelines.planning.plan_vs_run import compare_with_run
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.run_folder import ASSIGNMENTS, CENTROIDS, EXPLAINED_CENTROIDS, OPERANDS, PROFILE, SCORES

COUNTS = ("rounds", "messages", "bytes_sent", "bytes_received")
JOB = {"clusters": 3, "max_iter": 2}
PLUS_PLUS = {"init": {"method": "k-means++"}}
ALL_RESULTS = {"assignments": BOTH, "centroids": BOTH, "inertia": NAMES[:1]}
EXPLAINED = {"outliers": NAMES[:1], "explanations": NAMES[:1], "profiles": NAMES[1:2]}
OUTLIERS = {"outliers": {"count": 3}, "reveal": {**ALL_RESULTS, "scores": BOTH, **EXPLAINED}}


def vertical(folder: Path) -> World:
    parts = tables(blobs(41, 5), list("abcde"), [2], axis=1)
    outliers = {"fraction": 0.1, "during_training": True}
    reveal = {"assignments": BOTH, "centroids": BOTH, "outliers": BOTH}
    job = {"layout": "vertical", "reveal": reveal, "outliers": outliers, **JOB}
    return make_world(folder, parts, job, dealer=DEALER)


def horizontal(folder: Path) -> World:
    parts = tables(blobs(41, 3), list("abc"), [17], axis=0)
    job = {"layout": "horizontal", "normalise": {"aggregate": True}, "reveal": ALL_RESULTS, "tol": 1e-9, **JOB}
    return make_world(folder, parts, job, dealer=DEALER)


def three_parties(folder: Path) -> World:
    """Two row shards; only one party learns anything."""
    parts = tables(blobs(30, 4), list("abcd"), [1, 2], axis=1)
    job = {
        "layout": "vertical",
        "reveal": {"assignments": ["bank"], "inertia": ["bank"], **EXPLAINED, "contributions": "all"},
        "outliers": {"fraction": 0.1},
        **JOB,
        **PLUS_PLUS,
        "starts": 2,
    }
    return make_world(folder, parts, job, beam={"rows_per_shard": 17}, dealer=DEALER)


def stage_by_stage(folder: Path) -> World:
    """Each round a Beam stage at one party, over five row shards and three column shards."""
    parts = tables(blobs(50, 3), list("abc"), [22], axis=0)
    normalise = {"method": "zscore", "aggregate": True}
    job = {"layout": "horizontal", "normalise": normalise, "products": "beaver", **OUTLIERS, **JOB, **PLUS_PLUS}
    world = make_world(folder, parts, job, beam={"rows_per_shard": 12, "values_per_column_shard": 3}, dealer=DEALER)
    return world.altered("payco", beam={"rounds": "stages"})


WORLDS: dict[str, Callable[[Path], World]] = {
    each.__name__: each for each in (vertical, horizontal, three_parties, he_by_columns, stage_by_stage)
}


@pytest.fixture(scope="module", params=WORLDS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = WORLDS[request.param](tmp_path_factory.mktemp(request.param)).altered(audit={"keep": True})
    assert_all_succeeded(world.train_as_processes())
    return world


def run_command(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def plan(world: World, party: str, *options: str) -> str:
    """Run `veilmeans plan` and return what it prints."""
    file = write_config(world[party], world.folder / f"{party}.yaml")
    return run_command("plan", "--config", str(file), *options)


def compare(world: World, party: str) -> dict[str, Any]:
    """Run `veilmeans plan --compare` and read its JSON."""
    content: dict[str, Any] = json.loads(plan(world, party, "--compare", ".", "--json"))
    return content


def size_of(*folders: Path) -> int:
    return sum(file.stat().st_size for folder in folders for file in folder.rglob("*.arrow"))


@pytest.mark.processes
def test_measured_counts_are_the_planned_ones(trained: World) -> None:
    for party in trained.parties:
        compared = compare(trained, party)
        assert compared["iterations"] == 2
        for step in (*compared["steps"], compared["total"]):
            planned, measured = ({name: step[side][name] for name in COUNTS} for side in ("planned", "measured"))
            assert planned == measured, step["name"]
            assert set(step["difference"].values()) == {0.0}
        assert compared["total"]["measured"]["messages"] > 30


@pytest.mark.processes
def test_files_have_the_planned_sizes(trained: World) -> None:
    for party, config in trained.parties.items():
        disk = json.loads(plan(trained, party, "--json"))["disk"]
        run, store = config.run_folder, config.store_folder
        assert disk["store"] == size_of(store.all_corrections, store.all_ciphertexts)
        assert disk["operands"] == size_of(run.shares(OPERANDS))
        checkpoints = size_of(
            run.checkpoints,
            *(run.shares(kind) for kind in (CENTROIDS, ASSIGNMENTS, SCORES, EXPLAINED_CENTROIDS, PROFILE)),
        )
        assert checkpoints <= disk["checkpoints"] < checkpoints + 10_000


@pytest.mark.processes
def test_the_comparison_is_printed(trained: World) -> None:
    text = plan(trained, "shop", "--compare", "test")
    assert max(map(len, text.splitlines())) <= 80
    for part in ("shop in run 'test', 2 iterations", "quotient", "measured", "LAN", "delivered"):
        assert part in text
    assert "…" not in text


@pytest.mark.processes
def test_dry_runs_after_a_run_change_nothing(trained: World) -> None:
    """A dry run of an opening by another policy, and of the finished run itself."""
    config = changed_config(trained["shop"], kmeans={"reveal": {"assignments": BOTH, "inertia": []}})
    later = write_config(config, trained.folder / "later.yaml")
    now = write_config(trained["shop"], trained.folder / "now.yaml")
    before = file_contents(trained.folder)
    reveal = run_command("reveal", "-c", str(later), "--dry-run")
    train = run_command("train", "-c", str(now), "--dry-run")
    assert file_contents(trained.folder) == before
    assert "assignments to payco, shop" in reveal
    assert str(config.run_folder.assignments) in reveal
    assert "shop in run 'test' with payco" in train


# Missing and damaged reports; no process is needed for them.
@pytest.fixture
def untrained(tmp_path: Path) -> World:
    parts = tables(blobs(12, 3), list("abc"), [1], axis=1)
    return make_world_without_stores(tmp_path, parts, {"layout": "vertical", "reveal": ALL_RESULTS, **JOB})


def test_a_run_without_a_report_is_named(untrained: World) -> None:
    with pytest.raises(StorageError, match=r"run 'other' .*payco"):
        compare_with_run(untrained["payco"], "other")
    with pytest.raises(ConfigError, match="--compare"):
        compare_with_run(untrained["payco"], "../other")


@pytest.mark.parametrize("content", ["", "[]", '{"seconds": 1, "stages": {}}', '{"seconds": "x"}'])
def test_a_damaged_report_is_named(untrained: World, content: str) -> None:
    file = untrained.run_folder("payco").report
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(StorageError, match=str(file)):
        compare_with_run(untrained["payco"])


def test_unplanned_and_missing_steps_are_compared(untrained: World) -> None:
    counts = {"messages": 3, "bytes_sent": 10, "bytes_received": 20, "computed_us": 500_000}
    other_policy = "reveal-centroids-0123456789ab.00.centroids"
    stages = {"unplanned.00.x": counts, other_policy: counts}
    file = untrained.run_folder("payco").report
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"seconds": 2.5, "iterations": [{"done": 1}], "stages": stages}))
    compared = compare_with_run(untrained["payco"]).to_json()
    steps = {step["name"]: step for step in compared["steps"]}
    assert (compared["iterations"], compared["seconds"]) == (1, 2.5)
    assert steps["unplanned"]["difference"]["bytes_sent"] is None
    assert steps["unplanned"]["measured"]["seconds"] == {"computed": 0.5, "waited": 0.0, "delivered": 0.0}
    assert steps["assign"]["difference"]["bytes_sent"] == -100
    assert steps["reveal-centroids"]["measured"]["messages"] == 0, "the opening was by another policy"
    assert compared["total"]["measured"]["bytes_received"] == 20
