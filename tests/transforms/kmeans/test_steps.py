"""The steps of a job are those of the description that runs: their order, what each waits for, and their messages."""

import pytest

from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from veilmeans.schemas.kmeans_config import ProductEnginesConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.kmeans.steps import step_name
from veilmeans.transforms.openings.reveal_policy import RevealPolicy
from veilmeans.transforms.rounds.executor import Over

LAYOUTS = (vertical(5, (2, 3), 4), horizontal((3, 2, 1), 2, 4))
ITERATION = ("distance", "norms", "assign", "stop", "update", "scale", "numerator", "refine", "quotient")


@pytest.mark.parametrize("layout", LAYOUTS, ids=["vertical", "horizontal"])
@pytest.mark.parametrize("products", ["beaver", "he", {"payco": ProductEnginesConfig(distance="he", update="beaver")}])
@pytest.mark.parametrize("k", [1, 3])
def test_every_step_comes_after_those_whose_output_it_uses(layout: Layout, products: str, k: int) -> None:
    seen: set[str] = set()
    for step in trace_job(kmeans_for(layout, k, products=products)).steps:
        assert set(step.after) <= seen
        seen.add(step.name)
    assert seen.issuperset(ITERATION)


def test_steps_for_ciphertexts_are_there_where_an_engine_needs_them() -> None:
    for products, expected in {"beaver": {"operand"}, "he": {"encrypt", "unmask"}}.items():
        names = {step.name for step in trace_job(kmeans_for(LAYOUTS[0], 3, products=products)).steps}
        assert names & {"operand", "encrypt", "unmask"} == expected


def test_statistics_come_first_and_openings_last() -> None:
    kmeans = kmeans_for(LAYOUTS[1], 2, products="beaver")
    policy = RevealPolicy(kmeans.layout, assignments=frozenset({0}), centroids=frozenset({1}), name="-0123456789ab")
    steps = {step.name: step for step in trace_job(kmeans, "minmax", policy).steps}
    names = list(steps)
    assert (names[0], names[-2:]) == ("extremes", ["reveal-assignments", "reveal-centroids"])
    assert steps["operand"].after == steps["norms"].after == ("extremes",)
    assert "last-assign" in steps["reveal-assignments"].after
    when = ["once"] * 2 + ["iteration"] * 3 + ["later"] + ["iteration"] * 5 + ["last"] * 4 + ["end"] * 2
    assert [step.when for step in steps.values()] == when


def test_a_step_says_what_it_waits_for() -> None:
    steps = {step.name: step for step in trace_job(kmeans_for(LAYOUTS[0], 3, products="beaver")).steps}
    assert steps["distance"].after == ("operand",)
    assert steps["assign"].after == ("distance", "norms")
    assert steps["stop"].after == ("norms",)
    assert steps["update"].after == ("assign", "stop", "operand")
    assert steps["quotient"].after == ("numerator", "refine")
    assert (steps["quotient"].over, steps["scale"].over) == (Over.COLUMNS, Over.ONE)


def test_steps_beside_each_other_run_in_lock_step() -> None:
    steps = trace_job(kmeans_for(LAYOUTS[0], 3, products="beaver")).steps
    groups = [step.beside for step in steps if step.when in ("iteration", "later")]
    lanes = [("distance", "norms"), ("assign", "stop"), ("update", "scale"), ("numerator", "refine"), ("quotient",)]
    assert list(dict.fromkeys(groups)) == lanes
    before_stop = [step.name for step in steps if step.before_stop]
    assert before_stop == ["distance", "norms", "assign", "stop"]


def test_a_step_says_what_it_sends() -> None:
    steps = {step.name: step for step in trace_job(kmeans_for(LAYOUTS[0], 3, products="beaver")).steps}
    assert steps["operand"].message_contents == ["X − U"]


def test_a_stage_names_its_step() -> None:
    names = {"assign.03.choose": "assign", "reveal-centroids-3b37cfd4e212.00.centroids": "reveal-centroids", "x.0": "x"}
    assert {stage: step_name(stage) for stage in names} == names
