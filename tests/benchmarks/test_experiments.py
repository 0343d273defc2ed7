"""The paper's experiments: parts are measured once, and the page has the numbers of the JSON files and no others."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.experiments.blocks import BLOCKS, with_blocks
from benchmarks.experiments.compare import differences
from benchmarks.experiments.findings import FINDINGS
from benchmarks.experiments.page import page
from benchmarks.experiments.partial_stores import distance_steps, steps_of_phase
from benchmarks.experiments.parts import QUESTIONS, Part, is_measured, load_results, result_file, run_parts
from benchmarks.experiments.questions import PAPER, TINY, Sizes, all_parts
from benchmarks.experiments.sparse_scaling import scaled_costs
from benchmarks.experiments.tables import TABLES, number
from benchmarks.experiments.unvectorised import Products, one_triple_for_each
from benchmarks.kmeans_runs import PARTIES, Shape, write_configurations

from veilmeans.pipelines.session.kmeans_from_config import traced_job
from veilmeans.schemas.config import load_config
from veilmeans.transforms.offline.traced_job import TracedJob

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOWHERE = Path("/nowhere")


def made_up(part: Part, place: int) -> Any:
    """Values that a part might have measured, all different."""
    if part.question == "q5":
        names = "together on shares", "together in plaintext", "payco", "shop", "shares and plaintext"
        return {name: (place + 7 * i) % 100 / 100 for i, name in enumerate(names)}
    phases = "online", "offline", "once", "each"
    names = tuple(f"{phase}_{unit}" for phase in phases for unit in ("s", "mb"))
    names = (*names, "command_s", "peak_gib", "deviation", "iteration_s")
    values: dict[str, Any] = {name: 1.0 + place + i / 10 for i, name in enumerate(names)} | {"rounds": place}
    if part.question == "q2":
        values |= {step: dict(values) for step in ("S1", "S2", "S3")}
    if part.question == "q4":  # more rows take longer
        values |= {name: values[name] * part.settings["rows"] for name in names}
    return values


def measure_made_up(sizes: Sizes, folder: Path) -> None:
    """Results of all parts, made up."""
    measured = [
        Part(each.question, each.name, each.settings, lambda each=each, i=i: made_up(each, i))
        for i, each in enumerate(all_parts(sizes, NOWHERE, spu=True))
    ]
    run_parts(measured, folder)


def changed(folder: Path, question: str, part: str, name: str, value: float) -> None:
    """Change a value in the results."""
    file = result_file(folder, question)
    content = json.loads(file.read_text())
    content["parts"][part]["values"][name] = value
    file.write_text(json.dumps(content))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of all tiny parts."""
    measure_made_up(TINY, tmp_path)
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
    named = [part.settings for part in parts if part.question == "q1" and part.settings["features"] == 2]
    systems = {(each["rows"], each["clusters"], each["system"]) for each in named}
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
    changed(results, "q3", "d=2, vectorised", "online_s", 4321.0)
    after = page(results, "results")
    assert ("4,321" in before, "4,321" in after) == (False, True)


def test_the_page_says_where_and_when_it_was_measured(results: Path) -> None:
    text = page(results, "results")
    for question in QUESTIONS:
        found = load_results(results, question)
        assert all(f"| {name} | {value} |" in text for name, value in found["about"].items())
        assert all(
            each["made"]["veilmeans"] in text and each["made"]["date"] in text for each in found["parts"].values()
        )
        assert f"--questions {question} --again" in text


def test_findings_follow_from_the_numbers(results: Path) -> None:
    before = [each.holds for each in FINDINGS["q3"](load_results(results, "q3"))]
    for columns in TINY.q3_columns:
        for phase in ("online", "offline"):
            changed(results, "q3", f"d={columns}, by value", f"{phase}_s", 100.0**columns)
    after = [each.holds for each in FINDINGS["q3"](load_results(results, "q3"))]
    assert (before, after) == ([False, False], [True, True])
    for question in QUESTIONS:
        findings = list(FINDINGS[question](load_results(results, question)))
        assert findings
        assert all(("differs" in str(each)) != each.holds for each in findings)


def test_cheetah_at_many_rows_is_marked_as_scaled(results: Path) -> None:
    (small, _, _), (large, _, _) = TINY.q1
    measured = load_results(results, "q1")["parts"]["n=500 d=2 k=2 t=2, CHEETAH"]["values"]["online_s"]
    assert f"| {number(measured)} |" in page(results, "results")
    assert f"| {number(measured * large / small)}* |" in page(results, "results")


def test_rows_that_were_not_run_are_on_the_line_through_two_runs() -> None:
    first, second = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[2.0, 4.0], [6.0, 8.0]])
    assert np.allclose(scaled_costs({100: first, 200: second}, 400)[0], 4 * first)
    assert scaled_costs({100: first, 200: second}, 400)[1]
    costs, scaled = scaled_costs({100: first, 200: second}, 200)
    assert (np.array_equal(costs, second), scaled) == (True, False)
    falling = scaled_costs({100: second, 200: first}, 400)[0]
    assert np.allclose(falling, 2 * first)


