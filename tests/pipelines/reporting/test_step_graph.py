"""Pictures of a report: no two boxes of the graph meet, all text has room, and no arrow is lost or needless."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from veilmeans.pipelines.reporting.step_graph import Group, _side_by_side, _stacked, direct, draw_bar, draw_steps
from veilmeans.transforms.kmeans.steps import Step, steps_of
from veilmeans.transforms.offline.requirements import Over

NOTE = "10.5 min · 100.5 MB sent"


def jobs() -> list[tuple[Step, ...]]:
    opened = ("reveal-assignments", "reveal-centres")
    return [
        steps_of(kmeans_for(layout, k, products=products), statistics, openings)
        for layout in (vertical(5, (2, 3), 4), horizontal((3, 2), 2, 4))
        for k in (1, 3)
        for products in ("beaver", "he")
        for statistics in (None, "extremes")
        for openings in ((), opened)
    ]


def groups_of(steps: tuple[Step, ...], wide: bool) -> list[Group]:
    return (_side_by_side if wide else _stacked)(steps, {step.name: NOTE for step in steps})


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
def test_boxes_do_not_meet_and_stay_in_their_group(wide: bool) -> None:
    for steps in jobs():
        groups = groups_of(steps, wide)
        for group in groups:
            for node in group.nodes:
                assert group.x + 10 <= node.x
                assert node.x + node.width <= group.x + group.width - 10
                assert group.y + 24 < node.y
                assert node.y + node.height < group.y + group.height
        nodes = [node for group in groups for node in group.nodes]
        assert len(nodes) == len(steps)
        for one, other in combinations(nodes, 2):
            beside = one.x + one.width < other.x or other.x + other.width < one.x
            assert beside or one.y + one.height < other.y or other.y + other.height < one.y


@pytest.mark.parametrize(("wide", "room"), [(True, 1020), (False, 362)], ids=["wide", "narrow"])
def test_the_graph_fits_the_page_and_text_its_box(wide: bool, room: int) -> None:
    for steps in jobs():
        groups = groups_of(steps, wide)
        assert max(group.x + group.width for group in groups) <= room
        for node in (node for group in groups for node in group.nodes):
            assert max(len(line) for line in node.lines) * 6.2 <= node.width - 18
            assert 30 + 15 * len(node.lines) <= node.height
            assert len(node.step.name) * 7.6 + (24 if node.step.phase else 0) <= node.width


@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=8))
def test_arrows_are_the_fewest_that_say_the_same(before: list[set[int]]) -> None:
    steps = [
        Step(str(i), "", "", Over.ONE, "once", tuple(str(j) for j in sorted(each) if j < i))
        for i, each in enumerate(before)
    ]
    arrows = direct(steps)
    whole = reached([(name, step.name) for step in steps for name in step.after])
    assert reached(arrows) == whole
    for arrow in arrows:
        assert reached([each for each in arrows if each != arrow]) != whole


def reached(arrows: list[tuple[str, str]]) -> set[tuple[str, str]]:
    found = set(arrows)
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


def test_names_and_notes_are_only_text() -> None:
    step = Step("<b>", "a & b", "S1", Over.ONE, "once")
    drawn = draw_steps([step], {"<b>": '"<i>"'}, wide=True)
    assert "<b>" not in drawn
    assert "<i>" not in drawn
    assert "&lt;b&gt;" in drawn
    assert "a &amp; b" in drawn


def test_a_bar_s_parts_follow_each_other() -> None:
    drawn = draw_bar([("computed", 1.0), ("waited", 3.0)], 8.0, "S2", "one & three")
    assert 'class="fill s2" x="0.00%" width="12.50%"' in drawn
    assert 'class="texture waited" x="12.50%" width="37.50%"' in drawn
    assert "<title>one &amp; three</title>" in drawn
    assert 'width="0.00%"' in draw_bar([("computed", 0.0)], 0.0, "", "")
