"""The graph of stages is of what runs: its names are the plan's, and every step comes after those it waits for."""

import pytest

from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from veilmeans.schemas.kmeans_config import ProductEnginesConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.steps import step_of, steps_of

LAYOUTS = (vertical(5, (2, 3), 4), horizontal((3, 2, 1), 2, 4))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["vertical", "horizontal"])
@pytest.mark.parametrize("products", ["beaver", "he", {"payco": ProductEnginesConfig(distance="he", update="beaver")}])
@pytest.mark.parametrize("k", [1, 3])
def test_the_steps_are_the_plan_s(layout: Layout, products: str, k: int) -> None:
    kmeans = kmeans_for(layout, k, products=products)
    traced = {step_of(stage.name) for _, stage in kmeans.plan().counted(0)}
    steps = steps_of(kmeans)
    silent = {"assign"} if k == 1 else set()
    assert {step.name for step in steps} - traced <= silent
    assert traced <= {step.name for step in steps}
    seen: set[str] = set()
    for step in steps:
        assert set(step.after) <= seen
        seen.add(step.name)


def test_statistics_come_first_and_openings_last() -> None:
    kmeans = kmeans_for(LAYOUTS[1], 2)
    steps = steps_of(kmeans, "extremes", ("reveal-centres",))
    assert (steps[0].name, steps[-1].name) == ("extremes", "reveal-centres")
    assert "extremes" in steps[1].after
    assert steps_of(kmeans)[-1].name == "finish"


def test_a_stage_s_name_tells_its_step() -> None:
    names = {"assign.03.choose": "assign", "reveal-centres-3b37cfd4e212.00.centres": "reveal-centres", "x.0": "x"}
    assert {stage: step_of(stage) for stage in names} == names