def test_figures_are_drawn_and_on_the_page(results: Path) -> None:
    from benchmarks.experiments.figures_svg import FIGURES, draw_all

    first = {file.name: file.read_bytes() for file in draw_all(results)}
    assert set(first) == {f"{question}.svg" for question in FIGURES}
    assert {file.name: file.read_bytes() for file in draw_all(results)} == first
    assert re.findall(r"\]\(results/(\w+[.]svg)\)", page(results, "results")) == sorted(first)


def test_blocks_of_other_pages_have_the_numbers_of_the_json(tmp_path: Path) -> None:
    measure_made_up(PAPER, tmp_path)
    for name, blocks in BLOCKS.items():
        text = (ROOT / name).read_text()
        first = with_blocks(text, blocks, tmp_path)
        assert with_blocks(first, blocks, tmp_path) == first
        changed(tmp_path, "q1", "n=100,000 d=2 k=5 t=10, dealer", "online_mb", 9876.0)
        assert ("9,876" in first, "9,876" in with_blocks(text, blocks, tmp_path)) == (False, True)
        changed(tmp_path, "q1", "n=100,000 d=2 k=5 t=10, dealer", "online_mb", 1.0)
    with pytest.raises(ValueError, match="one block 'comparison'"):
        with_blocks("no block", BLOCKS["README.md"], tmp_path)


def test_a_second_run_must_have_the_same_bytes_and_rounds(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    measure_made_up(TINY, one)
    measure_made_up(TINY, other)
    assert list(differences(one, other)) == []
    job = "n=500 d=2 k=2 t=2"
    values = load_results(one, "q1")["parts"][f"{job}, dealer"]["values"]
    changed(other, "q1", f"{job}, dealer", "online_mb", values["online_mb"] + 1e-6)
    changed(other, "q1", f"{job}, dealer", "rounds", values["rounds"] + 1)
    changed(other, "q1", f"{job}, dealer", "offline_s", 1000.0)
    changed(other, "q1", f"{job}, SEMI2K", "online_mb", load_mb(one, f"{job}, SEMI2K") * 1.01)
    changed(other, "q1", f"{job}, CHEETAH", "online_mb", load_mb(one, f"{job}, CHEETAH") * 1.05)
    found = list(differences(one, other))
    assert [any(each in line for line in found) for each in ("dealer: online_mb", "dealer: rounds")] == [True, True]
    assert [f"{each}: online_mb" in " ".join(found) for each in ("SEMI2K", "CHEETAH")] == [False, True]
    assert len(found) == 3


def load_mb(folder: Path, part: str) -> float:
    return float(load_results(folder, "q1")["parts"][part]["values"]["online_mb"])


def test_ratios_to_spu_may_differ_by_a_third_at_most(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    measure_made_up(TINY, one)
    measure_made_up(TINY, other)
    part = "n=600 d=2 k=2 t=2, dealer"
    seconds = load_results(one, "q1")["parts"][part]["values"]["online_s"]
    changed(other, "q1", part, "online_s", seconds * 1.2)
    assert list(differences(one, other)) == []
    changed(other, "q1", part, "online_s", seconds * 1.4)
    assert [line.startswith("q1, n=600 d=2 k=2: SEMI2K ÷ ours is") for line in differences(one, other)] == [True]


@pytest.mark.skipif(not (DOCS / "results").exists(), reason="`make paper` has not been run")
def test_the_committed_pages_are_made_from_the_committed_json() -> None:
    text = (DOCS / "results.md").read_text()
    assert text == page(DOCS / "results", "results")
    for part in all_parts(PAPER, NOWHERE, spu=True):
        assert is_measured(part, DOCS / "results"), part.name
    figures = re.findall(r"\]\(results/(\w+[.]svg)\)", text)
    assert figures == sorted(file.name for file in (DOCS / "results").glob("*.svg")) == [f"{q}.svg" for q in QUESTIONS]
    for name, blocks in BLOCKS.items():
        assert (ROOT / name).read_text() == with_blocks((ROOT / name).read_text(), blocks, DOCS / "results")


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


@pytest.fixture
def job(tmp_path: Path) -> TracedJob:
    """A job of 20 rows × 4 columns without a dealer."""
    write_configurations(tmp_path, Shape(20, 4, 2, 2, provider="ot", products="beaver"))
    return traced_job(load_config(tmp_path / PARTIES[0] / "config.yaml"))


def test_a_partial_store_is_for_the_steps_of_one_phase(job: TracedJob) -> None:
    steps = {phase: [step.name for step in steps_of_phase(phase, job).steps] for phase in ("S1", "S2", "S3")}
    assert all(steps.values())
    assert len({name for names in steps.values() for name in names}) == sum(map(len, steps.values()))
    assert {step.name for step in distance_steps(job).steps} == {"operand", "distance"} <= set(steps["S1"])


def test_each_product_by_value_has_a_triple_of_its_own(job: TracedJob) -> None:
    products = Products(20, 4, 2, 2, {})
    (step,) = one_triple_for_each(products, job).steps
    ((stage, *others),) = step.stages.values()
    assert others == []
    assert [(need.kind.name, need.kind.shape) for need in stage.needs] == [("mul", (products.count,))]
