"""The configuration in the report: nothing of the machine or the data, and hostile names are only text."""

from pathlib import Path

from support.report_page import check_page
from support.reported_run import SECRET, VERTICAL, job_config, make_run, write_page
from veilmeans.pipelines.reporting.redacted_config import redacted_config

HOSTILE = '</pre><script>alert("x")</script>&amp;\'{{ config.seed }}'


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    job = {**VERTICAL, "columns": [HOSTILE, "b"], "id": HOSTILE, "data": f"/tmp/{HOSTILE}"}
    run = write_page(make_run(tmp_path, job, beam={"runner": HOSTILE}))
    check_page(run.page)
    assert "&lt;script&gt;" in run.page
    assert ".seed" not in run.page.replace("payco.seed", "").replace("config.seed", "")


def test_the_configuration_shows_nothing_of_the_machine_or_the_data(tmp_path: Path) -> None:
    job = {
        **VERTICAL,
        "categories": {"country": ["SECRET-A", "SECRET-B"]},
        "normalise": {"ranges": {"amount": [0, SECRET]}},
        "data": "gs://bucket/data.parquet",
    }
    options = ("--s3_secret_access_key=SECRET", "--job_endpoint", "SECRET:8099")
    run = write_page(make_run(tmp_path, job, beam={"options": options}))
    run.check_silent()
    for part in ("country: 2 categories", "gs://bucket/data.parquet", "--s3_secret_access_key=…"):
        assert part in run.page


def test_paths_are_relative_to_the_configuration_or_only_names(tmp_path: Path) -> None:
    config = job_config(tmp_path, VERTICAL)
    inside, alone = redacted_config(config, tmp_path), redacted_config(config)
    assert "key: payco/payco.key\n" in inside
    assert "key: payco.key\n" in alone
    assert str(tmp_path) not in inside + alone
