"""What a plan says of a job: every byte that parties in memory send, the store to the last byte, and the text."""

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

from support.fixed_values import fix_costs
from support.kmeans_in_memory import Table, config_for, deal_plan, horizontal, run_kmeans, vertical
from support.parties import make_configs
from veilmeans.io.exchange.link_shaping import LAN, WAN
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_schema import JobPlan, Seconds, Traffic
from veilmeans.pipelines.planning.planned_bytes import offline_of, steps_with_stages, traffic_of
from veilmeans.pipelines.planning.units import size
from veilmeans.pipelines.reporting.plan_table import show_plan
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.schemas.arrays import Arrays, to_stream
from veilmeans.schemas.config import JobConfig, TriplesConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import ProductEnginesConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.steps import step_of
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
    """The same stage, whose messages are counted as they would be sent: by step, sender and recipient."""
    round_ = stage.round

    def send(party: Any, state: Arrays, randomness: Randomness) -> Sent:
        sent = round_.send(party, state, randomness)
        for peer in round_.recipients(party):
            sizes[step_of(stage.name), party.name, names[peer]] += to_stream(sent.for_peer(peer)).size
        return sent

    return replace(stage, round=replace(round_, send=send))


def really_sent(config: JobConfig, layout: Layout) -> Sizes:
    """By parties in memory, in two iterations. They play the round of operands even where it has none."""
    sizes, kmeans, names, play = Sizes(), kmeans_steps(config), config.parties, Table._play
    rng = np.random.default_rng(0)
    rows, start = (rng.random((count, layout.total_features)) for count in (layout.total_rows, kmeans.k))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "_play", lambda self, stage, *rest: play(self, recording(sizes, stage, names), *rest))
        run_kmeans(kmeans, rows, start, ITERATIONS)
    return sizes if kmeans.engines.masked else Sizes({key: n for key, n in sizes.items() if key[0] != "operand"})


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layouts, st.integers(1, 4), st.sampled_from(["beaver", "he", MIXED]), st.booleans())
def test_planned_bytes_are_those_that_are_sent(layout: Layout, k: int, products: Any, inertia: bool) -> None:
    config = config_for(layout, k, inertia=inertia, products=products, tol=0.1 if inertia else 0.0)
    sizes = really_sent(config, layout)
    planned = Sizes()
    for name in config.parties:
        mine = config.model_copy(update={"party": name})
        for step, counted in steps_with_stages(mine, kmeans_steps(mine)):
            moved = traffic_of(mine, counted) * (ITERATIONS if step.when == "iteration" else 1)
            if step.when != "end":
                planned.update({(step.name, name, peer): n for peer, n in moved.sent.items()})
                assert moved.received == {p: sizes[step.name, p, name] for p in moved.received}
    assert planned == sizes


@pytest.mark.parametrize("products", ["beaver", MIXED])
@pytest.mark.parametrize("layout", [vertical(21, (2, 3), 8), horizontal((9, 12), 2, 5)], ids=["vertical", "horizontal"])
def test_the_store_is_as_large_as_what_is_dealt(layout: Layout, products: Any) -> None:
    config = config_for(layout, 3, products=products, max_iter=ITERATIONS).model_copy(
        update={"triples": TriplesConfig(store="store", runs=3), "dealer": "notary"}
    )
    kmeans = kmeans_steps(config)
    for index, dealt in enumerate(deal_plan(kmeans, ITERATIONS)):
        made = offline_of(config, kmeans.plan(), index)
        store: Any = dealt.store
        corrections = [to_stream(arrays).size for arrays in store.kept.values() if arrays]
        ciphers = [arrays for arrays in store.made.values() if arrays]
        assert (made.bytes_received, made.messages) == (3 * sum(corrections), 3 * len(corrections))
        assert made.cipher_bytes == 3 * sum(to_stream(arrays).size for arrays in ciphers)
        assert made.ciphertexts == 3 * sum(array.size for arrays in ciphers for array in arrays.values())
        assert (made.ciphertexts > 0) == (products != "beaver")


def test_triples_are_counted_by_kind() -> None:
    """k = 2 over 10 rows: one comparison a row, and a matrix of 10 × 2 times 2 × 2 and one of 2 × 10 times 10 × 1."""
    config = config_for(vertical(10, (2, 2), 10), 2, products="beaver", max_iter=1)
    config = config.model_copy(update={"triples": TriplesConfig(store="store"), "dealer": "notary"})
    found = {each.kind: (each.unit, each.count) for each in offline_of(config, kmeans_steps(config).plan(), 0).triples}
    assert found["Operand"] == ("words", 10 * 2)
    assert found["MatMul"] == ("words", 2 * (10 * 2 + 2 * 1))
    assert {found[kind][0] for kind in ("And", "PairAnd", "DaBit")} == {"bits"}


# The whole plan.
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
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobPlan:
    fix_costs(monkeypatch)
    return plan_ahead(job(tmp_path, 3, exchange={"shape": {"rate_mbps": 100, "round_trip_ms": 5}}))


