"""The paper's experiments: parts are measured once, and the page has the numbers of the JSON files and no others."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.experiments.page import page
from benchmarks.experiments.parts import QUESTIONS, Part, load_results, result_file, run_parts
from benchmarks.experiments.questions import PAPER, TINY, all_parts
from benchmarks.experiments.tables import TABLES, number
from benchmarks.experiments.unvectorised import Products

DOCS = Path(__file__).parents[2] / "docs"
NOWHERE = Path("/nowhere")


def made_up(part: Part, place: int) -> Any:
    """Values that a part might have measured, all different."""
    if part.question == "q5":
        names = "together on shares", "together in plaintext", "payco", "shop", "shares and plaintext"
        return {name: (place + 7 * i) % 100 / 100 for i, name in enumerate(names)}
    phases = "online", "offline", "once", "each"
    names = tuple(f"{phase}_{unit}" for phase in phases for unit in ("s", "mb"))
    values: dict[str, Any] = {name: 1.0 + place + i / 10 for i, name in enumerate(names)}
    if part.question == "q2":
        values |= {step: dict(values) for step in ("S1", "S2", "S3")}
    if part.question == "q4":  # more rows take longer
        values |= {name: values[name] * part.settings["rows"] for name in names}
    return values


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of all tiny parts, made up."""
    parts = all_parts(TINY, NOWHERE, spu=True)
    measured = [
        Part(each.question, each.name, each.settings, lambda each=each, i=i: made_up(each, i))
        for i, each in enumerate(parts)
    ]
    run_parts(measured, tmp_path)
    return tmp_path


def test_a_run_that_was_interrupted_resumes_and_repeats_nothing(tmp_path: Path) -> None:
    measured: list[str] = []

    def part(name: str, fails: bool = False, **settings: int) -> Part:
        def run() -> dict[str, int]:
            if fails:
                raise KeyboardInterrupt
            measured.append(name)
            return {"value": len(measured)}

        return Part("q1", name, settings, run)

    with pytest.raises(KeyboardInterrupt):
        run_parts([part("a"), part("b", fails=True), part("c")], tmp_path)
    run_parts([part("a"), part("b"), part("c")], tmp_path)
    assert measured == ["a", "b", "c"]
    run_parts([part("a"), part("b", rows=5), part("c")], tmp_path)
    assert measured == ["a", "b", "c", "b"]
    found = load_results(tmp_path, "q1")["parts"]
    assert {name: each["values"]["value"] for name, each in found.items()} == {"a": 1, "b": 4, "c": 3}


def test_every_question_has_parts_in_the_papers_sizes() -> None:
    parts = all_parts(PAPER, NOWHERE, spu=True)
    assert {part.question for part in parts} == set(QUESTIONS)
    assert len({(part.question, part.name) for part in parts}) == len(parts)
    systems = {(p.settings["rows"], p.settings["clusters"], p.settings["system"]) for p in parts if p.question == "q1"}
    for n in (10_000, 100_000):
        for k in (2, 5):
            assert {(n, k, each) for each in ("dealer", "ot", "iknp", "SEMI2K")} <= systems


def test_the_page_has_the_tables_of_all_questions(results: Path) -> None:
    text = page(results, "results")
    for question in QUESTIONS:
        for table in TABLES[question](load_results(results, question)):
            assert table.rows
            for row in table.rows:
                assert f"| {' | '.join(row)} |" in text


def test_a_number_of_the_page_is_one_of_the_json(results: Path) -> None:
    before = page(results, "results")
    file = result_file(results, "q3")
    content = json.loads(file.read_text())
    content["parts"]["d=2, vectorised"]["values"]["online_s"] = 4321.0
    file.write_text(json.dumps(content))
    after = page(results, "results")
    assert ("4,321" in before, "4,321" in after) == (False, True)


def test_figures_are_drawn_and_on_the_page(results: Path) -> None:
    from benchmarks.experiments.figures_svg import FIGURES, draw_all

    first = {file.name: file.read_bytes() for file in draw_all(results)}
    assert set(first) == {f"{question}.svg" for question in FIGURES}
    assert {file.name: file.read_bytes() for file in draw_all(results)} == first
    assert re.findall(r"\]\(results/(\w+[.]svg)\)", page(results, "results")) == sorted(first)


@pytest.mark.skipif(not (DOCS / "results").exists(), reason="`make paper` has not been run")
def test_the_committed_page_is_made_from_the_committed_json() -> None:
    assert (DOCS / "results.md").read_text() == page(DOCS / "results", "results")
    for part in all_parts(PAPER, NOWHERE, spu=True):
        assert part.name in load_results(DOCS / "results", part.question)["parts"]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.0123"), (9.876, "9.88"), (12.34, "12.3"), (56789.0, "56,789")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_products_by_value_are_those_of_the_matrices() -> None:
    job = Products(5, 3, 2, 1, {})
    states = [job.state(party) for party in range(2)]
    x, y = (np.add.reduce([state[name] for state in states]) for name in ("x", "y"))
    rows, centroids = job.inputs()
    assert np.array_equal(job.distances([x * y]), rows @ centroids.T)
    assert not np.array_equal(states[0]["y"], y)
