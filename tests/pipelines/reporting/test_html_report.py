"""The run report: a page that needs nothing else, tells what the run's files tell, and none of what they must not."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from support.parties import make_configs, mode_of
from support.report_page import check_page, footer
from veilmeans.io.storage.run_report import RunReport, bytes_sent, total_count
from veilmeans.pipelines.planning.units import duration, size
from veilmeans.pipelines.reporting import html_report
from veilmeans.pipelines.reporting.disclosures import period
from veilmeans.pipelines.reporting.html_report import REPORT, present, report_page, write_report
from veilmeans.pipelines.reporting.redacted_config import redacted_config
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.pipelines.session.result_opening import policy_digest
from veilmeans.pipelines.session.trained_model import public_job
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.kmeans_config import RevealConfig
from veilmeans.transforms.kmeans.steps import step_of, steps_of

BOTH = ["payco", "shop"]
LABELS = np.array([0, 1, 1, 2, 1, 1, 0], np.int32)
VERTICAL = {"layout": "vertical", "rows": len(LABELS), "features": {"payco": 2, "shop": 3}}
HORIZONTAL = {"layout": "horizontal", "rows": {"payco": len(LABELS), "shop": 5}, "features": 2}
AGGREGATE = {**HORIZONTAL, "normalise": {"aggregate": True}}
ALL = {"assignments": BOTH, "centroids": BOTH, "inertia": BOTH}
SECRET = 424242.4242
"""Stands for a value of the data, wherever one could be."""


@dataclass(frozen=True)
class Run:
    """A made-up run of payco's, and its page."""

    config: JobConfig
    page: str

    @property
    def numbers(self) -> dict[str, Any]:
        return RunReport(self.config.run_folder).content

    @property
    def text(self) -> str:
        """What a reader sees outside pictures, with single spaces."""
        page = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", self.page, flags=re.DOTALL)
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def configured(folder: Path, job: Mapping[str, Any], engine: Mapping[str, Any] | None = None) -> JobConfig:
    fields = {"clusters": 3, "max_iter": 9, "data": str(folder / "payco" / "data.csv"), "reveal": ALL, **job}
    triples = {"store": "october"}
    made = make_configs(folder, kind="files", dealer="notary", triples=triples, engine=engine or {}, kmeans=fields)
    return made["payco"]


def stage_names(config: JobConfig) -> list[str]:
    """All stages that such a run has."""
    job = config.required_kmeans
    names = {stage.name for _, stage in kmeans_steps(config).plan().counted(0)}
    if job.normalise.aggregate:
        names.add({"minmax": "extremes.00.pair", "zscore": "moments.00.share"}[job.normalise.method])
    digest = policy_digest(job.reveal)
    names |= {f"reveal-assignments-{digest}.00.assignments"} if job.reveal.assignments else set()
    names |= {f"reveal-centres-{digest}.00.centres"} if job.reveal.centroids or job.reveal.inertia else set()
    return sorted(names)


def counts(number: int) -> dict[str, int]:
    names = ("messages", "bytes_sent", "bytes_received", "waited_us", "computed_us", "handed_over_us")
    return {name: (i + 3) * 1009**2 * (number + 1) % 9_999_991 for i, name in enumerate(names)}


def make_run(
    folder: Path,
    job: Mapping[str, Any] = VERTICAL,
    engine: Mapping[str, Any] | None = None,
    finished: bool = True,
    stages: Sequence[str] | None = None,
) -> JobConfig:
    """The files that a run leaves with payco, without the run."""
    config = configured(folder, job, engine)
    report = RunReport(config.run_folder)
    report.begin(config)
    names = stage_names(config) if stages is None else stages
    report.add(1.5, {name: counts(number) for number, name in enumerate(names)})
    for done, seconds in ((1, 2.0), (4, 3.0)):
        report.add_iterations(done, seconds, {"assign.00.pair": counts(done)})
    offline = RunReport(config.offline().run_folder)
    offline.add(7.25, {"assign.00.pair": {"bytes_received": 123_000}, "offline.corrections": {"waited_us": 4_000_000}})
    offline.add_shards(18)
    write_secrets(config)
    if finished:
        finish(config, report)
    return config


