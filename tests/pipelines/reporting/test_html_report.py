"""The run report: a self-contained page with the numbers of the run's files, and without values, shares and secrets."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.parties import file_mode
from support.report_page import check_page, drawn_steps, footer
from support.reported_run import (
    BOTH,
    HORIZONTAL,
    LABELS,
    SECRET,
    VERTICAL,
    ReportedRun,
    job_config,
    make_run,
    write_page,
)
from veilmeans.io.storage.run_report import RunReport, bytes_sent, total_count
from veilmeans.pipelines.planning.units import format_duration, format_period, format_size
from veilmeans.pipelines.reporting import html_report
from veilmeans.pipelines.reporting.html_report import report_page, write_report
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.transforms.kmeans.steps import step_name

AGGREGATE = {**HORIZONTAL, "normalise": {"aggregate": True}}
JOBS: dict[str, Mapping[str, Any]] = {
    "vertical": VERTICAL,
    "he": {**VERTICAL, "products": "he"},
    "mixed": {**VERTICAL, "products": {"payco": {"distance": "he", "update": "beaver"}, "shop": "beaver"}},
    "horizontal": {**HORIZONTAL, "normalise": {"method": "minmax", "ranges": {"a": [0, SECRET], "b": [0, 1]}}},
    "aggregate": AGGREGATE,
    "moments, he": {**AGGREGATE, "normalise": {"method": "zscore", "aggregate": True}, "products": "he"},
    "one cluster": {**VERTICAL, "clusters": 1, "tol": 0, "reveal": {}},
    "prediction": {**VERTICAL, "predict": {"model": "october-model"}, "reveal": {"assignments": BOTH}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ReportedRun:
    return write_page(make_run(tmp_path_factory.mktemp("run")))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_every_step_of_a_run_is_drawn_on_a_self_contained_page(tmp_path: Path, name: str, finished: bool) -> None:
    job = JOBS[name]
    if name == "one cluster" and finished:
        job = {**job, "reveal": {"centroids": BOTH}}
    run = write_page(make_run(tmp_path, job, finished=finished))
    check_page(run.page)
    run.check_silent()
    steps, ran = drawn_steps(run.page), {step_name(stage) for stage in run.numbers["stages"]}
    assert set(steps) >= ran
    assert len(set(steps)) == len(steps)
    for step in ran:
        assert re.search(rf'<th scope="row">{step}[<]', run.page)


def test_opened_scores_are_a_histogram(tmp_path: Path, run: ReportedRun) -> None:
    reveal = {"assignments": BOTH, "scores": BOTH}
    page = write_page(make_run(tmp_path, {**VERTICAL, "reveal": reveal})).page
    rows = re.findall(r'<th scope="row">(\S+ to \S+)</th>.*?<td class="n">(\d+)</td>', page)
    assert rows[:3] == [("0 to 0.1", "2"), ("0.1 to 0.2", "2"), ("0.2 to 0.3", "1")]
    assert (len(rows), rows[-1], sum(int(count) for _, count in rows)) == (12, ("1.1 to 1.2", "1"), len(LABELS))
    assert "<h3>Scores</h3>" not in run.page


def test_steps_that_did_not_run_are_not_drawn(tmp_path: Path) -> None:
    stages = ("operand.00.operand", "distance.00.cross", "assign.00.pair", "reveal-assignments-0123456789ab.00.open")
    run = write_page(make_run(tmp_path, stages=stages))
    check_page(run.page)
    assert drawn_steps(run.page) == [step_name(stage) for stage in stages]


def test_the_file_is_private_and_the_same_files_make_the_same_page(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    file = write_report(config)
    assert file_mode(file) == 0o600
    before = file.read_bytes()
    assert write_report(config).read_bytes() == before
    assert not list(config.run_folder.path.glob("*.part"))


def test_only_the_page_is_written(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    page = report_page(config)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    made = write_report(config)
    assert made.read_text() == page
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file != made} == before


def test_totals_are_the_sums_of_the_numbers(run: ReportedRun) -> None:
    stages = run.numbers["stages"]
    names = ("bytes_sent", "bytes_received", "computed_us", "waited_us", "delivered_us")
    expected = [f"{len(stages)}", f"{total_count(stages, 'messages'):,}"]
    assert footer(run.page) == expected + [f"{total_count(stages, name) / 1e6:.3f}" for name in names]
    assert f"{format_size(bytes_sent(stages))} sent" in run.text
    assert "Online time 6.50 s" in run.text
    assert "Offline time 7.25 s 123 kB" in run.text


def test_each_stage_has_a_line(run: ReportedRun) -> None:
    for stage, numbers in run.numbers["stages"].items():
        line = re.search(rf"<code>{re.escape(stage)}</code></th>(.*?)</tr>", run.page)
        assert line
        cells = re.findall(r'<td class="n">([^<]*)</td>', line[1])
        assert cells[:2] == [f"{numbers['messages']:,}", f"{numbers['bytes_sent'] / 1e6:.3f}"]


def test_iterations_of_one_pipeline_share_a_line(run: ReportedRun) -> None:
    lines = re.findall(
        r'<tr><th scope="row">([\d–]+)</th><td class="n">([^<]*)</td><td class="n">([^<]*)</td>', run.page
    )
    assert lines == [("1", "2.00", "2.00"), ("2–4", "3.00", "1.00")]


def test_a_period_names_a_common_day_once() -> None:
    assert format_period("2026-11-06T15:57:01+00:00", "2026-11-06T16:02:59+00:00") == "6 Nov 2026, 15:57–16:02 UTC"
    both = "6 Nov 2026, 15:57 UTC – 7 Nov 2026, 00:02 UTC"
    assert format_period("2026-11-06T15:57:01+00:00", "2026-11-07T00:02:59+00:00") == both
    assert format_period("2026-11-06T15:57:01+00:00", "2026-11-06T15:57:59+00:00") == "6 Nov 2026, 15:57 UTC"


def test_numbers_have_the_unit_that_fits() -> None:
    times = {
        0: "0 ms",
        0.0994: "99 ms",
        0.1: "0.10 s",
        9.994: "9.99 s",
        119.9: "119.9 s",
        120: "2.0 min",
        7200: "2.0 h",
    }
    assert {seconds: format_duration(seconds) for seconds in times} == times
    sizes = {0: "0 B", 999: "999 B", 1000: "1 kB", 12_345: "12.3 kB", 1_500_000: "1.5 MB", 5 * 10**12: "5 TB"}
    assert {count: format_size(count) for count in sizes} == sizes


def test_an_unfinished_run_is_reported_as_such(tmp_path: Path) -> None:
    run = write_page(make_run(tmp_path, finished=False))
    assert "not finished" in run.text
    assert "4 of at most 9" in run.text


def test_a_run_that_waits_for_a_farewell_is_complete_here(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    config.run_folder.farewell.unlink()
    assert "complete here" in write_page(config).text


def test_a_run_that_has_not_begun_has_no_report(tmp_path: Path) -> None:
    config = job_config(tmp_path, VERTICAL)
    with pytest.raises(StorageError, match="run 'test' of payco"):
        write_report(config)
    assert not config.run_folder.path.exists()


def test_a_changed_configuration_is_refused(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    other = config.model_copy(update={"kmeans": config.required_kmeans.model_copy(update={"tol": 0.5})})
    with pytest.raises(ConfigError, match="run 'test'"):
        write_report(other)


def test_a_report_without_history_is_read(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    file = config.run_folder.report
    content = json.loads(file.read_text())
    file.write_text(json.dumps({name: content[name] for name in ("seconds", "iterations", "stages")}))
    config.offline().run_folder.report.unlink()
    run = write_page(config)
    check_page(run.page)
    assert "Offline time – not recorded" in run.text
    assert run.disclosures["cluster"] == "payco, shop"


def test_restarts_and_retried_pipelines_are_counted(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    report = RunReport(config.run_folder)
    before = config.run_folder.report.read_bytes()
    report.begin(config)
    assert config.run_folder.report.read_bytes() == before
    other = RunReport(config.run_folder)
    other.repeat()
    report.end()
    text = write_page(config).text
    assert "started 2 times" in text
    assert "retried: 1" in text
    assert report.content["software"]["runner"] == "DirectRunner"


def test_a_lost_certificate_is_no_obstacle(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    config.peers["shop"].certificate.unlink()
    page = write_page(config).page
    assert len(re.findall(r">[0-9a-f]{4}(?::[0-9a-f]{4}){7}<", page)) == 2


def test_a_prediction_names_its_model_and_no_iteration(tmp_path: Path) -> None:
    run = write_page(make_run(tmp_path, JOBS["prediction"]))
    assert "october-model" in run.text
    assert not re.search("Iterations|Convergence|of at most|one bit|quotient", run.text)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(scheme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", html_report._TEMPLATE.read_text(), re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    tints = [name for name in colours if name.endswith("-tint")]
    pairs = [(text, ground) for text in ("ink", "soft", "link") for ground in ("paper", "ground")]
    pairs += [("ink", tint) for tint in tints] + [(phase, "paper") for phase in ("s1", "s2", "s3")]
    pairs += [("good", "good-tint"), ("open", "open-tint")]
    assert [pair for pair in pairs if contrast(*(colours[name] for name in pair)) < 4.5] == []
