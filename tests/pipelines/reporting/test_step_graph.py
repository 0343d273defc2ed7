"""The graph of steps: every step once, after all steps of its row that it waits for; and the bars of the charts."""

from itertools import product

import pytest

from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from veilmeans.pipelines.reporting.cost_summary import draw_bar
from veilmeans.pipelines.reporting.step_graph import graph_rows
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.openings.reveal_policy import RevealPolicy

LAYOUTS = {"vertical": vertical(5, (2, 3), 4), "horizontal": horizontal((3, 2), 2, 4)}


@pytest.mark.parametrize(("layout", "k", "products"), [*product(LAYOUTS, (1, 3), ("beaver", "he"))])
def test_every_step_stands_once_after_what_it_waits_for(layout: str, k: int, products: str) -> None:
    everyone = frozenset({0, 1})
    policy = RevealPolicy(LAYOUTS[layout], everyone, everyone, inertia=everyone)
    steps = trace_job(kmeans_for(LAYOUTS[layout], k, products=products), "minmax", policy).steps
    rows = graph_rows(steps)
    drawn = [step.name for row in rows for rank in row.ranks for step in rank]
    assert sorted(drawn) == sorted(step.name for step in steps)
    for row in rows:
        rank_of = {step.name: number for number, rank in enumerate(row.ranks) for step in rank}
        for step in (step for rank in row.ranks for step in rank):
            shown = {"later": "iteration", "last": "end"}.get(step.when, step.when)
            assert (shown, step.phase) == (row.when, row.phase)
            assert all(rank_of[name] < rank_of[step.name] for name in step.after if name in rank_of)


def test_the_parts_of_a_bar_follow_each_other() -> None:
    drawn = draw_bar([("computed", 1.0), ("waited", 3.0)], 8.0, "S2", "one & three")
    assert 'class="fill s2" x="0.00%" width="12.50%"' in drawn
    assert 'class="texture waited" x="12.50%" width="37.50%"' in drawn
    assert "<title>one &amp; three</title>" in drawn
    assert 'width="0.00%"' in draw_bar([("computed", 0.0)], 0.0, "", "")