def write_secrets(config: JobConfig) -> None:
    """What the report has no business with, beside what it reads."""
    config.store_folder.mkdir(parents=True)
    (config.store_folder / "seed").write_bytes(b"SECRET-SEED")
    (config.run_folder / "checkpoints").mkdir()
    (config.run_folder / "checkpoints" / "4.arrow").write_bytes(b"SECRET-SHARE")
    saved = {"job": public_job(config), "binding": "SECRET-BINDING", "shift": [SECRET], "factor": [SECRET]}
    (config.run_folder / "finished.json").write_text(json.dumps(saved))


def finish(config: JobConfig, report: RunReport) -> None:
    folder, reveal = config.run_folder, config.required_kmeans.reveal
    result: dict[str, Any] = {"run": config.run, "iterations": 4, "stopped": True}
    if config.party in reveal.assignments:
        ids = [f"SECRET-ID-{i}" for i in range(len(LABELS))]
        pa.parquet.write_table(pa.table({"id": ids, "cluster": LABELS}), folder / "assignments.parquet")
        result["assignments"] = str(folder / "assignments.parquet")
    if config.party in reveal.centroids:
        pa.parquet.write_table(pa.table({"amount": [SECRET] * 3}), folder / "centroids.parquet")
        result["centroids"] = str(folder / "centroids.parquet")
    if config.party in reveal.inertia:
        result["inertia"] = 31.40625
    (folder / "result.json").write_text(json.dumps(result))
    report.add_opening(reveal.model_dump(mode="json"))
    report.end()
    (folder / "farewell").touch()