def test_a_plan_adds_up(plan: JobPlan) -> None:
    content = json.loads(json.dumps(plan.to_json()))
    for name in ("rounds", "messages", "bytes_sent", "bytes_received"):
        assert content["total"]["traffic"][name] == sum(step["total"][name] for step in content["steps"])
        within = [step["each"][name] for step in content["steps"] if step["when"] == "iteration"]
        assert content["iteration"]["traffic"][name] == sum(within)
    for step in content["steps"]:
        assert step["times"] == (7 if step["when"] == "iteration" else 1)
        assert set(step["each"]["sent"]) <= {"shop", "bank"}
        assert sum(step["each"]["sent"].values()) == step["each"]["bytes_sent"]
        assert 0 < step["seconds"]["computed"] < step["seconds"]["lan"] < step["seconds"]["configured"]
        assert step["seconds"]["configured"] < step["seconds"]["wan"]
    assert content["disk"]["total"] == sum(n for name, n in content["disk"].items() if name != "total")
    assert plan.traffic(3) + plan.iteration[0] * 4 == plan.traffic()
    assert plan.seconds(3).computed < plan.seconds().computed


def test_the_fields_of_the_json_are_those_that_are_documented(plan: JobPlan) -> None:
    from veilmeans.pipelines.planning import plan_schema as estimate

    content = plan.to_json()
    places = [content, content["job"], content["steps"][0], content["steps"][0]["each"], content["offline"]]
    places += [content["disk"], content["engines"][1], content["opened"][0], content["offline"]["triples"][0]]
    for name in {name for place in places for name in place}:
        assert name in (estimate.__doc__ or ""), name
    assert list(content["links"]) == ["lan", "wan", "configured"]
    assert content["links"]["lan"] == {"rate_mbps": LAN.rate / 1e6, "round_trip_ms": LAN.round_trip * 1e3}
    assert content["links"]["wan"] == {"rate_mbps": WAN.rate / 1e6, "round_trip_ms": WAN.round_trip * 1e3}


def test_a_slow_link_takes_its_round_trips_and_bytes(plan: JobPlan) -> None:
    for each in plan.steps:
        waiting = each.seconds.links["wan"] - each.seconds.computed
        assert waiting >= each.each.rounds * 0.04 + each.each.bytes_sent / 2.5e6 - 1e-9


@pytest.mark.parametrize("width", [80, 100])
def test_the_text_fits(plan: JobPlan, width: int) -> None:
    out = StringIO()
    Console(file=out, width=width).print(show_plan(plan))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for part in ("update ─▶ reciprocal ─▶ quotient ─▶ finish", "payco distance", "opened at the end: centroids to shop",
                 "times are estimates", "≤ 7 times", "notary, for 2 runs of 7 iterations"):  # fmt: skip
        assert part in text


def test_opened_to_all_before_and_during_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_costs(monkeypatch)
    shape = {"layout": "horizontal", "rows": {"payco": 9, "shop": 5}, "features": 3, "normalise": {"aggregate": True}}
    plan = plan_ahead(job(tmp_path, kmeans={**shape, "tol": 0.5, "reveal": {}}))
    assert [(each.when, each.to) for each in plan.opened] == [
        ("before", ("payco", "shop")), ("iteration", ("payco", "shop"))
    ]  # fmt: skip
    assert plan.steps[0].step.name == "extremes"


def test_the_dealer_has_no_part_in_a_run(tmp_path: Path) -> None:
    names = make_configs(tmp_path, dealer="notary", kmeans=job(tmp_path / "x").model_dump()["kmeans"])
    with pytest.raises(ConfigError, match=r"notary is the dealer .* `veilmeans offline --dry-run`"):
        plan_ahead(names["notary"])


def test_a_plan_of_a_million_rows_needs_no_such_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_costs(monkeypatch)
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


def test_the_engine_that_is_asked_for_and_the_one_that_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_costs(monkeypatch)
    plan = plan_ahead(job(tmp_path, kmeans={"products": {"payco": "he", "shop": "auto"}}))
    found = {(each.party, each.product): (each.engine, each.why) for each in plan.engines}
    assert found["payco", "distance"] == ("he", "as kmeans.products asks")
    assert found["payco", "operand"] == ("none", "no masked matrix is sent")
    assert found["shop", "update"][0] == "beaver"
    assert " s an iteration, he " in found["shop", "update"][1]


def test_the_engines_of_a_store_count_if_they_are_those_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_costs(monkeypatch)
    config = job(tmp_path)
    store = TripleStore.create(
        config.store_folder, Manifest("store", 1, 7, 1000, "", (("he", "he"), ("beaver", "he"))), bytes(32)
    )
    store.complete()
    chosen = [each.engine for each in plan_ahead(config).engines if each.product != "operand"]
    assert chosen == ["he", "he", "beaver", "he"]
    other = job(tmp_path / "other", kmeans={"products": "beaver"}).model_copy(update={"storage": config.storage})
    assert {each.engine for each in plan_ahead(other).engines} == {"beaver"}


def test_sums_of_traffic_and_time() -> None:
    one = Traffic(1, 2, {"a": 3}, {"b": 4})
    assert one * 2 + Traffic(1, 1, {"b": 1}, {}) == Traffic(3, 5, {"a": 6, "b": 1}, {"b": 8})
    assert (Seconds(1.0, {"lan": 2.0}) * 2 + Seconds(1.0, {"lan": 1.0})).to_json() == {"computed": 3.0, "lan": 5.0}


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (12_345_678, "12.3 MB")]
)
def test_sizes_are_shown_with_three_digits(number: int, shown: str) -> None:
    assert size(number) == shown
