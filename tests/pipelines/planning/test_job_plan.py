"""The plan of a job: the bytes that parties in memory send, the size of the triple store, and the text."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from support.kmeans_in_memory import Table, config_for, deal_plan, horizontal, run_kmeans, vertical
from support.parties import make_configs
from veilmeans.io.exchange.link_shaping import LAN, WAN, Link
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.pipelines.planning import plan_schema
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_schema import JobPlan, Traffic
from veilmeans.pipelines.planning.planned_bytes import plan_offline, planned_job, traffic_of
from veilmeans.pipelines.planning.units import format_size
from veilmeans.pipelines.reporting.plan_table import show_plan
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, traced_job
from veilmeans.schemas.arrays import Arrays, to_stream
from veilmeans.schemas.config import JobConfig, TriplesConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import ProductEnginesConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.steps import step_name
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Sent, Stage

ITERATIONS = 2
MIXED = {"payco": ProductEnginesConfig(distance="he", update="beaver"), "shop": "beaver"}
layouts = st.one_of(
    st.builds(vertical, st.integers(2, 20), st.lists(st.integers(1, 4), min_size=2, max_size=3), st.integers(3, 20)),
    st.builds(horizontal, st.lists(st.integers(1, 9), min_size=2, max_size=3), st.integers(1, 4), st.integers(3, 9)),
)
Sizes = Counter[tuple[str, str, str]]


def recording(sizes: Sizes, stage: Stage, names: Sequence[str]) -> Stage:
    """The same stage, with the bytes of its messages counted by step, sender and recipient."""
    round_ = stage.round

    def send(party: Any, state: Arrays, randomness: Randomness) -> Sent:
        sent = round_.send(party, state, randomness)
        for peer in round_.recipients(party):
            sizes[step_name(stage.name), party.name, names[peer]] += to_stream(sent.for_peer(peer)).size
        return sent

    return replace(stage, round=replace(round_, send=send))


def sent_bytes(config: JobConfig, layout: Layout) -> Sizes:
    """The bytes that parties in memory send in two iterations."""
    sizes, kmeans, names, play = Sizes(), kmeans_steps(config), config.parties, Table._play
    rng = np.random.default_rng(0)
    rows, start = (rng.random((count, layout.total_features)) for count in (layout.total_rows, kmeans.k))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "_play", lambda self, stage, *rest: play(self, recording(sizes, stage, names), *rest))
        run_kmeans(kmeans, rows, start, ITERATIONS)
    return sizes


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layouts, st.integers(1, 4), st.sampled_from(["beaver", "he", MIXED]), st.booleans())
def test_planned_bytes_are_those_that_are_sent(layout: Layout, k: int, products: Any, inertia: bool) -> None:
    config = config_for(layout, k, inertia=inertia, products=products, tol=0.1 if inertia else 0.0)
    sizes = sent_bytes(config, layout)
    begun = ITERATIONS + inertia  # with a tolerance one more begins, and each is treated as the last
    planned = Sizes()
    for name in config.parties:
        mine = config.model_copy(update={"party": name})
        traced = planned_job(mine, kmeans_steps(mine))
        for step in traced.steps:
            times = {"iteration": begun, "last": begun, "later": begun - 1}.get(step.when, 1)
            traffic = traffic_of(mine, traced.stage_counts(step)) * times
            if step.when != "end":
                planned.update({(step.name, name, peer): n for peer, n in traffic.sent.items()})
                assert traffic.received == {p: sizes[step.name, p, name] for p in traffic.received}
    assert planned == sizes


@pytest.mark.parametrize("products", ["beaver", MIXED])
@pytest.mark.parametrize("layout", [vertical(21, (2, 3), 8), horizontal((9, 12), 2, 5)], ids=["vertical", "horizontal"])
def test_the_planned_store_has_the_bytes_that_are_dealt(layout: Layout, products: Any) -> None:
    config = config_for(layout, 3, products=products, max_iter=ITERATIONS).model_copy(
        update={"triples": TriplesConfig(store="store", runs=3), "dealer": "notary"}
    )
    kmeans = kmeans_steps(config)
    for index, dealt in enumerate(deal_plan(kmeans, ITERATIONS)):
        made = plan_offline(config, traced_job(config), index)
        store: Any = dealt.store
        corrections = [to_stream(arrays).size for arrays in store.kept.values() if arrays]
        ciphers = [arrays for arrays in store.made.values() if arrays]
        assert (made.bytes_received, made.messages) == (3 * sum(corrections), 3 * len(corrections))
        assert made.cipher_bytes == 3 * sum(to_stream(arrays).size for arrays in ciphers)
        assert made.ciphertexts == 3 * sum(array.size for arrays in ciphers for array in arrays.values())
        assert (made.ciphertexts > 0) == (products != "beaver")


def test_triples_are_counted_by_kind() -> None:
    """k = 2 over 10 rows: one comparison a row, and a matrix of 10 × 2 times 2 × 2 and one of 2 × 10 times 10 × 1.

    The first once more, to assign rows finally.
    """
    config = config_for(vertical(10, (2, 2), 10), 2, products="beaver", max_iter=1)
    config = config.model_copy(update={"triples": TriplesConfig(store="store"), "dealer": "notary"})
    triples = {each.kind: (each.unit, each.count) for each in plan_offline(config, traced_job(config), 0).triples}
    assert triples["Operand"] == ("words", 10 * 2)
    assert triples["MatMul"] == ("words", 2 * (2 * 10 * 2 + 2 * 1))
    assert {triples[kind][0] for kind in ("BitProducts", "DaBit")} == {"bits"}


# Complete plans.
def job(folder: Path, parties: int = 2, **fields: Any) -> JobConfig:
    names = ("payco", "shop", "bank")[:parties]
    kmeans = {
        "layout": "vertical",
        "rows": 1000,
        "features": dict.fromkeys(names, 4),
        "clusters": 3,
        "max_iter": 7,
        "reveal": {"assignments": names, "centroids": ["shop"]},
        **fields.pop("kmeans", {}),
    }
    made = make_configs(
        folder, parties, dealer="notary", triples={"store": "store", "runs": 2}, kmeans=kmeans, **fields
    )
    return made["payco"]


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    return plan_ahead(job(tmp_path, 3, exchange={"shape": {"rate_mbps": 100, "round_trip_ms": 5}}))


def test_a_plan_adds_up(plan: JobPlan) -> None:
    content = json.loads(json.dumps(plan.to_json()))
    for name in ("rounds", "waits", "messages", "bytes_sent", "bytes_received"):
        assert content["total"]["traffic"][name] == sum(step["total"][name] for step in content["steps"])
        within = [step["each"][name] for step in content["steps"] if step["when"] in ("iteration", "later")]
        assert content["iteration"]["traffic"][name] == sum(within)
    for step in content["steps"]:
        assert step["times"] == {"iteration": 7, "later": 6}.get(step["when"], 1)
        assert set(step["each"]["sent"]) <= {"shop", "bank"}
        assert sum(step["each"]["sent"].values()) == step["each"]["bytes_sent"]
        assert 0 < step["seconds"]["lan"] < step["seconds"]["configured"] < step["seconds"]["wan"]
    assert content["disk"]["total"] == sum(n for name, n in content["disk"].items() if name != "total")
    assert plan.traffic(3) + plan.iteration * 4 == plan.traffic()


def test_the_fields_of_the_json_are_those_that_are_documented(plan: JobPlan) -> None:
    content = plan.to_json()
    sections = [content, content["job"], content["steps"][0], content["steps"][0]["each"], content["offline"]]
    sections += [content["disk"], content["engines"][1], content["opened"][0], content["offline"]["triples"][0]]
    for name in {name for section in sections for name in section}:
        assert name in (plan_schema.__doc__ or ""), name
    assert list(content["links"]) == ["lan", "wan", "configured"]
    assert content["links"]["lan"] == {"rate_mbps": LAN.rate / 125e3, "round_trip_ms": LAN.round_trip * 1e3}
    assert content["links"]["wan"] == {"rate_mbps": WAN.rate / 125e3, "round_trip_ms": WAN.round_trip * 1e3}


def test_seconds_on_a_link_are_half_its_round_trips_and_the_bytes_of_the_largest_sender(plan: JobPlan) -> None:
    for each in plan.steps:
        assert each.each.bottleneck_bytes >= each.each.bytes_sent
        seconds = each.each.waits * 0.024 + each.each.bottleneck_bytes / 2.5e6
        assert plan.seconds(each.each)["wan"] == pytest.approx(seconds)


@pytest.mark.parametrize("width", [80, 100])
def test_the_text_fits_a_terminal(plan: JobPlan, width: int) -> None:
    out = StringIO()
    Console(file=out, width=width).print(show_plan(plan))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for part in ("update, scale ─▶ numerator, refine ─▶ quotient", "payco distance",
                 "opened at the end: centroids to shop", "≤ 7 times",
                 "notary, for 2 runs of 7 iterations"):  # fmt: skip
        assert part in text


def test_openings_to_all_before_and_during_a_run(tmp_path: Path) -> None:
    shape = {"layout": "horizontal", "rows": {"payco": 9, "shop": 5}, "features": 3, "normalise": {"aggregate": True}}
    plan = plan_ahead(job(tmp_path, kmeans={**shape, "tol": 0.5, "reveal": {}}))
    assert [(each.when, each.to) for each in plan.opened] == [
        ("before", ("payco", "shop")), ("iteration", ("payco", "shop"))
    ]  # fmt: skip
    assert plan.steps[0].step.name == "extremes"


def test_the_dealer_has_no_plan(tmp_path: Path) -> None:
    names = make_configs(tmp_path, dealer="notary", kmeans=job(tmp_path / "x").model_dump()["kmeans"])
    with pytest.raises(ConfigError, match="notary is the dealer"):
        plan_ahead(names["notary"])


def test_a_plan_of_a_million_rows_makes_no_large_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    zeros = np.zeros

    def counted(shape: Any, *rest: Any, **more: Any) -> Any:
        made = zeros(shape, *rest, **more)
        seen.append(made.nbytes)
        return made

    monkeypatch.setattr(np, "zeros", counted)
    wide = {"rows": 10**6, "features": {"payco": 50, "shop": 50}}
    plan = plan_ahead(job(tmp_path, kmeans=wide))
    assert plan.traffic().bytes_sent > 10**8
    assert max(seen) < 10**6


def test_requested_engines_are_explained(tmp_path: Path) -> None:
    plan = plan_ahead(job(tmp_path, kmeans={"products": {"payco": "he", "shop": "auto"}}))
    engines = {(each.party, each.product): (each.engine, each.requested) for each in plan.engines}
    assert engines["payco", "distance"] == ("he", "he")
    assert engines["payco", "operand"] == ("none", "")
    assert engines["shop", "update"] == ("beaver", "auto")


def test_the_engines_of_a_store_are_used_if_they_are_as_requested(tmp_path: Path) -> None:
    config = job(tmp_path)
    store = TripleStore.create(
        config.store_folder, Manifest("store", 1, 7, 1000, "", (("he", "he"), ("beaver", "he"))), bytes(32)
    )
    store.complete()
    chosen = [each.engine for each in plan_ahead(config).engines if each.product != "operand"]
    assert chosen == ["he", "he", "beaver", "he"]
    other = job(tmp_path / "other", kmeans={"products": "beaver"}).model_copy(update={"storage": config.storage})
    assert {each.engine for each in plan_ahead(other).engines} == {"beaver"}


def test_traffic_adds_up() -> None:
    one = Traffic(2, 2, {"a": 3}, {"b": 4}, 5, waits=1)
    total = one * 2 + Traffic(1, 1, {"b": 1}, {}, 1, waits=1)
    assert total == Traffic(5, 5, {"a": 6, "b": 1}, {"b": 8}, 11, waits=3)
    assert total.seconds_on(Link(rate=10, round_trip=2)) == pytest.approx(3 * 1.004 + 11 / 10)


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (12_345_678, "12.3 MB")]
)
def test_sizes_are_shown_with_three_digits(number: int, shown: str) -> None:
    assert format_size(number) == shown