def shown(config: JobConfig) -> Run:
    file = write_report(config)
    assert file == config.run_folder / REPORT
    return Run(config, file.read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return shown(make_run(tmp_path_factory.mktemp("run")))


def check_silent(run: Run) -> None:
    """No value, share, secret or path of this machine is told."""
    for word in ("SECRET", "424242", str(run.config.storage.parent.parent), run.config.storage.parent.name + "/"):
        assert word not in run.page, word


JOBS: dict[str, Mapping[str, Any]] = {
    "vertical": VERTICAL,
    "he": {**VERTICAL, "products": "he"},
    "mixed": {**VERTICAL, "products": {"payco": {"distance": "he", "update": "beaver"}, "shop": "beaver"}},
    "horizontal": {**HORIZONTAL, "normalise": {"method": "minmax", "ranges": {"a": [0, SECRET], "b": [0, 1]}}},
    "aggregate": AGGREGATE,
    "moments, he": {**AGGREGATE, "normalise": {"method": "zscore", "aggregate": True}, "products": "he"},
    "one cluster": {**VERTICAL, "clusters": 1, "tol": 0, "reveal": {}},
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_every_step_of_a_run_is_in_a_page_that_stands_by_itself(tmp_path: Path, name: str, finished: bool) -> None:
    job = JOBS[name]
    if name == "one cluster" and finished:
        job = {**job, "reveal": {"centroids": BOTH}}  # its rows have one cluster: nothing else is to be told
    config = make_run(tmp_path, job, finished=finished)
    run = shown(config)
    check_page(run.page)
    check_silent(run)
    ran = {step_of(stage) for stage in run.numbers["stages"]}
    pictures = re.findall(r'<svg class="dag (?:wide|narrow)".*?</svg>', run.page, re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        drawn = re.findall(r'<text class="name"[^>]*>([^<]+)</text>', picture)
        assert set(drawn) >= ran
        assert len(set(drawn)) == len(drawn)
    for step in ran:
        assert re.search(rf'<th scope="row">{step}[<]', run.page)


def test_the_file_is_the_party_s_own_and_the_same_files_make_the_same_report(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    first = write_report(config)
    assert mode_of(first) == 0o600
    before = first.read_bytes()
    assert write_report(config).read_bytes() == before
    assert not list(config.run_folder.glob("*.part"))


def test_nothing_but_the_report_is_written(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    page = report_page(config)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    made = write_report(config)
    assert made.read_text() == page
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file != made} == before


def test_totals_are_those_of_the_numbers(run: Run) -> None:
    stages = run.numbers["stages"]
    names = ("bytes_sent", "bytes_received", "computed_us", "waited_us", "handed_over_us")
    expected = [f"{len(stages)}", f"{total_count(stages, 'messages'):,}"]
    assert footer(run.page) == expected + [f"{total_count(stages, name) / 1e6:.3f}" for name in names]
    assert f"{size(bytes_sent(stages))} sent" in run.text
    assert "Online time 6.50 s" in run.text
    assert "Offline time 7.25 s 123 kB, 18 shards" in run.text


def test_each_stage_has_a_line_of_its_own(run: Run) -> None:
    for stage, numbers in run.numbers["stages"].items():
        line = re.search(rf"<code>{re.escape(stage)}</code></th>(.*?)</tr>", run.page)
        assert line
        found = re.findall(r'<td class="n">([^<]*)</td>', line[1])
        assert found[:2] == [f"{numbers['messages']:,}", f"{numbers['bytes_sent'] / 1e6:.3f}"]


def test_iterations_that_were_one_pipeline_stand_together(run: Run) -> None:
    lines = re.findall(
        r'<tr><th scope="row">([\d–]+)</th><td class="n">([^<]*)</td><td class="n">([^<]*)</td>', run.page
    )
    assert lines == [("1", "2.00", "2.00"), ("2–4", "3.00", "1.00")]


def test_a_period_names_one_day_once() -> None:
    assert period("2026-11-06T15:57:01+00:00", "2026-11-06T16:02:59+00:00") == "6 Nov 2026, 15:57–16:02 UTC"
    both = "6 Nov 2026, 15:57 UTC – 7 Nov 2026, 00:02 UTC"
    assert period("2026-11-06T15:57:01+00:00", "2026-11-07T00:02:59+00:00") == both
    assert period("2026-11-06T15:57:01+00:00", "2026-11-06T15:57:59+00:00") == "6 Nov 2026, 15:57 UTC"


def test_numbers_are_told_in_the_unit_that_fits() -> None:
    told = {0: "0 ms", 0.0994: "99 ms", 0.1: "0.10 s", 9.994: "9.99 s", 119.9: "119.9 s", 120: "2.0 min", 7200: "2.0 h"}
    assert {seconds: duration(seconds) for seconds in told} == told
    sizes = {0: "0 B", 999: "999 B", 1000: "1 kB", 12_345: "12.3 kB", 1_500_000: "1.5 MB", 5 * 10**12: "5 TB"}
    assert {count: size(count) for count in sizes} == sizes


# What was opened.
def test_what_was_opened_to_this_party_is_told(run: Run) -> None:
    assert "31.4062" in run.text
    rows = re.findall(r'<th scope="row">cluster (\d)</th>.*?<td class="n">(\d)</td>', run.page)
    assert [(int(number), int(count)) for number, count in rows] == list(enumerate(np.bincount(LABELS)))
    for what in ("cluster of every row", "centroids of its own columns", "inertia: the sum"):
        assert re.search(rf"{what}[^<]*</th><td[^>]*>payco, shop</td>", run.page)
    assert "one bit all after each iteration: 4 times" in run.text
    assert "Nothing else left payco unmasked." in run.text
    assert "[c], to be opened" in run.text


@pytest.mark.parametrize("reveal", [{}, {name: ["shop"] for name in ALL}], ids=["to nobody", "to the other"])
def test_what_was_not_opened_to_this_party_is_not_there(tmp_path: Path, reveal: Mapping[str, Any]) -> None:
    run = shown(make_run(tmp_path, {**VERTICAL, "reveal": reveal}))
    assert "Rows of each cluster" not in run.text
    assert "Inertia, the sum" not in run.text
    assert ("cluster of every row shop" in run.text) == bool(reveal)
    assert not re.search(r"<th[^>]*>cluster of every row</th><td[^>]*>[^<]*payco", run.page)


def test_sizes_are_not_told_from_a_file_that_no_opening_wrote(tmp_path: Path) -> None:
    config = make_run(tmp_path, {**VERTICAL, "reveal": {}})
    pa.parquet.write_table(pa.table({"id": [1, 2], "cluster": [0, 1]}), config.run_folder / "assignments.parquet")
    assert "Rows of each cluster" not in shown(config).text


def test_a_later_opening_is_told_beside_the_first(tmp_path: Path) -> None:
    config = make_run(tmp_path, {**VERTICAL, "reveal": {"centroids": ["shop"]}})
    later = RevealConfig(assignments=("shop",), centroids=("payco",), columns="all")
    report = RunReport(config.run_folder)
    for _ in range(2):
        report.add_opening(later.model_dump(mode="json"))
    page = shown(config).page
    assert page.count("centroids of its own columns") == page.count("with them the name and scale of each column") == 1
    assert page.count('rowheader" scope="row">cluster of every row</th>') == 1


def test_statistics_of_all_rows_are_told_as_opened(tmp_path: Path) -> None:
    text = shown(make_run(tmp_path, JOBS["moments, he"])).text
    assert "mean and deviation of each column, over all rows all before the first iteration" in text
    assert "each can tell the other’s sums" in text
    assert "cluster of its own rows" in text
    assert "a public key all offline" in text


def test_without_a_tolerance_no_bit_was_opened(tmp_path: Path) -> None:
    text = shown(make_run(tmp_path, {**VERTICAL, "tol": 0})).text
    assert "one bit all" not in text
    assert "tol is 0: no bit was opened" in text


def test_the_stop_bit_is_all_that_is_told_of_convergence(run: Run) -> None:
    bits = re.findall(r"<li[^>]*>(\d+)<b>([^<]*)</b></li>", run.page)
    assert bits == [("1", "go on"), ("2", "go on"), ("3", "go on"), ("4", "stop")]
    assert "never opened to anybody" in run.text


# Runs that are not whole, or old.
def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    text = shown(make_run(tmp_path, finished=False)).text
    assert "not finished" in text
    assert "So far 4 of at most 9 iterations are done" in text
    assert "Inertia, the sum" not in text
    assert "cluster of every row" not in text


def test_a_run_that_waits_for_a_farewell_is_complete_here(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    (config.run_folder / "farewell").unlink()
    assert "complete here" in shown(config).text


def test_a_run_that_has_not_begun_is_one_sentence(tmp_path: Path) -> None:
    config = configured(tmp_path, VERTICAL)
    with pytest.raises(StorageError, match="run 'test' of payco has not begun: there is nothing to report yet"):
        write_report(config)
    assert not config.run_folder.exists()


def test_another_configuration_than_the_run_s_is_refused(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    other = config.model_copy(update={"kmeans": config.required_kmeans.model_copy(update={"tol": 0.5})})
    with pytest.raises(ConfigError, match="the configuration has changed since run 'test'"):
        write_report(other)


def test_a_report_json_of_before_is_read(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    file = config.run_folder / "report.json"
    old = {
        name: value
        for name, value in json.loads(file.read_text()).items()
        if name in ("seconds", "iterations", "stages")
    }
    file.write_text(json.dumps(old))
    (config.offline().run_folder / "report.json").unlink()
    run = shown(config)
    check_page(run.page)
    assert "Offline time – not recorded" in run.text
    assert "Not recorded in this run." in run.text
    assert re.search(r"cluster of every row</th><td[^>]*>payco, shop</td><td[^>]*>at the end</td>", run.page)


def test_restarts_and_repeated_pipelines_are_counted(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    report = RunReport(config.run_folder)
    before = (config.run_folder / "report.json").read_bytes()
    report.begin(config)
    assert (config.run_folder / "report.json").read_bytes() == before
    other = RunReport(config.run_folder)
    other.repeat()
    report.end()
    text = shown(config).text
    assert "started 2 times" in text
    assert "pipelines run again: 1" in text
    assert report.content["software"]["runner"] == "DirectRunner"


def test_steps_that_a_job_does_not_have_are_not_drawn(tmp_path: Path) -> None:
    """As where rows are assigned to centroids that are there already."""
    seen = ("operand.00.operand", "distance.00.cross", "assign.00.pair", "reveal-assignments-ab.00.assignments")
    run = shown(make_run(tmp_path, stages=seen))
    check_page(run.page)
    drawn = re.findall(r'<text class="name"[^>]*>([^<]+)</text>', run.page)
    assert drawn == [step_of(stage) for stage in seen] * 2


def test_what_comes_after_an_absent_step_comes_after_those_before_it(run: Run) -> None:
    steps = steps_of(kmeans_steps(run.config))
    kept = present(steps, dict.fromkeys(("operand", "distance", "finish")))
    assert [(step.name, step.after) for step in kept] == [
        ("operand", ()),
        ("distance", ("operand",)),
        ("finish", ("distance",)),
    ]


# What a configuration may hold.
HOSTILE = '</pre><script>alert("x")</script>&amp;\'{{ config.seed }}'


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    job = {**VERTICAL, "columns": [HOSTILE, "b"], "id": HOSTILE, "data": f"/tmp/{HOSTILE}"}
    run = shown(make_run(tmp_path, job, engine={"runner": HOSTILE}))
    check_page(run.page)
    assert "&lt;script&gt;" in run.page
    assert ".seed" not in run.page.replace("payco.seed", "").replace("config.seed", "")


def test_the_configuration_tells_nothing_of_the_machine_or_the_data(tmp_path: Path) -> None:
    job = {
        **VERTICAL,
        "categories": {"country": ["SECRET-A", "SECRET-B"]},
        "normalise": {"ranges": {"amount": [0, SECRET]}},
        "data": "gs://bucket/data.parquet",
    }
    options = ("--s3_secret_access_key=SECRET", "--job_endpoint", "SECRET:8099")
    run = shown(make_run(tmp_path, job, engine={"options": options}))
    check_silent(run)
    assert "country: 2 categories" in run.page
    assert "gs://bucket/data.parquet" in run.page
    assert "--s3_secret_access_key=…" in run.page


def test_paths_are_relative_to_the_configuration_or_names(tmp_path: Path) -> None:
    config = configured(tmp_path, VERTICAL)
    inside, alone = redacted_config(config, tmp_path), redacted_config(config)
    assert "key: payco/payco.key\n" in inside
    assert "key: payco.key\n" in alone
    assert str(tmp_path) not in inside + alone


def test_fingerprints_are_everyone_s_and_a_lost_certificate_is_no_obstacle(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    config.peers["shop"].certificate.unlink()
    page = shown(config).page
    assert len(re.findall(r">[0-9a-f]{4}(?::[0-9a-f]{4}){7}<", page)) == 2
    assert "cannot be read" in page


# How it looks.
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


def test_a_prediction_tells_its_model_and_nothing_of_iterations(tmp_path: Path) -> None:
    job = {**VERTICAL, "predict": {"model": "october-model"}, "reveal": {"assignments": BOTH}}
    config = make_run(tmp_path, job)
    run = Run(config, write_report(config).read_text())
    assert "New rows in the clusters of october-model with shop" in run.text
    assert not re.search("Iterations|Convergence|of at most|one bit|quotient", run.text)
    assert {"distance", "assign", "reveal-assignments"} <= set(run.text.split())
