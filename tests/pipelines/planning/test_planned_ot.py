"""The plan of a store that two parties make themselves, beside the reports and files of making it."""

from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.ot_dealing import SMALL
from support.parties import make_configs
from support.worlds import World, blobs, make_world_without_stores, run_in_threads, tables
from veilmeans.io.exchange.link_shaping import WAN
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.offline import run_offline
from veilmeans.pipelines.planning import planned_ot
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_schema import OfflinePlan
from veilmeans.pipelines.reporting.plan_table import show_plan
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.offline import ot_store
from veilmeans.transforms.offline.ot_setup import OtSetup


def vertical(folder: Path, provider: str) -> World:
    """One shard, one iteration: the fewest OTs."""
    parts = tables(blobs(41, 5), list("abcde"), [2], axis=1)
    job = {"layout": "vertical", "clusters": 3, "max_iter": 1}
    return make_world_without_stores(folder, parts, job, provider=provider)


def horizontal(folder: Path, provider: str) -> World:
    """Several shards of different shapes and iterations, for two runs; each shard has one owner."""
    parts = tables(blobs(41, 3), list("abc"), [17], axis=0)
    job = {"layout": "horizontal", "clusters": 3, "max_iter": 2, "normalise": {"aggregate": True}, "tol": 1e-9}
    return make_world_without_stores(folder, parts, job, beam={"rows_per_shard": 12}, runs=2, provider=provider)


def planned(config: JobConfig) -> OfflinePlan:
    plan = plan_ahead(config).offline
    assert plan is not None
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(("make", "provider"), [(vertical, "iknp"), (horizontal, "ot")])
def test_messages_bytes_and_files_are_as_planned(
    tmp_path: Path, make: Any, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With LPN sets that are fast, and too small to be secure."""
    for module in (ot_store, planned_ot):
        monkeypatch.setattr(module, "OtSetup", partial(OtSetup, setup=SMALL, main=SMALL))
    world = make(tmp_path, provider)
    plans = {name: planned(config) for name, config in world.configs.items()}
    run_in_threads(run_offline, world.configs)
    for name, config in world.configs.items():
        stages = RunReport(config.offline().run_folder).content["stages"]
        counted = ("messages", "bytes_sent", "bytes_received")
        measured = {stage: [counts.get(each, 0) for each in counted] for stage, counts in stages.items()}
        assert measured == {
            f"offline.{each.name}": [each.messages, each.bytes_sent, each.bytes_received] for each in plans[name].made
        }
        files = config.store_folder.path.rglob("*.arrow")
        assert sum(file.stat().st_size for file in files) == plans[name].bytes_stored


def config_for(folder: Path, provider: str, rows: int = 10_000, width: int = 1, clusters: int = 5) -> JobConfig:
    features = {"payco": width, "shop": width}
    job = {"layout": "vertical", "rows": rows, "features": features, "clusters": clusters, "tol": 0, "max_iter": 10}
    return make_configs(folder, triples={"store": "store", "provider": provider}, kmeans=job)["payco"]


def test_the_traffic_of_the_benchmark_s_jobs(tmp_path: Path) -> None:
    """Both ways, in MB: ten iterations of 10^4 rows, and of 10^5, and the final assignment."""
    sizes = [(10_000, 1, 5), (100_000, 1, 5), (10_000, 8, 4)]
    plans = [planned(config_for(tmp_path / str(i), "ot", *size)) for i, size in enumerate(sizes)]
    assert [round((plan.bytes_sent + plan.bytes_received) / 1e6) for plan in plans] == [42, 233, 52]


def test_rounds_do_not_grow_and_bytes_grow_with_rows(tmp_path: Path) -> None:
    small, large = (planned(config_for(tmp_path / str(n), "ot", n)) for n in (10_000, 200_000))
    assert small.rounds == large.rounds == 7
    assert planned(config_for(tmp_path / "iknp", "iknp")).rounds == 5
    assert 10 < large.bytes_sent / small.bytes_sent < 20
    assert large.cots == pytest.approx(20 * small.cots, rel=0.1)


def test_seconds_are_those_of_rounds_and_bytes(tmp_path: Path) -> None:
    plan = planned(config_for(tmp_path, "ot"))
    expected = 7 * (0.02 + 0.004) + max(plan.bytes_sent, plan.bytes_received) / 2.5e6
    assert plan.seconds_on(WAN) == pytest.approx(expected)
    assert plan.computing == pytest.approx(plan.cots * 1.2e-7)


@pytest.mark.parametrize(("provider", "parts"), [("ot", ("set-up", "Enc(U)")), ("iknp", ("corrections of OTs",))])
def test_a_plan_shows_the_provider(tmp_path: Path, provider: str, parts: tuple[str, ...]) -> None:
    console = Console(width=120, record=True, file=StringIO())
    plan = plan_ahead(config_for(tmp_path, provider))
    console.print(show_plan(plan))
    text = console.export_text()
    for part in (f"made by {provider}", *parts):
        assert part in text
    assert "dealer" not in text
    content = plan.to_json()["offline"]
    assert (content["provider"], content["dealer"]) == (provider, None)
    assert {"rounds", "bytes_sent", "seconds", "computing", "cots", "made"} <= content.keys()
