"""Engines are settled alike by all parties and the dealer, from what each party says its operations cost."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.fixed_values import PACE
from support.parties import make_configs
from veilmeans.pipelines.planning import engine_selection as settle
from veilmeans.pipelines.planning import job_plan as plan_kmeans
from veilmeans.pipelines.planning.engine_costs import Costs
from veilmeans.pipelines.planning.engine_selection import agree_on_engines, announced_costs
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.reporting.plan_table import show_plan
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, requested_engines
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import Terms

QUICK = Costs(
    multiply=2e-6, raw=2e-5, blind=6e-5, mask=3e-4, decrypt=2e-4, convert=5e-7, dense=2e-10, sparse=1e-9, word=1e-9,
    rate=125e6, round_trip=5e-4,
)  # fmt: skip
BEAVER, HE = ("beaver", "beaver"), ("he", "he")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parties that have measured their costs; those of the second are the higher ones, and its link is slow."""
    asked: list[str] = []

    def calibrate(cipher: object, folder: Path, link: object, keep: bool) -> Costs:
        del cipher, link, keep
        asked.append(folder.parent.name)
        return QUICK if folder.parent.name == "payco" else replace(QUICK, decrypt=1e-3, rate=1e5)

    monkeypatch.setattr(settle, "calibrate", calibrate)
    return asked


def configs(folder: Path, width: int = 300, rows: int = 20_000, **fields: Any) -> dict[str, JobConfig]:
    job = {"layout": "vertical", "rows": rows, "features": {"payco": width, "shop": 3}, "clusters": 4, **fields}
    return make_configs(folder, dealer="dealer", triples={"store": "store"}, kmeans=job)


def settled(found: dict[str, JobConfig]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """What each member finds."""
    said = {name: Terms({}, announced_costs(config)) for name, config in found.items()}
    return {
        name: agree_on_engines(config, dict.fromkeys(config.peers, said[name]), {p: said[p] for p in config.peers})
        for name, config in found.items()
    }


def test_all_members_choose_alike_by_the_slowest_costs(tmp_path: Path, measured: list[str]) -> None:
    found = configs(tmp_path, width=3000, rows=2000, sparse={"payco": {"nonzeros": 2, "whole": True}})
    chosen = settled(found)
    assert sorted(measured) == ["payco", "shop"]
    assert set(chosen.values()) == {(HE, BEAVER)}
    alone = settle.select_all_engines(found["payco"], [QUICK])["payco"]
    assert (alone.distance, alone.update) == BEAVER
    assert kmeans_steps(found["shop"], chosen["shop"]).engines.masked == {1}


def test_nothing_is_measured_where_rows_are_short_or_engines_are_asked_for(tmp_path: Path, measured: list[str]) -> None:
    assert set(settled(configs(tmp_path / "short", width=64)).values()) == {(BEAVER, BEAVER)}
    asked = configs(tmp_path / "asked", products={"payco": {"distance": "he", "update": "beaver"}, "shop": "he"})
    assert set(settled(asked).values()) == {(("he", "beaver"), HE)}
    assert measured == []


def test_what_is_asked_for_stands_beside_what_is_left_open(tmp_path: Path, measured: list[str]) -> None:
    found = configs(tmp_path, products={"payco": {"update": "he"}, "shop": "beaver"})
    chosen = settled(found)
    assert measured
    assert {each[0][1] for each in chosen.values()} == {"he"}
    assert {each[1] for each in chosen.values()} == {BEAVER}
    assert requested_engines(found["payco"]) == (("beaver", "he"), BEAVER)


@pytest.mark.parametrize("told", [{}, {"costs": None}, {"costs": {"multiply": 1.0}}, {"costs": "fast"}])
def test_a_party_that_tells_no_costs_is_named(tmp_path: Path, measured: list[str], told: dict[str, Any]) -> None:
    config = configs(tmp_path)["payco"]
    mine, theirs = Terms({}, announced_costs(config)), Terms({}, told)
    with pytest.raises(HandshakeError, match="shop did not say what operations cost there"):
        agree_on_engines(config, {"shop": mine}, {"shop": theirs})
    assert measured == ["payco"]


def test_costs_are_announced_by_parties_only(tmp_path: Path, measured: list[str]) -> None:
    assert announced_costs(configs(tmp_path)["dealer"]) == {}
    assert measured == []


def test_a_plan_needs_neither_data_nor_store(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_kmeans, "measure_pace", lambda *_: PACE)
    console = Console(width=120, record=True, file=StringIO())
    console.print(show_plan(plan_ahead(configs(tmp_path, width=3000)["payco"])))
    text = console.export_text()
    for part in ("payco operand", "payco distance", "shop update", "quotient", "opened in each iteration: one bit"):
        assert part in text
    assert measured == ["payco"]
