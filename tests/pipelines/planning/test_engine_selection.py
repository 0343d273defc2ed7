"""Engine selection: all parties and the dealer select the same engines, from the costs that each party announces."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.fixed_values import fix_costs
from support.parties import make_configs
from veilmeans.pipelines.planning import engine_selection
from veilmeans.pipelines.planning.engine_costs import OperationCosts
from veilmeans.pipelines.planning.engine_selection import (
    agree_on_engines,
    announced_costs,
    own_costs,
    select_all_engines,
)
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.reporting.plan_table import show_plan
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, requested_engines
from veilmeans.schemas.config import JobConfig, LinkConfig, LinkShape
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import Terms

QUICK = OperationCosts(
    multiplication=2e-6, packed_value=2e-5, decryption=2e-4, conversion=5e-7, blinding=6e-5, dense_multiply_add=2e-10,
    sparse_multiply_add=1e-9, word=1e-9, rate=125e6, round_trip=5e-4,
)  # fmt: skip
BEAVER, HE = ("beaver", "beaver"), ("he", "he")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parties that have measured their costs; those of the second are higher, and its link is slow."""
    parties: list[str] = []

    def calibrate(parameters: object, file: Path, link: object, keep: bool) -> OperationCosts:
        del parameters, link, keep
        parties.append(file.parent.parent.name)
        return QUICK if parties[-1] == "payco" else replace(QUICK, decryption=1e-3, rate=1e5)

    monkeypatch.setattr(engine_selection, "calibrate", calibrate)
    return parties


def configs(
    folder: Path, width: int = 300, rows: int = 20_000, dealer: str | None = "dealer", **fields: Any
) -> dict[str, JobConfig]:
    job = {"layout": "vertical", "rows": rows, "features": {"payco": width, "shop": 3}, "clusters": 4, **fields}
    return make_configs(folder, dealer=dealer, triples={"store": "store"}, kmeans=job)


def agreed_engines(members: dict[str, JobConfig]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The engines that each member selects."""
    terms = {name: Terms({}, announced_costs(config)) for name, config in members.items()}
    return {
        name: agree_on_engines(config, dict.fromkeys(config.peers, terms[name]), {p: terms[p] for p in config.peers})
        for name, config in members.items()
    }


def test_all_members_select_the_same_engines_by_the_slowest_costs(tmp_path: Path, measured: list[str]) -> None:
    members = configs(tmp_path, width=3000, rows=2000, sparse={"payco": {"nonzeros": 2, "integer_valued": True}})
    engines = agreed_engines(members)
    assert sorted(measured) == ["payco", "shop"]
    assert set(engines.values()) == {(HE, BEAVER)}
    assert select_all_engines(members["payco"], [QUICK])["payco"].engines == BEAVER
    assert kmeans_steps(members["shop"], engines["shop"]).engines.masked == {1}


def test_nothing_is_measured_if_rows_are_short_or_engines_are_requested(tmp_path: Path, measured: list[str]) -> None:
    assert set(agreed_engines(configs(tmp_path / "short", width=64)).values()) == {(BEAVER, BEAVER)}
    requested = configs(
        tmp_path / "requested", products={"payco": {"distance": "he", "update": "beaver"}, "shop": "he"}
    )
    assert set(agreed_engines(requested).values()) == {(("he", "beaver"), HE)}
    assert measured == []


def test_one_product_may_be_requested_and_the_other_selected(tmp_path: Path, measured: list[str]) -> None:
    members = configs(tmp_path, products={"payco": {"update": "he"}, "shop": "beaver"})
    engines = agreed_engines(members)
    assert measured
    assert {each[0][1] for each in engines.values()} == {"he"}
    assert {each[1] for each in engines.values()} == {BEAVER}
    assert requested_engines(members["payco"]) == (("beaver", "he"), BEAVER)


@pytest.mark.parametrize("announced", [{}, {"costs": None}, {"costs": {"word": 1.0}}, {"costs": "fast"}])
def test_a_party_that_announces_no_costs_is_named(
    tmp_path: Path, measured: list[str], announced: dict[str, Any]
) -> None:
    config = configs(tmp_path)["payco"]
    own, received = Terms({}, announced_costs(config)), Terms({}, announced)
    with pytest.raises(HandshakeError, match=r"shop .*kmeans\.products"):
        agree_on_engines(config, {"shop": own}, {"shop": received})
    assert measured == ["payco"]


def test_costs_are_announced_by_parties_only(tmp_path: Path, measured: list[str]) -> None:
    assert announced_costs(configs(tmp_path)["dealer"]) == {}
    assert measured == []


def test_a_plan_needs_neither_data_nor_store(tmp_path: Path, measured: list[str]) -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(show_plan(plan_ahead(configs(tmp_path, width=3000)["payco"])))
    text = console.export_text()
    for part in ("payco operand", "payco distance", "shop update", "quotient", "an iteration, he "):
        assert part in text
    assert measured == ["payco"]


def test_a_plan_measures_nothing_if_no_engine_depends_on_costs(tmp_path: Path, measured: list[str]) -> None:
    engines = plan_ahead(configs(tmp_path, width=64)["payco"]).engines
    assert {(each.engine, *each.estimates) for each in engines} == {("beaver",)}
    assert measured == []


def test_without_a_dealer_costs_are_measured_where_enc_u_may_decide(tmp_path: Path, measured: list[str]) -> None:
    """62 bytes a column against one ciphertext of 256 bytes in each of ten iterations."""
    assert set(agreed_engines(configs(tmp_path / "41", width=41, dealer=None)).values()) == {(BEAVER, BEAVER)}
    assert measured == []
    agreed_engines(configs(tmp_path / "42", width=42, dealer=None))
    assert sorted(measured) == ["payco", "shop"]
    many = {"rows": 70_000, "max_iter": 100}  # Enc(U) of a shard is too large for a message
    assert agreed_engines(configs(tmp_path / "67", width=67, dealer=None, **many))["shop"] == (HE, BEAVER)


def test_the_link_is_the_agreed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that which one party simulates."""
    fix_costs(monkeypatch)
    config = configs(tmp_path)["payco"]
    shaped = config.exchange.model_copy(update={"shape": LinkShape(rate_mbps=1, round_trip_ms=100)})
    config = config.model_copy(update={"exchange": shaped, "link": LinkConfig(rate_mbps=8, round_trip_ms=3)})
    costs = own_costs(config)
    assert (costs.rate, costs.round_trip) == (1e6, 3e-3)
