"""The benchmark of triples without a dealer: its jobs, its configurations, and figures with their targets."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.figures import publish
from benchmarks.kmeans_runs import Measured, Shape, write_configurations
from benchmarks.offline import JOBS, job_figures, paper_figures

from veilmeans.schemas.config import load_config


def measured(**changed: Any) -> Measured:
    values = {"online": 1.0, "online_wall": 5.0, "offline": 10.0, "online_mb": 25.0, "offline_mb": 40.0}
    peaks = {"offline, payco": 0.3, "offline, shop": 0.4, "train, payco": 0.9, "train, shop": 0.9}
    values |= {"offline_sent_mb": 45.0, "peak_gib": 0.9}
    return Measured(**{**values, **changed}, reports={}, peaks=peaks, processor=dict.fromkeys(peaks, 4.0))


def test_jobs_are_those_of_the_paper_and_of_other_systems() -> None:
    sizes = {name: (each.job.rows, each.job.features, each.job.clusters) for name, each in JOBS.items()}
    assert sizes == {"a": (10_000, 2, 5), "b": (100_000, 2, 5), "c": (10_000, 16, 4)}
    assert {each.job.iterations for each in JOBS.values()} == {10}
    assert [name for name, each in JOBS.items() if "iknp" in each.providers] == ["a"]


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({}, [True, True, True, True]),
        ({"offline": 10.1}, [False, True, False, True]),
        ({"online_wall": 5.1}, [True, True, False, True]),
        ({"offline_sent_mb": 45.1}, [True, False, True, False]),
        ({"online_mb": 25.1}, [True, True, True, False]),
    ],
)
def test_both_phases_have_targets_for_time_and_traffic(changed: dict[str, float], met: list[bool]) -> None:
    figures = list(job_figures("a", JOBS["a"], "ot", measured(**changed), 1e-6))
    assert [figure.met for figure in figures if figure.target is not None] == [*met, True]


def test_iknp_has_no_targets_but_the_result() -> None:
    figures = list(job_figures("a", JOBS["a"], "iknp", measured(), 1.0))
    assert [(figure.name.rpartition(": ")[2], figure.met) for figure in figures if figure.target is not None] == [
        ("deviation from Lloyd", False)
    ]


def test_figures_are_a_list_of_objects_in_json(tmp_path: Path) -> None:
    figures = [*job_figures("a", JOBS["a"], "ot", measured(), 1e-6), *paper_figures("a", JOBS["a"])]
    publish(figures, tmp_path / "figures.json")
    content = json.loads((tmp_path / "figures.json").read_text())
    assert content == [asdict(figure) for figure in figures]
    assert {tuple(each) for each in content} == {("name", "value", "unit", "target", "met")}
    assert [each["value"] for each in content[-2:]] == [282, 12_900]
    assert [each["value"] for each in content if "peak" in each["name"]] == [0.4]


@pytest.mark.parametrize("provider", ["dealer", "ot", "iknp"])
def test_configurations_are_of_the_provider(tmp_path: Path, provider: str) -> None:
    shape = Shape(100, 2, 3, 1, provider=provider)
    write_configurations(tmp_path, shape)
    configs = [load_config(tmp_path / name / "config.yaml") for name in shape.members]
    assert {config.provider for config in configs} == {provider}
    assert len(configs) == (3 if provider == "dealer" else 2)
